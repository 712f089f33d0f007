"""What end-to-end tests ask of the database once the dust has settled."""

from datetime import datetime, timedelta
from typing import Any

from fleet.store.connection import Connection, rows
from support.make import Make
from support.processes import until
from support.sink import Sink

UNFINISHED = """
SELECT (SELECT count(*) FROM executions WHERE status IN ('emitted', 'in_progress')) + (SELECT count(*) FROM cron_ticks)
     + (SELECT count(*) FROM cron_schedules WHERE enabled AND next_tick_needed_at IS NOT NULL) AS n
"""


async def settled(db: Connection, within: float) -> None:
    """Wait until every planned time has its final fate; the schedules must have an end."""

    async def done() -> bool:
        return (await rows(db, UNFINISHED))[0]["n"] == 0

    await until(done, within, "every planned time to be finished", every=0.2)


async def add_many(make: Make, sink: Sink, count: int, planned: int, **fields: Any) -> set[tuple[str, datetime]]:
    """Schedules with a fixed number of planned times, one per second; returns all of them."""
    now: datetime = await make.one("SELECT date_trunc('second', clock_timestamp())")
    start, seconds = now + timedelta(seconds=3), fields.pop("interval_seconds", 1)
    target = {"kind": "http", "url": sink.url, "method": "POST", "headers": {}}
    expected = set()
    for i in range(count):
        name = f"{fields.get('catch_up', 's')}-{i}"
        end = start + timedelta(seconds=seconds * (planned - 1))
        defaults: dict[str, Any] = {"interval_seconds": seconds, "overlap": "allow", "target": target}
        await make.schedule(name, start_at=start, end_at=end, **{**defaults, **fields})
        expected |= {(name, start + timedelta(seconds=seconds * k)) for k in range(planned)}
    return expected


async def assert_verified(db: Connection, planned: int) -> None:
    from fleet.ledger.verify import verify

    report = await verify(db)
    assert report.problems == []
    assert report.planned == planned == report.executed + report.gaps + report.pending


async def assert_explained(db: Connection, sink: Sink) -> None:
    """Every request received belongs to an attempt on record; all but the last of an execution ended unknown."""
    history: dict[str, dict[int, str]] = {}
    for row in await rows(db, "SELECT execution_id, attempt, outcome FROM attempts"):
        history.setdefault(str(row["execution_id"]), {})[row["attempt"]] = row["outcome"]
    for execution, receipts in sink.by_execution().items():
        numbers = [receipt.attempt for receipt in receipts]
        assert len(numbers) == len(set(numbers)), f"{execution}: one attempt was sent twice: {numbers}"
        outcomes = history[execution]
        assert set(numbers) <= set(outcomes), f"{execution}: a request without an attempt: {numbers} {outcomes}"
        for number in sorted(numbers)[:-1]:
            assert outcomes[number] == "lost", f"{execution}: {outcomes}, yet sent again"
