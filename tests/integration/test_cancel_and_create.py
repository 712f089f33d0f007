"""Executions that people end or make by hand: final is final, and overlap holds."""

from uuid import uuid4

import psycopg
import pytest

from fleet.operations import schedules
from fleet.store import executions, ticks
from fleet.store.connection import Connection
from support.make import WINDOW, Make
from support.steps import BROKEN, emitted, finish, lease, outcomes, row_of
from support.tiling import assert_tiled

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
