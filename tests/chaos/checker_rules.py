"""What should have been planned: times, numbers and ids, worked out anew from the rules that were recorded.

Nothing here comes from the code that planned them. Intervals are arithmetic on the anchor, cron is the ledger's
oracle, which walks local days and imports no cron library.
"""

from bisect import bisect_left, bisect_right
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from typing import Any, Protocol
from uuid import UUID

from chaos.history import instant
from fleet.ledger.oracle import CronOracle

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
FOREVER = datetime(9000, 1, 1, tzinfo=UTC)
# How far ahead of what is known a cron rule is asked at once, at least; it grows while little is found.
STRETCH = timedelta(hours=1)
LONGEST_LOOK = timedelta(days=366 * 8)


class Times(Protocol):
    """The planned times of one rule after an instant, numbered from 1."""

    def count(self, until: datetime) -> int:
        """How many are not later than this."""

    def number(self, at: datetime) -> int | None:
        """Which one this is; None when nothing is planned then."""

    def time(self, number: int) -> datetime | None:
        """When that one is; None when there are not so many."""


class IntervalTimes:
    def __init__(self, anchor: datetime, step: timedelta, after: datetime, end: datetime) -> None:
        self._first = anchor + ((after - anchor) // step + 1) * step
        self._step = step
        self._end = end

    def count(self, until: datetime) -> int:
        return max(0, (min(until, self._end) - self._first) // self._step + 1)

    def number(self, at: datetime) -> int | None:
        number, rest = divmod(at - self._first, self._step)
        return number + 1 if not rest and number >= 0 and at <= self._end else None

    def time(self, number: int) -> datetime | None:
        at = self._first + (number - 1) * self._step
        return at if number >= 1 and at <= self._end else None


class CronTimes:
    """Counts through the oracle, no further than it was asked for."""

    def __init__(self, oracle: CronOracle, after: datetime, end: datetime) -> None:
        self._oracle = oracle
        self._times: list[datetime] = []
        self._known = after
        self._end = end

    def count(self, until: datetime) -> int:
        self._look(until)
        return bisect_right(self._times, until)

    def number(self, at: datetime) -> int | None:
        number = self.count(at)
        return number if number and self._times[number - 1] == at else None

    def time(self, number: int) -> datetime | None:
        ahead, start = STRETCH, self._known
        while len(self._times) < number and self._known < min(self._end, start + LONGEST_LOOK):
            self._look(self._known + ahead)
            ahead *= 2
        return self._times[number - 1] if 1 <= number <= len(self._times) else None

    def _look(self, until: datetime) -> None:
        if until > self._known:
            stop = min(max(until, self._known + STRETCH), self._end)
            if stop > self._known:
                self._times += self._oracle.between(self._known, stop)
            self._known = max(self._known, stop)


class OnceTimes:
    def __init__(self, at: datetime, after: datetime, end: datetime) -> None:
        self._at = at if after < at <= end else None

    def count(self, until: datetime) -> int:
        return int(self._at is not None and self._at <= until)

    def number(self, at: datetime) -> int | None:
        return 1 if at == self._at else None

    def time(self, number: int) -> datetime | None:
        return self._at if number == 1 else None


class Rule:
    """One version of a schedule: its j-th planned time after `after_at` has the number after_n + j."""

    def __init__(self, row: dict[str, Any], created_at: datetime, seq: int) -> None:
        self.row, self.seq = row, seq
        self.after_n: int = row["after_n"]
        self.after_at = instant(row["after_at"])
        self.start = _start(row, created_at)
        self.anchor = EPOCH if row["definition"].get("align") else self.start
        self.end = instant(row["end_at"]) if row.get("end_at") else FOREVER
        self.times = self._times()

    def _times(self) -> Times:
        after = max(self.after_at, self.start - MILLISECOND)
        if self.row.get("interval_seconds") is not None:
            return IntervalTimes(self.anchor, timedelta(seconds=self.row["interval_seconds"]), after, self.end)
        if self.row.get("cron_expression") is not None:
            return CronTimes(oracle(self.row["cron_expression"], self.row["timezone"]), after, self.end)
        return OnceTimes(instant(self.row["run_at"]), after, self.end)

    def last_number(self, until: datetime) -> int:
        return self.after_n + self.times.count(until)

    def number(self, at: datetime) -> int | None:
        place = self.times.number(at)
        return None if place is None else self.after_n + place

    def time(self, n: int) -> datetime | None:
        return self.times.time(n - self.after_n)

    def __str__(self) -> str:
        if self.row.get("interval_seconds") is not None:
            return f"every {self.row['interval_seconds']} s from {text(self.anchor)}"
        if self.row.get("cron_expression") is not None:
            return f"{self.row['cron_expression']!r} in {self.row['timezone']}"
        return f"once at {self.row['run_at']}"


def _start(row: dict[str, Any], created_at: datetime) -> datetime:
    """The first instant that may be planned: as asked, else creation plus one interval."""
    asked = row["definition"]
    if row.get("run_at"):
        return instant(row["run_at"])
    if asked.get("start_at"):
        return instant(asked["start_at"])
    if asked.get("align"):
        return created_at + MILLISECOND
    return created_at + timedelta(seconds=row.get("interval_seconds") or 0)


class Rules:
    """Every version of one schedule; a later one takes the numbers from its after_n on."""

    def __init__(self) -> None:
        self.versions: list[Rule] = []
        self._after: list[int] = []
        self._seqs: list[int] = []

    def add(self, version: Rule) -> None:
        self.versions.append(version)
        self._after.append(version.after_n)
        self._seqs.append(version.seq)

    def of(self, n: int, seq: int | None = None) -> Rule | None:
        """The rule in force for a number: at the end, or when the change `seq` was made."""
        known = len(self.versions) if seq is None else bisect_left(self._seqs, seq)
        place = bisect_left(self._after, n, 0, known) - 1
        return self.versions[place] if place >= 0 else None

    def time(self, n: int) -> datetime | None:
        rule = self.of(n)
        return None if rule is None else rule.time(n)


@lru_cache(maxsize=1024)
def oracle(expression: str, timezone: str) -> CronOracle:
    return CronOracle(expression, timezone)


@lru_cache(maxsize=4096)
def _tail(schedule: str, scope: str, run: str) -> str:
    return sha256(f"{schedule}\x1f{scope}\x1f{run}".encode()).hexdigest()[:18]


def execution_id(schedule: str, scope: str, scheduled_at: datetime, run: str = "") -> str:
    """UUIDv8: 48 bits of milliseconds, then 72 bits of hash around the version's and the variant's digit."""
    tail = _tail(schedule, scope, run)
    millis = (scheduled_at - EPOCH) // MILLISECOND
    return str(UUID(f"{millis:012x}8{tail[:3]}8{tail[3:]}"))


def text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
