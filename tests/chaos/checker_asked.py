"""I16, and what I2 says of definitions: what was answered "ok" is there, as it was asked for."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from chaos.checker_rules import FOREVER, text
from chaos.checker_story import Execution, Schedule, Story
from chaos.checker_verdict import Finding
from chaos.history import Asked, Row, instant

Seen = Callable[[Row], bool]
SWITCHES: dict[str, Seen] = {
    "pause": lambda row: not row.get("enabled"),
    "resume": lambda row: bool(row.get("enabled")),
    "cancel": lambda row: row.get("cancelled_at") is not None,
    "delete": lambda row: row.get("deleted_at") is not None,
}
INSTANTS = frozenset({"run_at", "start_at", "end_at"})


class Names:
    """The schedules that ever had a name, and what they ran."""

    def __init__(self, story: Story) -> None:
        self.schedules: dict[str, list[Schedule]] = defaultdict(list)
        self.executions: dict[str, list[Execution]] = defaultdict(list)
        for schedule in story.schedules.values():
            self.schedules[schedule.name].append(schedule)
        for (schedule_id, _), executions in story.of_scope.items():
            self.executions[story.name(schedule_id)] += executions


def i16_what_was_answered_is_there(story: Story, asked: list[Asked]) -> Iterator[Finding]:
    names = Names(story)
    for command in asked:
        if command.answer == "ok":
            yield from _absent(names, command)


def _absent(names: Names, command: Asked) -> Iterator[Finding]:
    if command.op in ("trigger", "retry", "execution_cancel"):
        if not any(_ran(execution, command) for execution in names.executions[command.schedule]):
            yield _missing(command, "no execution shows it")
        return
    rows = [row for schedule in names.schedules[command.schedule] for row in _rows(schedule, command)]
    if command.op in SWITCHES:
        if not any(SWITCHES[command.op](row) for row in rows):
            yield _missing(command, "its schedule never showed it")
    elif not rows:
        yield _missing(command, "its schedule is not there")
    else:
        nearest = min((_differences(command.definition or {}, row) for row in rows), key=len)
        if nearest:
            sentence = f"the {command.op} asked for at {text(command.asked_at)} was stored with {', '.join(nearest)}"
            yield Finding("I2", command.schedule, None, sentence)


def _rows(schedule: Schedule, command: Asked) -> Iterator[Row]:
    """Its row as it was when the command was asked, and as every change until the answer left it.

    An `add` makes its row: one that was there before is not its.
    """
    answered = command.answered_at or FOREVER
    standing: Row | None = None
    for state in schedule.defined:
        if state.moment.at > answered:
            break
        if state.moment.at >= command.asked_at:
            yield state.row
        else:
            standing = state.row
    if standing is not None and command.op != "add":
        yield standing


def _ran(execution: Execution, command: Asked) -> bool:
    answered = command.answered_at or FOREVER
    if command.op == "execution_cancel":
        return any(s.status == "cancelled" and command.asked_at <= s.moment.at <= answered for s in execution.states)
    made = execution.states[0].moment.at
    return execution.run.startswith(f"{command.op}-") and command.asked_at <= made <= answered


def _differences(definition: Row, row: Row) -> list[str]:
    return [
        f"{name} {_plain(name, row.get(name))} for {_plain(name, value)}"
        for name, value in definition.items()
        if name in COMPARED and value is not None and _plain(name, row.get(name)) != _plain(name, value)
    ]


COMPARED = INSTANTS | {
    "interval_seconds",
    "cron_expression",
    "timezone",
    "max_runs",
    "jitter_ms",
    "overlap",
    "catch_up",
    "misfire_grace_seconds",
    "delivery",
    "max_attempts",
    "backoff_seconds",
    "lease_seconds",
}


def _plain(name: str, value: object) -> object:
    if name in INSTANTS and isinstance(value, str):
        return _utc(instant(value))
    if name == "cron_expression" and isinstance(value, str):
        return " ".join(value.split())
    return value


def _utc(at: datetime) -> str:
    return text(at.replace(tzinfo=at.tzinfo or UTC))


def i16_nothing_came_unasked(story: Story, asked: list[Asked]) -> Iterator[Finding]:
    """Every schedule was asked for, by a command that was not refused."""
    adds: dict[str, list[Asked]] = defaultdict(list)
    for command in asked:
        if command.op == "add" and command.answer != "refused":
            adds[command.schedule].append(command)
    for schedule in story.schedules.values():
        name = str(schedule.defined[0].row["name"])
        if not any(add.asked_at <= schedule.created.at for add in adds[name]):
            yield Finding("I16", name, None, "exists, but nobody asked for it or it was refused", "unexpected")


def _missing(command: Asked, why: str) -> Finding:
    sentence = f"the {command.op} asked for at {text(command.asked_at)} was answered ok, but {why}"
    return Finding("I16", command.schedule, None, sentence, "lost")
