"""Lengths of time as people write them: 30s, 5m, 6h, 1d, 100ms, 1h30m."""

import re
from datetime import timedelta

from fleet.errors import UsageError

LONGEST = timedelta(days=36500)  # far above any real use, far below where adding it to a date overflows

# [0-9] and not \d: \d also matches the digits of other scripts.
_PATTERN = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?(?:([0-9]+)ms)?")
_MILLISECOND = timedelta(milliseconds=1)
_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))
_HINT = "write whole numbers with d, h, m, s or ms, largest first, such as 30s, 5m, 6h or 1h30m"


def parse_duration(text: str) -> timedelta:
    """Read a duration; a plain 0 needs no unit."""
    text = text.strip()
    if not text:
        raise UsageError(f"a duration is empty: {_HINT}")
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    if text.startswith("-"):
        raise UsageError(f'duration "{shown}" is negative: durations run forward, write it without the minus')
    if text == "0":
        return timedelta(0)
    # The length is checked first: int() of thousands of digits raises an error of its own.
    match = _PATTERN.fullmatch(text) if len(text) <= 40 else None
    if match is None:
        raise UsageError(f'"{shown}" is not a duration: {_HINT}')
    total = sum(int(number or 0) * size for number, (_, size) in zip(match.groups(), _UNITS, strict=True))
    if total > LONGEST // _MILLISECOND:
        raise UsageError(f'duration "{shown}" is too long: the longest is {format_duration(LONGEST)}')
    return total * _MILLISECOND


def format_duration(duration: timedelta) -> str:
    """Write a duration so that parse_duration reads it back, to the millisecond.

    Below two minutes whole seconds stay seconds, because people say 60s and 90s.
    """
    total = round(duration / _MILLISECOND)
    sign, total = ("-", -total) if total < 0 else ("", total)
    if total < 120_000 and total % 1_000 == 0:
        return f"{sign}{total // 1_000}s"
    parts = []
    for unit, size in _UNITS:
        count, total = divmod(total, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + "".join(parts)
