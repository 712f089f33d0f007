"""What the generator does with one schedule: which planned times become ticks, which become a gap, where it stops.

Lateness up to the misfire grace is just lateness. Beyond it catch-up decides: `latest` runs the newest missed planned
time and leaves the older ones as a gap, `all` runs each within its window, `none` leaves them all. Ticks that exist
already are judged by the ticker with the same rules.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from fleet.domain.rule import Rule

# One pass looks at no more planned times than this, so that a long outage is settled in short transactions.
PASS_LIMIT = 10_000


@dataclass(frozen=True, slots=True)
class Policy:
    catch_up: str
    catch_up_window: timedelta
    misfire_grace: timedelta
    jitter: timedelta
    max_plans: int
    budget: int | None = None
    """How many executions max_runs still allows; None without max_runs."""


class Plan(NamedTuple):
    skipped: int
    first_skipped: datetime | None
    last_skipped: datetime | None
    ticks: list[datetime]
    cursor: datetime | None
    capped: bool


def plan(rule: Rule, cursor: datetime, now: datetime, horizon: datetime, policy: Policy) -> Plan:
    """Decide the fate of every planned time from the cursor to the horizon, or as many as one pass may."""
    times, following = _times_until(rule, cursor, horizon)
    skip = _skipped(times, following, now, policy)
    room = policy.max_plans if policy.budget is None else min(policy.max_plans, max(0, policy.budget))
    ticks = times[skip : skip + room]
    done = skip + len(ticks)
    return Plan(
        skipped=skip,
        first_skipped=times[0] if skip else None,
        last_skipped=times[skip - 1] if skip else None,
        ticks=ticks,
        cursor=times[done] if done < len(times) else following,
        capped=policy.budget is not None and len(ticks) >= policy.budget,
    )


def _times_until(rule: Rule, cursor: datetime, horizon: datetime) -> tuple[list[datetime], datetime | None]:
    if cursor > horizon:
        return [], cursor
    times = [cursor]
    for at in rule.after(cursor):
        if at > horizon or len(times) == PASS_LIMIT:
            return times, at
        times.append(at)
    return times, None


def _skipped(times: list[datetime], following: datetime | None, now: datetime, policy: Policy) -> int:
    """How many of the leading planned times become a gap; `following` is the first one this pass does not look at."""
    if policy.catch_up == "all":
        return sum(at < now - policy.catch_up_window for at in times)
    missed_before = now - policy.jitter - policy.misfire_grace
    missed = sum(at < missed_before for at in times)
    if policy.catch_up == "latest" and not (following is not None and following < missed_before):
        return max(0, missed - 1)
    return missed
