"""Which planned times come next: of a schedule, or of a rule that nobody stored."""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Any
from uuid import UUID

from fleet.domain.identity import jitter_ms, salt
from fleet.domain.rule import INSTANT
from fleet.domain.schedule import Definition, check
from fleet.operations.planning import plan_of, rule_of
from fleet.store import overview
from fleet.store.connection import Connection


async def upcoming(connection: Connection, schedule_id: UUID, count: int, grace: float) -> list[dict[str, datetime]]:
    """The next planned times that will run, as things stand: none while the schedule is paused or cancelled."""
    schedule = await overview.get_schedule(connection, schedule_id)
    if not schedule["enabled"]:
        return []
    pending = await overview.pending(connection, schedule_id, count)
    row = await overview.to_come(connection, schedule_id)
    computed = [] if row is None else islice(_computed(row, grace), count - len(pending))
    return pending + [
        {"scheduled_at": at, "execute_at": _jittered(schedule_id, at, schedule["jitter_ms"])} for at in computed
    ]


def preview(definition: Definition, after: datetime, count: int) -> list[dict[str, datetime]]:
    """The planned times strictly after an instant of a rule that is not stored, so without jitter."""
    check(definition, after)
    times = islice(_representable(definition.rule(after).after(after)), count)
    return [{"scheduled_at": at, "execute_at": at} for at in times]


def _computed(row: dict[str, Any], grace: float) -> Iterator[datetime]:
    """What the generator would make of the cursor now, and then the rule; as many as max_runs still allows."""
    plan = plan_of(row, 0.0, grace)
    rest: Iterable[datetime] = () if plan.cursor is None else rule_of(row).after(plan.cursor - INSTANT)
    budget = None if row["budget"] is None else max(0, row["budget"])
    return islice(_representable(chain(plan.ticks, rest)), budget)


def _representable(times: Iterable[datetime]) -> Iterator[datetime]:
    """Dates end with the year 9999, rules do not."""
    try:
        yield from times
    except OverflowError:
        return


def _jittered(schedule_id: UUID, at: datetime, bound_ms: int) -> datetime:
    return at + timedelta(milliseconds=jitter_ms(salt(schedule_id), at, bound_ms))
