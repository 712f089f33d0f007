"""Lateness, misfire grace and catch-up: what becomes of planned times that nobody was there for."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from fleet.store import ticks
from support.make import Make
from support.steps import emit, generate
from support.tiling import assert_tiled, fates_of

# Catch-up, when the generators slept: no ticks existed.


@pytest.mark.parametrize("rule", [{"interval_seconds": 10}, {"cron_expression": "*/10 * * * * *"}])
@pytest.mark.parametrize(
    ("catch_up", "missed"),
    [
        ("latest", {"gap catch_up": 13, "tick": 1}),
        ("none", {"gap catch_up": 14}),
        ("all", {"tick": 14}),
    ],
)
async def test_catch_up_decides_about_times_that_had_no_tick(
    make: Make, rule: dict[str, Any], catch_up: str, missed: dict[str, int]
) -> None:
    id_ = await make.schedule(catch_up=catch_up, **rule)
    await make.db.execute("DELETE FROM cron_ticks")
    await make.db.execute("UPDATE cron_schedules SET next_n = 1, next_tick_needed_at = accounted_from")
    await make.age(id_, 210)  # 200 to 210 s are behind, 60 s of them within grace
    await generate(make.db)
    cutoff = await make.one("SELECT clock_timestamp() - interval '60 seconds'")
    late = Counter[str]()
    late["tick"] = sum(at < cutoff for at in await make.planned(id_))
    for gap in await make.all("gaps", id_):
        late[f"gap {gap['reason']}"] += gap["count"]
    shift = sum(late.values()) - sum(missed.values())  # where on its grid the test began
    assert shift in (0, 1)
    largest = max(missed, key=lambda what: missed[what])
    assert +late == {**missed, largest: missed[largest] + shift}
    await assert_tiled(make.db, id_)


async def test_the_newest_missed_time_of_a_schedule_that_ended_meanwhile_runs(make: Make) -> None:
    now = await make.one("SELECT date_trunc('milliseconds', clock_timestamp())")
    id_ = await make.schedule(start_at=now + timedelta(seconds=70), end_at=now + timedelta(seconds=100))
    await make.age(id_, 1_000)
    assert await generate(make.db) == (1, 1, 3)
    assert (await emit(make.db)).executions == 1
    assert await fates_of(make.db, id_) == {"gap catch_up": 3, "execution": 1}
    await assert_tiled(make.db, id_)


async def test_all_is_bounded_by_its_window_and_by_plans_per_pass(make: Make) -> None:
    id_ = await make.schedule(
        catch_up="all", catch_up_window_seconds=100, max_plans_per_tick=3, interval_seconds=10, overlap="allow"
    )
    await make.db.execute("DELETE FROM cron_ticks")
    await make.db.execute("UPDATE cron_schedules SET next_n = 1, next_tick_needed_at = accounted_from")
    await make.age(id_, 205)
    made = await ticks.generate_intervals(make.db, lookahead=60, grace=60, batch=100)
    assert made.ticks == 3
    assert made.skipped in (10, 11)
    await generate(make.db)
    fates = await fates_of(make.db, id_)
    assert fates["gap catch_up"] == made.skipped
    assert fates["tick"] in (15, 16)
    await assert_tiled(make.db, id_)


async def test_a_schedules_own_grace_comes_before_the_fleets(make: Make) -> None:
    id_ = await make.schedule(catch_up="none", misfire_grace_seconds=1_000)
    await make.db.execute("DELETE FROM cron_ticks")
    await make.db.execute("UPDATE cron_schedules SET next_n = 1, next_tick_needed_at = accounted_from")
    await make.age(id_, 500)
    assert (await generate(make.db)).skipped == 0
    assert (await emit(make.db)).skipped > 0, "overlap only"
    assert "gap catch_up" not in await fates_of(make.db, id_)
    await assert_tiled(make.db, id_)


# Catch-up, when the tickers slept: ticks existed.


@pytest.mark.parametrize("rule", [{"interval_seconds": 10}, {"cron_expression": "*/10 * * * * *"}])
@pytest.mark.parametrize(("catch_up", "runs"), [("latest", 1), ("none", 0), ("all", 5)])
async def test_catch_up_decides_about_ticks_that_are_too_late(
    make: Make, rule: dict[str, Any], catch_up: str, runs: int
) -> None:
    id_ = await make.schedule(catch_up=catch_up, overlap="allow", max_runs=5, **rule)
    await make.age(id_, 200)
    done = await emit(make.db)
    assert (done.ticks, done.executions, done.skipped) == (5, runs, 5 - runs)
    assert await fates_of(make.db, id_) == Counter({"execution": runs, "gap catch_up": 5 - runs}) - Counter()
    if catch_up == "latest":
        [ran] = await make.all("executions", id_)
        assert ran["n"] == 5, "the newest missed one"
    await assert_tiled(make.db, id_)


@pytest.mark.parametrize("batch", [1, 2, 3])
async def test_only_the_newest_missed_runs_whatever_the_batches(make: Make, batch: int) -> None:
    id_ = await make.schedule(overlap="allow", max_runs=5)
    await make.age(id_, 200)
    while (await emit(make.db, batch=batch)).ticks:
        pass
    [ran] = await make.all("executions", id_)
    assert ran["n"] == 5
    [gap] = await make.all("gaps", id_)
    assert (gap["first_n"], gap["last_n"], gap["count"], gap["reason"]) == (1, 4, 4, "catch_up"), "merged"
    await assert_tiled(make.db, id_)


async def test_a_late_tick_leaves_the_run_to_newer_missed_times_that_the_generator_has_yet_to_plan(make: Make) -> None:
    id_ = await make.schedule(overlap="allow")
    await make.age(id_, 600)
    done = await emit(make.db)
    assert done.executions == 0
    await generate(make.db)
    await emit(make.db)
    cutoff = await make.one("SELECT clock_timestamp() - interval '60 seconds'")
    late = [row["scheduled_at"] for row in await make.all("executions", id_) if row["scheduled_at"] < cutoff]
    assert len(late) == 1
    assert cutoff - late[0] < timedelta(seconds=11)
    await assert_tiled(make.db, id_)


async def test_lateness_within_grace_is_just_lateness(make: Make) -> None:
    id_ = await make.schedule(catch_up="none", overlap="allow", max_runs=5)
    await make.age(id_, 55)
    done = await emit(make.db)
    assert (done.executions, done.skipped) == (5, 0)
    assert max(done.lateness) >= 45
    await assert_tiled(make.db, id_)
