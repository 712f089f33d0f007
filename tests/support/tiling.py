"""Does every planned time of a schedule have exactly one fate? Counted here once more, in plain Python.

The numbers accounted_n + 1 … next_n − 1 must be covered by pending ticks, planned executions and gaps, each number
once per scope, and each number's time must be the one the rule of its version says.
"""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from fleet.ledger.oracle import CronOracle
from fleet.store.connection import Connection, rows

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Fate = tuple[int, datetime, str]


async def assert_tiled(db: Connection, schedule_id: UUID) -> None:
    problems = await untiled(db, schedule_id)
    assert not problems, "\n".join(problems)


async def assert_all_tiled(db: Connection) -> None:
    for row in await rows(db, "SELECT id FROM cron_schedules"):
        await assert_tiled(db, row["id"])


async def untiled(db: Connection, schedule_id: UUID) -> list[str]:
    """What is wrong with the account of one schedule, in words."""
    parameters = {"id": schedule_id}
    [schedule] = await rows(db, "SELECT * FROM cron_schedules WHERE id = %(id)s", parameters)
    versions = await rows(db, "SELECT * FROM schedule_versions WHERE schedule_id = %(id)s ORDER BY version", parameters)
    problems = []
    for scope in schedule["scopes"]:
        fates = await _fates(db, schedule_id, scope)
        problems += _uncovered(fates, schedule["accounted_n"], schedule["next_n"], scope)
        problems += [
            f"scope {scope!r}: number {n} ({what}) is at {at}, its rule says {expected}"
            for n, at, what in fates
            if (expected := time_of(n, versions)) != at
        ]
    cursor = schedule["next_tick_needed_at"]
    if cursor is not None and (expected := time_of(schedule["next_n"], versions)) != cursor:
        problems.append(f"the cursor is {cursor}, number {schedule['next_n']} is at {expected}")
    return problems


def time_of(n: int, versions: list[dict[str, Any]]) -> datetime | None:
    """The planned time with this number: the j-th strictly after after_at has number after_n + j."""
    [*_, version] = [v for v in versions if v["after_n"] < n]
    after = max(version["after_at"], version["start_at"] - timedelta(milliseconds=1))
    j = n - version["after_n"]
    if version["run_at"] is not None:
        return version["run_at"] if j == 1 else None
    if version["cron_expression"] is not None:
        until = after + timedelta(days=2)
        return CronOracle(version["cron_expression"], version["timezone"]).between(after, until)[j - 1]
    step = timedelta(seconds=version["interval_seconds"])
    return version["anchor_at"] + ((after - version["anchor_at"]) // step + j) * step


async def _fates(db: Connection, schedule_id: UUID, scope: str) -> list[Fate]:
    """(number, planned time, what became of it); a gap counts at both ends, its inside by number alone."""
    parameters = {"id": schedule_id, "scope": scope}
    fates: list[Fate] = []
    for row in await rows(db, "SELECT * FROM cron_ticks WHERE schedule_id = %(id)s AND scope = %(scope)s", parameters):
        fates.append((row["n"], row["scheduled_at"], "tick"))
    for row in await rows(
        db, "SELECT * FROM executions WHERE schedule_id = %(id)s AND scope = %(scope)s AND run = ''", parameters
    ):
        fates.append((row["n"], row["scheduled_at"], "execution"))
    versions = await rows(db, "SELECT * FROM schedule_versions WHERE schedule_id = %(id)s ORDER BY version", parameters)
    for row in await rows(db, "SELECT * FROM gaps WHERE schedule_id = %(id)s AND scope = %(scope)s", parameters):
        ends = {row["first_n"]: row["first_scheduled_at"], row["last_n"]: row["last_scheduled_at"]}
        for n in range(row["first_n"], row["last_n"] + 1):
            at = ends.get(n) or time_of(n, versions) or EPOCH
            fates.append((n, at, f"gap {row['reason']}"))
    return fates


def _uncovered(fates: list[Fate], accounted: int, following: int, scope: str) -> list[str]:
    seen = Counter(n for n, _, _ in fates)
    expected = range(accounted + 1, following)
    lost = [n for n in expected if n not in seen]
    doubled = [n for n, times in seen.items() if times > 1]
    strange = [n for n in seen if n not in expected]
    return [
        f"scope {scope!r}: numbers {what}: {numbers}, of {fates}"
        for what, numbers in (("without a fate", lost), ("with two fates", doubled), ("not planned", strange))
        if numbers
    ]


async def fates_of(db: Connection, schedule_id: UUID) -> Counter[str]:
    """How many planned times became what."""
    return Counter(what for _, _, what in await _fates(db, schedule_id, ""))
