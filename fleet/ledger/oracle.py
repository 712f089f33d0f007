"""Oracle: which instants a cron expression plans, worked out a second time.

The ledger judges recorded times by this file, so it shares no code and no library with the generator that made them:
a mistake in one of the two shows as a disagreement instead of being repeated.

Two ways lead to the answer. `matches` looks at one UTC instant and reads the local clock there; `between` goes from
local days to instants. The tests hold them against each other.
"""

from __future__ import annotations

import calendar
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import NamedTuple
from zoneinfo import ZoneInfo

from fleet.errors import UsageError

MACROS = {
    "@HOURLY": "0 * * * *",
    "@DAILY": "0 0 * * *",
    "@MIDNIGHT": "0 0 * * *",
    "@WEEKLY": "0 0 * * 0",
    "@MONTHLY": "0 0 1 * *",
    "@YEARLY": "0 0 1 1 *",
    "@ANNUALLY": "0 0 1 1 *",
}
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
WEEKDAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
DAY_SECONDS = 86_400
# `check` compares week by week, so that a broken list over years of seconds stops at its first problems.
CHECK_WINDOW = timedelta(days=7)
MOST_PROBLEMS = 5


class Field(NamedTuple):
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        if text in self.names:
            return self.low + self.names.index(text)
        value = _digits(text)
        if value is None or not self.low <= value <= self.high:
            raise UsageError(f"{self.name} {text!r} is not between {self.low} and {self.high}: correct the expression.")
        return value

    def values(self, terms: Sequence[str]) -> frozenset[int]:
        return frozenset(value for term in terms for value in self._term(term))

    def _term(self, term: str) -> range:
        base, slash, step_text = term.partition("/")
        step = _digits(step_text) if slash else 1
        if not step:
            raise UsageError(f"{self.name} {term!r} has no usable step: write a number from 1 after the slash.")
        if base == "*":
            return range(self.low, self.high + 1, step)
        first, dash, last = base.partition("-")
        start = self.number(first)
        open_end = self.high if slash else start
        end = self.number(last) if dash else open_end
        if end < start:
            raise UsageError(f"{self.name} {term!r} runs backwards: write the smaller end first.")
        return range(start, end + 1, step)


SECONDS = Field("second", 0, 59)
MINUTES = Field("minute", 0, 59)
HOURS = Field("hour", 0, 23)
DAYS = Field("day of month", 1, 31)
MONTH = Field("month", 1, 12, MONTHS)
WEEKDAY = Field("weekday", 0, 7, WEEKDAYS)


def _digits(text: str) -> int | None:
    # The length bound keeps a hostile expression from costing more than its own length.
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else None


class DayRule:
    """The two day fields together: which days of a month they mean."""

    def __init__(self, days: str, weekdays: str) -> None:
        self._both = days.startswith("*") or weekdays.startswith("*")
        day_terms, weekday_terms = days.split(","), weekdays.split(",")
        self._last_day = "L" in day_terms
        self._last_workday = "LW" in day_terms
        self._days = DAYS.values([term for term in day_terms if term not in ("L", "LW")])
        self._last_of = {WEEKDAY.number(term[:-1]) % 7 for term in weekday_terms if term.endswith("L")}
        self._nth_of = {self._nth(term) for term in weekday_terms if "#" in term}
        plain = [term for term in weekday_terms if "#" not in term and not term.endswith("L")]
        self._weekdays = {value % 7 for value in WEEKDAY.values(plain)}

    @staticmethod
    def _nth(term: str) -> tuple[int, int]:
        weekday, _, nth_text = term.partition("#")
        nth = _digits(nth_text)
        if nth is None or not 1 <= nth <= 5:
            raise UsageError(f"weekday {term!r} has no usable count: write 1 to 5 after the #.")
        return WEEKDAY.number(weekday) % 7, nth

    def of(self, year: int, month: int) -> list[int]:
        first_weekday, length = calendar.monthrange(year, month)
        # calendar counts from Monday = 0, cron from Sunday = 0.
        by_weekday = [(day, (first_weekday + day) % 7) for day in range(1, length + 1)]
        last_workday = max(day for day, weekday in by_weekday if weekday not in (0, 6))
        join = all if self._both else any
        return [
            day
            for day, weekday in by_weekday
            if join((self._is_day(day, length, last_workday), self._is_weekday(day, weekday, length)))
        ]

    def _is_day(self, day: int, length: int, last_workday: int) -> bool:
        if day in self._days:
            return True
        return (self._last_day and day == length) or (self._last_workday and day == last_workday)

    def _is_weekday(self, day: int, weekday: int, length: int) -> bool:
        if weekday in self._weekdays or (weekday, (day + 6) // 7) in self._nth_of:
            return True
        return weekday in self._last_of and day + 7 > length


class CronOracle:
    """The planned instants of one expression in one time zone.

    A wildcard expression (minute or hour begins with `*`, or it has seconds) follows the local clock as it runs. Any
    other names times of day: one that the clock skips is planned right after the gap, one that comes twice only the
    first time.
    """

    def __init__(self, expression: str, timezone: str) -> None:
        self._name = f"{expression!r} in {timezone}"
        upper = expression.strip().upper()
        parts = MACROS.get(upper, upper).split()
        if len(parts) not in (5, 6):
            raise UsageError(f"The expression {expression!r} has {len(parts)} fields: write 5, or 6 with seconds.")
        with_seconds = len(parts) == 6
        second, minute, hour, days, month, weekdays = parts if with_seconds else ["0", *parts]
        self._zone = _zone(timezone)
        self._follows_clock = with_seconds or minute.startswith("*") or hour.startswith("*")
        self._months = MONTH.values(month.split(","))
        self._rule = DayRule(days, weekdays)
        self._month_days: dict[tuple[int, int], list[int]] = {}
        seconds, minutes = SECONDS.values(second.split(",")), MINUTES.values(minute.split(","))
        hours = HOURS.values(hour.split(","))
        # Every time of day as seconds since local midnight: the same for each day that matches.
        self._clock = sorted(h * 3600 + m * 60 + s for h in hours for m in minutes for s in seconds)

    def matches(self, at: datetime) -> bool:
        """Is this instant a planned time? Read off the local clock at that instant."""
        if at.microsecond:
            return False
        local = at.astimezone(self._zone)
        now = local.replace(tzinfo=None, fold=0)
        if self._follows_clock:
            return self._names(now)
        if local.fold:
            return False
        # Where the clock would stand had it not jumped: behind `now` only at the first instant after a gap.
        unmoved = (at - SECOND).astimezone(self._zone).replace(tzinfo=None, fold=0) + SECOND
        return self._names(now) or (unmoved < now and self._names_any(unmoved, now))

    def between(self, after: datetime, until: datetime) -> list[datetime]:
        """All planned instants in (after, until], in order, in UTC."""
        low, high = (after - EPOCH) // SECOND, (until - EPOCH) // SECOND
        first = after.astimezone(self._zone).date() - DAY
        last = until.astimezone(self._zone).date() + DAY
        found: set[int] = set()
        for day in self._days_between(first, last):
            found.update(self._on_day(day, low, high))
        # Sorted as a whole: a clock that is put back over midnight brings a piece of yesterday after today's first.
        return [datetime.fromtimestamp(instant, UTC) for instant in sorted(found) if low < instant <= high]

    def check(self, times: Sequence[datetime]) -> list[str]:
        """What is wrong with times that should be the planned ones from the first to the last, none missing."""
        if not times:
            return []
        problems = [
            f"{_text(later)} follows {_text(earlier)}: planned times of {self._name} must increase"
            for earlier, later in pairwise(times)
            if later <= earlier
        ]
        recorded = sorted(set(times))
        start, end = recorded[0] - timedelta(microseconds=1), recorded[-1]
        while start < end and len(problems) < MOST_PROBLEMS:
            stop = min(start + CHECK_WINDOW, end)
            window = recorded[bisect_right(recorded, start) : bisect_right(recorded, stop)]
            problems += self._differences(set(window), set(self.between(start, stop)))
            start = stop
        return problems[:MOST_PROBLEMS]

    def _differences(self, recorded: set[datetime], planned: set[datetime]) -> list[str]:
        return [
            f"{_text(at)} is not a planned time of {self._name}"
            if at in recorded
            else f"{_text(at)} is a planned time of {self._name} and is missing"
            for at in sorted(recorded ^ planned)
        ]

    def _names(self, local: datetime) -> bool:
        return self._names_any(local, local + SECOND)

    def _names_any(self, start: datetime, end: datetime) -> bool:
        """Does the expression name a local time in [start, end)?"""
        for day in self._days_between(start.date(), end.date()):
            midnight = datetime(day.year, day.month, day.day)
            low, high = (start - midnight) // SECOND, (end - midnight) // SECOND
            if bisect_left(self._clock, low) < bisect_left(self._clock, high):
                return True
        return False

    def _days_between(self, first: date, last: date) -> Iterator[date]:
        year, month = first.year, first.month
        while (year, month) <= (last.year, last.month):
            if month in self._months:
                days = (date(year, month, day) for day in self._days_of(year, month))
                yield from (day for day in days if first <= day <= last)
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)

    def _days_of(self, year: int, month: int) -> list[int]:
        days = self._month_days.get((year, month))
        if days is None:
            days = self._month_days[year, month] = self._rule.of(year, month)
        return days

    def _on_day(self, day: date, low: int, high: int) -> Iterator[int]:
        """The instants of one local day, as seconds since the epoch; at least those in (low, high]."""
        midnight = (day.toordinal() - EPOCH.toordinal()) * DAY_SECONDS
        # fold=0 reads a changing midnight as before the change, fold=1 as after it: equal means that nothing changes.
        opening = self._offset(midnight, fold=0)
        closing = self._offset(midnight + DAY_SECONDS, fold=1)
        start = bisect_left(self._clock, low + min(opening, closing) - midnight)
        stop = bisect_right(self._clock, high + max(opening, closing) - midnight)
        locals_ = (midnight + second for second in self._clock[start:stop])
        if opening == closing:
            return (local - opening for local in locals_)
        return (instant for local in locals_ for instant in self._instants(local))

    def _instants(self, local: int) -> list[int]:
        """When the local clock shows this time on a day that changes it: never, once or twice."""
        before, after = self._offset(local, fold=0), self._offset(local, fold=1)
        instants = [local - offset for offset in (before, after) if self._offset_at(local - offset) == offset]
        if self._follows_clock:
            return instants
        return [min(instants) if instants else self._end_of_gap(local - after, local - before)]

    def _end_of_gap(self, low: int, high: int) -> int:
        """The first instant with the new offset; `low` has the old one, `high` the new one."""
        new = self._offset_at(high)
        return low + 1 + bisect_left(range(low + 1, high + 1), True, key=lambda at: self._offset_at(at) == new)

    def _offset(self, local: int, fold: int) -> int:
        clock = EPOCH + timedelta(seconds=local)
        return _seconds(clock.replace(tzinfo=self._zone, fold=fold).utcoffset())

    def _offset_at(self, instant: int) -> int:
        return _seconds(datetime.fromtimestamp(instant, self._zone).utcoffset())


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise UsageError(f"The time zone {name!r} is unknown: write a name like Europe/Paris.") from error


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None  # a ZoneInfo always knows its offset
    return offset // SECOND


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
