"""Generators, tickers and people's changes on the same rows: two sessions, one of them held half-way."""

from typing import Any
from uuid import UUID

import pytest

from fleet.operations import schedules
from fleet.operations.planning import plan_of
from fleet.store import ticks
from fleet.store.connection import Connection, rows
from support.make import WINDOW, Make
from support.races import start_and_block
from support.tiling import assert_tiled, fates_of

CHANGES = {
    "pause": lambda db: schedules.pause(db, "system", "s", None, WINDOW),
    "update": lambda db: schedules.update(db, "system", "s", {"interval_seconds": 7}, WINDOW),
    "cancel": lambda db: schedules.cancel(db, "system", "s", WINDOW),
    "delete": lambda db: schedules.delete(db, "system", "s"),
}
ENDS = ["COMMIT", "ROLLBACK"]


async def generate(db: Connection) -> ticks.Generated:
    return await ticks.generate_intervals(db, lookahead=60, grace=60, batch=100)


async def generate_cron(db: Connection) -> int:
    due = await ticks.take_due(db, lookahead=60, batch=100)
    if due:
        await ticks.apply(db, [(row["id"], row["next_n"], plan_of(row, 60, 60)) for row in due])
    return len(due)


async def emit(db: Connection, batch: int = 100) -> ticks.Emitted:
    return await ticks.emit(db, grace=60, batch=batch)


async def half_planned(make: Make, **fields: Any) -> UUID:
    """Some ticks exist, of which two are due; more are waiting to be generated."""
    id_ = await make.schedule(**{"overlap": "allow", **fields})
    await make.age(id_, 25)
    return id_


async def enabled(db: Connection, schedule_id: UUID) -> bool:
    [row] = await rows(db, "SELECT enabled FROM cron_schedules WHERE id = %(id)s", {"id": schedule_id})
    return bool(row["enabled"])


async def assert_sound(make: Make, schedule_id: UUID) -> None:
    await assert_tiled(make.db, schedule_id)
    assert await make.one("SELECT count(*) FROM cron_ticks JOIN executions USING (id)") == 0
    if not await enabled(make.db, schedule_id):
        pending = await make.one("SELECT count(*) FROM cron_ticks WHERE execute_at > clock_timestamp()")
        assert pending == 0, "a disabled schedule has no tick whose time has not come"


# Generate × generate.


@pytest.mark.parametrize("end", ENDS)
async def test_two_generators_make_no_tick_twice(make: Make, other: Connection, end: str) -> None:
    id_ = await half_planned(make)
    before = len(await make.planned(id_))
    await make.db.execute("BEGIN")
    assert (await generate(make.db)).ticks > 0
    assert await generate(other) == (0, 0, 0), "the row is held, the other passes it by"
    await make.db.execute(end)  # type: ignore[call-overload]
    made = (await generate(other)).ticks
    assert (made == 0) == (end == "COMMIT")
    assert len(await make.planned(id_)) in (before + 2, before + 3)
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
async def test_two_generators_of_cron_make_no_tick_twice(make: Make, other: Connection, end: str) -> None:
    id_ = await half_planned(make, cron_expression="*/5 * * * * *")
    await make.db.execute("BEGIN")
    assert await generate_cron(make.db) == 1
    async with other.transaction():
        assert await generate_cron(other) == 0
    await make.db.execute(end)  # type: ignore[call-overload]
    async with other.transaction():
        assert await generate_cron(other) == (0 if end == "COMMIT" else 1)
    await assert_sound(make, id_)


async def test_a_plan_made_for_an_older_cursor_is_not_applied(make: Make) -> None:
    id_ = await half_planned(make, cron_expression="*/5 * * * * *")
    due = await ticks.take_due(make.db, lookahead=60, batch=100)  # in autocommit: the lock is gone at once
    plans = [(row["id"], row["next_n"], plan_of(row, 60, 60)) for row in due]
    await ticks.apply(make.db, plans)
    assert await ticks.apply(make.db, plans) == (0, 0, 0)
    await assert_sound(make, id_)


# Generate × a person's change.


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_waits_for_the_generator_and_sees_its_ticks(
    make: Make, other: Connection, watch: Connection, change: str, end: str
) -> None:
    id_ = await half_planned(make)
    await make.db.execute("BEGIN")
    await generate(make.db)
    waiting = await start_and_block(watch, other, CHANGES[change](other))
    await make.db.execute(end)  # type: ignore[call-overload]
    await waiting
    await assert_sound(make, id_)
    await generate(make.db)
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", CHANGES)
async def test_a_generator_passes_by_a_schedule_that_is_being_changed(
    make: Make, other: Connection, change: str, end: str
) -> None:
    id_ = await half_planned(make)
    before = await make.planned(id_)
    await other.execute("BEGIN")
    await CHANGES[change](other)
    assert await generate(make.db) == (0, 0, 0)
    assert await make.planned(id_) == before
    await other.execute(end)  # type: ignore[call-overload]
    if end == "ROLLBACK":
        assert await make.planned(id_) == before
    await generate(make.db)
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("second", CHANGES)
async def test_two_changes_come_one_after_the_other(
    make: Make, other: Connection, watch: Connection, second: str, end: str
) -> None:
    id_ = await half_planned(make)
    await make.db.execute("BEGIN")
    await CHANGES["pause"](make.db)
    waiting = await start_and_block(watch, other, CHANGES[second](other))
    await make.db.execute(end)  # type: ignore[call-overload]
    await waiting
    await assert_sound(make, id_)


# Emit × emit.


@pytest.mark.parametrize("end", ENDS)
async def test_two_tickers_never_make_two_executions_of_a_tick(make: Make, other: Connection, end: str) -> None:
    id_ = await half_planned(make)
    await make.db.execute("BEGIN")
    assert (await emit(make.db)).executions == 2
    assert (await emit(other)).ticks == 0, "the ticks are held, the other passes them by"
    await make.db.execute(end)  # type: ignore[call-overload]
    assert (await emit(other)).executions == (0 if end == "COMMIT" else 2)
    assert (await fates_of(make.db, id_))["execution"] == 2
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
async def test_neighbouring_ticks_of_a_skip_schedule_never_both_run(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    id_ = await half_planned(make, overlap="skip")
    await make.db.execute("BEGIN")
    assert (await emit(make.db, batch=1)).executions == 1
    waiting = await start_and_block(watch, other, emit(other, batch=1))
    await make.db.execute(end)  # type: ignore[call-overload]
    second = await waiting
    if end == "COMMIT":
        assert (second.executions, second.skipped) == (0, 1)
    else:
        assert (second.executions, second.skipped) == (1, 0)
        await emit(make.db)
    assert (await fates_of(make.db, id_))["execution"] == 1
    assert (await fates_of(make.db, id_))["gap overlap"] == 1
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
async def test_a_ticker_waits_for_a_trigger_that_takes_the_slot(
    make: Make, other: Connection, watch: Connection, end: str
) -> None:
    id_ = await half_planned(make, overlap="skip")
    await other.execute("BEGIN")
    await schedules.trigger(other, "system", "s")
    waiting = await start_and_block(watch, make.db, emit(make.db, batch=1))
    await other.execute(end)  # type: ignore[call-overload]
    assert (await waiting).executions == (0 if end == "COMMIT" else 1)
    await assert_sound(make, id_)


# Emit × a person's change.


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", ["pause", "update"])
async def test_a_change_leaves_alone_the_ticks_whose_time_has_come(
    make: Make, other: Connection, change: str, end: str
) -> None:
    id_ = await half_planned(make)
    await make.db.execute("BEGIN")
    assert (await emit(make.db)).executions == 2
    await CHANGES[change](other)  # does not touch them, so it does not wait
    await make.db.execute(end)  # type: ignore[call-overload]
    await assert_sound(make, id_)
    await emit(make.db)
    assert (await fates_of(make.db, id_))["execution"] == 2
    await assert_sound(make, id_)


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", ["delete", "cancel"])
async def test_an_ending_waits_for_the_ticker_and_ends_what_it_made(
    make: Make, other: Connection, watch: Connection, change: str, end: str
) -> None:
    id_ = await half_planned(make)
    await make.db.execute("BEGIN")
    assert (await emit(make.db)).executions == 2
    waiting = await start_and_block(watch, other, CHANGES[change](other))
    await make.db.execute(end)  # type: ignore[call-overload]
    await waiting
    assert await make.one("SELECT count(*) FROM executions WHERE finished_at IS NULL") == 0
    assert (await fates_of(make.db, id_))["execution"] == (2 if end == "COMMIT" else 0)
    await assert_sound(make, id_)
    assert (await emit(make.db)).ticks == 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("change", ["delete", "cancel"])
async def test_a_ticker_passes_by_ticks_that_are_being_removed(
    make: Make, other: Connection, change: str, end: str
) -> None:
    id_ = await half_planned(make)
    await other.execute("BEGIN")
    await CHANGES[change](other)
    assert (await emit(make.db)).ticks == 0
    await other.execute(end)  # type: ignore[call-overload]
    assert (await emit(make.db)).executions == (0 if end == "COMMIT" else 2)
    await assert_sound(make, id_)
