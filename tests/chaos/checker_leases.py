"""I5, I7, I8, I9, I12, I14, I15: who held an execution when, and what was written about it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from chaos.checker_plan import about
from chaos.checker_rules import MILLISECOND, text
from chaos.checker_story import FINAL, Execution, Schedule, State, Story
from chaos.checker_verdict import Finding
from chaos.history import Final

# What a change may make of an execution, and whose right it is. Everything else was written by someone who had lost
# the row, or never had it.
ALLOWED = {
    ("emitted", "in_progress"),
    ("emitted", "cancelled"),
    ("in_progress", "in_progress"),
    ("in_progress", "emitted"),
    ("in_progress", "delivered"),
    ("in_progress", "failed"),
    ("in_progress", "cancelled"),
}
# The reconciler's words for a lease that ended by itself; one that a worker gives up may end before its time.
RAN_OUT = "let the lease run out"
LONGEST_BACKOFF = 3600.0
# Postgres cuts the names of sessions.
LONGEST_NAME = 63


def _steps(execution: Execution) -> Iterator[tuple[State, State]]:
    """Each change of a row with what it was before; a row made again after its removal starts anew."""
    return ((old, new) for old, new in pairwise(execution.states) if new.op == "UPDATE")


def i5_final_is_final(story: Story) -> Iterator[Finding]:
    for execution in story.executions.values():
        for old, new in _steps(execution):
            if old.status in FINAL:
                yield about(story, execution, "I5", f"was {old.status} and was written again, as {new.status}")


def i7_every_attempt_is_recorded(story: Story) -> Iterator[Finding]:
    """In the transaction that ended it; only a lease that was never acted on may be undone without a trace."""
    for execution in story.executions.values():
        for old, new in _steps(execution):
            was_undone = new.status == "emitted" and new.attempt == old.attempt - 1
            was_ended = old.token and not new.token and not was_undone
            if was_ended and story.ended_as(execution.id, old.attempt, new.moment) is None:
                yield about(story, execution, "I7", f"attempt {old.attempt} ended, but nothing says how")


def i8_nothing_is_written_without_the_lease(story: Story) -> Iterator[Finding]:
    for execution in story.executions.values():
        for old, new in _steps(execution):
            if old.status not in FINAL and (wrong := _stale(old, new)):
                yield about(story, execution, "I8", wrong, "stale")
    for (execution_id, number), written in story.attempts.items():
        for before, after in pairwise(written):
            if before.outcome != "handed_back" and execution_id in story.executions:
                sentence = f"attempt {number} had ended as {before.outcome} and was written again as {after.outcome}"
                yield about(story, story.executions[execution_id], "I8", sentence, "stale")


def _stale(old: State, new: State) -> str | None:
    if (old.status, new.status) not in ALLOWED:
        return f"went from {old.status} to {new.status}, which only a holder of its lease may write"
    if old.token and new.token and old.token != new.token:
        return f"attempt {new.attempt} took the lease while {old.leased_by} still held it"
    if old.token and new.token and (old.leased_by, old.attempt) != (new.leased_by, new.attempt):
        return f"the lease of {old.leased_by} went on under another name or number"
    if not old.token and new.token and new.attempt != old.attempt + 1:
        return f"attempt {new.attempt} followed attempt {old.attempt}"
    if old.token and not new.token and new.attempt not in (old.attempt, old.attempt - 1):
        return f"attempt {old.attempt} ended as attempt {new.attempt}"
    if old.token and not _may_write(old, new):
        return f"attempt {old.attempt} of {old.leased_by} was written as {new.status} by {new.moment.by}"
    return None


def _may_write(old: State, new: State) -> bool:
    """Its holder may; anybody may cancel, and take what ran out. Sessions bear the name of their worker."""
    taken = not new.token and (new.status == "cancelled" or RAN_OUT in (new.error or ""))
    return taken or new.moment.by in ("", (old.leased_by or "")[:LONGEST_NAME])


def i9_leases_never_overlap(story: Story, final: Final) -> Iterator[Finding]:
    for execution in story.executions.values():
        lengths = _lease_lengths(story.schedules.get(execution.schedule), final)
        over: datetime | None = None
        for old, new in _steps(execution):
            if new.token and new.token != old.token:
                yield from _taken_too_soon(story, execution, over, new)
            if new.token and lengths and not any(_lasts(old, new, length) for length in lengths):
                sentence = f"the lease of attempt {new.attempt} until {_when(new.leased_until)} is not by database time"
                yield about(story, execution, "I9", sentence)
            if old.token and not new.token and old.leased_until:
                over = min(new.moment.at, old.leased_until)
                ended = story.ended_as(execution.id, old.attempt, new.moment)
                if ended and RAN_OUT in (ended.error or "") and new.moment.at < old.leased_until:
                    sentence = f"attempt {old.attempt} was taken from {old.leased_by}, whose lease had not run out"
                    yield about(story, execution, "I9", sentence)


def _taken_too_soon(story: Story, execution: Execution, over: datetime | None, new: State) -> Iterator[Finding]:
    if over is not None and new.leased_at is not None and new.leased_at < over:
        sentence = (
            f"attempt {new.attempt} was leased at {text(new.leased_at)}, the lease before it held till {text(over)}"
        )
        yield about(story, execution, "I9", sentence)


def _lease_lengths(schedule: Schedule | None, final: Final) -> list[timedelta]:
    """Every length that a lease of this schedule may have had; none when it is not known."""
    usual = final.settings.get("lease_seconds")
    own = [] if schedule is None else schedule.values("lease_seconds")
    seconds = [usual if value is None else value for value in own]
    return [] if None in seconds else [timedelta(seconds=float(str(value))) for value in seconds]


def _lasts(old: State, new: State, length: timedelta) -> bool:
    """Granted or renewed between the row's last change and this one, by the database's clock, for that long."""
    if new.leased_until is None or new.leased_at is None:
        return False
    granted = new.leased_until - length
    in_time = new.token == old.token or old.moment.at <= new.leased_at <= new.moment.at
    return in_time and max(old.moment.at, new.leased_at) - MILLISECOND <= granted <= new.moment.at + MILLISECOND


def i12_never_leased_early(story: Story) -> Iterator[Finding]:
    for execution in story.executions.values():
        for old, new in _steps(execution):
            if new.token and new.token != old.token and new.leased_at and new.leased_at < execution.execute_at:
                early = (execution.execute_at - new.leased_at).total_seconds()
                yield about(story, execution, "I12", f"was leased {early:g} s before it was due", "early")


def i14_backoff_holds(story: Story) -> Iterator[Finding]:
    for execution in story.executions.values():
        for old, new in _steps(execution):
            if not old.token and new.token and new.leased_at and old.attempt and new.leased_at < old.next_attempt_at:
                sentence = f"attempt {new.attempt} was leased at {text(new.leased_at)}, to be tried not before"
                yield about(story, execution, "I14", f"{sentence} {text(old.next_attempt_at)}")
            if (
                old.token
                and new.status == "emitted"
                and new.next_attempt_at < _earliest_retry(story, execution, old, new)
            ):
                sentence = f"after attempt {old.attempt} the next was set to {text(new.next_attempt_at)}"
                yield about(story, execution, "I14", f"{sentence}, without its back-off")


def _earliest_retry(story: Story, execution: Execution, tried: State, after: State) -> datetime:
    """When the next attempt may come at the earliest after one that the target broke.

    Back-off is counted from its end, which lies after the lease and after the target saw the request.
    """
    ended = story.ended_as(execution.id, tried.attempt, after.moment)
    schedule = story.schedules.get(execution.schedule)
    began = tried.leased_at
    if schedule is None or began is None or ended is None or ended.outcome not in ("broken", "timeout"):
        return execution.execute_at
    # Retry-After may ask for less.
    if ended.status_code in (429, 503):
        return began
    seen = [receipt.at for receipt in story.received.get(execution.id, ()) if receipt.attempt == tried.attempt]
    return max([began, *seen]) + min(_delay(value, tried.attempt) for value in schedule.values("backoff_seconds"))


def _delay(backoff: object, attempt: int) -> timedelta:
    """A list is taken at its word; a single base doubles, and is spread down to one half."""
    assert isinstance(backoff, list)
    if len(backoff) > 1:
        return timedelta(seconds=backoff[min(attempt, len(backoff)) - 1])
    return timedelta(seconds=min(LONGEST_BACKOFF, backoff[0] * 2.0 ** min(attempt - 1, 30)) / 2)


def i15_overlap_holds(story: Story) -> Iterator[Finding]:
    for (schedule_id, _), executions in story.of_scope.items():
        schedule = story.schedules.get(schedule_id)
        policies = [] if schedule is None else schedule.values("overlap")
        if policies == ["skip"] or len(policies) > 1:
            yield from _skip_overlaps(story, [e for e in executions if len(policies) == 1 or e.slot == 0])
        if policies == ["queue"] or len(policies) > 1:
            yield from _queue_jumps(story, [e for e in executions if len(policies) == 1 or e.slot])


def _skip_overlaps(story: Story, executions: list[Execution]) -> Iterator[Finding]:
    before: Execution | None = None
    for execution in sorted(executions, key=lambda e: e.states[0].moment.seq):
        began = execution.states[0].moment.seq
        if before is not None and _over(before) > began:
            sentence = f"began while that of {text(before.scheduled_at)} was unfinished, its overlap being skip"
            yield about(story, execution, "I15", sentence)
        before = execution


def _over(execution: Execution) -> float:
    """When it became final or, wrongly, was removed before that."""
    over = execution.ended or next(iter(execution.removed), None)
    return float("inf") if over is None else over.seq


def _queue_jumps(story: Story, executions: list[Execution]) -> Iterator[Finding]:
    """Leases follow the planned times, and one lives at a time."""
    changes = [(new.moment.seq, e, old, new) for e in executions for old, new in _steps(e)]
    newest: Execution | None = None
    holding: set[str] = set()
    for _, execution, old, new in sorted(changes, key=lambda change: change[0]):
        if not new.token:
            holding.discard(execution.id)
        elif new.token != old.token:
            if holding - {execution.id}:
                yield about(story, execution, "I15", "was leased while another of its queue was in progress")
            if execution.n is not None:
                if newest is not None and execution.scheduled_at < newest.scheduled_at:
                    sentence = f"was leased after that of {text(newest.scheduled_at)}: its queue is not in order"
                    yield about(story, execution, "I15", sentence)
                newest = execution
            holding.add(execution.id)


def _when(at: datetime | None) -> str:
    return "nothing" if at is None else text(at)
