"""I3: every planned time whose time has passed has exactly one fate: an execution, or a gap with its reason."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import accumulate

from chaos.checker_plan import about
from chaos.checker_rules import FOREVER, Rule, text
from chaos.checker_story import FINAL, Execution, Gap, Moment, Schedule, Story
from chaos.checker_verdict import Finding
from chaos.history import Final

# A change of a schedule that freezes in mid-transaction is ended by the server; what came due meanwhile is decided
# by the next change of it.
LONGEST_CHANGE = timedelta(seconds=6)
# A blocker that ends in the moment in which it blocks may be written down first.
MOMENT = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class Fate:
    first: int
    last: int
    what: str


def i3_nothing_lost(story: Story, final: Final) -> Iterator[Finding]:
    pending = _pending(story)
    for schedule in story.schedules.values():
        yield from _passed_by(schedule)
        until = _limit(schedule, final)
        for scope in schedule.row["scopes"]:
            fates = _fates(story, schedule, scope)
            yield from _doubled(schedule, fates + pending[schedule.id, scope])
            yield from _missing(story, schedule, scope, fates, until)


def _pending(story: Story) -> dict[tuple[str, str], list[Fate]]:
    found: dict[tuple[str, str], list[Fate]] = defaultdict(list)
    for (schedule, scope, _), ticks in story.ticks.items():
        if ticks[-1].op != "DELETE":
            found[schedule, scope].append(Fate(ticks[-1].n, ticks[-1].n, "a tick that still waits"))
    return found


def _limit(schedule: Schedule, final: Final) -> datetime:
    """Up to when every planned time must have its fate; from when it was paused or deleted on, nothing must."""
    jitter = timedelta(milliseconds=schedule.largest("jitter_ms"))
    grace = timedelta(seconds=schedule.largest("misfire_grace_seconds", _grace(final).total_seconds()))
    until = final.database_now - jitter - (timedelta(0) if final.settled else grace)
    if schedule.row.get("enabled") and not schedule.row.get("deleted_at"):
        return until
    return min(until, _held_since(schedule) - LONGEST_CHANGE - jitter)


def _held_since(schedule: Schedule) -> datetime:
    """When the transaction began to write that switched it off for good."""
    switched: Moment = schedule.created
    off = False
    for state in schedule.defined:
        is_off = not state.row.get("enabled") or bool(state.row.get("deleted_at"))
        if is_off and not off:
            switched = state.moment
        off = is_off
    return schedule.began[switched.xid]


def _passed_by(schedule: Schedule) -> Iterator[Finding]:
    """A new rule begins where the old one ended: what the old one planned until then must have got a number."""
    before: Rule | None = None
    for rule in schedule.rules.versions:
        if before is not None and (before.after_n, before.after_at) != (rule.after_n, rule.after_at):
            missed = before.last_number(rule.after_at) - rule.after_n
            if missed > 0:
                sentence = (
                    f"the rule {before} was replaced as of {text(rule.after_at)}, and {missed} planned times that had"
                    " come by then became nothing"
                )
                yield Finding("I3", schedule.name, before.time(rule.after_n + 1), sentence, "lost", missed)
        before = rule


def _fates(story: Story, schedule: Schedule, scope: str) -> list[Fate]:
    executed = story.numbered.get((schedule.id, scope), ())
    fates = [Fate(n, n, "an execution") for n in {execution.n or 0 for execution in executed}]
    newest: dict[int, Gap] = {}
    for gap in story.gaps.get((schedule.id, scope), ()):
        if gap.op != "DELETE" or not _may_go(schedule, gap.last_n):
            newest[gap.first_n] = gap
    fates += [Fate(gap.first_n, gap.last_n, f"a gap ({gap.reason})") for gap in newest.values() if gap.op != "DELETE"]
    return _in_order(fates)


def _in_order(fates: list[Fate]) -> list[Fate]:
    return sorted(fates, key=lambda fate: (fate.first, fate.last))


def _may_go(schedule: Schedule, n: int) -> bool:
    """Clean-up says up to where it has removed history; all of it goes with the schedule."""
    return schedule.removed is not None or int(schedule.row.get("accounted_n") or 0) >= n


def _doubled(schedule: Schedule, fates: list[Fate]) -> Iterator[Finding]:
    reached: Fate | None = None
    for fate in _in_order(fates):
        if reached is not None and fate.first <= reached.last:
            sentence = f"number {fate.first} has two fates: {reached.what} and {fate.what}"
            yield Finding("I3", schedule.name, schedule.rules.time(fate.first), sentence, "duplicate")
        if reached is None or fate.last > reached.last:
            reached = fate


def _missing(story: Story, schedule: Schedule, scope: str, fates: list[Fate], until: datetime) -> Iterator[Finding]:
    last = _last_due(story, schedule, scope, fates, until)
    reached = 0
    for fate in [*fates, Fate(last + 1, last + 1, "the end")]:
        if fate.first > reached + 1 and reached < last:
            yield from _hole(story, schedule, scope, range(reached + 1, min(fate.first - 1, last) + 1))
        reached = max(reached, fate.last)


def _last_due(story: Story, schedule: Schedule, scope: str, fates: list[Fate], until: datetime) -> int:
    if not schedule.rules.versions:
        return 0
    last = schedule.rules.versions[-1].last_number(until)
    while last > 0 and (at := schedule.rules.time(last)) is not None and at > until:
        last -= 1
    if _runs_are_used_up(story, schedule):
        last = min(last, max((fate.last for fate in fates), default=0))
    return last


def _runs_are_used_up(story: Story, schedule: Schedule) -> bool:
    limit = schedule.row.get("max_runs")
    ran = sum(len(story.numbered.get((schedule.id, scope), ())) for scope in schedule.row["scopes"])
    return limit is not None and ran >= int(limit)


def _hole(story: Story, schedule: Schedule, scope: str, numbers: range) -> Iterator[Finding]:
    """Planned times without a fate: one finding for each run of them, those that still wait apart."""
    lost: list[datetime | None] = []
    waiting: list[datetime | None] = []
    for n in numbers:
        at = schedule.rules.time(n)
        ticks = [] if at is None else story.ticks.get((schedule.id, scope, at), [])
        (waiting if ticks and ticks[-1].op != "DELETE" else lost).append(at)
    first, last = numbers[0], numbers[-1]
    if lost:
        sentence = f"of the numbers {first} to {last}, {len(lost)} became neither an execution nor a gap"
        yield Finding("I3", schedule.name, lost[0], sentence, "lost", len(lost))
    if waiting:
        sentence = f"of the numbers {first} to {last}, {len(waiting)} are still ticks though their time has long passed"
        yield Finding("I3", schedule.name, waiting[0], sentence, "lost", len(waiting))


def i2_nothing_runs_while_switched_off(story: Story) -> Iterator[Finding]:
    """A planned time that comes while its schedule is paused, cancelled or deleted becomes no execution."""
    for schedule in story.schedules.values():
        for off, on in _switched_off(schedule):
            for scope in schedule.row["scopes"]:
                for execution in story.numbered.get((schedule.id, scope), ()):
                    if off < execution.execute_at < on:
                        sentence = f"became an execution though its schedule was switched off at {text(off)}"
                        yield about(story, execution, "I2", sentence, "unexpected")


def _switched_off(schedule: Schedule) -> Iterator[tuple[datetime, datetime]]:
    """From when to when; a change that switches it on may have begun a while before it wrote."""
    since: datetime | None = None
    for state in schedule.defined:
        is_off = not state.row.get("enabled") or bool(state.row.get("deleted_at"))
        if is_off and since is None:
            since = state.moment.at
        elif since is not None and not is_off:
            yield since, state.moment.at - LONGEST_CHANGE
            since = None
    if since is not None:
        yield since, FOREVER


def i3_nothing_is_given_up(story: Story) -> Iterator[Finding]:
    """What a target or a worker broke is tried again as often as was asked for."""
    for execution in story.executions.values():
        schedule = story.schedules.get(execution.schedule)
        last = execution.last
        if schedule is None or last.status != "failed" or schedule.values("delivery") != ["at-least-once"]:
            continue
        most = min(int(str(value)) for value in schedule.values("max_attempts"))
        if last.attempt < most and story.outcomes(execution.id, last.attempt) & {"broken", "timeout", "lost"}:
            yield about(story, execution, "I3", f"was given up after attempt {last.attempt} of {most}", "lost")


def i3_nothing_is_stranded(story: Story, final: Final) -> Iterator[Finding]:
    """What is unfinished at the end must have somebody to finish it; behind the head of a queue one may wait.

    In a drill that has settled nothing is unfinished.
    """
    for executions in story.of_scope.values():
        unfinished = [e for e in executions if e.last.status not in FINAL and not e.removed]
        heads = {min((e for e in unfinished if e.slot), key=lambda e: e.slot or 0, default=None)}
        for execution in unfinished:
            since = execution.last.leased_until or execution.last.next_attempt_at
            is_late = since < final.database_now - _grace(final) and (not execution.slot or execution in heads)
            if is_late or final.settled:
                sentence = f"is still {execution.last.status} and nobody took care of it since {text(since)}"
                yield about(story, execution, "I3", sentence, "lost")


def i3_cleanup_removes_only_what_is_over(story: Story, final: Final) -> Iterator[Finding]:
    age = timedelta(seconds=final.settings.get("retention_age_seconds", 0))
    for execution in story.executions.values():
        if not execution.removed:
            continue
        schedule = story.schedules.get(execution.schedule)
        if execution.last.status not in FINAL:
            yield about(story, execution, "I3", f"was removed while it was {execution.last.status}", "lost")
        elif schedule is not None and execution.n is not None and not _may_go(schedule, execution.n):
            yield about(story, execution, "I3", "was removed, but the account does not say that it is closed", "lost")
        elif execution.removed[0].at < execution.scheduled_at + age:
            yield about(story, execution, "I3", f"was removed at {text(execution.removed[0].at)}, too young", "lost")


def i3_gaps_have_their_reason(story: Story, final: Final) -> Iterator[Finding]:
    """`catch_up` only when it was too late, `overlap` only when something was unfinished."""
    for (schedule_id, scope), gaps in story.gaps.items():
        schedule = story.schedules.get(schedule_id)
        spans = Spans(story.of_scope.get((schedule_id, scope), []))
        for gap in gaps:
            if gap.op == "DELETE" or schedule is None:
                continue
            if gap.reason == "catch_up" and gap.moment.at < gap.last_at + _shortest_grace(schedule, final):
                sentence = f"was skipped as too late at {text(gap.moment.at)}, within its grace"
                yield Finding("I3", schedule.name, gap.last_at, sentence, "lost")
            if gap.reason == "overlap" and not spans.cover(gap.moment.at):
                sentence = f"was skipped at {text(gap.moment.at)} for overlapping, but nothing was unfinished"
                yield Finding("I3", schedule.name, gap.last_at, sentence, "lost")


class Spans:
    """From when to when the executions of one schedule and scope were unfinished."""

    def __init__(self, executions: list[Execution]) -> None:
        spans = sorted((e.states[0].moment.at, e.ended.at if e.ended else FOREVER) for e in executions)
        self._begins = [begin for begin, _ in spans]
        self._furthest = list(accumulate((end for _, end in spans), max))

    def cover(self, at: datetime) -> bool:
        place = bisect_right(self._begins, at + MOMENT)
        return place > 0 and self._furthest[place - 1] >= at - MOMENT


def _grace(final: Final) -> timedelta:
    return timedelta(seconds=final.settings.get("misfire_grace_seconds", 60))


def _shortest_grace(schedule: Schedule, final: Final) -> timedelta:
    own = schedule.values("misfire_grace_seconds")
    return min(_grace(final) if value is None else timedelta(seconds=float(str(value))) for value in own)
