"""Planned times whose fate was removed from outside get one again, and the account is right afterwards."""

import pytest

from fleet.ledger.verify import verify
from fleet.operations import schedules
from fleet.operations.repair import put_back
from fleet.store import ticks
from fleet.store.connection import Connection
from support.make import WINDOW, Make


async def _kinds(db: Connection) -> set[str]:
    return {problem.kind for problem in (await verify(db)).problems}


@pytest.mark.parametrize("rule", [{"interval_seconds": 1}, {"cron_expression": "*/2 * * * * *"}])
async def test_removed_ticks_come_back_with_their_own_time_and_id(
    db: Connection, make: Make, rule: dict[str, object]
) -> None:
    id_ = await make.schedule(**rule)
    before = await make.all("cron_ticks", id_)
    await db.execute("DELETE FROM cron_ticks WHERE n BETWEEN 3 AND 7 OR n = 1")
    assert await _kinds(db) == {"lost"}

    assert await put_back(db, id_) == (6, 0)

    after = await make.all("cron_ticks", id_)
    assert sorted(after, key=lambda row: row["n"]) == sorted(before, key=lambda row: row["n"])
    assert await _kinds(db) == set()


async def test_a_removed_execution_is_planned_again(db: Connection, make: Make) -> None:
    id_ = await make.schedule(interval_seconds=1)
    await make.age(id_, 5)
    await ticks.emit(db, grace=60, batch=100)
    await db.execute("DELETE FROM executions")

    repaired = await put_back(db, id_)

    assert repaired.put_back >= 1
    assert await _kinds(db) == set()


async def test_across_an_edit_each_number_gets_the_time_of_its_own_rule(db: Connection, make: Make) -> None:
    id_ = await make.schedule(interval_seconds=1)
    await make.age(id_, 4)
    await schedules.update(db, "system", "s", {"interval_seconds": 7}, WINDOW)
    await db.execute("DELETE FROM cron_ticks")
    await db.execute("DELETE FROM executions")

    await put_back(db, id_)

    assert await _kinds(db) == set()


async def test_what_a_deleted_schedule_lost_becomes_a_gap(db: Connection, make: Make) -> None:
    id_ = await make.schedule(interval_seconds=1)
    await make.age(id_, 5)
    await ticks.emit(db, grace=60, batch=100)
    await schedules.delete(db, "system", "s")
    await db.execute("DELETE FROM executions")
    await db.execute("DELETE FROM gaps")

    await put_back(db, id_)

    assert await make.all("cron_ticks") == []
    assert {gap["reason"] for gap in await make.all("gaps")} == {"deleted"}
    assert await _kinds(db) == set()


async def test_a_schedule_that_somebody_changes_right_now_is_left_for_the_next_audit(
    db: Connection, other: Connection, make: Make
) -> None:
    id_ = await make.schedule(interval_seconds=1)
    await db.execute("DELETE FROM cron_ticks WHERE n = 1")
    async with other.transaction():
        await other.execute("SELECT FROM cron_schedules FOR NO KEY UPDATE")
        assert await put_back(db, id_) == (0, 0)
    assert await put_back(db, id_) == (1, 0)
