"""Verify: prove from the database that every planned time of every schedule has exactly one fate, and the right one.

Promise     A planned time that was lost, doubled, moved or made up is found; beside a working fleet nothing is
            reported that is only in progress.
Reads       One snapshot of schedules, versions, ticks, executions and gaps; writes nothing, takes no lock.
Independent Times are judged by arithmetic in SQL and by the oracle, ids by the database's own functions: nothing of
            the code that planned them.
"""

from collections.abc import Callable
from typing import Any

from fleet.domain.instant import format_instant
from fleet.errors import NotFound
from fleet.ledger.cron_times import CronCheck
from fleet.ledger.report import LISTED, Kind, Problem, Report
from fleet.store import account
from fleet.store.account import Part
from fleet.store.connection import Connection

Row = dict[str, Any]
PROGRESS_EVERY = 50_000
ARTICLES = {"tick": "a tick", "execution": "an execution", "gap": "a gap", "cursor": "the cursor"}


def silent(_: str) -> None:
    """No progress is shown."""


async def verify(
    connection: Connection,
    workspace: str | None = None,
    schedule: str | None = None,
    on_progress: Callable[[str], None] = silent,
) -> Report:
    """Check everything, one workspace, or the schedules that have or had one name."""
    async with connection.transaction():
        await account.begin_snapshot(connection)
        part = await _part(connection, workspace, schedule)
        on_progress("counting planned times")
        report = Report(*await account.counts(connection, part))
        on_progress("looking for planned times that were lost or doubled")
        _take(report, await account.untiled(connection, part, LISTED), _untiled)
        _take(report, await account.orphans(connection, part, LISTED), _orphan)
        on_progress("comparing times with their rules")
        _take(report, await account.off_rule(connection, part, LISTED), _off_rule)
        _take(report, await account.wrong_rows(connection, part, LISTED), _wrong_row)
        await _check_cron(connection, part, report, on_progress)
    return report


async def _part(connection: Connection, workspace: str | None, schedule: str | None) -> Part:
    if schedule is None:
        return Part(workspace)
    ids = await account.find(connection, workspace, schedule)
    if not ids:
        where = "" if workspace is None else f" in workspace {workspace!r}"
        raise NotFound(f"schedule {schedule!r} does not exist{where}; see `fleetctl schedule list`")
    return Part(workspace, ids)


async def _check_cron(connection: Connection, part: Part, report: Report, on_progress: Callable[[str], None]) -> None:
    check, seen = CronCheck(), 0
    async for mark in account.cron_marks(connection, part):
        report.add(check.feed(mark))
        seen += 1
        if seen % PROGRESS_EVERY == 0:
            on_progress(f"comparing {seen:,} times with their cron expressions")
    report.add(check.finish())


def _take(report: Report, found: list[Row], problem: Callable[[Row], Problem]) -> None:
    report.add([problem(row) for row in found], found[0]["total"] if found else 0)


def _untiled(row: Row) -> Problem:
    first, reached = row["first_n"], row["reached"]
    if first > reached + 1:
        detail = f"no tick, execution or gap says what became of {_numbers(reached + 1, first - 1)}{_between(row)}"
        return _problem("lost", row, reached + 1, first - 1, None, detail)
    if row["what"] == "cursor":
        detail = f"the schedule's next number is {first}, though all numbers up to {reached} are closed"
        return _problem("orphan", row, first, reached, None, detail)
    last = min(row["last_n"], reached)
    detail = f"{_what(row)} has {_numbers(first, last)}, which another tick, execution or gap has too"
    return _problem("doubled", row, first, last, row["first_at"], detail)


def _between(row: Row) -> str:
    after, before = row["reached_at"], row["first_at"]
    parts = [f"after {format_instant(after)}"] if after else []
    parts += [f"before {format_instant(before)}"] if before else []
    return f" ({', '.join(parts)})" if parts else ""


def _orphan(row: Row) -> Problem:
    first, last = row["first_n"], row["last_n"]
    if row["scope_exists"] is None:
        why = "belongs to a schedule that does not exist"
    elif not row["scope_exists"]:
        why = f"belongs to the scope {row['scope']!r}, which its schedule does not have"
    elif last >= row["next_n"]:
        first = max(first, row["next_n"])
        why = f"has {_numbers(first, last)}, and the schedule has given out numbers only below {row['next_n']}"
    elif first < 1:
        why = f"has {_numbers(first, last)}, and numbers begin at 1"
    else:
        why = f"has number {first}, though all numbers up to {row['accounted_n']} are closed"
    return _problem("orphan", row, first, last, row["first_at"], f"{_what(row)} {why}")


def _off_rule(row: Row) -> Problem:
    if not row["has_rule"]:
        detail = f"no version of the schedule says which rule was in force for number {row['n']}"
    elif row["at"] is None:
        detail = f"nothing is planned any more, though number {row['n']} is due at {format_instant(row['expected'])}"
    elif row["expected"] is None:
        detail = f"{_what(row)} has number {row['n']}, which the rule does not plan"
    else:
        detail = f"{_what(row)} has the wrong time: number {row['n']} is {format_instant(row['expected'])}"
    return _problem("off_rule", row, row["n"], row["n"], row["at"], detail)


def _wrong_row(row: Row) -> Problem:
    if row["id"] != row["expected"]:
        detail = f"{_what(row)} has the id {row['id']}, its schedule and time make {row['expected']}"
        return _problem("wrong_id", row, row["n"], row["n"], row["at"], detail)
    detail = f"{_what(row)} is due at {format_instant(row['execute_at'])}, before its planned time"
    return _problem("off_rule", row, row["n"], row["n"], row["at"], detail)


def _problem(kind: Kind, row: Row, first: int | None, last: int | None, at: Any, detail: str) -> Problem:
    return Problem(kind, row["schedule"], row["schedule_id"], row["scope"], first, last, at, detail)


def _what(row: Row) -> str:
    return ARTICLES[row["what"]]


def _numbers(first: int, last: int) -> str:
    return f"number {first}" if first == last else f"numbers {first} to {last}"
