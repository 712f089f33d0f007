"""Generate and emit on a real Postgres: every planned time gets a tick, an execution or a gap, and only one of them."""

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from fleet.store import ticks
from support.make import Make
from support.steps import emit, finish_all, generate, state
from support.tiling import assert_tiled, fates_of

# Generating.


@pytest.mark.parametrize("rule", [{"interval_seconds": 10}, {"cron_expression": "*/10 * * * * *"}])
async def test_the_generator_goes_on_where_the_window_ended(make: Make, rule: dict[str, Any]) -> None:
    id_ = await make.schedule(**rule)
    await make.age(id_, 30)
    before = await make.planned(id_)
    made = await generate(make.db)
    after = await make.planned(id_)
    assert after[: len(before)] == before
    assert made == (1, len(after) - len(before), 0)
    assert made.ticks in (3, 4)
    assert {b - a for a, b in pairwise(after)} == {timedelta(seconds=10)}
    await assert_tiled(make.db, id_)


async def test_nothing_is_generated_twice(make: Make) -> None:
    id_ = await make.schedule()
    await make.age(id_, 35)
    await generate(make.db)
    before = await make.planned(id_)
    assert await generate(make.db) == (0, 0, 0)
    assert await make.planned(id_) == before


async def test_the_grid_never_drifts_however_the_ticks_are_jittered(make: Make) -> None:
    id_ = await make.schedule(interval_seconds=7, jitter_ms=6_999, overlap="allow")
    start = (await state(make.db, id_))["start_at"]
    for _ in range(5):
        await make.age(id_, 31)
        start -= timedelta(seconds=31)
        await generate(make.db)
        await emit(make.db)
    planned = [row["scheduled_at"] for row in await make.all("executions", id_)]
    planned += await make.planned(id_)
    assert len(planned) > 20
    assert all((at - start) % timedelta(seconds=7) == timedelta(0) for at in planned)
    await assert_tiled(make.db, id_)


@pytest.mark.parametrize("rule", [{"interval_seconds": 2}, {"cron_expression": "*/2 * * * * *"}])
async def test_jitter_is_never_early_and_stays_within_its_bound(make: Make, rule: dict[str, Any]) -> None:
    id_ = await make.schedule(jitter_ms=1_500, **rule)
    shifts = [row["execute_at"] - row["scheduled_at"] for row in await make.all("cron_ticks", id_)]
    assert all(timedelta(0) <= shift <= timedelta(milliseconds=1500) for shift in shifts)
    assert len(set(shifts)) > 5, "jitter spreads"


async def test_no_planned_time_lies_after_the_end(make: Make) -> None:
    now = await make.one("SELECT date_trunc('milliseconds', clock_timestamp())")
    id_ = await make.schedule(start_at=now + timedelta(seconds=10), end_at=now + timedelta(seconds=30))
    assert await make.planned(id_) == [now + timedelta(seconds=s) for s in (10, 20, 30)]
    assert (await state(make.db, id_))["next_tick_needed_at"] is None
    assert await generate(make.db) == (0, 0, 0)
    await assert_tiled(make.db, id_)


async def test_an_interval_generated_later_ends_as_exactly(make: Make) -> None:
    now = await make.one("SELECT date_trunc('milliseconds', clock_timestamp())")
    id_ = await make.schedule(interval_seconds=25, start_at=now + timedelta(seconds=50), end_at=now + timedelta(days=1))
    await make.db.execute(
        "UPDATE cron_schedules SET end_at = start_at + interval '50 seconds' WHERE id = %(id)s", {"id": id_}
    )
    await make.age(id_, 55)
    await generate(make.db)
    assert await fates_of(make.db, id_) == {"tick": 3}
    assert (await state(make.db, id_))["next_tick_needed_at"] is None
    await assert_tiled(make.db, id_)


async def test_an_aligned_interval_stands_on_the_epochs_grid(make: Make) -> None:
    id_ = await make.schedule(interval_seconds=15, align=True)
    planned = await make.planned(id_)
    assert len(planned) == 4
    assert all(at.timestamp() % 15 == 0 for at in planned)
    await make.age(id_, 15)
    await generate(make.db)
    assert all(at.timestamp() % 15 == 0 for at in await make.planned(id_))


async def test_a_start_in_the_future_is_the_first_planned_time(make: Make) -> None:
    start = await make.one("SELECT date_trunc('second', clock_timestamp()) + interval '70 seconds'")
    id_ = await make.schedule(start_at=start)
    assert await make.planned(id_) == []
    await make.age(id_, 20)
    await generate(make.db)
    assert (await make.planned(id_))[0] == start - timedelta(seconds=20)
    await assert_tiled(make.db, id_)


async def test_a_single_planned_time_is_generated_once(make: Make) -> None:
    at = await make.one("SELECT date_trunc('second', clock_timestamp()) + interval '90 seconds'")
    id_ = await make.schedule(run_at=at)
    assert await make.planned(id_) == []
    await make.age(id_, 60)
    assert await generate(make.db) == (1, 1, 0)
    assert (await state(make.db, id_))["next_tick_needed_at"] is None
    await assert_tiled(make.db, id_)


async def test_a_generator_takes_its_shard_and_whatever_is_nearly_due(make: Make) -> None:
    ids = [await make.schedule(f"s{i}", interval_seconds=100) for i in range(12)]
    for id_ in ids:
        await make.age(id_, 50)  # the first planned time is 50 s away: more than half the lookahead
    made = [(await generate(make.db, shard=shard, shards=3)).ticks for shard in range(3)]
    assert sum(made) == 12
    assert max(made) < 12
    for id_ in ids:
        await make.age(id_, 125)  # the second is 25 s away: any shard may take it
    assert (await generate(make.db, shard=0, shards=3)).ticks == 12


# max_runs.


async def test_max_runs_caps_the_ticks(make: Make) -> None:
    id_ = await make.schedule(max_runs=3)
    assert len(await make.planned(id_)) == 3
    assert (await state(make.db, id_))["capped"]
    await make.age(id_, 60)
    assert await generate(make.db) == (0, 0, 0)
    await assert_tiled(make.db, id_)


@pytest.mark.parametrize("rule", [{"interval_seconds": 10}, {"cron_expression": "*/10 * * * * *"}])
async def test_a_planned_time_skipped_by_overlap_does_not_count_as_a_run(make: Make, rule: dict[str, Any]) -> None:
    id_ = await make.schedule(max_runs=2, **rule)
    await make.age(id_, 20)
    done = await emit(make.db)
    assert (done.ticks, done.executions, done.skipped) == (2, 1, 1)
    assert done.uncap == [id_]
    await ticks.uncap(make.db, done.uncap)
    await generate(make.db)
    assert await fates_of(make.db, id_) == {"execution": 1, "gap overlap": 1, "tick": 1}
    assert (await state(make.db, id_))["capped"]
    await assert_tiled(make.db, id_)


async def test_uncapping_a_schedule_that_had_its_runs_plans_nothing(make: Make) -> None:
    id_ = await make.schedule(max_runs=2)
    await ticks.uncap(make.db, [id_])
    await generate(make.db)
    assert len(await make.planned(id_)) == 2
    assert (await state(make.db, id_))["capped"]


# Emitting.


async def test_an_execution_keeps_the_ticks_identity(make: Make) -> None:
    id_ = await make.schedule(jitter_ms=5_000)
    [tick, *_] = sorted(await make.all("cron_ticks", id_), key=lambda row: row["n"])
    await make.db.execute("UPDATE cron_ticks SET execute_at = scheduled_at")
    await make.age(id_, 10)
    [tick, *_] = sorted(await make.all("cron_ticks", id_), key=lambda row: row["n"])
    await emit(make.db)
    [ran] = await make.all("executions", id_)
    for column in ("id", "schedule_id", "scope", "scheduled_at", "execute_at", "n"):
        assert ran[column] == tick[column], column
    assert (ran["status"], ran["attempt"], ran["next_attempt_at"], ran["slot"]) == ("emitted", 0, tick["execute_at"], 0)


async def test_nothing_is_emitted_early(make: Make) -> None:
    await make.schedule()
    assert (await emit(make.db)).ticks == 0
    assert 0 < (await ticks.seconds_to_next(make.db) or 0) <= 10


@pytest.mark.parametrize(
    ("overlap", "fates", "slots"),
    [
        ("skip", {"execution": 1, "gap overlap": 2, "tick": 2}, [0]),
        ("queue", {"execution": 3, "tick": 2}, None),
        ("allow", {"execution": 3, "tick": 2}, [None, None, None]),
    ],
)
async def test_overlap_decides_what_becomes_of_ticks_that_come_together(
    make: Make, overlap: str, fates: dict[str, int], slots: list[int | None] | None
) -> None:
    id_ = await make.schedule(overlap=overlap, max_runs=5)
    await make.age(id_, 30)
    await emit(make.db)
    assert await fates_of(make.db, id_) == fates
    found = [row["slot"] for row in sorted(await make.all("executions", id_), key=lambda row: row["n"])]
    assert found == slots or (slots is None and found == sorted(set(found)))
    await assert_tiled(make.db, id_)


async def test_under_skip_the_next_one_runs_when_the_former_has_finished(make: Make) -> None:
    id_ = await make.schedule(max_runs=5)
    await make.age(id_, 10)
    await emit(make.db)
    await finish_all(make.db)
    await make.age(id_, 10)
    assert (await emit(make.db)).executions == 1
    await assert_tiled(make.db, id_)


async def test_gaps_that_follow_each_other_are_one_row(make: Make) -> None:
    id_ = await make.schedule(max_runs=6)
    await make.age(id_, 10)
    for _ in range(4):
        await emit(make.db)
        await make.age(id_, 10)
    [gap] = await make.all("gaps", id_)
    assert (gap["first_n"], gap["last_n"], gap["reason"]) == (2, 4, "overlap")
    await assert_tiled(make.db, id_)


async def test_gaps_of_different_reasons_stay_apart(make: Make) -> None:
    id_ = await make.schedule(max_runs=5, interval_seconds=12)
    await make.age(id_, 100)  # numbers 1 to 3 are missed (88, 76, 64 s late), 4 and 5 only late
    await emit(make.db, grace=58)
    gaps = sorted((row["first_n"], row["last_n"], row["reason"]) for row in await make.all("gaps", id_))
    assert gaps == [(1, 2, "catch_up"), (4, 5, "overlap")]
    await assert_tiled(make.db, id_)


async def test_a_tick_whose_execution_exists_is_that_executions_fate_and_no_overlap(make: Make) -> None:
    id_ = await make.schedule(max_runs=5)
    await make.age(id_, 10)
    [tick, *_] = sorted(await make.all("cron_ticks", id_), key=lambda row: row["n"])
    await emit(make.db)
    await make.db.execute(
        "INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)"
        " VALUES (%(schedule_id)s, %(scope)s, %(scheduled_at)s, %(execute_at)s, %(n)s, %(id)s)",
        tick,
    )
    done = await emit(make.db)
    assert (done.ticks, done.executions, done.skipped) == (1, 0, 0)
    await assert_tiled(make.db, id_)


async def test_a_ticker_takes_its_shard_and_whatever_is_overdue(make: Make) -> None:
    ids = [await make.schedule(f"s{i}", max_runs=1) for i in range(60)]
    for id_ in ids:
        await make.age(id_, 10)
    await make.db.execute("UPDATE cron_ticks SET scheduled_at = now(), execute_at = now()")
    fresh = (await ticks.emit(make.db, grace=60, batch=100, shard=0, shards=3, shard_grace=3600)).executions
    assert 0 < fresh < 60
    overdue = (await ticks.emit(make.db, grace=60, batch=100, shard=0, shards=3, shard_grace=0)).executions
    assert fresh + overdue == 60
