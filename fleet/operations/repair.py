"""Find the planned times of one schedule that have no fate, and give them one.

Nothing that Fleet does leads here. It is for what was done to the database from outside: rows removed by hand, a table
restored from yesterday.
"""

from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from fleet.operations.planning import rule_of
from fleet.store import account, repair
from fleet.store.account import Part
from fleet.store.connection import Connection

# One pass puts back no more than this; the next audit goes on.
MOST = 10_000


class Repaired(NamedTuple):
    put_back: int
    beyond: int
    """Numbers that no rule gives a time any more: only a person can say what became of them."""


async def put_back(connection: Connection, schedule_id: UUID) -> Repaired:
    """Planned times of a living schedule become ticks again, those of a paused or deleted one a gap."""
    async with connection.transaction():
        schedule = await repair.take(connection, schedule_id)
        if schedule is None:
            return Repaired(0, 0)
        versions = await repair.versions(connection, schedule_id)
        done = beyond = 0
        for row in await account.untiled(connection, Part(ids=[schedule_id]), MOST):
            missing = row["first_n"] - row["reached"] - 1
            if missing <= 0 or done >= MOST:
                continue
            times = times_between(versions, row["reached"], row["reached_at"], min(missing, MOST - done))
            if times and schedule["enabled"]:
                await repair.put_ticks(connection, schedule_id, row["scope"], times)
            elif times:
                reason = "deleted" if schedule["deleted_at"] else "paused"
                await repair.put_gap(connection, schedule_id, row["scope"], times, reason)
            done += len(times)
            beyond += 0 if times else missing
    return Repaired(done, beyond)


def times_between(
    versions: list[dict[str, Any]], reached: int, reached_at: datetime | None, count: int
) -> list[tuple[int, datetime]]:
    """The planned times behind a known one, by number, under the rules in force; fewer where a rule ends."""
    times: list[tuple[int, datetime]] = []
    at = reached_at
    for n in range(reached + 1, reached + count + 1):
        version = next((version for version in reversed(versions) if version["after_n"] < n), None)
        if version is None:
            break
        after = version["after_at"] if at is None or version["after_n"] == n - 1 else at
        found = rule_of(version).next_after(after)
        if found is None:
            break
        at = found
        times.append((n, found))
    return times
