"""Cron expressions: what is accepted, and the planned times they mean. cronsim does the evaluating."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from fleet.errors import UsageError

MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LONGEST = 1000


@lru_cache(maxsize=4096)
def zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise UsageError(f"time zone {name!r} is not known; use a name like Europe/Paris or UTC") from None


def expand(expression: str) -> str:
    """The five or six fields behind an expression, checked: it parses and has at least one planned time to come."""
    if len(expression) > LONGEST:
        raise UsageError(f"cron expression is {len(expression)} characters long; at most {LONGEST} are allowed")
    text = expression.strip()
    if text.startswith("@"):
        if text.lower() not in MACROS:
            raise UsageError(f"cron macro {text!r} is not known; use one of {', '.join(sorted(MACROS))}")
        return MACROS[text.lower()]
    fields = " ".join(text.split())
    if not fields.isascii():
        raise UsageError(f"cron expression {expression!r} is not plain ASCII; use digits, names and * , - / L #")
    try:
        next(CronSim(fields, datetime(2024, 1, 1, tzinfo=UTC)))
    except CronSimError as error:
        raise UsageError(f"cron expression {expression!r} is not valid: {str(error).lower()}") from None
    except StopIteration:
        raise UsageError(f"cron expression {expression!r} never comes: no date matches it") from None
    return fields


def planned_times(expression: str, timezone: str, after: datetime) -> Iterator[datetime]:
    """Every planned time strictly after an instant, in UTC, strictly increasing."""
    last = after
    # cronsim steps over the start itself, so a start that is a planned time is not repeated; one second back makes
    # sure that an instant between two seconds does not hide the planned time that ends it.
    start = (after - timedelta(seconds=1)).astimezone(zone(timezone))
    for local in CronSim(expand_cached(expression), start):
        at = local.astimezone(UTC)
        if at > last:
            last = at
            yield at


@lru_cache(maxsize=65536)
def expand_cached(expression: str) -> str:
    return expand(expression)
