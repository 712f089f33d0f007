"""Add, change, pause, resume, cancel and delete a schedule; run it out of turn.

Every change takes the schedule's row first, and removes its pending ticks in the next statement. What is planned
after it commits follows the new definition; what had come before follows the old one.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from fleet import failpoints
from fleet.domain.rule import INSTANT
from fleet.domain.schedule import RULE_FIELDS, Definition, check, from_json
from fleet.errors import Conflict, NotFound, UsageError
from fleet.operations.planning import plan_window, rule_of
from fleet.store import executions, schedules, versions
from fleet.store.connection import Connection

# How often, and after how many seconds each time, a change looks again for executions that were in a worker's hands.
LOOKS, BETWEEN_LOOKS = 100, 0.01

# `--now` is read from the clock a moment before; however short the grace, that is not the past.
JUST_NOW = 10.0


@dataclass(frozen=True, slots=True)
class Window:
    """How far ahead ticks are written, and how late a planned time may be and still simply run; in seconds."""

    lookahead: float
    grace: float


async def add(connection: Connection, definition: Definition, window: Window) -> UUID:
    """Make a schedule and write its first window's ticks: nothing waits for a generator's next pass."""
    async with _transaction(connection):
        now = await schedules.clock(connection)
        check(definition, now)
        if definition.run_at is not None and definition.run_at < now - timedelta(seconds=max(window.grace, JUST_NOW)):
            raise UsageError(f"--at {definition.run_at.isoformat()} lies in the past; give a later time, or use --now")
        rule = definition.rule(now)
        cursor = rule.next_after(rule.start_at - INSTANT)
        assert cursor is not None, "check() refuses rules without planned times"
        schedule_id = uuid4()
        if not await schedules.insert(connection, schedule_id, definition, rule, cursor, now):
            raise Conflict(
                f"schedule {definition.name!r} exists already in workspace {definition.workspace_id!r};"
                f" use `fleetctl schedule update` to change it"
            )
        await versions.record(connection, schedule_id, definition, rule, 0, rule.start_at - INSTANT)
        await plan_window(connection, schedule_id, window.lookahead, window.grace)
    return schedule_id


async def update(
    connection: Connection, workspace: str, name: str, changes: dict[str, Any], window: Window
) -> tuple[UUID, bool]:
    """Edit a schedule: (its id, whether anything changed). Only what is named changes; a new rule begins now."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        before = from_json(schedule["definition"])
        before = replace(before, enabled=schedule["enabled"], note=schedule["note"])
        after = replace(before, **_without_old_rule(changes))
        if after == before:
            return _id(schedule), False
        check(after, schedule["created_at"])
        same_rule = all(getattr(after, field) == getattr(before, field) for field in RULE_FIELDS)
        schedule = await _clear(connection, schedule, "edited", window)
        await _change(connection, schedule, after, same_rule)
        await plan_window(connection, schedule["id"], window.lookahead, window.grace)
        return _id(schedule), True


async def pause(connection: Connection, workspace: str, name: str, note: str | None, window: Window) -> UUID:
    """Stop planning. Ticks whose time has not come are removed; executions that exist finish, retries included."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        if schedule["enabled"]:
            await _clear(connection, schedule, "paused", window)
            await schedules.switch(connection, schedule["id"], enabled=False, note=note)
        elif note is not None:
            await schedules.switch(
                connection, schedule["id"], enabled=False, cancelled=schedule["cancelled_at"] is not None, note=note
            )
    return _id(schedule)


async def resume(connection: Connection, workspace: str, name: str, window: Window) -> UUID:
    """Go on, on the same grid; what passed meanwhile becomes a gap."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        if not schedule["enabled"]:
            await _settle(connection, schedule, "cancelled" if schedule["cancelled_at"] else "paused")
            await schedules.switch(connection, schedule["id"], enabled=True)
            await plan_window(connection, schedule["id"], window.lookahead, window.grace)
    return _id(schedule)


async def cancel(connection: Connection, workspace: str, name: str, window: Window) -> tuple[UUID, int]:
    """Stop everything of a schedule: (its id, how many executions were cancelled). `resume` revives it."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        await plan_window(connection, schedule["id"], 0.0, window.grace)
        await schedules.unplan(connection, schedule, "cancelled", all_ticks=True, keep_numbers=True)
        cancelled = await _cancel_executions(
            connection, schedule, ["emitted", "in_progress"], "cancelled with its schedule"
        )
        await schedules.switch(connection, schedule["id"], enabled=False, cancelled=True)
    return _id(schedule), cancelled


async def delete(connection: Connection, workspace: str, name: str) -> UUID:
    """Remove a schedule: what is in flight finishes, what waits is cancelled, its history stays until retention."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        reason = "deleted" if schedule["enabled"] else "paused"
        await schedules.unplan(connection, schedule, "deleted", all_ticks=True)
        schedule = await _again(connection, schedule)
        await _settle(connection, schedule, reason)
        await _cancel_executions(connection, schedule, ["emitted"], "cancelled: its schedule was deleted")
        await schedules.close(connection, schedule["id"])
    return _id(schedule)


async def trigger(connection: Connection, workspace: str, name: str) -> UUID:
    """One execution now, beside the grid; refused while another is unfinished and overlap is `skip`."""
    async with _transaction(connection):
        schedule = await _take(connection, workspace, name)
        made = await executions.create(connection, schedule["id"], f"trigger-{uuid4().hex[:12]}")
    if made is None:
        raise Conflict(
            f"schedule {name!r} has an unfinished execution and its overlap is 'skip';"
            " wait for it, cancel it, or update the schedule with --overlap allow"
        )
    return made


async def find(connection: Connection, workspace: str, name: str) -> UUID:
    """The schedule's id, or the sentence that there is none."""
    schedule_id = await schedules.find(connection, workspace, name)
    if schedule_id is None:
        raise NotFound(f"schedule {name!r} does not exist in workspace {workspace!r}; see `fleetctl schedule list`")
    return schedule_id


@asynccontextmanager
async def _transaction(connection: Connection) -> AsyncIterator[None]:
    async with connection.transaction():
        yield
        failpoints.hit("schedule.before_commit")


def _id(schedule: dict[str, Any]) -> UUID:
    schedule_id: UUID = schedule["id"]
    return schedule_id


async def _take(connection: Connection, workspace: str, name: str) -> dict[str, Any]:
    schedule = await schedules.take(connection, await find(connection, workspace, name))
    if schedule is None:
        raise NotFound(f"schedule {name!r} was deleted a moment ago")
    failpoints.hit("schedule.after_lock")
    return schedule


async def _again(connection: Connection, schedule: dict[str, Any]) -> dict[str, Any]:
    """Read the row anew, in the same transaction: its cursor has moved."""
    fresh = await schedules.take(connection, schedule["id"])
    assert fresh is not None, "the row is locked by this transaction"
    return fresh


async def _clear(connection: Connection, schedule: dict[str, Any], reason: str, window: Window) -> dict[str, Any]:
    """Let what has come be planned under the old rule, then take the rest back."""
    await plan_window(connection, schedule["id"], 0.0, window.grace)
    await schedules.unplan(connection, await _again(connection, schedule), reason)
    failpoints.hit("schedule.after_unplan")
    return await _again(connection, schedule)


async def _cancel_executions(connection: Connection, schedule: dict[str, Any], statuses: list[str], why: str) -> int:
    """Cancel what is unfinished, and say how many.

    A row that a worker's statement has in hand is passed by: to wait for it while holding others may deadlock. Such
    statements take milliseconds, so it is looked for again.
    """
    cancelled = 0
    for _ in range(LOOKS):
        found = await executions.unfinished(connection, schedule["id"], statuses)
        done = await executions.cancel(connection, found, why, statuses)
        cancelled += len(done)
        if len(done) == len(found):
            break
        await asyncio.sleep(BETWEEN_LOOKS)
    return cancelled


async def _settle(connection: Connection, schedule: dict[str, Any], reason: str) -> None:
    """Planned times from the cursor up to now that nobody will run become a gap; after the last run, `ended`."""
    reason = "ended" if schedule["capped"] else reason
    cursor = schedule["next_tick_needed_at"]
    if cursor is not None and cursor <= schedule["now"]:
        passed = rule_of(schedule).passed(cursor, schedule["now"])
        await schedules.settle(connection, schedule["id"], cursor, passed, reason)


async def _change(connection: Connection, schedule: dict[str, Any], after: Definition, same_rule: bool) -> None:
    if same_rule and not schedule["capped"]:
        rule, cursor = rule_of(schedule), schedule["next_tick_needed_at"]
        after_n, after_at = schedule["after_n"], schedule["after_at"]
    else:
        settled_at = schedule["now"]
        await _settle(connection, schedule, "edited" if schedule["enabled"] else "paused")
        schedule = await _again(connection, schedule)
        rule = rule_of(schedule) if same_rule else after.rule(schedule["created_at"])
        after_n, after_at = schedule["after_n"], schedule["after_at"]
        cursor = schedule["next_tick_needed_at"]
        if not same_rule:
            after_n = schedule["next_n"] - 1
            after_at = await versions.newest_planned(connection, schedule["id"], settled_at)
            cursor = rule.next_after(after_at)
            if cursor is None:
                raise UsageError(f"schedule {after.name!r} would never run again: no planned time is left")
    await schedules.change(connection, schedule["id"], schedule["version"] + 1, after, rule, cursor)
    await versions.record(connection, schedule["id"], after, rule, after_n, after_at)


def _without_old_rule(changes: dict[str, Any]) -> dict[str, Any]:
    """A new kind of rule replaces the old kind."""
    kinds = ("interval_seconds", "cron_expression", "run_at")
    if not any(changes.get(kind) is not None for kind in kinds):
        return changes
    align = {} if changes.get("interval_seconds") is not None else {"align": False}
    return {**dict.fromkeys(kinds), **align, **changes}
