"""A schedule's rule: which instants are planned. Intervals are arithmetic, cron is enumerated, once is once.

The grid never drifts: every planned time comes from the anchor or from the planned time before it, never from a
jittered or actual one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice, pairwise
from typing import NamedTuple

from fleet.domain.cron import planned_times

INSTANT = timedelta(milliseconds=1)


class Passed(NamedTuple):
    """The planned times of a stretch: how many, the last of them, and the first after it."""

    number: int
    last: datetime | None
    next: datetime | None


@dataclass(frozen=True, slots=True)
class Rule:
    anchor_at: datetime
    start_at: datetime
    end_at: datetime | None = None
    interval_seconds: int | None = None
    cron_expression: str | None = None
    run_at: datetime | None = None
    timezone: str = "UTC"

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The planned times strictly after an instant, in order, up to the rule's end."""
        instant = max(instant, self.start_at - INSTANT)
        for at in self._unbounded(instant):
            if self.end_at is not None and at > self.end_at:
                return
            yield at

    def next_after(self, instant: datetime) -> datetime | None:
        return next(self.after(instant), None)

    def passed(self, first: datetime, until: datetime) -> Passed:
        """Count the planned times from `first` (itself one) up to and including `until`."""
        if first > until:
            return Passed(0, None, first)
        if self.interval_seconds is not None:
            return self._passed_interval(first, until)
        count, last = 1, first
        for at in self.after(first):
            if at > until:
                return Passed(count, last, at)
            count, last = count + 1, at
        return Passed(count, last, None)

    def smallest_distance(self, sample: int = 200) -> timedelta | None:
        """The least time between neighbours: exact for intervals, from a sample for cron, None when there are none."""
        if self.interval_seconds is not None:
            return timedelta(seconds=self.interval_seconds)
        times = list(islice(self.after(self.start_at - INSTANT), sample))
        return min((b - a for a, b in pairwise(times)), default=None)

    def _passed_interval(self, first: datetime, until: datetime) -> Passed:
        step = timedelta(seconds=self.interval_seconds or 0)
        bound = until if self.end_at is None else min(until, self.end_at)
        count = (bound - first) // step + 1
        last = first + (count - 1) * step
        return Passed(count, last, self.next_after(last))

    def _unbounded(self, instant: datetime) -> Iterator[datetime]:
        if self.interval_seconds is not None:
            step = timedelta(seconds=self.interval_seconds)
            at = self.anchor_at + ((instant - self.anchor_at) // step + 1) * step
            while True:
                yield at
                at += step
        elif self.cron_expression is not None:
            yield from planned_times(self.cron_expression, self.timezone, instant)
        elif self.run_at is not None and self.run_at > instant:
            yield self.run_at
