"""Walks through every state that a protocol can reach, breadth first, and says what must hold in each.

The first broken promise ends the walk: breadth first, so the story that is printed is a shortest one.
"""

from array import array
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from model.protocol import Protocol
from model.state import FINAL, Execution, State, Step


class Explored(NamedTuple):
    states: int
    steps: int
    ends: int
    """States in which everything is over: nothing but a fault could happen, if that."""


class Broken(AssertionError):
    def __init__(self, promise: str, story: list[str]) -> None:
        self.promise = promise
        self.story = story
        lines = [f"{i:3} {line}" for i, line in enumerate(story)]
        super().__init__("\n".join([promise, *lines]))


def explore(protocol: Protocol) -> Explored:
    """Raises Broken where a promise does not hold in a state, at a step, or at the end."""
    walk = Walk(protocol)
    walk.to_the_end()
    walk.check_that_everything_ends()
    return Explored(len(walk.states), walk.steps, len(walk.ends))


class Walk:
    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self.numbers: dict[State, int] = {}
        self.states: list[State] = []
        self.parents: list[int] = []
        self.labels: list[str] = []
        self.steps = 0
        self.ends: list[int] = []
        self.edges = (array("l"), array("l"))

    def to_the_end(self) -> None:
        self._visit(self.protocol.start, -1, "at first")
        for number, state in self._queue():
            steps = list(self.protocol.steps(state))
            self.steps += len(steps)
            for step in steps:
                self._take(number, state, step)
            if all(step.fault for step in steps):
                self.ends.append(number)
                self._check(unfinished(self.protocol, state), number)

    def _queue(self) -> Iterator[tuple[int, State]]:
        number = 0
        while number < len(self.states):
            yield number, self.states[number]
            number += 1

    def _take(self, number: int, before: State, step: Step) -> None:
        following = self.numbers.get(step.state)
        if following is None:
            following = self._visit(step.state, number, step.label)
        broken = broken_by(before, step)
        if broken:
            raise Broken(broken, [*self._story(number), f"{step.label}: {shown(step.state)}"])
        if not step.fault:
            self.edges[0].append(number)
            self.edges[1].append(following)

    def _visit(self, state: State, parent: int, label: str) -> int:
        number = self.numbers[state] = len(self.states)
        self.states.append(state)
        self.parents.append(parent)
        self.labels.append(label)
        self._check(broken_in(self.protocol, state), number)
        return number

    def _check(self, broken: str, number: int) -> None:
        if broken:
            raise Broken(broken, self._story(number))

    def _story(self, number: int) -> list[str]:
        story = []
        while number >= 0:
            story.append(f"{self.labels[number]}: {shown(self.states[number])}")
            number = self.parents[number]
        return story[::-1]

    def check_that_everything_ends(self) -> None:
        """Whatever has happened: if from now on nothing fails, an end can be reached."""
        before: list[list[int]] = [[] for _ in self.states]
        for source, target in zip(*self.edges, strict=True):
            before[target].append(source)
        reached = set(self.ends)
        waiting = list(self.ends)
        while waiting:
            for source in before[waiting.pop()]:
                if source not in reached:
                    reached.add(source)
                    waiting.append(source)
        for number in range(len(self.states)):
            self._check("" if number in reached else "from here on it goes round in circles", number)


def broken_in(protocol: Protocol, s: State) -> str:
    """The first promise that does not hold in this state, or nothing."""
    fates = [*s.ticks, *s.gaps, *(e.n for e in s.executions)]
    running = [e for e in s.executions if e.status == "in_progress"]
    unfinished = [e for e in s.executions if e.unfinished]
    tokens = [e.token for e in running]
    if sorted(fates) != list(range(s.accounted + 1, s.cursor)):
        return f"the numbers {s.accounted + 1} to {s.cursor - 1} do not have exactly one fate each"
    if not all(e.n <= s.clock for e in s.executions):
        return "an execution came early"
    if not s.enabled and any(n > s.clock for n in s.ticks):
        return "a schedule that is paused or deleted has ticks whose time has not come"
    if s.deleted and s.ticks:
        return "a deleted schedule has ticks"
    if protocol.overlap == "skip" and len(unfinished) > 1:
        return "two unfinished executions overlap"
    if protocol.overlap == "queue" and any(_is_out_of_turn(s, e) for e in running):
        return "an execution runs before its turn"
    if any(not e.token for e in running) or any(e.token for e in s.executions if e not in running):
        return "a token exists while, and only while, an execution is in progress"
    if len(set(tokens)) < len(tokens):
        return "two leases have one token"
    return _broken_in_sent(s)


def _is_out_of_turn(s: State, e: Execution) -> bool:
    return any(p.n < e.n and p.unfinished for p in s.executions) or any(n < e.n for n in s.ticks)


def _broken_in_sent(s: State) -> str:
    if any(one == other for one, other in pairwise(s.sent)):
        return "two requests were sent under one attempt"
    attempts = {e.n: e.attempt for e in s.executions}
    if any(attempt > attempts.get(n, attempt if n <= s.accounted else 0) for n, attempt in s.sent):
        return "a request was sent before its lease"
    sent = {n for n, _ in s.sent}
    if any(e.status == "delivered" and e.n not in sent for e in s.executions):
        return "delivered, but never sent"
    return ""


def broken_by(before: State, step: Step) -> str:
    """The promise that this step does not keep, or nothing."""
    after = step.state
    if before.executions is after.executions:
        return ""
    now = {e.n: e for e in after.executions}
    for e in before.executions:
        if e.status in FINAL and now.get(e.n, e) != e:
            return f"the final status of {e.n} changed"
        if e.status in FINAL and e.n not in now and e.n > after.accounted:
            return f"the final execution {e.n} vanished"
        if step.token and now.get(e.n) != e and e.token != step.token:
            return f"a result for {e.n} was accepted with a lost token"
    return ""


def unfinished(protocol: Protocol, s: State) -> str:
    """What is missing in a state where nothing more happens, or nothing."""
    if s.enabled and s.cursor <= protocol.times:
        return f"planned time {s.cursor} was never planned"
    if s.ticks:
        return f"the ticks {sorted(s.ticks)} stay for ever"
    if any(e.unfinished for e in s.executions):
        return "an execution is never finished"
    return "" if s.row is None and not s.asked and not any(s.tickers) else "a process waits for ever"


def shown(s: State) -> str:
    """One line of what there is."""
    executions = [f"{e.n} {e.status} {e.attempt}" + (f" token {e.token}" * bool(e.token)) for e in s.executions]
    parts = [f"clock {s.clock}", f"cursor {s.cursor}"]
    parts += [word for word, there in (("deleted", s.deleted), ("paused", not s.enabled and not s.deleted)) if there]
    parts += [f"{name} {sorted(found)}" for name, found in (("ticks", s.ticks), ("gaps", s.gaps)) if found]
    parts += [f"executions: {'; '.join(executions)}"] if executions else []
    return ", ".join(parts)
