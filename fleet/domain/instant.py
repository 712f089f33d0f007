"""Instants as people write them: RFC 3339, or relative ("2h ago", "in 5m", "now")."""

from datetime import UTC, datetime, timedelta

from fleet.domain.duration import parse_duration
from fleet.errors import UsageError


def parse_instant(text: str, now: datetime) -> datetime:
    words = text.strip()
    if words == "now":
        return now
    if words.endswith(" ago"):
        return now - parse_duration(words[:-4].strip())
    if words.startswith("in "):
        return now + parse_duration(words[3:].strip())
    try:
        at = datetime.fromisoformat(words)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise UsageError(
            f"time {text!r} is not understood; write 2026-05-01T12:00:00Z, 'in 5m', '2h ago' or 'now'"
        ) from None
    return at - timedelta(microseconds=at.microsecond % 1000)


def format_instant(at: datetime) -> str:
    """RFC 3339 in UTC; milliseconds only where there are any."""
    at = at.astimezone(UTC)
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds").replace("+00:00", "Z")
