"""The protocol keeps its promises in every state it can reach, and each known mistake is caught, with its story.

The large models are `long`. `pytest -s` shows how many states there were, and the shortest story of each mistake.
"""

from collections.abc import Iterator
from typing import Any

import pytest

from model.explore import Broken, explore
from model.protocol import Protocol
from model.state import Change, Dispatcher, Execution, State, Step, get, new_token, put, put_dispatcher

EDITS = ("pause", "resume", "delete")

MODELS: dict[str, dict[str, Any]] = {
    "skip: three times, every edit, clean-up": {
        "overlap": "skip",
        "dispatchers": 1,
        "attempts": 1,
        "asked": EDITS,
        "cleans": True,
    },
    "skip: two times, retries": {"overlap": "skip", "times": 2},
    "skip: two times, pause and delete": {"overlap": "skip", "times": 2, "asked": ("pause", "delete")},
    "queue: three times, retries": {"overlap": "queue"},
    "queue: two times, delete, clean-up": {"overlap": "queue", "times": 2, "asked": ("delete",), "cleans": True},
    "allow: two times, retries": {"overlap": "allow", "times": 2},
    "allow: two times, every edit, clean-up": {
        "overlap": "allow",
        "times": 2,
        "dispatchers": 1,
        "asked": EDITS,
        "cleans": True,
    },
}
LARGE: dict[str, dict[str, Any]] = {
    "skip: three times, retries": {"overlap": "skip"},
    "skip: two times, retries, every edit, clean-up": {"overlap": "skip", "times": 2, "asked": EDITS, "cleans": True},
    "allow: three times, every edit, clean-up": {
        "overlap": "allow",
        "dispatchers": 1,
        "attempts": 1,
        "asked": EDITS,
        "cleans": True,
    },
}


@pytest.mark.parametrize("name", MODELS)
def test_every_promise_holds_in_every_state(name: str) -> None:
    _explore(name, MODELS[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LARGE)
def test_every_promise_holds_in_every_state_of_the_large_models(name: str) -> None:
    _explore(name, LARGE[name])


def _explore(name: str, constants: dict[str, Any]) -> None:
    explored = explore(Protocol(**constants))
    print(f"\n{name}: {explored.states} states, {explored.steps} steps, {explored.ends} ends")
    assert explored.ends > 1


# Mistakes: the protocol with one thing done wrong. Some are what a first draft would do, some were made.


class NoFence(Protocol):
    """A result is written by id and status alone."""

    def write_result(self, s: State, one: Dispatcher) -> State:
        e = get(s, one.n)
        return put(s, self.after(e, one.belief)) if e and e.status == "in_progress" else s


class OverlapByRead(Protocol):
    """A ticker reads that nothing is unfinished, and inserts afterwards; no unique index."""

    def ticker(self, s: State, before: Any, after: Any) -> State:
        seen: frozenset[int] = (s.memory or frozenset()) - {before, after}
        if after and not any(e.unfinished for e in s.executions):
            seen |= {after}
        return super().ticker(s, before, after)._replace(memory=seen)

    def end_tick(self, s: State, n: int) -> State:
        s = s._replace(ticks=s.ticks - {n})
        return put(s, Execution(n)) if n in s.memory else s._replace(gaps=s.gaps | {n})


class PauseInOneStatement(Protocol):
    """The ticks to remove are those of the snapshot from before the wait for the row."""

    def change(self, s: State) -> Iterator[Step]:
        if s.asked[:1] == ("pause",) and s.memory is None:
            yield Step("pause: takes its snapshot", s._replace(memory=s.ticks))
        else:
            yield from super().change(s)

    def unplan(self, s: State, ask: str) -> Change:
        change = super().unplan(s, ask)
        return change._replace(ticks=change.ticks & s.memory) if ask == "pause" else change


class CursorToTheOldestTick(Protocol):
    """The cursor goes back to the oldest tick that was removed, whatever came after it."""

    def take_back(self, s: State, ticks: frozenset[int]) -> State:
        return s._replace(ticks=s.ticks - ticks, cursor=min(ticks, default=s.cursor))


class DeleteThenInsert(Protocol):
    """The tick is deleted in one commit, and the execution inserted in the next."""

    def ticker(self, s: State, before: Any, after: Any) -> State:
        return super().ticker(s, before, after)._replace(ticks=s.ticks - {after})


class PlanWhatIsAbsent(Protocol):
    """Planned times without a row are planned; the cursor does not count."""

    def plan(self, s: State, clock: int) -> State:
        there = s.ticks | s.gaps | {e.n for e in s.executions}
        window = set(range(1, self.horizon(clock) + 1))
        return s._replace(ticks=s.ticks | (window - there), cursor=max(s.cursor, self.horizon(clock) + 1))


class GenerateWithoutLock(Protocol):
    """A generator reads the schedule, and writes later."""

    def generate(self, s: State) -> Iterator[Step]:
        if s.memory is not None:
            yield Step("generator: writes ticks and cursor", self.plan(s, s.memory)._replace(memory=None))
        elif s.enabled and s.cursor <= self.horizon(s.clock):
            yield Step("generator: reads the schedule", s._replace(memory=s.clock))


class QueueWithoutTicks(Protocol):
    """The head of a queue is the earliest unfinished execution; ticks do not count."""

    def is_free(self, s: State, e: Execution) -> bool:
        return super().is_free(s._replace(ticks=frozenset()), e)


class LeaseWithoutLookingAgain(Protocol):
    """What a snapshot showed as free is leased, whatever it has become."""

    def lease(self, s: State, one: Dispatcher) -> Iterator[Step]:
        e, token = get(s, one.n), new_token(s)
        attempt = e.attempt + 1 if e else 1
        leased = put(s, Execution(one.n, "in_progress", attempt, token))
        held = Dispatcher("leased", one.n, attempt, token)
        yield Step(f"dispatcher: leases {one.n}, attempt {attempt}", put_dispatcher(leased, one, held))


class ReconcileByRead(Protocol):
    """The reconciler reads what has run out, and writes later."""

    def reconcile(self, s: State) -> Iterator[Step]:
        if s.memory is not None:
            taken = put(s, self.after(s.memory, "lost"))
            yield Step(f"reconciler: takes {s.memory.n} back", taken._replace(memory=None))
        for e in s.executions:
            if e.expired and s.memory is None:
                yield Step(f"reconciler: sees that the lease of {e.n} ran out", s._replace(memory=e))


class UntakeWithoutToken(Protocol):
    """An unheard lease is undone by the execution's id alone."""

    def untake(self, s: State, one: Dispatcher) -> State:
        e = get(s, one.n)
        return put(s, Execution(one.n, "emitted", e.attempt - 1)) if e and e.status == "in_progress" else s


class SendBeforeTheLease(Protocol):
    """A dispatcher sends what it saw as free, and leases it meanwhile."""

    def lease(self, s: State, one: Dispatcher) -> Iterator[Step]:
        e = get(s, one.n)
        if e:
            yield from self.send(s, Dispatcher("looked", e.n, e.attempt + 1))
        yield from super().lease(s, one)

    def send(self, s: State, one: Dispatcher) -> Iterator[Step]:
        sent = s._replace(sent=tuple(sorted((*s.sent, (one.n, one.attempt)))))
        yield Step(f"dispatcher: sends {one.n}, attempt {one.attempt}", sent)


class EagerCleanUp(Protocol):
    """Clean-up takes everything up to the newest that has ended."""

    def ended_upto(self, s: State) -> int:
        return max([s.accounted, *s.gaps, *(e.n for e in s.executions if not e.unfinished)])


class NobodyReconciles(Protocol):
    """What a dead worker held stays with it."""

    def reconcile(self, s: State) -> Iterator[Step]:
        yield from ()


SMALL = {"overlap": "skip", "times": 2, "dispatchers": 1, "attempts": 1}
ONE_FATE = "do not have exactly one fate each"
MISTAKES: list[tuple[type[Protocol], str, dict[str, Any]]] = [
    (NoFence, "accepted with a lost token", {"overlap": "skip", "times": 1}),
    (OverlapByRead, "two unfinished executions overlap", {"overlap": "skip", "times": 2}),
    (PauseInOneStatement, "has ticks whose time has not come", {**SMALL, "asked": ("pause",)}),
    (CursorToTheOldestTick, ONE_FATE, {"overlap": "skip", "times": 2, "asked": ("delete",)}),
    (DeleteThenInsert, ONE_FATE, {"overlap": "skip", "times": 2}),
    (PlanWhatIsAbsent, ONE_FATE, {"overlap": "skip", "times": 2, "cleans": True}),
    (GenerateWithoutLock, "has ticks whose time has not come", {**SMALL, "asked": ("pause",)}),
    (QueueWithoutTicks, "runs before its turn", {"overlap": "queue", "times": 2}),
    (LeaseWithoutLookingAgain, "the final status of 1 changed", {"overlap": "skip", "times": 1}),
    (ReconcileByRead, "the final status of 1 changed", {"overlap": "skip", "times": 1}),
    (UntakeWithoutToken, "sent before its lease", {"overlap": "skip", "times": 1}),
    (SendBeforeTheLease, "sent before its lease", {"overlap": "skip", "times": 1}),
    (EagerCleanUp, ONE_FATE, {**SMALL, "overlap": "allow", "cleans": True}),
    (NobodyReconciles, "an execution is never finished", {"overlap": "skip", "times": 1}),
]


@pytest.mark.parametrize(("mistake", "promise", "constants"), MISTAKES, ids=[m[0].__name__ for m in MISTAKES])
def test_a_mistake_is_caught(mistake: type[Protocol], promise: str, constants: dict[str, Any]) -> None:
    explore(Protocol(**constants))
    with pytest.raises(Broken, match=promise) as caught:
        explore(mistake(**constants))
    print(f"\n{mistake.__name__}: {mistake.__doc__}\n{caught.value}")
    assert len(caught.value.story) > 2
