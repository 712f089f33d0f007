"""Leases, results and cancellation on a real Postgres: the token is the fence, and final is final."""

from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from fleet.operations import schedules
from fleet.store import executions, ticks
from fleet.store.connection import Connection, rows
from fleet.store.executions import Finish, Leased
from support.make import WINDOW, Make
from support.tiling import assert_tiled


async def emitted(make: Make, count: int = 1, **fields: Any) -> UUID:
    """A schedule with that many executions waiting."""
    id_ = await make.schedule(**{"overlap": "allow", **fields})
    await make.age(id_, 10 * count)
    assert (await ticks.emit(make.db, grace=60, batch=100)).executions == count
    return id_


async def lease(db: Connection, token: UUID | None = None, worker: str = "w", limit: int = 100) -> list[Leased]:
    return await executions.lease(db, worker=worker, token=token or uuid4(), limit=limit, seconds=15)


async def finish(db: Connection, *leased: Leased, token: UUID, **fields: Any) -> set[UUID]:
    result = {
        "status": "delivered",
        "outcome": "delivered",
        "error": None,
        "status_code": 200,
        "retry_in": None,
        **fields,
    }
    return await executions.finish(db, [Finish(id=one.id, token=token, **result) for one in leased])


async def row_of(db: Connection, execution_id: UUID) -> dict[str, Any]:
    [row] = await rows(db, "SELECT * FROM executions WHERE id = %(id)s", {"id": execution_id})
    return row


async def outcomes(db: Connection, execution_id: UUID) -> list[tuple[int, str]]:
    return [(row["attempt"], row["outcome"]) for row in await executions.attempts_of(db, execution_id)]


BROKEN = {"status": "emitted", "outcome": "broken", "error": "503", "status_code": 503, "retry_in": 60.0}


# Leasing.


async def test_a_lease_takes_no_more_than_asked_and_the_oldest_first(make: Make) -> None:
    await emitted(make, 5)
    first = await lease(make.db, limit=2)
    rest = await lease(make.db, limit=10)
    assert (len(first), len(rest)) == (2, 3)
    assert max(one.scheduled_at for one in first) < min(one.scheduled_at for one in rest)
    assert await lease(make.db) == []


async def test_a_lease_says_everything_that_delivery_needs(make: Make) -> None:
    id_ = await emitted(make, payload={"a": 1}, timeout_seconds=5, lease_seconds=7, backoff_seconds=[1.0, 2.0])
    token = uuid4()
    [one] = await lease(make.db, token)
    assert (one.schedule_id, one.schedule, one.workspace_id, one.scope) == (id_, "s", "system", "")
    assert (one.attempt, one.timeout, one.lease, one.backoff) == (1, 5.0, 7.0, [1.0, 2.0])
    assert (one.delivery, one.max_attempts, one.payload) == ("at-least-once", 4, '{"a": 1}')
    assert '"url"' in one.target
    row = await row_of(make.db, one.id)
    assert (row["status"], row["lease_token"], row["leased_by"]) == ("in_progress", token, "w")
    assert 6.9 < (row["leased_until"] - row["leased_at"]).total_seconds() < 7.1
    assert row["started_at"] is not None


async def test_what_is_not_due_is_not_leased(make: Make) -> None:
    await emitted(make)
    await make.db.execute("UPDATE executions SET next_attempt_at = now() + interval '1 minute'")
    assert await lease(make.db) == []


async def test_in_a_queue_only_the_head_may_go(make: Make) -> None:
    await emitted(make, 3, overlap="queue")
    seen = []
    for _ in range(3):
        token = uuid4()
        [head] = await lease(make.db, token)
        assert await lease(make.db) == []
        seen.append(head.scheduled_at)
        await finish(make.db, head, token=token)
    assert seen == sorted(seen)


async def test_a_queues_head_that_waits_for_its_retry_holds_the_others_back(make: Make) -> None:
    await emitted(make, 2, overlap="queue")
    token = uuid4()
    [head] = await lease(make.db, token)
    await finish(make.db, head, token=token, **BROKEN)
    assert await lease(make.db) == []
    await make.db.execute("UPDATE executions SET next_attempt_at = now()")
    [again] = await lease(make.db)
    assert again.id == head.id


async def test_an_earlier_tick_holds_the_queue_back(make: Make) -> None:
    await emitted(make, 2, overlap="queue")
    await make.db.execute(
        "WITH first AS (DELETE FROM executions WHERE n = 1 RETURNING *)"
        " INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)"
        " SELECT schedule_id, scope, scheduled_at, execute_at, n, id FROM first"
    )
    assert await lease(make.db) == []
    await ticks.emit(make.db, grace=60, batch=100)
    [head] = await lease(make.db)
    assert (await row_of(make.db, head.id))["n"] == 1


async def test_a_dispatcher_takes_its_shard_and_whatever_is_overdue(make: Make) -> None:
    for i in range(12):
        await emitted(make, name=f"s{i}", max_runs=1)
    sharding = {"worker": "w", "limit": 100, "seconds": 15, "shard": 0, "shards": 3}
    own = await executions.lease(make.db, token=uuid4(), shard_grace=3600, **sharding)  # type: ignore[arg-type]
    assert 0 < len(own) < 12
    foreign = await executions.lease(make.db, token=uuid4(), shard_grace=0, **sharding)  # type: ignore[arg-type]
    assert len(own) + len(foreign) == 12


async def test_a_lease_whose_answer_was_lost_is_undone_and_spends_no_attempt(make: Make) -> None:
    await emitted(make, 2)
    lost, held = uuid4(), uuid4()
    [one] = await lease(make.db, lost, limit=1)
    [two] = await lease(make.db, held)
    assert await executions.untake(make.db, "w", [lost]) == 1
    assert (await row_of(make.db, one.id))["attempt"] == 0
    assert (await row_of(make.db, two.id))["status"] == "in_progress"
    [again] = await lease(make.db)
    assert (again.id, again.attempt) == (one.id, 1)


# Heartbeats and results.


async def test_a_heartbeat_renews_only_with_the_token(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    before = (await row_of(make.db, one.id))["leased_until"]
    assert await executions.heartbeat(make.db, [(one.id, uuid4(), 100.0)]) == set()
    assert (await row_of(make.db, one.id))["leased_until"] == before
    assert await executions.heartbeat(make.db, [(one.id, token, 100.0)]) == {one.id}
    assert (await row_of(make.db, one.id))["leased_until"] > before


async def test_a_result_with_another_token_changes_nothing(make: Make) -> None:
    await emitted(make)
    [one] = await lease(make.db)
    before = await row_of(make.db, one.id)
    assert await finish(make.db, one, token=uuid4()) == set()
    assert await row_of(make.db, one.id) == before
    assert await outcomes(make.db, one.id) == []


async def test_a_batch_of_results_is_judged_row_by_row(make: Make) -> None:
    await emitted(make, 3)
    token = uuid4()
    held = await lease(make.db, token)
    results = [
        Finish(held[0].id, token, "delivered", "delivered", None, 200, None),
        Finish(held[1].id, uuid4(), "delivered", "delivered", None, 200, None),
        Finish(held[2].id, token, "failed", "refused", "404", 404, None),
    ]
    assert await executions.finish(make.db, results) == {held[0].id, held[2].id}
    assert [(await row_of(make.db, one.id))["status"] for one in held] == ["delivered", "in_progress", "failed"]
    failed = await row_of(make.db, held[2].id)
    assert (failed["error"], failed["lease_token"], failed["leased_until"]) == ("404", None, None)
    assert failed["finished_at"] is not None
    [attempt] = await executions.attempts_of(make.db, held[2].id)
    assert (attempt["attempt"], attempt["worker_id"], attempt["status_code"]) == (1, "w", 404)
    assert attempt["started_at"] <= attempt["finished_at"]


async def test_a_result_written_twice_is_written_once(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    assert await finish(make.db, one, token=token) == {one.id}
    assert await finish(make.db, one, token=token, status="failed") == set()
    assert await outcomes(make.db, one.id) == [(1, "delivered")]


async def test_the_time_of_a_retry_is_a_column(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    await finish(make.db, one, token=token, **BROKEN)
    row = await row_of(make.db, one.id)
    assert (row["status"], row["attempt"], row["error"], row["finished_at"]) == ("emitted", 1, "503", None)
    away = await make.one("SELECT date_part('epoch', next_attempt_at - clock_timestamp()) FROM executions")
    assert 50 < away <= 60
    assert await lease(make.db) == []
    await make.db.execute("UPDATE executions SET next_attempt_at = now()")
    [again] = await lease(make.db)
    assert again.attempt == 2
    assert (await row_of(make.db, one.id))["started_at"] == row["started_at"], "of the first attempt"


async def test_work_handed_back_spends_no_attempt_and_its_number_is_used_again(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    back = {"status": "emitted", "outcome": "handed_back", "status_code": None, "retry_in": 0.0, "spent": False}
    assert await finish(make.db, one, token=token, **back) == {one.id}
    assert (await row_of(make.db, one.id))["attempt"] == 0
    assert await outcomes(make.db, one.id) == [(1, "handed_back")]
    [again] = await lease(make.db, token, worker="other")
    assert again.attempt == 1
    await finish(make.db, again, token=token)
    [attempt] = await executions.attempts_of(make.db, one.id)
    assert (attempt["outcome"], attempt["worker_id"]) == ("delivered", "other")


async def test_after_an_unknown_commit_the_worker_learns_whether_its_result_was_written(make: Make) -> None:
    await emitted(make, 2)
    token = uuid4()
    one, two = await lease(make.db, token)
    await finish(make.db, one, token=token)
    asked = [(one.id, 1), (two.id, 1)]
    assert await executions.recorded(make.db, "w", asked) == {one.id}
    assert await executions.recorded(make.db, "other", asked) == set()


async def test_a_lost_attempt_is_not_taken_for_a_written_result(make: Make) -> None:
    await emitted(make, 2)
    one, two = await lease(make.db)
    await executions.cancel(make.db, [two.id], "enough")
    await make.expire_leases()
    await executions.expire_leases(make.db, 100)
    assert await outcomes(make.db, one.id) == [(1, "lost")]
    assert await executions.recorded(make.db, "w", [(one.id, 1), (two.id, 1)]) == set()


# Leases that ran out.


async def test_a_lease_that_ran_out_is_emitted_again_and_the_late_result_is_refused(make: Make) -> None:
    await emitted(make)
    stale = uuid4()
    [one] = await lease(make.db, stale)
    assert await executions.expire_leases(make.db, 100) == [], "not yet"
    assert 0 < (await executions.seconds_to_next_expiry(make.db) or 0) <= 15
    await make.expire_leases()
    assert await executions.expire_leases(make.db, 100) == [(one.id, "emitted", "w")]
    assert await executions.seconds_to_next_expiry(make.db) is None
    assert await outcomes(make.db, one.id) == [(1, "lost")]
    fresh = uuid4()
    [again] = await lease(make.db, fresh)
    assert (again.id, again.attempt) == (one.id, 2)
    assert await finish(make.db, one, token=stale) == set()
    assert await executions.heartbeat(make.db, [(one.id, stale, 60.0)]) == set()
    assert await finish(make.db, again, token=fresh) == {one.id}
    assert await outcomes(make.db, one.id) == [(1, "lost"), (2, "delivered")]


@pytest.mark.parametrize("fields", [{"max_attempts": 1}, {"delivery": "at-most-once"}])
async def test_a_lost_lease_fails_what_may_not_be_sent_again(make: Make, fields: dict[str, Any]) -> None:
    await emitted(make, **fields)
    [one] = await lease(make.db)
    await make.expire_leases()
    assert await executions.expire_leases(make.db, 100) == [(one.id, "failed", "w")]
    row = await row_of(make.db, one.id)
    assert row["finished_at"] is not None
    assert row["error"].startswith("lost")
    assert await lease(make.db) == []


async def test_a_lost_lease_of_work_once_handed_back_keeps_its_history(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    back = {"status": "emitted", "outcome": "handed_back", "status_code": None, "retry_in": 0.0, "spent": False}
    await finish(make.db, one, token=token, **back)
    await lease(make.db, token, worker="dead")
    await make.expire_leases()
    await executions.expire_leases(make.db, 100)
    [attempt] = await executions.attempts_of(make.db, one.id)
    assert (attempt["attempt"], attempt["outcome"], attempt["worker_id"]) == (1, "lost", "dead")


# Cancelling; final is final.


async def test_cancelling_what_waits_and_what_is_in_flight(make: Make) -> None:
    await emitted(make, 2)
    token = uuid4()
    [flying] = await lease(make.db, token, limit=1)
    ids = [row["id"] for row in await make.all("executions")]
    assert set(await executions.cancel(make.db, ids, "enough")) == set(ids)
    assert {row["status"] for row in await make.all("executions")} == {"cancelled"}
    assert await outcomes(make.db, flying.id) == [(1, "cancelled")]
    assert len(await make.all("attempts")) == 1, "what waited had no attempt"
    assert await finish(make.db, flying, token=token) == set()
    assert await executions.cancel(make.db, ids, "again") == []


async def test_a_worker_is_told_of_the_cancellation(make: Make, other: Connection) -> None:
    await emitted(make)
    [one] = await lease(make.db)
    await other.execute("LISTEN fleet_cancelled")
    await executions.cancel(make.db, [one.id], "enough")
    async for note in other.notifies(timeout=10, stop_after=1):
        assert note.payload == str(one.id)
        return
    raise AssertionError("no notification came")


@pytest.mark.parametrize("status", ["delivered", "failed", "cancelled"])
async def test_a_final_status_never_changes(make: Make, status: str) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    await finish(make.db, one, token=token, status=status)
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot change"):
        await make.db.execute("UPDATE executions SET status = 'emitted', finished_at = NULL")
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot change"):
        await make.db.execute("UPDATE executions SET error = 'x'")


async def test_deleting_lets_what_is_in_flight_finish(make: Make) -> None:
    id_ = await emitted(make, 2)
    token = uuid4()
    [flying] = await lease(make.db, token, limit=1)
    await schedules.delete(make.db, "system", "s")
    assert await finish(make.db, flying, token=token) == {flying.id}
    assert sorted(row["status"] for row in await make.all("executions", id_)) == ["cancelled", "delivered"]
    await assert_tiled(make.db, id_)


# Executions that no tick made.


@pytest.mark.parametrize(("overlap", "second"), [("skip", False), ("queue", True), ("allow", True)])
async def test_overlap_holds_for_executions_made_by_hand(make: Make, overlap: str, second: bool) -> None:
    id_ = await make.schedule(overlap=overlap)
    one = await executions.create(make.db, id_, "trigger-1")
    two = await executions.create(make.db, id_, "trigger-2")
    assert one is not None
    assert (two is not None) == second


async def test_a_trigger_under_skip_takes_the_slot_of_the_next_planned_time(make: Make) -> None:
    id_ = await make.schedule(max_runs=5)
    await executions.create(make.db, id_, "trigger-1")
    await make.age(id_, 10)
    done = await ticks.emit(make.db, grace=60, batch=100)
    assert (done.executions, done.skipped) == (0, 1)
    await assert_tiled(make.db, id_)


async def test_a_trigger_in_a_queue_goes_behind_what_waits(make: Make) -> None:
    id_ = await emitted(make, 1, overlap="queue")
    await executions.create(make.db, id_, "trigger-1")
    token = uuid4()
    [head] = await lease(make.db, token)
    assert (await row_of(make.db, head.id))["n"] == 1
    await finish(make.db, head, token=token)
    [second] = await lease(make.db)
    assert (await row_of(make.db, second.id))["run"] == "trigger-1"


async def test_a_trigger_never_takes_a_planned_times_place_in_the_queue(make: Make) -> None:
    id_ = await emitted(make, 1, overlap="queue")
    await executions.create(make.db, id_, "trigger-1")
    slots = {row["run"]: row["slot"] for row in await make.all("executions", id_)}
    assert slots[""] % 1000 == 0
    assert slots["trigger-1"] % 2 == 1


async def test_the_same_run_is_made_once(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    at = await make.one("SELECT date_trunc('milliseconds', clock_timestamp())")
    assert await executions.create(make.db, id_, "retry-1", scheduled_at=at) is not None
    assert await executions.create(make.db, id_, "retry-1", scheduled_at=at) is None


async def test_nothing_is_made_of_a_deleted_schedule(make: Make) -> None:
    id_ = await make.schedule()
    await schedules.delete(make.db, "system", "s")
    assert await executions.create(make.db, id_, "trigger-1") is None


async def test_executions_that_exist_finish_though_their_schedule_is_paused(make: Make) -> None:
    await emitted(make, 1)
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    token = uuid4()
    [one] = await lease(make.db, token)
    await finish(make.db, one, token=token, **BROKEN)
    await make.db.execute("UPDATE executions SET next_attempt_at = now()")
    assert len(await lease(make.db)) == 1
