"""Adding, editing, pausing and deleting: what becomes of the ticks, in the same transaction."""

from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest

from fleet.errors import Conflict, NotFound, UsageError
from fleet.operations import schedules
from fleet.store import ticks, versions
from fleet.store.connection import Connection, rows
from support.make import WINDOW, Make
from support.tiling import assert_tiled, fates_of


async def state(db: Connection, schedule_id: UUID) -> dict[str, Any]:
    [row] = await rows(db, "SELECT * FROM cron_schedules WHERE id = %(id)s", {"id": schedule_id})
    return row


async def gaps(make: Make, schedule_id: UUID) -> list[tuple[int, int, str]]:
    return sorted((row["first_n"], row["last_n"], row["reason"]) for row in await make.all("gaps", schedule_id))


async def emit(make: Make) -> ticks.Emitted:
    return await ticks.emit(make.db, grace=60, batch=1000)


async def update(make: Make, **changes: Any) -> tuple[UUID, bool]:
    return await schedules.update(make.db, "system", "s", changes, WINDOW)


async def in_ms(make: Make, seconds: float) -> datetime:
    at: datetime = await make.one(
        "SELECT date_trunc('milliseconds', clock_timestamp()) + %(by)s * interval '1 second'", by=seconds
    )
    return at


# Adding.


async def test_adding_writes_the_window_at_once(make: Make) -> None:
    id_ = await make.schedule(interval_seconds=10)
    planned = await make.planned(id_)
    assert len(planned) == 6
    assert all((b - a).total_seconds() == 10 for a, b in pairwise(planned))
    await assert_tiled(make.db, id_)


async def test_a_name_is_taken_once_among_the_living(make: Make) -> None:
    await make.schedule()
    with pytest.raises(Conflict, match="'s' exists already"):
        await make.schedule()
    await make.schedule(workspace_id="other")
    await schedules.delete(make.db, "system", "s")
    await make.schedule()


async def test_a_refused_schedule_leaves_nothing_behind(make: Make) -> None:
    with pytest.raises(UsageError):
        await make.schedule(run_at=await in_ms(make, -3600))
    for table in ("cron_schedules", "schedule_versions", "cron_ticks"):
        assert await make.all(table) == []


async def test_a_time_a_moment_ago_still_runs(make: Make) -> None:
    id_ = await make.schedule(run_at=await in_ms(make, -1))
    assert (await emit(make)).executions == 1
    await assert_tiled(make.db, id_)


async def test_a_start_in_the_past_is_caught_up_like_any_missed_time(make: Make) -> None:
    id_ = await make.schedule(start_at=await in_ms(make, -605), catch_up="none")
    fates = await fates_of(make.db, id_)
    assert fates["gap catch_up"] in (55, 56)
    await assert_tiled(make.db, id_)


async def test_a_schedule_added_disabled_plans_nothing_until_it_is_resumed(make: Make) -> None:
    id_ = await make.schedule(enabled=False)
    assert await make.planned(id_) == []
    assert (await state(make.db, id_))["paused_at"] is not None
    await make.age(id_, 25)
    await schedules.resume(make.db, "system", "s", WINDOW)
    assert await gaps(make, id_) == [(1, 2, "paused")]
    assert len(await make.planned(id_)) == 6
    await assert_tiled(make.db, id_)


# Pausing and resuming.


@pytest.mark.parametrize("rule", [{"interval_seconds": 10}, {"cron_expression": "*/10 * * * * *"}])
async def test_pausing_removes_what_has_not_come_and_takes_its_numbers_back(make: Make, rule: dict[str, Any]) -> None:
    id_ = await make.schedule(overlap="allow", **rule)
    await make.age(id_, 20)
    await schedules.pause(make.db, "system", "s", "maintenance", WINDOW)
    row = await state(make.db, id_)
    assert (row["enabled"], row["note"], row["next_n"]) == (False, "maintenance", 3)
    assert await fates_of(make.db, id_) == {"tick": 2}, "what has come runs"
    await emit(make)
    assert await fates_of(make.db, id_) == {"execution": 2}
    await assert_tiled(make.db, id_)


async def test_pausing_after_a_sleep_judges_what_has_come_by_catch_up(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    await make.age(id_, 605)
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    await emit(make)
    fates = await fates_of(make.db, id_)
    assert set(fates) == {"gap catch_up", "execution"}
    assert fates["execution"] == 7, "six within grace, and the newest missed one"
    await assert_tiled(make.db, id_)


async def test_resuming_goes_on_on_the_grid_and_what_passed_is_a_gap(make: Make) -> None:
    id_ = await make.schedule()
    anchor = (await state(make.db, id_))["anchor_at"]
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    await make.age(id_, 95)
    await schedules.resume(make.db, "system", "s", WINDOW)
    assert await gaps(make, id_) == [(1, 9, "paused")]
    planned = await make.planned(id_)
    assert len(planned) == 6
    assert all((at - anchor - timedelta(seconds=95)) % timedelta(seconds=10) == timedelta(0) for at in planned)
    row = await state(make.db, id_)
    assert (row["enabled"], row["paused_at"]) == (True, None)
    await assert_tiled(make.db, id_)


async def test_a_jittered_tick_whose_planned_time_has_come_but_not_its_own_is_taken_back(make: Make) -> None:
    id_ = await make.schedule(interval_seconds=100, jitter_ms=90_000, window=schedules.Window(1000, 60))
    await make.db.execute("UPDATE cron_ticks SET execute_at = scheduled_at + interval '90 seconds'")
    await make.age(id_, 130)
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    assert await make.planned(id_) == []
    assert (await state(make.db, id_))["next_n"] == 1
    await schedules.resume(make.db, "system", "s", WINDOW)
    assert await gaps(make, id_) == [(1, 1, "paused")]
    await assert_tiled(make.db, id_)


async def test_a_number_that_was_used_out_of_order_becomes_a_gap(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    await make.db.execute("DELETE FROM cron_ticks WHERE n = 4")
    await make.db.execute(
        "INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, next_attempt_at)"
        " SELECT gen_random_uuid(), id, '', start_at + interval '30 seconds', 4, 'system', now(), now()"
        " FROM cron_schedules"
    )
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    assert (await state(make.db, id_))["next_n"] == 5, "the cursor goes back over the unbroken suffix only"
    assert await gaps(make, id_) == [(1, 3, "paused")]
    await assert_tiled(make.db, id_)


async def test_pausing_and_resuming_twice_changes_nothing(make: Make) -> None:
    id_ = await make.schedule()
    before = await make.planned(id_)
    await schedules.resume(make.db, "system", "s", WINDOW)
    assert await make.planned(id_) == before
    for note in ("one", None, "two"):
        await schedules.pause(make.db, "system", "s", note, WINDOW)
    row = await state(make.db, id_)
    assert (row["note"], row["next_n"], row["enabled"]) == ("two", 1, False)
    await assert_tiled(make.db, id_)


async def test_max_runs_holds_over_a_pause(make: Make) -> None:
    id_ = await make.schedule(max_runs=3, overlap="allow")
    await make.age(id_, 10)
    await emit(make)
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    assert not (await state(make.db, id_))["capped"]
    await make.age(id_, 35)
    await schedules.resume(make.db, "system", "s", WINDOW)
    assert await fates_of(make.db, id_) == {"execution": 1, "gap paused": 3, "tick": 2}
    await assert_tiled(make.db, id_)


# Editing.


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"interval_seconds": 10}, {"interval_seconds": 7}),
        ({"interval_seconds": 10}, {"cron_expression": "*/5 * * * * *"}),
        ({"cron_expression": "*/5 * * * * *"}, {"interval_seconds": 20}),
        ({"cron_expression": "*/5 * * * * *"}, {"cron_expression": "*/15 * * * * *"}),
        ({"interval_seconds": 10}, {"align": True}),
    ],
)
async def test_a_new_rule_begins_now_and_the_old_one_keeps_what_has_come(
    make: Make, before: dict[str, Any], after: dict[str, Any]
) -> None:
    id_ = await make.schedule(overlap="allow", **before)
    await make.age(id_, 30)
    due = await make.one("SELECT count(*) FROM cron_ticks WHERE execute_at <= clock_timestamp()")
    edited = await in_ms(make, 0)
    assert await update(make, **after) == (id_, True)
    planned = await make.planned(id_)
    assert [at <= edited for at in planned[:due]] == [True] * due
    assert all(at > edited for at in planned[due:])
    assert len(planned) > due
    assert (await state(make.db, id_))["version"] == 2
    await emit(make)
    await assert_tiled(make.db, id_)


async def test_an_edit_that_leaves_the_rule_alone_keeps_the_grid(make: Make) -> None:
    id_ = await make.schedule()
    before = await make.planned(id_)
    assert await update(make, payload={"a": 1}) == (id_, True)
    assert await make.planned(id_) == before
    assert await update(make, payload={"a": 1}) == (id_, False)
    versions = await make.all("schedule_versions", id_)
    assert [(v["version"], v["after_n"]) for v in versions] == [(1, 0), (2, 0)]
    assert await make.all("gaps", id_) == []
    await assert_tiled(make.db, id_)


async def test_an_edit_changes_the_jitter_of_the_ticks_that_exist(make: Make) -> None:
    id_ = await make.schedule()
    await update(make, jitter_ms=9_000)
    shifts = {row["execute_at"] - row["scheduled_at"] for row in await make.all("cron_ticks", id_)}
    assert len(shifts) > 1
    await assert_tiled(make.db, id_)


async def test_many_edits_tile(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    for seconds in (7, 11, 3, 60, 10):
        await make.age(id_, 20)
        await update(make, interval_seconds=seconds)
        await emit(make)
        await assert_tiled(make.db, id_)
    assert (await state(make.db, id_))["version"] == 6


async def test_editing_a_paused_schedule_plans_nothing(make: Make) -> None:
    id_ = await make.schedule()
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    await make.age(id_, 35)
    await update(make, interval_seconds=7)
    assert await make.planned(id_) == []
    assert await gaps(make, id_) == [(1, 3, "paused")]
    await make.age(id_, 20)
    await schedules.resume(make.db, "system", "s", WINDOW)
    await assert_tiled(make.db, id_)
    assert len(await make.planned(id_)) > 0


async def test_raising_max_runs_goes_on_from_now(make: Make) -> None:
    id_ = await make.schedule(max_runs=2, overlap="allow")
    await make.age(id_, 45)
    await emit(make)
    await update(make, max_runs=4)
    fates = await fates_of(make.db, id_)
    assert fates == {"execution": 2, "gap ended": 2, "tick": 2}
    await assert_tiled(make.db, id_)


@pytest.mark.parametrize("what", ["resume", "delete"])
async def test_times_after_the_last_run_have_ended_whatever_comes_then(make: Make, what: str) -> None:
    id_ = await make.schedule(max_runs=2, overlap="allow")
    await make.age(id_, 25)
    await emit(make)
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    await make.age(id_, 20)
    if what == "resume":
        await schedules.resume(make.db, "system", "s", WINDOW)
    else:
        await schedules.delete(make.db, "system", "s")
    assert await fates_of(make.db, id_) == {"execution": 2, "gap ended": 2}
    await assert_tiled(make.db, id_)


async def test_an_edit_that_would_never_run_is_refused_and_changes_nothing(make: Make) -> None:
    id_ = await make.schedule()
    before = await make.planned(id_)
    with pytest.raises(UsageError, match="never run"):
        await update(make, end_at=await in_ms(make, -3600))
    assert await make.planned(id_) == before
    assert (await state(make.db, id_))["version"] == 1


async def test_shortening_the_end_removes_the_ticks_behind_it(make: Make) -> None:
    id_ = await make.schedule()
    end = await in_ms(make, 25)
    await update(make, end_at=end)
    planned = await make.planned(id_)
    assert planned
    assert all(at <= end for at in planned)
    await assert_tiled(make.db, id_)


# Cancelling and deleting.


async def test_cancelling_ends_everything_and_resume_revives_it(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    await make.age(id_, 20)
    await emit(make)
    assert await schedules.cancel(make.db, "system", "s", WINDOW) == (id_, 2)
    assert await fates_of(make.db, id_) == {"execution": 2, "gap cancelled": 4}
    assert {row["status"] for row in await make.all("executions", id_)} == {"cancelled"}
    await assert_tiled(make.db, id_)
    await make.age(id_, 65)
    await schedules.resume(make.db, "system", "s", WINDOW)
    row = await state(make.db, id_)
    assert (row["enabled"], row["cancelled_at"]) == (True, None)
    assert len(await make.planned(id_)) == 6
    await assert_tiled(make.db, id_)


async def test_deleting_removes_the_ticks_and_cancels_what_waits(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    await make.age(id_, 20)
    await ticks.emit(make.db, grace=60, batch=1)
    await schedules.delete(make.db, "system", "s")
    assert await fates_of(make.db, id_) == {"execution": 1, "gap deleted": 1}
    assert [row["status"] for row in await make.all("executions", id_)] == ["cancelled"]
    row = await state(make.db, id_)
    assert (row["enabled"], row["next_tick_needed_at"]) == (False, None)
    await assert_tiled(make.db, id_)
    with pytest.raises(NotFound):
        await schedules.pause(make.db, "system", "s", None, WINDOW)


async def test_deleting_a_paused_schedule_closes_its_pause(make: Make) -> None:
    id_ = await make.schedule()
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    await make.age(id_, 35)
    await schedules.delete(make.db, "system", "s")
    assert await gaps(make, id_) == [(1, 3, "paused")]
    await assert_tiled(make.db, id_)


async def test_an_edit_that_stalls_leaves_no_planned_time_of_the_old_rule_behind(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make.schedule(interval_seconds=1)
    real = versions.newest_planned

    async def stalled(connection: Connection, *arguments: Any) -> datetime:
        await connection.execute("SELECT pg_sleep(1.5)")
        return await real(connection, *arguments)

    monkeypatch.setattr(versions, "newest_planned", stalled)
    await schedules.update(make.db, "system", "s", {"interval_seconds": 7}, WINDOW)

    begun: datetime = await make.one("SELECT after_at FROM schedule_versions WHERE version = 2")
    covered: datetime = await make.one("SELECT start_at FROM schedule_versions WHERE version = 1")
    covered += timedelta(seconds=await make.one("SELECT after_n FROM schedule_versions WHERE version = 2"))
    assert begun < covered, "the first planned time of the old rule without a number must come after the new rule began"
