"""fleetctl verify: every planned time has exactly one fate, or here is what is wrong."""

import sys
from typing import TYPE_CHECKING, Any

import click

from fleet.cli.session import command, json_option, print_json, print_table, session

if TYPE_CHECKING:
    from fleet.ledger.report import Problem, Report

# It reads whole tables: what is long for a command is usual here.
STATEMENT_TIMEOUT = 600.0


@click.command()
@click.argument("name", required=False)
@click.option("--workspace", "-w", metavar="NAME", help="Check one workspace instead of all.")
@json_option
@command
async def verify(name: str | None, workspace: str | None, as_json: bool) -> None:
    """Prove that every planned time is accounted for.

    Each must be a pending tick, an execution, or a gap with its reason, at the time its rule says. With NAME only the
    schedules that have or had that name. Exits 1 if anything is wrong.
    """
    from fleet.ledger.verify import verify as check

    async with session(workspace, statement_timeout=STATEMENT_TIMEOUT) as current:
        where = current.settings.workspace if name is not None else workspace
        report = await check(current.connection, where, name, _progress)
    if as_json:
        print_json(as_object(report))
    else:
        _print(report)
    if report.found:
        raise SystemExit(1)


def as_object(report: "Report") -> dict[str, Any]:
    return {
        "planned": report.planned,
        "pending": report.pending,
        "executed": report.executed,
        "gaps": report.gaps,
        "problems_found": report.found,
        "problems": [problem._asdict() for problem in report.problems],
    }


def _progress(step: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"{step} …", err=True)


def _print(report: "Report") -> None:
    counted = (report.planned, report.pending, report.executed, report.gaps)
    print_table(("planned", "pending", "executed", "gaps"), [[f"{number:,}" for number in counted]])
    click.echo()
    if not report.found:
        click.echo("Every planned time is accounted for.")
        return
    for problem in report.problems:
        click.echo(_line(problem))
    listed = len(report.problems)
    click.echo(f"{report.found:,} problems" + (f", the first {listed:,} are listed" if listed < report.found else ""))


def _line(problem: "Problem") -> str:
    from fleet.domain.instant import format_instant

    whose = problem.schedule or str(problem.schedule_id)
    scope = f"[{problem.scope}]" if problem.scope else ""
    at = f" {format_instant(problem.scheduled_at)}" if problem.scheduled_at else ""
    return f"{problem.kind}  {whose}{scope}{at}: {problem.detail}"
