"""A fleet that was down: shorter than the misfire grace everything runs late, longer and catch-up decides."""

from datetime import datetime
from typing import Any

from fleet.store.connection import Connection, rows
from support.ledger import add_many, assert_verified, settled
from support.make import Make
from support.processes import Processes, until
from support.sink import Sink

ROLES = ("tick-generator", "ticker", "dispatcher")
PLANNED = 14


async def _go_down_and_come_back(db: Connection, make: Make, fleet: Processes, seconds: float, **env: str) -> None:
    """Run until the first planned times are done, stop everything for that long, start again."""
    first = [fleet.run(role, **env) for role in ROLES]

    async def some_done() -> bool:
        found = await rows(db, "SELECT min(n) AS n FROM (SELECT max(n) AS n FROM executions GROUP BY schedule_id) e")
        return (found[0]["n"] or 0) >= 2

    await until(some_done, 60, "two planned times of each schedule")
    for process in first:
        assert await process.stop() == 0
    down_since: datetime = await make.one("SELECT clock_timestamp()")

    async def long_enough() -> bool:
        passed: float = await make.one(
            "SELECT date_part('epoch', clock_timestamp() - %(since)s::timestamptz)", since=down_since
        )
        return passed >= seconds

    await until(long_enough, seconds + 60, f"{seconds} s to pass")
    for role in ROLES:
        fleet.run(role, **env)


async def _fates(db: Connection) -> dict[str, dict[str, Any]]:
    found = await rows(
        db,
        """SELECT s.name, s.catch_up, s.next_n - 1 AS planned,
                  (SELECT count(*) FROM executions e WHERE e.schedule_id = s.id) AS executed,
                  (SELECT count(*) FROM executions e WHERE e.schedule_id = s.id
                      AND e.started_at - e.execute_at > interval '2 seconds') AS late,
                  (SELECT coalesce(sum(count), 0) FROM gaps g WHERE g.schedule_id = s.id) AS skipped,
                  (SELECT count(*) FROM gaps g WHERE g.schedule_id = s.id) AS ranges,
                  (SELECT string_agg(DISTINCT reason, ',') FROM gaps g WHERE g.schedule_id = s.id) AS reasons
             FROM cron_schedules s""",
    )
    return {row["catch_up"]: row for row in found}


async def test_an_outage_longer_than_the_grace_is_caught_up_as_each_schedule_says(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    for policy in ("latest", "all", "none"):
        await add_many(make, sink, count=1, planned=PLANNED, catch_up=policy)

    await _go_down_and_come_back(db, make, fleet, 7.0, MISFIRE_GRACE="2s")
    await settled(db, within=90)

    fates = await _fates(db)
    assert all(fate["planned"] == PLANNED == fate["executed"] + fate["skipped"] for fate in fates.values())
    assert fates["all"]["skipped"] == 0
    assert fates["none"]["skipped"] >= 4
    # The newest missed one ran, the older ones are one gap.
    assert fates["latest"]["skipped"] >= 3
    assert fates["latest"]["ranges"] == 1
    assert fates["latest"]["late"] >= 1
    assert {fates[policy]["reasons"] for policy in ("latest", "none")} == {"catch_up"}
    assert len(sink.receipts) == sum(fate["executed"] for fate in fates.values())
    await assert_verified(db, planned=3 * PLANNED)


async def test_an_outage_shorter_than_the_grace_only_makes_late(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    expected = set()
    for policy in ("latest", "all", "none"):
        expected |= await add_many(make, sink, count=1, planned=PLANNED, catch_up=policy)

    await _go_down_and_come_back(db, make, fleet, 6.0, MISFIRE_GRACE="60s")
    await settled(db, within=90)

    assert sink.planned() == expected
    assert len(sink.receipts) == 3 * PLANNED
    assert all(fate["skipped"] == 0 and fate["late"] > 0 for fate in (await _fates(db)).values())
    await assert_verified(db, planned=3 * PLANNED)
