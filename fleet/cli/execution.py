"""fleetctl execution: look at executions, retry and cancel them."""

from datetime import datetime
from typing import Any
from uuid import UUID

import click

from fleet.cli.session import Session, command, json_option, print_json, print_table, session, shown, workspace_option
from fleet.domain.execution import Status
from fleet.errors import UsageError
from fleet.operations import executions, schedules
from fleet.store import execution_views as views


@click.group()
def execution() -> None:
    """Look at executions, retry and cancel them."""


@execution.command("list")
@click.option("--schedule", "name", metavar="NAME", help="Only those of this schedule.")
@click.option("--status", type=click.Choice([status.value for status in Status]), help="Only those in this status.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=50, show_default=True, help="At most this many.")
@click.option("--before", metavar="ID", help="Only those before this execution: the last one of a page goes here.")
@workspace_option
@json_option
@command
async def list_(
    name: str | None, status: str | None, limit: int, before: str | None, workspace: str | None, as_json: bool
) -> None:
    """List executions, newest first."""
    page: dict[str, Any] = {"status": status, "before": _read_id(before), "limit": limit}
    async with session(workspace) as own:
        found, cut_short = await _list(own, name, page)
    if as_json:
        print_json(found)
    else:
        print_table(
            ["id", "schedule", "planned", "run", "status", "attempt", "finished", "error"],
            [
                [e[c] for c in ("id", "schedule", "scheduled_at", "run", "status", "attempt", "finished_at", "error")]
                for e in found
            ],
        )
    if cut_short:
        click.echo(
            f"fleetctl: only the newest {views.NEWEST_SEARCHED} executions were searched; older ones need --schedule",
            err=True,
        )


async def _list(own: Session, name: str | None, page: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """The executions, and whether older ones were left out of the search."""
    workspace = own.settings.workspace
    if name is not None:
        schedule_id = await schedules.find(own.connection, workspace, name)
        return await views.of_schedule(own.connection, schedule_id, **page), False
    found = await views.newest(own.connection, workspace, **page)
    return found, len(found) < page["limit"] and await views.older_exist(own.connection, page["before"])


def _read_id(text: str | None) -> UUID | None:
    try:
        return None if text is None else UUID(text)
    except ValueError:
        raise UsageError(f"--before {text!r} is not the id of an execution") from None


@execution.command()
@click.argument("id_", metavar="ID")
@workspace_option
@json_option
@command
async def show(id_: str, workspace: str | None, as_json: bool) -> None:
    """Show an execution and its attempts."""
    async with session(workspace) as own:
        found = await executions.get(own.connection, own.settings.workspace, id_)
    if as_json:
        print_json(found)
        return
    lines = {key: value for key, value in found.items() if key != "attempts" and value not in (None, "")}
    width = max(map(len, lines))
    for key, value in lines.items():
        click.echo(f"{key:<{width}}  {_plain(value)}")
    if found["attempts"]:
        columns = ["attempt", "outcome", "started_at", "finished_at", "status_code", "worker_id", "error"]
        click.echo()
        print_table([c.replace("_", " ") for c in columns], [[a[c] for c in columns] for a in found["attempts"]])


def _plain(value: Any) -> str:
    return shown(value) if isinstance(value, datetime) else str(value)


@execution.command()
@click.argument("id_", metavar="ID")
@workspace_option
@json_option
@command
async def retry(id_: str, workspace: str | None, as_json: bool) -> None:
    """Run a finished execution once more, as an execution of its own."""
    async with session(workspace) as own:
        made = await executions.retry(own.connection, own.settings.workspace, id_)
        found = await executions.get(own.connection, own.settings.workspace, str(made))
    if as_json:
        print_json(found)
    else:
        click.echo(f"execution {id_} of {found['schedule']} runs again as {made}")


@execution.command()
@click.argument("id_", metavar="ID")
@workspace_option
@json_option
@command
async def cancel(id_: str, workspace: str | None, as_json: bool) -> None:
    """Cancel an execution that waits or is in flight; what its worker still reports is refused."""
    async with session(workspace) as own:
        await executions.cancel(own.connection, own.settings.workspace, id_)
        found = await executions.get(own.connection, own.settings.workspace, id_)
    if as_json:
        print_json(found)
    else:
        click.echo(f"execution {id_} of {found['schedule']} is cancelled")
