"""I6, I7, I8, I10, I12, I13: what the target received, matched to executions by id, and then blind by time only."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime

from chaos.checker_plan import about
from chaos.checker_rules import text
from chaos.checker_story import Execution, Story
from chaos.checker_verdict import Finding, Matching
from chaos.history import History, Receipt

UNKNOWN_END = frozenset({"lost", "timeout", "broken", "cancelled", "handed_back"})


def is_success(receipt: Receipt) -> bool:
    return receipt.answer.startswith("2")


def i6_delivered_means_received(story: Story) -> Iterator[Finding]:
    """Before it was written down, and by the attempt that it was written for."""
    for execution in story.executions.values():
        for state in execution.states:
            if state.status == "delivered" and not _answered(story, execution, state.attempt, state.moment.at):
                sentence = f"is delivered by attempt {state.attempt}, but the target had not answered it with success"
                yield about(story, execution, "I6", sentence, "lost")
                break


def _answered(story: Story, execution: Execution, attempt: int, until: datetime) -> bool:
    received = story.received.get(execution.id, ())
    return any(r.attempt == attempt and is_success(r) and r.at <= until for r in received)


def i7_every_request_was_leased_first(story: Story) -> Iterator[Finding]:
    for execution_id, receipts in story.received.items():
        execution = story.executions.get(execution_id)
        for receipt in receipts:
            if execution is None:
                sentence = f"was received as execution {execution_id}, which never existed"
                yield Finding("I7", receipt.schedule, receipt.scheduled_at, sentence, "unexpected")
            elif not _leased(execution, receipt):
                sentence = f"was received as attempt {receipt.attempt} at {text(receipt.at)}, before any lease of it"
                yield about(story, execution, "I7", sentence, "unexpected")
            elif (receipt.schedule, receipt.scheduled_at) != (story.name(execution.schedule), execution.scheduled_at):
                sentence = f"was received as {receipt.schedule!r} of {text(receipt.scheduled_at)}"
                yield about(story, execution, "I7", sentence, "unexpected")


def _leased(execution: Execution, receipt: Receipt) -> bool:
    return any(s.token and s.attempt == receipt.attempt and s.moment.at <= receipt.at for s in execution.states)


def i8_answers_are_those_of_the_attempt(story: Story) -> Iterator[Finding]:
    """A result written by one who had lost the lease tells the answer to another attempt."""
    for (execution_id, number), attempts in story.attempts.items():
        execution = story.executions.get(execution_id)
        answers = [r for r in story.received.get(execution_id, ()) if r.attempt == number]
        for written in attempts:
            code, until = written.status_code, written.moment.at
            if execution and code is not None and not any(r.answer == str(code) and r.at <= until for r in answers):
                sentence = (
                    f"attempt {number} is written down as answered {code}, which the target had not answered to it"
                )
                yield about(story, execution, "I8", sentence, "stale")


def i10_duplicates_are_explained(story: Story, history: History) -> Iterator[Finding]:
    """By attempt, not by time: a frozen worker may send its lost attempt after a later one was answered."""
    calm = not history.faults and all(is_success(receipt) for receipt in history.receipts)
    for execution_id, receipts in story.received.items():
        execution = story.executions.get(execution_id)
        if len(receipts) < 2 or execution is None:
            continue
        twice = [number for number, count in Counter(r.attempt for r in receipts).items() if count > 1]
        for number in twice:
            yield about(story, execution, "I10", f"attempt {number} was received more than once", "duplicate")
        if not twice and (calm or _at_most_once(story, execution)):
            why = "without any fault" if calm else "though its delivery is at-most-once"
            yield about(story, execution, "I10", f"was received {len(receipts)} times {why}", "duplicate")
        elif not twice:
            for receipt in sorted(receipts, key=lambda r: r.attempt)[:-1]:
                if is_success(receipt) and not story.outcomes(execution_id, receipt.attempt) & UNKNOWN_END:
                    sentence = f"was sent again after attempt {receipt.attempt}, which was received and answered"
                    yield about(story, execution, "I10", sentence, "duplicate")


def _at_most_once(story: Story, execution: Execution) -> bool:
    schedule = story.schedules.get(execution.schedule)
    return schedule is not None and schedule.values("delivery") == ["at-most-once"]


def duplicates(story: Story) -> int:
    """Requests beyond the first of each execution, explained or not."""
    return sum(len(receipts) - 1 for receipts in story.received.values())


def i12_never_received_early(story: Story) -> Iterator[Finding]:
    for execution_id, receipts in story.received.items():
        execution = story.executions.get(execution_id)
        for receipt in receipts:
            due = receipt.scheduled_at if execution is None else execution.execute_at
            if receipt.at < due:
                sentence = f"was received {(due - receipt.at).total_seconds():g} s before it was due ({execution_id})"
                yield Finding("I12", receipt.schedule, receipt.scheduled_at, sentence, "early")


def i13_lateness(story: Story) -> dict[str, float]:
    late = sorted(
        (min(r.at for r in receipts) - story.executions[execution_id].execute_at).total_seconds()
        for execution_id, receipts in story.received.items()
        if execution_id in story.executions
    )
    if not late:
        return {}
    return {"p50": late[len(late) // 2], "p99": late[len(late) * 99 // 100], "max": late[-1]}


def match_by_id(story: Story) -> Matching:
    delivered: Counter[object] = Counter(e.id for e in story.executions.values() if e.last.status == "delivered")
    successes: Counter[object] = Counter()
    unexpected = 0
    for execution_id, receipts in story.received.items():
        successes[execution_id] = sum(map(is_success, receipts))
        unexpected += 0 if execution_id in story.executions else len(receipts)
    return Matching(_beyond(delivered, successes), unexpected, _beyond(successes, delivered))


def match_by_time(story: Story, receipts: list[Receipt]) -> Matching:
    """The same without looking at any id: only the schedule's name and the planned time."""
    known: set[object] = set()
    delivered: Counter[object] = Counter()
    for execution in story.executions.values():
        key = (story.name(execution.schedule), execution.scheduled_at)
        known.add(key)
        delivered[key] += execution.last.status == "delivered"
    successes: Counter[object] = Counter((r.schedule, r.scheduled_at) for r in receipts if is_success(r))
    unexpected = sum((r.schedule, r.scheduled_at) not in known for r in receipts)
    return Matching(_beyond(delivered, successes), unexpected, _beyond(successes, delivered))


def _beyond(some: Counter[object], others: Counter[object]) -> int:
    return sum((some - others).values())


def both_matchings_agree(story: Story, receipts: list[Receipt]) -> Iterator[Finding]:
    by_id, by_time = match_by_id(story), match_by_time(story, receipts)
    if by_id != by_time:
        yield Finding("matching", "all schedules", None, f"by id: {by_id}; by time only: {by_time}")
