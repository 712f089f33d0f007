"""Are the numbered times of a cron rule those of its expression? Judged by the oracle, which shares no code with it.

Marks (a number and its time) come in order. From one that is known to be right the oracle counts on: the mark with
number n + k must be the k-th planned time behind the mark with number n.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from fleet.domain.instant import format_instant
from fleet.errors import UsageError
from fleet.ledger.oracle import CronOracle
from fleet.ledger.report import Problem
from fleet.store.account import CronMark

# Work is bounded: over a stretch of more numbers than this without a mark (a long gap of a frequent rule) nothing is
# counted. Both of its ends are still held against the expression, and counting begins anew behind it.
SPAN = 10_000
SMALLEST_WINDOW = timedelta(hours=1)


class Anchor(NamedTuple):
    n: int
    at: datetime


class CronCheck:
    """Feed it the marks in order, then `finish`; both return the problems found so far."""

    def __init__(self) -> None:
        self._marks: list[CronMark] = []
        self._anchor: Anchor | None = None

    def feed(self, mark: CronMark) -> list[Problem]:
        problems: list[Problem] = []
        first = self._marks[0] if self._marks else None
        if first is not None and not _same_stretch(first, mark):
            problems = self.finish()
        elif first is not None and (mark.n - first.n > SPAN or len(self._marks) >= SPAN):
            problems = self._judge()
        if not self._marks and self._anchor is None:
            self._anchor = _start(mark)
        self._marks.append(mark)
        return problems

    def finish(self) -> list[Problem]:
        problems = self._judge() if self._marks else []
        self._anchor = None
        return problems

    def _judge(self) -> list[Problem]:
        """Hold the marks collected so far against the expression, and keep the last right one to count on from."""
        marks, self._marks = self._marks, []
        first = marks[0]
        try:
            oracle = _oracle(first.expression, first.timezone)
        except UsageError as error:
            return [_problem(first, f"its expression cannot be judged: {error}")]
        if self._anchor is not None and first.n - self._anchor.n > SPAN:
            self._anchor = None
        if self._anchor is None:
            self._anchor = next((Anchor(m.n, m.at) for m in marks if m.at is not None and oracle.matches(m.at)), None)
        if self._anchor is None:
            return [_problem(mark, _not_planned(mark)) for mark in marks]
        right, problems = _compare(oracle, self._anchor, marks)
        self._anchor = right
        return problems


def _compare(oracle: CronOracle, anchor: Anchor, marks: Sequence[CronMark]) -> tuple[Anchor, list[Problem]]:
    """(the last right mark, what is wrong with the others)."""
    until = max(mark.at or mark.end_at or anchor.at for mark in marks)
    planned = [anchor.at, *times_after(oracle, anchor.at, until, marks[-1].n - anchor.n)]
    right, problems = anchor, []
    for mark in marks:
        index = mark.n - anchor.n
        expected = planned[index] if 0 <= index < len(planned) else None
        if expected is not None and mark.end_at is not None and expected > mark.end_at:
            expected = None
        if mark.at is not None and mark.at == expected:
            right = Anchor(mark.n, mark.at)
        elif mark.at is not None:
            problems.append(
                _problem(mark, _not_number(mark, expected) if oracle.matches(mark.at) else _not_planned(mark))
            )
        elif expected is not None or mark.end_at is None:
            problems.append(_problem(mark, f"nothing is planned any more, though {_rule(mark)} goes on"))
    return right, problems


def times_after(oracle: CronOracle, after: datetime, until: datetime, limit: int) -> list[datetime]:
    """The planned times in (after, until], at most `limit`; the look-out grows while it finds little."""
    times: list[datetime] = []
    window = SMALLEST_WINDOW
    while after < until and len(times) < limit:
        stop = min(after + window, until)
        found = oracle.between(after, stop)
        times += found
        if len(found) < SPAN // 10:
            window *= 2
        after = stop
    return times[:limit]


def _start(mark: CronMark) -> Anchor | None:
    """Where a rule's counting starts; unknown when clean-up has removed its first numbers."""
    return Anchor(mark.after_n, mark.since) if mark.accounted_n <= mark.after_n else None


def _same_stretch(one: CronMark, other: CronMark) -> bool:
    return (one.schedule_id, one.scope, one.after_n) == (other.schedule_id, other.scope, other.after_n)


@lru_cache(maxsize=1024)
def _oracle(expression: str, timezone: str) -> CronOracle:
    return CronOracle(expression, timezone)


def _rule(mark: CronMark) -> str:
    return f"{mark.expression!r} in {mark.timezone}"


def _not_planned(mark: CronMark) -> str:
    return f"the {mark.what}'s time is not a planned time of {_rule(mark)}"


def _not_number(mark: CronMark, expected: datetime | None) -> str:
    right = "lies elsewhere" if expected is None else f"is {format_instant(expected)}"
    return f"the {mark.what} has the wrong time: number {mark.n} of {_rule(mark)} {right}"


def _problem(mark: CronMark, detail: str) -> Problem:
    return Problem("off_rule", mark.schedule, mark.schedule_id, mark.scope, mark.n, mark.n, mark.at, detail)
