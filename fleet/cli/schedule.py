"""fleetctl schedule: add and change schedules, run them out of turn. What only looks is in schedule_look.py."""

import asyncio
import sys
import time
from typing import Any
from uuid import UUID

import click

from fleet.cli.schedule_look import history, list_, next_, show, stats
from fleet.cli.schedule_options import (
    definition_options,
    read_fields,
    read_instants,
    read_jitter,
)
from fleet.cli.schedule_views import both_clocks, print_execution, say_added, say_secret
from fleet.cli.secret_options import Sealed, changes_secrets, read_secrets
from fleet.cli.session import Session, command, json_option, print_json, session, workspace_option
from fleet.cli.target_options import SEALED, changes_target, read_target
from fleet.domain.duration import parse_duration
from fleet.domain.schedule import Definition
from fleet.errors import FleetError, NotFound, TimedOut, UsageError
from fleet.operations import executions, schedules
from fleet.store import overview
from fleet.store import schedules as store

# How often --wait looks.
LOOK = 0.2


@click.group()
def schedule() -> None:
    """Add, change and look at schedules."""


for looking in (list_, show, next_, history, stats):
    schedule.add_command(looking)


@schedule.command()
@click.argument("name")
@definition_options
@workspace_option
@json_option
@command
async def add(name: str, workspace: str | None, as_json: bool, **given: Any) -> None:
    """Add a schedule: fleetctl schedule add NAME --every 30s --url URL."""
    fields = {**read_fields(given), "target": read_target(given), "enabled": not given["disabled"]}
    if given["jitter"] is not None:
        fields["jitter_ms"] = read_jitter(given["jitter"], fields.get("interval_seconds"))
    async with session(workspace) as own:
        sealed = read_secrets(given, {}, own.box) if changes_secrets(given) else Sealed({}, None)
        fields["target"] |= sealed.parts
        fields |= read_instants(given, await store.clock(own.connection))
        definition = Definition(name=name, workspace_id=own.settings.workspace, **fields)
        schedule_id = await schedules.add(own.connection, definition, own.window)
        made = await overview.get_schedule(own.connection, schedule_id)
    if as_json:
        print_json(made | ({"secret": sealed.shown_once} if sealed.shown_once else {}))
    else:
        say_added(made, jitter_given=given["jitter"] is not None)
        say_secret(sealed.shown_once)


@schedule.command()
@click.argument("name")
@definition_options
@workspace_option
@json_option
@command
async def update(name: str, workspace: str | None, as_json: bool, **given: Any) -> None:
    """Change what is given of a schedule; the rest stays. Pending ticks follow at once."""
    fields = read_fields(given)
    async with session(workspace) as own:
        # The row is locked before it is read: two edits at once do not undo each other's half of the target.
        async with own.connection.transaction():
            now = await _take(own, name)
            changes = {**fields, **_edited(given, fields, now), **read_instants(given, now["now"])}
            sealed = read_secrets(given, now["target"], own.box) if changes_secrets(given) else Sealed({}, None)
            if changes_secrets(given):
                changes["target"] = _with_secrets(changes.get("target", now["target"]), sealed)
            if not changes and not given["disabled"]:
                raise UsageError("nothing to change was given; see `fleetctl schedule update --help`")
            schedule_id, changed = await schedules.update(
                own.connection, own.settings.workspace, name, changes, own.window
            )
            if given["disabled"]:
                await schedules.pause(own.connection, own.settings.workspace, name, None, own.window)
        await _say(own, schedule_id, as_json, "updated" if changed or given["disabled"] else "nothing changed in")
    say_secret(sealed.shown_once)


def _with_secrets(target: dict[str, Any], sealed: Sealed) -> dict[str, Any]:
    plain = {name: value for name, value in target.items() if name not in SEALED}
    return plain | sealed.parts


async def _take(own: Session, name: str) -> dict[str, Any]:
    schedule_id = await schedules.find(own.connection, own.settings.workspace, name)
    found = await store.take(own.connection, schedule_id)
    if found is None:
        raise NotFound(f"schedule {name!r} was deleted a moment ago")
    return found


def _edited(given: dict[str, Any], fields: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """The fields whose new value depends on what the schedule was."""
    edited: dict[str, Any] = {}
    if changes_target(given):
        edited["target"] = read_target(given, before["target"])
    if given["jitter"] is not None:
        once_or_cron = given["cron"] or given["at"] or given["now"]
        interval = None if once_or_cron else before["interval_seconds"]
        edited["jitter_ms"] = read_jitter(given["jitter"], fields.get("interval_seconds", interval))
    return edited


@schedule.command()
@click.argument("name")
@click.option("--note", help="Why; shown to whoever looks next.")
@workspace_option
@json_option
@command
async def pause(name: str, note: str | None, workspace: str | None, as_json: bool) -> None:
    """Plan nothing more; executions that exist finish."""
    async with session(workspace) as own:
        schedule_id = await schedules.pause(own.connection, own.settings.workspace, name, note, own.window)
        await _say(own, schedule_id, as_json, "paused")


@schedule.command()
@click.argument("name")
@workspace_option
@json_option
@command
async def resume(name: str, workspace: str | None, as_json: bool) -> None:
    """Go on, on the same grid; also revives a cancelled schedule."""
    async with session(workspace) as own:
        schedule_id = await schedules.resume(own.connection, own.settings.workspace, name, own.window)
        await _say(own, schedule_id, as_json, "resumed")


@schedule.command()
@click.argument("name")
@workspace_option
@json_option
@command
async def cancel(name: str, workspace: str | None, as_json: bool) -> None:
    """Stop a schedule and everything of it that is unfinished."""
    async with session(workspace) as own:
        schedule_id, stopped = await schedules.cancel(own.connection, own.settings.workspace, name, own.window)
        also = f" and {stopped} unfinished execution{'s' if stopped > 1 else ''}" if stopped else ""
        await _say(own, schedule_id, as_json, "cancelled", also)


@schedule.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@workspace_option
@json_option
@command
async def delete(name: str, yes: bool, workspace: str | None, as_json: bool) -> None:
    """Remove a schedule; what is in flight finishes, its history stays until retention takes it."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete schedule {name}?", abort=True, err=True)
    async with session(workspace) as own:
        schedule_id = await schedules.delete(own.connection, own.settings.workspace, name)
    if as_json:
        print_json({"id": schedule_id, "name": name, "workspace_id": own.settings.workspace, "deleted": True})
    else:
        click.echo(f"deleted {name}")


@schedule.command()
@click.argument("name")
@click.option("--wait", is_flag=True, help="Wait for its end and show it; exits 1 unless it was delivered.")
@click.option("--timeout", "patience", metavar="DURATION", help="Longest to wait (5m); exits 6 then.")
@workspace_option
@json_option
@command
async def trigger(name: str, wait: bool, patience: str | None, workspace: str | None, as_json: bool) -> None:
    """Run a schedule once, now, beside its planned times; also while it is paused."""
    if patience is not None and not wait:
        raise UsageError("--timeout belongs to --wait: without it nothing is waited for")
    seconds = parse_duration(patience or "5m").total_seconds()
    async with session(workspace) as own:
        execution_id = await schedules.trigger(own.connection, own.settings.workspace, name)
        await _show_execution(own, execution_id, as_json, seconds if wait else None)


@schedule.command()
@click.argument("name")
@workspace_option
@json_option
@command
async def retry(name: str, workspace: str | None, as_json: bool) -> None:
    """Run the latest failed execution of a schedule once more."""
    async with session(workspace) as own:
        schedule_id = await schedules.find(own.connection, own.settings.workspace, name)
        execution_id = await executions.retry_latest_failed(own.connection, schedule_id, name)
        await _show_execution(own, execution_id, as_json)


async def _say(own: Session, schedule_id: UUID, as_json: bool, done: str, also: str = "") -> None:
    now = await overview.get_schedule(own.connection, schedule_id)
    if as_json:
        print_json(now)
        return
    following = now["next_scheduled_at"]
    words = (
        "nothing is planned" if following is None else f"next planned time {both_clocks(following, now['timezone'])}"
    )
    click.echo(f"{done} {now['name']}{also}, {words}")


async def _show_execution(own: Session, execution_id: UUID, as_json: bool, wait: float | None = None) -> None:
    """Print an execution, at its end when that is waited for; an end other than `delivered` is a failure."""
    deadline = time.monotonic() + (wait or 0.0)
    while True:
        execution = await executions.get(own.connection, own.settings.workspace, str(execution_id))
        if wait is None or execution["finished_at"] is not None:
            break
        if time.monotonic() >= deadline:
            raise TimedOut(f"execution {execution_id} is still {execution['status']}; it goes on without you")
        await asyncio.sleep(LOOK)
    if as_json:
        print_json(execution)
    else:
        print_execution(execution)
    if wait is not None and execution["status"] != "delivered":
        raise FleetError(f"execution {execution_id} was not delivered: it is {execution['status']}")
