"""What there is in a moment: what Postgres has committed, what each process has in hand, and what was sent."""

from typing import Any, NamedTuple

FINAL = ("delivered", "failed", "cancelled")


class Execution(NamedTuple):
    n: int
    status: str = "emitted"
    attempt: int = 0
    token: int = 0
    expired: bool = False

    @property
    def unfinished(self) -> bool:
        return self.status not in FINAL


class Dispatcher(NamedTuple):
    """What a dispatcher believes: nothing, `looked`, `leased`, an answer (`ok`, `broken`), or `unheard`.

    `unheard`: it asked for a lease with this token, and no answer came.
    """

    belief: str = ""
    n: int = 0
    attempt: int = 0
    token: int = 0


class Change(NamedTuple):
    """A transaction that holds the schedule's row, and what else it has locked. It is committed as a whole."""

    by: str
    at: int = 0
    """The clock when it looked; 0 while it has only the lock."""
    ticks: frozenset[int] = frozenset()
    executions: frozenset[int] = frozenset()
    upto: int = 0


class State(NamedTuple):
    clock: int = 0
    enabled: bool = True
    deleted: bool = False
    cursor: int = 1
    accounted: int = 0
    ticks: frozenset[int] = frozenset()
    executions: tuple[Execution, ...] = ()
    gaps: frozenset[int] = frozenset()
    row: Change | None = None
    tickers: tuple[int, ...] = ()
    """The tick that each holds in a statement not yet committed. Sorted, like dispatchers: all are alike."""
    dispatchers: tuple[Dispatcher, ...] = ()
    asked: tuple[str, ...] = ()
    """What people still want of the schedule, in this order."""
    sent: tuple[tuple[int, int], ...] = ()
    """Every request that left: (number, attempt)."""
    memory: Any = None
    """For the mistakes that are tried on purpose: what a process remembers that should not have to."""


class Step(NamedTuple):
    label: str
    state: State
    fault: bool = False
    token: int = 0
    """Of a result that was written: the token it came with."""


def get(s: State, n: int) -> Execution | None:
    return next((e for e in s.executions if e.n == n), None)


def put(s: State, execution: Execution) -> State:
    others = [e for e in s.executions if e.n != execution.n]
    return s._replace(executions=tuple(sorted([*others, execution])))


def put_dispatcher(s: State, before: Dispatcher, after: Dispatcher) -> State:
    return s._replace(dispatchers=swap(s.dispatchers, before, after))


def swap(all_: tuple[Any, ...], before: Any, after: Any) -> tuple[Any, ...]:
    i = all_.index(before)
    return tuple(sorted((*all_[:i], after, *all_[i + 1 :])))


def new_token(s: State) -> int:
    """One that nobody remembers: such a token is as good as one that never was, and their number stays small."""
    used = {e.token for e in s.executions} | {d.token for d in s.dispatchers}
    return next(token for token in range(1, len(used) + 2) if token not in used)
