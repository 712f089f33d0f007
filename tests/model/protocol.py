"""The protocol, small enough to be explored to its end: one schedule, a few planned times, every process and fault.

Planned times are the numbers 1, 2, 3…; the clock says how many of them have come. A state is what Postgres has
committed, what each process has in hand, and what was sent. A step is what one statement does, at the moment it
commits. Statements that pick rows by a snapshot and lock them afterwards are two steps, and a transaction of several
statements is several: between any two of them everybody else may move, or the process may die.

    generate   the schedule's row is locked; ticks, the gap of what was missed, and the cursor commit together
    emit       a tick is locked, and becomes an execution or a gap in one commit
    lease      an execution seen as free is locked, looked at again, and given a token
    send       the request leaves; the answer is known to the dispatcher alone
    finish     what came of it is written, if the token is still the execution's
    expire     a lease that ran out is taken back by the reconciler
    change     pause, resume, delete: lock the row; then, seeing anew, take back what is planned; then commit
    clean up   lock the row; look how far everything has ended; remove that and move the point where the account begins

A fault is a step, too, and there is no limit to their number. A process that is frozen is one that takes no step.
"""

from collections.abc import Iterator
from typing import Any

from model.state import Change, Dispatcher, Execution, State, Step, get, new_token, put, put_dispatcher, swap

LOOKAHEAD = 1
GRACE = 1


class Protocol:
    def __init__(
        self,
        overlap: str,
        times: int = 3,
        tickers: int = 2,
        dispatchers: int = 2,
        attempts: int = 2,
        asked: tuple[str, ...] = (),
        cleans: bool = False,
    ) -> None:
        self.overlap = overlap
        self.times = times
        self.attempts = attempts
        self.cleans = cleans
        self.start = State(tickers=(0,) * tickers, dispatchers=(Dispatcher(),) * dispatchers, asked=asked)

    def steps(self, s: State) -> Iterator[Step]:
        """Everything that can happen next."""
        if s.clock < self.times:
            yield Step(f"time {s.clock + 1} comes", s._replace(clock=s.clock + 1))
        yield from self.generate(s)
        yield from self.change(s)
        if self.cleans:
            yield from self.clean_up(s)
        if s.row:
            yield Step(f"{s.row.by}: rolled back", s._replace(row=None), fault=True)
        yield from self.emit(s)
        for one in dict.fromkeys(s.dispatchers):
            yield from self.dispatch(s, one)
        for e in s.executions:
            if e.status == "in_progress" and not e.expired:
                yield Step(f"the lease of {e.n} runs out", put(s, e._replace(expired=True)))
        yield from self.reconcile(s)

    # Generator. The lock makes the cursor the newest one; nobody waits, so the horizon is the clock's at that moment.

    def generate(self, s: State) -> Iterator[Step]:
        if s.row is None and s.enabled and s.cursor <= self.horizon(s.clock):
            yield Step("generator: locks the schedule", s._replace(row=Change("generator", at=s.clock)))
        elif s.row and s.row.by == "generator":
            yield Step("generator: writes ticks and cursor", self.plan(s, s.row.at)._replace(row=None))

    def horizon(self, clock: int) -> int:
        return min(clock + LOOKAHEAD, self.times)

    def plan(self, s: State, clock: int) -> State:
        """Ticks up to the horizon; what is later than its grace is a gap. The cursor alone decides."""
        window = range(s.cursor, self.horizon(clock) + 1)
        missed = {n for n in window if n < clock - GRACE}
        return s._replace(
            ticks=s.ticks | (set(window) - missed), gaps=s.gaps | missed, cursor=max(s.cursor, window.stop)
        )

    # Ticker. The oldest due tick that nobody has locked. Overlap is decided as the row is inserted, by a unique index.

    def emit(self, s: State) -> Iterator[Step]:
        taken = frozenset(s.tickers) | (s.row.ticks if s.row else frozenset())
        free = [n for n in s.ticks - taken if n <= s.clock]
        if free and 0 in s.tickers:
            yield Step(f"ticker: takes tick {min(free)}", self.ticker(s, 0, min(free)))
        for n in s.tickers:
            if n:
                yield Step(f"ticker: tick {n} ends", self.ticker(self.end_tick(s, n), n, 0))
                yield Step(f"ticker: tick {n} rolled back", self.ticker(s, n, 0), fault=True)

    def end_tick(self, s: State, n: int) -> State:
        """Its execution, or a gap where the slot is taken; an execution that exists already is its fate."""
        s = s._replace(ticks=s.ticks - {n})
        if any(e.n == n for e in s.executions):
            return s
        if self.overlap == "skip" and any(e.unfinished for e in s.executions):
            return s._replace(gaps=s.gaps | {n})
        return put(s, Execution(n))

    def ticker(self, s: State, before: Any, after: Any) -> State:
        return s._replace(tickers=swap(s.tickers, before, after))

    # Dispatcher. It may die with whatever it believes; the next one knows nothing.

    def dispatch(self, s: State, one: Dispatcher) -> Iterator[Step]:
        idle = put_dispatcher(s, one, Dispatcher())
        if not one.belief:
            for e in s.executions:
                if self.is_free(s, e):
                    yield Step(f"dispatcher: sees {e.n} free", put_dispatcher(s, one, Dispatcher("looked", e.n)))
            return
        if one.belief == "looked":
            yield from self.lease(s, one)
        elif one.belief == "unheard":
            yield Step(f"dispatcher: undoes an unheard lease of {one.n}", self.untake(idle, one))
        elif one.belief == "leased":
            yield from self.send(s, one)
        else:
            yield from self.finish(s, one)
        yield Step(f"dispatcher: dies with {one.belief} {one.n}", idle, fault=True)

    def is_free(self, s: State, e: Execution) -> bool:
        """By a snapshot. In a queue only the head is: no earlier execution is unfinished, no earlier tick pending."""
        head = self.overlap != "queue" or not (
            any(p.n < e.n and p.unfinished for p in s.executions) or any(n < e.n for n in s.ticks)
        )
        return e.status == "emitted" and head

    def lease(self, s: State, one: Dispatcher) -> Iterator[Step]:
        """The status is looked at again on the locked row; whether it is the queue's head is not."""
        e = get(s, one.n)
        if e is None or e.status != "emitted" or (s.row and e.n in s.row.executions):
            yield Step(f"dispatcher: {one.n} is not free any more", put_dispatcher(s, one, Dispatcher()))
            return
        token = new_token(s)
        leased = put(s, Execution(e.n, "in_progress", e.attempt + 1, token))
        held = Dispatcher("leased", e.n, e.attempt + 1, token)
        yield Step(f"dispatcher: leases {e.n}, attempt {held.attempt}", put_dispatcher(leased, one, held))
        unheard = put_dispatcher(leased, one, held._replace(belief="unheard"))
        yield Step(f"dispatcher: leases {e.n}, and the answer is lost", unheard, fault=True)

    def untake(self, s: State, one: Dispatcher) -> State:
        e = get(s, one.n)
        held = e is not None and e.token == one.token
        return put(s, Execution(one.n, "emitted", one.attempt - 1)) if held else s

    def send(self, s: State, one: Dispatcher) -> Iterator[Step]:
        """Even when the lease is long lost: it may have been frozen between its last look at its clock and the send."""
        sent = s._replace(sent=tuple(sorted((*s.sent, (one.n, one.attempt)))))
        for answer in ("ok", "broken"):
            state = put_dispatcher(sent, one, one._replace(belief=answer))
            yield Step(f"dispatcher: sends {one.n}, attempt {one.attempt}: {answer}", state)
        e = get(s, one.n)
        if e and e.token == one.token and e.expired:
            yield Step(f"dispatcher: renews its lease of {e.n}", put(s, e._replace(expired=False)))

    def finish(self, s: State, one: Dispatcher) -> Iterator[Step]:
        """Written as often as it takes: after a lost answer the token is gone, and nothing changes."""
        written = self.write_result(s, one)
        label = f"dispatcher: writes {one.belief} for {one.n}, attempt {one.attempt}"
        yield Step(label, put_dispatcher(written, one, Dispatcher()), token=one.token)
        if written != s:
            yield Step(f"{label}, and the answer is lost", written, fault=True, token=one.token)

    def write_result(self, s: State, one: Dispatcher) -> State:
        """The token is the fence. It exists only while the execution is in progress, so it says everything."""
        e = get(s, one.n)
        return put(s, self.after(e, one.belief)) if e and e.token == one.token else s

    def after(self, e: Execution, answer: str) -> Execution:
        if answer == "ok":
            return Execution(e.n, "delivered", e.attempt)
        return Execution(e.n, "failed" if e.attempt >= self.attempts else "emitted", e.attempt)

    # Reconciler. Whether the lease has run out is looked at again on the locked row: this is one step.

    def reconcile(self, s: State) -> Iterator[Step]:
        for e in s.executions:
            if e.expired:
                yield Step(f"reconciler: takes {e.n} back", put(s, self.after(e, "lost")))

    # Pause, resume, delete. Only the second statement sees what generators committed while the first waited. It waits
    # for tickers that hold what it removes. After a lost answer people ask again, after a rollback as well.

    def change(self, s: State) -> Iterator[Step]:
        if not s.asked:
            return
        ask, done = s.asked[0], s._replace(asked=s.asked[1:], row=None)
        if s.deleted or (ask == "pause" and not s.enabled) or (ask == "resume" and s.enabled):
            yield Step(f"{ask}: nothing to do", done._replace(row=s.row))
        elif s.row is None:
            yield Step(f"{ask}: locks the schedule", s._replace(row=Change(ask)))
        elif s.row.by == ask and not s.row.at:
            change = self.unplan(s, ask)
            if not change.ticks & set(s.tickers):
                yield Step(f"{ask}: looks at the ticks", s._replace(row=change))
        elif s.row.by == ask:
            changed = self.apply(s, s.row)
            yield Step(f"{ask}: commits", changed._replace(asked=done.asked, row=None))
            yield Step(f"{ask}: commits, and the answer is lost", changed._replace(row=None), fault=True)

    def unplan(self, s: State, ask: str) -> Change:
        """What the transaction takes: ticks whose time has not come, or all, and of a deleted schedule what waits."""
        match ask:
            case "pause":
                return Change(ask, s.clock + 1, frozenset(n for n in s.ticks if n > s.clock))
            case "delete":
                waiting = frozenset(e.n for e in s.executions if e.status == "emitted")
                return Change(ask, s.clock + 1, s.ticks, waiting)
        return Change(ask, s.clock + 1)

    def apply(self, s: State, change: Change) -> State:
        clock = change.at - 1
        if change.by == "pause":
            s = self.take_back(self.come(s, clock), change.ticks)
            return s._replace(enabled=False)
        s = settle(self.take_back(s, change.ticks), clock)
        if change.by == "resume":
            return self.plan(s._replace(enabled=True), clock)
        for n in change.executions:
            s = put(s, Execution(n, "cancelled", get(s, n).attempt))  # type: ignore[union-attr]
        return s._replace(enabled=False, deleted=True)

    def come(self, s: State, clock: int) -> State:
        """Planned times that have come and have no tick yet get one: they were planned before the pause."""
        return s._replace(ticks=s.ticks | set(range(s.cursor, clock + 1)), cursor=max(s.cursor, clock + 1))

    def take_back(self, s: State, ticks: frozenset[int]) -> State:
        """The cursor goes back over the unbroken run that ends at it. Any other number was passed: it is a gap."""
        cursor = s.cursor
        while cursor - 1 in ticks:
            cursor -= 1
        return s._replace(ticks=s.ticks - ticks, cursor=cursor, gaps=s.gaps | {n for n in ticks if n < cursor})

    # Clean-up. Never reads or writes the cursor or a tick that it would remove.

    def clean_up(self, s: State) -> Iterator[Step]:
        if s.row is None and self.ended_upto(s) > s.accounted:
            yield Step("cleanup: locks the schedule", s._replace(row=Change("cleanup")))
        elif s.row and s.row.by == "cleanup" and not s.row.at:
            upto = self.ended_upto(s)
            yield Step(f"cleanup: everything up to {upto} has ended", s._replace(row=Change("cleanup", 1, upto=upto)))
        elif s.row and s.row.by == "cleanup":
            yield Step(f"cleanup: removes up to {s.row.upto}", self.remove(s, s.row.upto)._replace(row=None))

    def ended_upto(self, s: State) -> int:
        ended = s.gaps | {e.n for e in s.executions if not e.unfinished}
        upto = s.accounted
        while upto + 1 in ended:
            upto += 1
        return upto

    def remove(self, s: State, upto: int) -> State:
        return s._replace(
            executions=tuple(e for e in s.executions if e.n > upto),
            gaps=frozenset(n for n in s.gaps if n > upto),
            accounted=upto,
        )


def settle(s: State, clock: int) -> State:
    """Planned times from the cursor to now that nobody will run become a gap."""
    return s._replace(gaps=s.gaps | set(range(s.cursor, clock + 1)), cursor=max(s.cursor, clock + 1))
