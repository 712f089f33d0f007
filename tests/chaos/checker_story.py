"""The story of every schedule, tick, execution, attempt and gap, gathered in one pass over the changes.

Only what the checks need is kept of each row, so that a drill of a hundred thousand executions fits in memory.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from chaos.checker_rules import Rule, Rules
from chaos.history import Change, Receipt, Row, instant

Key = tuple[str, str, datetime]
FINAL = frozenset({"delivered", "failed", "cancelled"})
# Columns that the fleet moves by itself while a definition stays what it is.
MOVING = frozenset({"next_tick_needed_at", "next_n", "capped", "accounted_n", "accounted_from", "runs_removed"})


@dataclass(frozen=True, slots=True)
class Moment:
    seq: int
    at: datetime
    xid: int
    by: str = ""


@dataclass(frozen=True, slots=True)
class Defined:
    """A schedule's row as a change left it."""

    moment: Moment
    row: Row


@dataclass(slots=True)
class Schedule:
    id: str
    row: Row
    created: Moment
    created_at: datetime
    defined: list[Defined]
    rules: Rules = field(default_factory=Rules)
    removed: Moment | None = None
    began: dict[int, datetime] = field(default_factory=dict)
    """When each transaction made its first change to this schedule's row."""

    @property
    def name(self) -> str:
        return str(self.row["name"])

    def values(self, column: str) -> list[object]:
        """Every value that a column ever had, without repetition."""
        found: list[object] = []
        for state in self.defined:
            if (value := state.row.get(column)) not in found:
                found.append(value)
        return found

    def largest(self, column: str, default: float = 0) -> float:
        return max(default if value is None else float(str(value)) for value in self.values(column))


@dataclass(frozen=True, slots=True)
class Tick:
    moment: Moment
    op: str
    n: int
    id: str
    execute_at: datetime


@dataclass(frozen=True, slots=True)
class State:
    """An execution's row as one change left it."""

    moment: Moment
    op: str
    status: str
    attempt: int
    token: str | None
    leased_by: str | None
    leased_at: datetime | None
    leased_until: datetime | None
    next_attempt_at: datetime
    error: str | None


@dataclass(slots=True, eq=False)
class Execution:
    id: str
    schedule: str
    scope: str
    scheduled_at: datetime
    run: str
    n: int | None
    execute_at: datetime
    slot: int | None
    states: list[State]
    removed: list[Moment] = field(default_factory=list)

    @property
    def last(self) -> State:
        return self.states[-1]

    @property
    def ended(self) -> Moment | None:
        """When it became final, the first time."""
        return next((state.moment for state in self.states if state.status in FINAL), None)

    @property
    def key(self) -> Key:
        return self.schedule, self.scope, self.scheduled_at


@dataclass(frozen=True, slots=True)
class Attempt:
    moment: Moment
    outcome: str
    status_code: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Gap:
    moment: Moment
    op: str
    first_n: int
    last_n: int
    reason: str
    first_at: datetime
    last_at: datetime


@dataclass(slots=True)
class Story:
    schedules: dict[str, Schedule] = field(default_factory=dict)
    ticks: dict[Key, list[Tick]] = field(default_factory=lambda: defaultdict(list))
    executions: dict[str, Execution] = field(default_factory=dict)
    attempts: dict[tuple[str, int], list[Attempt]] = field(default_factory=lambda: defaultdict(list))
    gaps: dict[tuple[str, str], list[Gap]] = field(default_factory=lambda: defaultdict(list))
    planned: dict[Key, list[Execution]] = field(default_factory=lambda: defaultdict(list))
    """Executions of planned times: one for each key, if all is well."""
    numbered: dict[tuple[str, str], list[Execution]] = field(default_factory=lambda: defaultdict(list))
    """The same, by schedule and scope."""
    of_scope: dict[tuple[str, str], list[Execution]] = field(default_factory=lambda: defaultdict(list))
    """All executions, by schedule and scope, as they were made."""
    received: dict[str, list[Receipt]] = field(default_factory=lambda: defaultdict(list))

    def name(self, schedule: str) -> str:
        known = self.schedules.get(schedule)
        return schedule if known is None else known.name

    def ended_as(self, execution: str, attempt: int, change: Moment) -> "Attempt | None":
        """How the attempt ended that a change of its execution ended; nothing when it was undone unsent."""
        return next((a for a in self.attempts.get((execution, attempt), ()) if a.moment.xid == change.xid), None)

    def outcomes(self, execution: str, attempt: int) -> set[str]:
        return {written.outcome for written in self.attempts.get((execution, attempt), ())}


def tell(changes: Iterable[Change], receipts: Iterable[Receipt]) -> Story:
    story = Story()
    tables = {
        "cron_schedules": _schedule,
        "schedule_versions": _version,
        "cron_ticks": _tick,
        "executions": _execution,
        "attempts": _attempt,
        "gaps": _gap,
    }
    for change in changes:
        tables[change.table](story, change, Moment(change.seq, change.at, change.xid, change.by))
    for receipt in receipts:
        story.received[receipt.execution].append(receipt)
    return story


def _row(change: Change) -> Row:
    row = change.old if change.op == "DELETE" else change.new
    assert row is not None, f"change {change.seq} has no row"
    return row


def _schedule(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    known = story.schedules.get(row["id"])
    if known is None:
        created_at = instant(row["created_at"])
        known = Schedule(row["id"], dict(row), moment, created_at, [Defined(moment, dict(row))])
        story.schedules[row["id"]] = known
    elif change.op == "DELETE":
        known.removed = moment
    else:
        changed = {name for name, value in row.items() if known.row.get(name) != value}
        known.row |= row
        if changed - MOVING:
            known.defined.append(Defined(moment, dict(known.row)))
    known.began.setdefault(moment.xid, moment.at)


def _version(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    schedule = story.schedules.get(row["schedule_id"])
    if change.op == "INSERT" and schedule is not None:
        schedule.rules.add(Rule(row, schedule.created_at, moment.seq))


def _tick(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    key = (row["schedule_id"], row["scope"], instant(row["scheduled_at"]))
    story.ticks[key].append(Tick(moment, change.op, row["n"], row["id"], instant(row["execute_at"])))


def _execution(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    execution = story.executions.get(row["id"])
    if change.op == "DELETE":
        if execution is not None:
            execution.removed.append(moment)
        return
    state = _state(row, change.op, moment)
    if execution is not None:
        execution.states.append(state)
    else:
        execution = story.executions[row["id"]] = _new_execution(row, state)
        story.of_scope[execution.schedule, execution.scope].append(execution)
    if change.op == "INSERT" and execution.run == "":
        story.planned[execution.key].append(execution)
        story.numbered[execution.schedule, execution.scope].append(execution)


def _new_execution(row: Row, state: State) -> Execution:
    return Execution(
        row["id"],
        row["schedule_id"],
        row["scope"],
        instant(row["scheduled_at"]),
        row["run"],
        row.get("n"),
        instant(row["execute_at"]),
        row.get("slot"),
        [state],
    )


def _state(row: Row, op: str, moment: Moment) -> State:
    return State(
        moment,
        op,
        row["status"],
        row["attempt"],
        row.get("lease_token"),
        row.get("leased_by"),
        _maybe(row, "leased_at"),
        _maybe(row, "leased_until"),
        instant(row["next_attempt_at"]),
        row.get("error"),
    )


def _attempt(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    if change.op != "DELETE":
        written = Attempt(moment, row["outcome"], row.get("status_code"), row.get("error"))
        story.attempts[row["execution_id"], row["attempt"]].append(written)


def _gap(story: Story, change: Change, moment: Moment) -> None:
    row = _row(change)
    gap = Gap(
        moment,
        change.op,
        row["first_n"],
        row["last_n"],
        row["reason"],
        instant(row["first_scheduled_at"]),
        instant(row["last_scheduled_at"]),
    )
    story.gaps[row["schedule_id"], row["scope"]].append(gap)


def _maybe(row: Row, name: str) -> datetime | None:
    value = row.get(name)
    return None if value is None else instant(value)
