"""Plan the window of schedules whose rule Python must compute, inside the caller's transaction."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from fleet.domain.planning import Plan, Policy, plan
from fleet.domain.rule import Rule
from fleet.store import ticks
from fleet.store.connection import Connection

# A long backlog is left to the generators after this many passes, so that a command answers soon.
PASSES = 20


def rule_of(row: dict[str, Any]) -> Rule:
    return Rule(
        anchor_at=row["anchor_at"],
        start_at=row["start_at"],
        end_at=row["end_at"],
        interval_seconds=row["interval_seconds"],
        cron_expression=row["cron_expression"],
        run_at=row["run_at"],
        timezone=row["timezone"],
    )


def plan_of(row: dict[str, Any], lookahead: float, grace: float) -> Plan:
    """What becomes of the window of a schedule as `ticks.take_due` or `ticks.take_one` returned it."""
    now: datetime = row["now"]
    own_grace = row["misfire_grace_seconds"]
    policy = Policy(
        catch_up=row["catch_up"],
        catch_up_window=timedelta(seconds=row["catch_up_window_seconds"]),
        misfire_grace=timedelta(seconds=grace if own_grace is None else own_grace),
        jitter=timedelta(milliseconds=row["jitter_ms"]),
        max_plans=row["max_plans_per_tick"],
        budget=row["budget"],
    )
    return plan(rule_of(row), row["next_tick_needed_at"], now, now + timedelta(seconds=lookahead), policy)


async def plan_window(connection: Connection, schedule_id: UUID, lookahead: float, grace: float) -> None:
    """Write the ticks of one schedule's window; with a lookahead of 0, only those whose time has come."""
    for _ in range(PASSES):
        row = await ticks.take_one(connection, schedule_id, lookahead)
        if row is None:
            return
        await ticks.apply(connection, [(schedule_id, row["next_n"], plan_of(row, lookahead, grace))])
