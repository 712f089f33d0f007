"""The commands of fleetctl schedule that only look: list, show, next, history, stats."""

from datetime import UTC, datetime
from typing import Any

import click

from fleet.cli.schedule_options import read_fields, read_labels
from fleet.cli.schedule_views import print_history, print_next, print_schedule, print_schedules, print_stats
from fleet.cli.session import command, json_option, print_json, print_json_pages, session, workspace_option
from fleet.domain.instant import parse_instant
from fleet.domain.schedule import Definition
from fleet.errors import UsageError
from fleet.operations.schedules import find
from fleet.operations.upcoming import preview, upcoming
from fleet.store import overview

STATUSES = ("pending", "scheduled", "running", "paused", "completed", "failed", "cancelled")
# A table longer than this is no longer read by people.
FIRST = 50
MOST = 10_000


@click.command("list")
@click.option("--status", type=click.Choice(STATUSES), help="Only those in this state.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only those with this label; repeatable.")
@click.option("--search", metavar="TEXT", help="Only those whose name holds this text.")
@click.option("--limit", type=click.IntRange(0), help=f"At most so many; a table shows {FIRST}, JSON all.")
@workspace_option
@json_option
@command
async def list_(
    status: str | None,
    labels: tuple[str, ...],
    search: str | None,
    limit: int | None,
    workspace: str | None,
    as_json: bool,
) -> None:
    """List schedules by name."""
    filters: dict[str, Any] = {"status": status, "labels": read_labels(labels), "search": search}
    async with session(workspace) as own:
        where = own.settings.workspace
        if as_json:
            await print_json_pages(overview.schedule_pages(own.connection, where, limit=limit, **filters))
            return
        wanted = FIRST if limit is None else limit
        pages = overview.schedule_pages(own.connection, where, limit=wanted + 1, **filters)
        found = [schedule async for page in pages for schedule in page]
    if found:
        print_schedules(found[:wanted])
    else:
        click.echo(f"no schedule matches in workspace {where}", err=True)
    if len(found) > wanted:
        click.echo(f"these are the first {wanted}, there are more: use --limit, --search, or --json for all", err=True)


@click.command()
@click.argument("name")
@workspace_option
@json_option
@command
async def show(name: str, workspace: str | None, as_json: bool) -> None:
    """Show one schedule, by name or id."""
    async with session(workspace) as own:
        schedule_id = await find(own.connection, own.settings.workspace, name)
        schedule = await overview.get_schedule(own.connection, schedule_id)
    if as_json:
        print_json(schedule)
    else:
        print_schedule(schedule)


@click.command("next")
@click.argument("name", required=False)
@click.option("-n", "--count", type=click.IntRange(1, MOST), default=20, show_default=True, help="How many.")
@click.option("--cron", metavar="EXPR", help="Of this expression, without storing it.")
@click.option("--every", metavar="DURATION", help="Of this interval, counted from --from, without storing it.")
@click.option("--tz", metavar="ZONE", help="Time zone of --cron; UTC by default.")
@click.option("--from", "after", metavar="TIME", help="Those after this time; now by default.")
@workspace_option
@json_option
@command
async def next_(name: str | None, count: int, workspace: str | None, as_json: bool, **given: Any) -> None:
    """Show the planned times to come, of a schedule or of an expression."""
    if name is None:
        times, timezone = _not_stored(given, count), given["tz"] or "UTC"
    elif any(value is not None for value in given.values()):
        raise UsageError("--cron, --every, --tz and --from look at a rule that is not stored; leave out NAME, or them")
    else:
        async with session(workspace) as own:
            schedule_id = await find(own.connection, own.settings.workspace, name)
            grace = own.window.grace
            times = await upcoming(own.connection, schedule_id, count, grace)
            timezone = (await overview.get_schedule(own.connection, schedule_id))["timezone"]
    if as_json:
        print_json(times)
    elif times:
        print_next(times, timezone)
    else:
        click.echo("no planned time is to come", err=True)


def _not_stored(given: dict[str, Any], count: int) -> list[dict[str, datetime]]:
    """Needs no database, so this machine's clock says what "now" is."""
    if (given["cron"] is None) == (given["every"] is None):
        raise UsageError("name a schedule, or give one of --cron and --every")
    after = parse_instant(given["after"] or "now", datetime.now(UTC))
    definition = Definition(name="next", target={}, start_at=after, **read_fields(given))
    return preview(definition, after, count)


@click.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(1, MOST), default=20, show_default=True, help="How many.")
@workspace_option
@json_option
@command
async def history(name: str, limit: int, workspace: str | None, as_json: bool) -> None:
    """Show what became of its planned times: executions and gaps, newest first."""
    async with session(workspace) as own:
        schedule_id = await find(own.connection, own.settings.workspace, name)
        entries = await overview.history(own.connection, schedule_id, limit)
    if as_json:
        print_json(entries)
    elif entries:
        print_history(entries)
    else:
        click.echo(f"schedule {name} has no history yet", err=True)


@click.command()
@click.argument("name")
@workspace_option
@json_option
@command
async def stats(name: str, workspace: str | None, as_json: bool) -> None:
    """Show the numbers of a schedule over the history that is kept."""
    async with session(workspace) as own:
        schedule_id = await find(own.connection, own.settings.workspace, name)
        numbers = await overview.stats(own.connection, schedule_id)
    if as_json:
        print_json(numbers)
    else:
        print_stats(name, numbers)
