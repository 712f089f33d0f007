"""Dispatchers, reconcilers and cancellation on the same execution: two sessions, one of them held half-way."""

import asyncio
import time
from typing import Any
from uuid import UUID, uuid4

import pytest

from fleet.operations import executions as operations
from fleet.operations import schedules
from fleet.store import executions, ticks
from fleet.store.connection import Connection, rows
from fleet.store.executions import Finish, Leased
from support.make import WINDOW, Make
from support.races import DEADLINE, start_and_block
from support.tiling import assert_all_tiled

ENDS = ["COMMIT", "ROLLBACK"]


async def emitted(make: Make, count: int = 1, **fields: Any) -> UUID:
    id_ = await make.schedule(**{"overlap": "allow", **fields})
    await make.age(id_, 10 * count)
    assert (await ticks.emit(make.db, grace=60, batch=100)).executions == count
    return id_


async def lease(db: Connection, token: UUID, limit: int = 100) -> list[Leased]:
    return await executions.lease(db, worker=f"of {token}", token=token, limit=limit, seconds=15)


async def deliver(db: Connection, one: Leased, token: UUID) -> set[UUID]:
    return await executions.finish(db, [Finish(one.id, token, "delivered", "delivered", None, 200, None)])


async def end_with(db: Connection, end: str) -> None:
    await db.execute(end)  # type: ignore[call-overload]


async def the(db: Connection) -> dict[str, Any]:
    """The only execution there is."""
    [row] = await rows(db, "SELECT * FROM executions")
    return row


async def outcomes(db: Connection) -> list[tuple[int, str]]:
    found = await rows(db, "SELECT attempt, outcome FROM attempts ORDER BY attempt")
    return [(row["attempt"], row["outcome"]) for row in found]


async def lost_lease(make: Make, **fields: Any) -> tuple[Leased, UUID]:
    """An execution whose lease ran out; nobody has noticed yet."""
    await emitted(make, **fields)
    token = uuid4()
    [one] = await lease(make.db, token)
    await make.expire_leases()
    return one, token


async def until_it_looked_for_executions(watch: Connection, session: Connection) -> None:
    """Wait until a change of a schedule has come as far as its executions."""
    deadline = time.monotonic() + DEADLINE
    looked = "SELECT query LIKE '%%FROM executions%%' AS yes FROM pg_stat_activity WHERE pid = %(pid)s"
    while not (await rows(watch, looked, {"pid": session.info.backend_pid}))[0]["yes"]:
        assert time.monotonic() < deadline, "it never came to the executions"
        await asyncio.sleep(0)


# Lease × lease.


@pytest.mark.parametrize("end", ENDS)
async def test_two_dispatchers_never_lease_the_same(make: Make, other: Connection, end: str) -> None:
    await emitted(make, 3)
    mine, theirs = uuid4(), uuid4()
    await make.db.execute("BEGIN")
    first = await lease(make.db, mine, limit=2)
    second = await lease(other, theirs)
    assert (len(first), len(second)) == (2, 1)
    assert not {one.id for one in first} & {one.id for one in second}
    await end_with(make.db, end)
    assert len(await lease(other, theirs)) == (0 if end == "COMMIT" else 2)
    assert await make.one("SELECT max(attempt) FROM executions") == 1


@pytest.mark.parametrize("end", ENDS)
async def test_two_dispatchers_never_lease_two_of_a_queue(make: Make, other: Connection, end: str) -> None:
    await emitted(make, 3, overlap="queue")
    await make.db.execute("BEGIN")
    assert len(await lease(make.db, uuid4())) == 1
    assert await lease(other, uuid4()) == [], "the head is held: nobody overtakes it"
    await end_with(make.db, end)
    assert len(await lease(other, uuid4())) == (0 if end == "COMMIT" else 1)
    assert await make.one("SELECT count(*) FROM executions WHERE status = 'in_progress'") == 1


@pytest.mark.parametrize("end", ENDS)
async def test_a_queues_head_still_in_a_tickers_hands_is_not_overtaken(make: Make, other: Connection, end: str) -> None:
    id_ = await make.schedule(overlap="queue")
    await make.age(id_, 20)
    await make.db.execute("BEGIN")
    await ticks.emit(make.db, grace=60, batch=1)
    assert (await ticks.emit(other, grace=60, batch=1)).executions == 1
    assert await lease(other, uuid4()) == []
    await end_with(make.db, end)
    if end == "ROLLBACK":
        assert await lease(other, uuid4()) == []
        await ticks.emit(make.db, grace=60, batch=1)
    [head] = await lease(other, uuid4())
    assert await make.one("SELECT n FROM executions WHERE id = %(id)s", id=head.id) == 1
    await assert_all_tiled(make.db)


# Lease × cancel, pause, delete.


@pytest.mark.parametrize("end", ENDS)
async def test_a_dispatcher_passes_by_what_is_being_cancelled(make: Make, other: Connection, end: str) -> None:
    await emitted(make)
    await make.db.execute("BEGIN")
    await executions.cancel(make.db, [(await the(make.db))["id"]], "enough")
    assert await lease(other, uuid4()) == []
    await end_with(make.db, end)
    assert len(await lease(other, uuid4())) == (0 if end == "COMMIT" else 1)


@pytest.mark.parametrize("end", ENDS)
async def test_cancelling_one_execution_waits_for_the_lease_that_is_being_taken(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    await emitted(make)
    id_ = (await the(make.db))["id"]
    token = uuid4()
    await make.db.execute("BEGIN")
    [one] = await lease(make.db, token)
    waiting = await start_and_block(watch, other, operations.cancel(other, "system", str(id_)))
    await end_with(make.db, end)
    assert await waiting == id_
    assert (await the(make.db))["status"] == "cancelled"
    assert await outcomes(make.db) == ([(1, "cancelled")] if end == "COMMIT" else [])
    assert await deliver(make.db, one, token) == set()


@pytest.mark.parametrize("end", ENDS)
async def test_pausing_neither_waits_for_nor_touches_a_lease(make: Make, other: Connection, end: str) -> None:
    id_ = await emitted(make)
    await make.db.execute("BEGIN")
    [one] = await lease(make.db, uuid4())
    await schedules.pause(other, "system", "s", None, WINDOW)
    await end_with(make.db, end)
    row = await the(make.db)
    assert (row["id"], row["status"]) == (one.id, "in_progress" if end == "COMMIT" else "emitted")
    assert await make.planned(id_) == []
    await assert_all_tiled(make.db)


@pytest.mark.parametrize("end", ENDS)
async def test_an_execution_leased_while_its_schedule_is_deleted_finishes_or_is_cancelled(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    await emitted(make)
    token = uuid4()
    await make.db.execute("BEGIN")
    [one] = await lease(make.db, token)
    waiting = asyncio.ensure_future(schedules.delete(other, "system", "s"))
    await until_it_looked_for_executions(watch, other)
    await end_with(make.db, end)
    await waiting
    assert (await the(make.db))["status"] == ("in_progress" if end == "COMMIT" else "cancelled")
    assert await deliver(make.db, one, token) == ({one.id} if end == "COMMIT" else set())
    await assert_all_tiled(make.db)


@pytest.mark.parametrize("end", ENDS)
async def test_cancelling_a_schedule_gets_what_was_being_leased(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    await emitted(make, 2)
    token = uuid4()
    await make.db.execute("BEGIN")
    [one] = await lease(make.db, token, limit=1)
    waiting = asyncio.ensure_future(schedules.cancel(other, "system", "s", WINDOW))
    await until_it_looked_for_executions(watch, other)
    await end_with(make.db, end)
    assert (await waiting)[1] == 2
    assert await deliver(make.db, one, token) == set()
    await assert_all_tiled(make.db)


# Finish and heartbeat × reconcile.


@pytest.mark.parametrize("end", ENDS)
async def test_a_reconciler_passes_by_what_is_being_finished(make: Make, other: Connection, end: str) -> None:
    one, token = await lost_lease(make)
    await make.db.execute("BEGIN")
    assert await deliver(make.db, one, token) == {one.id}
    assert await executions.expire_leases(other, 100) == []
    await end_with(make.db, end)
    back = await executions.expire_leases(other, 100)
    if end == "COMMIT":
        assert back == []
        assert ((await the(make.db))["status"], await outcomes(make.db)) == ("delivered", [(1, "delivered")])
    else:
        assert len(back) == 1
        assert ((await the(make.db))["status"], await outcomes(make.db)) == ("emitted", [(1, "lost")])


@pytest.mark.parametrize("end", ENDS)
async def test_a_result_waits_for_the_reconciler_and_is_refused_when_it_took_the_lease(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    one, token = await lost_lease(make)
    await other.execute("BEGIN")
    assert len(await executions.expire_leases(other, 100)) == 1
    waiting = await start_and_block(watch, make.db, deliver(make.db, one, token))
    await end_with(other, end)
    accepted = await waiting
    row = await the(make.db)
    if end == "COMMIT":
        assert (accepted, row["status"], await outcomes(make.db)) == (set(), "emitted", [(1, "lost")])
    else:
        assert (accepted, row["status"], await outcomes(make.db)) == ({one.id}, "delivered", [(1, "delivered")])


@pytest.mark.parametrize("end", ENDS)
async def test_a_late_result_never_touches_the_next_lease(make: Make, other: Connection, end: str) -> None:
    one, stale = await lost_lease(make)
    await executions.expire_leases(make.db, 100)
    fresh = uuid4()
    await other.execute("BEGIN")
    [again] = await lease(other, fresh)
    assert await deliver(make.db, one, stale) == set(), "before the commit there is no token at all"
    await end_with(other, end)
    assert await deliver(make.db, one, stale) == set()
    assert await deliver(make.db, again, fresh) == ({one.id} if end == "COMMIT" else set())
    assert await outcomes(make.db) == [(1, "lost"), (2, "delivered")][: 2 if end == "COMMIT" else 1]


@pytest.mark.parametrize("end", ENDS)
async def test_a_result_of_a_lease_that_is_taken_back_and_given_on_at_once_is_refused(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    one, stale = await lost_lease(make)
    fresh = uuid4()
    await other.execute("BEGIN")
    await executions.expire_leases(other, 100)
    await other.execute("UPDATE executions SET next_attempt_at = now()")
    assert len(await lease(other, fresh)) == 1
    waiting = await start_and_block(watch, make.db, deliver(make.db, one, stale))
    await end_with(other, end)
    assert await waiting == (set() if end == "COMMIT" else {one.id})
    assert (await the(make.db))["lease_token"] == (fresh if end == "COMMIT" else None)


@pytest.mark.parametrize("end", ENDS)
async def test_a_reconciler_passes_by_a_lease_that_is_being_renewed(make: Make, other: Connection, end: str) -> None:
    one, token = await lost_lease(make)
    await make.db.execute("BEGIN")
    assert await executions.heartbeat(make.db, [(one.id, token, 15.0)]) == {one.id}
    assert await executions.expire_leases(other, 100) == []
    await end_with(make.db, end)
    assert len(await executions.expire_leases(other, 100)) == (0 if end == "COMMIT" else 1)


@pytest.mark.parametrize("end", ENDS)
async def test_a_heartbeat_waits_for_the_reconciler_and_learns_what_it_did(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    one, token = await lost_lease(make)
    await other.execute("BEGIN")
    await executions.expire_leases(other, 100)
    waiting = await start_and_block(watch, make.db, executions.heartbeat(make.db, [(one.id, token, 15.0)]))
    await end_with(other, end)
    assert await waiting == (set() if end == "COMMIT" else {one.id})
    assert (await the(make.db))["status"] == ("emitted" if end == "COMMIT" else "in_progress")


async def test_a_heartbeat_and_the_results_of_the_same_rows_never_deadlock(
    make: Make, other: Connection, third: Connection, watch: Connection
) -> None:
    await emitted(make, 4)
    token = uuid4()
    held = await lease(make.db, token)
    await third.execute("BEGIN")
    await third.execute("SELECT FROM executions FOR UPDATE")
    results = [Finish(one.id, token, "delivered", "delivered", None, 200, None) for one in held]
    renewals = [(one.id, token, 15.0) for one in reversed(held)]
    finishing = await start_and_block(watch, make.db, executions.finish(make.db, results))
    renewing = await start_and_block(watch, other, executions.heartbeat(other, renewals))
    await third.execute("COMMIT")
    assert len(await finishing) == 4
    assert len(await renewing) in (0, 4)


@pytest.mark.parametrize("end", ENDS)
async def test_two_reconcilers_take_a_lease_back_once(make: Make, other: Connection, end: str) -> None:
    await lost_lease(make)
    await make.db.execute("BEGIN")
    assert len(await executions.expire_leases(make.db, 100)) == 1
    assert await executions.expire_leases(other, 100) == []
    await end_with(make.db, end)
    assert len(await executions.expire_leases(other, 100)) == (0 if end == "COMMIT" else 1)
    assert await outcomes(make.db) == [(1, "lost")]


@pytest.mark.parametrize("end", ENDS)
async def test_a_planned_time_waits_for_the_result_that_frees_the_slot(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    await emitted(make, overlap="skip")
    token = uuid4()
    [one] = await lease(make.db, token)
    await make.db.execute("UPDATE cron_ticks SET scheduled_at = now(), execute_at = now() WHERE n = 2")
    await make.db.execute("BEGIN")
    await deliver(make.db, one, token)
    waiting = await start_and_block(watch, other, ticks.emit(other, grace=60, batch=1))
    await end_with(make.db, end)
    done = await waiting
    assert (done.executions, done.skipped) == ((1, 0) if end == "COMMIT" else (0, 1))
