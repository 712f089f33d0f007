"""cron_schedules, in life order: added, taken for a change, un-planned, settled, changed, closed.

A change is a transaction on one schedule that the caller opens: take its row, then (by a new snapshot: ticks that a
generator committed while we waited must be seen) remove its pending ticks, close what has passed, change it, plan its
window anew. A process that dies inside it changed nothing.
"""

from dataclasses import asdict
from datetime import datetime
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from fleet.domain import identity
from fleet.domain.rule import Passed, Rule
from fleet.domain.schedule import Definition
from fleet.store.connection import Connection, rows

CLOCK = "SELECT date_trunc('milliseconds', clock_timestamp()) AS at"


async def clock(connection: Connection) -> datetime:
    """The database's time, in whole milliseconds: the only clock that decides anything."""
    [row] = await rows(connection, CLOCK)
    at: datetime = row["at"]
    return at


INSERT = """
INSERT INTO cron_schedules (
    id, workspace_id, name, interval_seconds, cron_expression, run_at, timezone, anchor_at, start_at, end_at, max_runs,
    tails, salt, jitter_ms, misfire_grace_seconds, catch_up, catch_up_window_seconds, max_plans_per_tick, overlap,
    target, payload, timeout_seconds, delivery, max_attempts, backoff_seconds, lease_seconds, labels, metadata, note,
    enabled, next_tick_needed_at, accounted_from, created_at, updated_at, paused_at)
VALUES (
    %(id)s, %(workspace_id)s, %(name)s, %(interval_seconds)s, %(cron_expression)s, %(run_at)s, %(timezone)s,
    %(anchor_at)s, %(start_at)s, %(end_at)s, %(max_runs)s, %(tails)s, %(salt)s, %(jitter_ms)s,
    %(misfire_grace_seconds)s, %(catch_up)s, %(catch_up_window_seconds)s, %(max_plans_per_tick)s, %(overlap)s,
    %(target)s, %(payload)s, %(timeout_seconds)s, %(delivery)s, %(max_attempts)s, %(backoff_seconds)s,
    %(lease_seconds)s, %(labels)s, %(metadata)s, %(note)s, %(enabled)s, %(cursor)s, %(cursor)s, %(now)s, %(now)s,
    CASE WHEN NOT %(enabled)s THEN %(now)s::timestamptz END)
ON CONFLICT (workspace_id, name) WHERE deleted_at IS NULL DO NOTHING
RETURNING id
"""


async def insert(
    connection: Connection, schedule_id: UUID, definition: Definition, rule: Rule, cursor: datetime, now: datetime
) -> bool:
    """Add a schedule whose first planned time is `cursor`; False when the name is taken."""
    parameters = {
        **columns(definition, rule),
        "id": schedule_id,
        "workspace_id": definition.workspace_id,
        "name": definition.name,
        "tails": [identity.tail(schedule_id)],
        "salt": identity.salt(schedule_id),
        "enabled": definition.enabled,
        "cursor": cursor,
        "now": now,
    }
    return bool(await rows(connection, INSERT, parameters))


def columns(definition: Definition, rule: Rule) -> dict[str, Any]:
    """The columns that a definition decides, each with its default filled in."""
    complete = definition.completed()
    values = {name: value for name, value in asdict(complete).items() if name in DEFINED}
    values |= asdict(rule)
    for name in ("target", "payload", "labels", "metadata"):
        values[name] = None if values[name] is None else Jsonb(values[name])
    return values


DEFINED = (
    "max_runs",
    "jitter_ms",
    "misfire_grace_seconds",
    "catch_up",
    "catch_up_window_seconds",
    "max_plans_per_tick",
    "overlap",
    "target",
    "payload",
    "timeout_seconds",
    "delivery",
    "max_attempts",
    "backoff_seconds",
    "lease_seconds",
    "labels",
    "metadata",
    "note",
)

# The newest version rides along: what a person wrote, from which an edit starts.
TAKE = """
SELECT s.*, v.definition, v.after_n, v.after_at, date_trunc('milliseconds', clock_timestamp()) AS now
  FROM cron_schedules s
  JOIN LATERAL (SELECT * FROM schedule_versions v WHERE v.schedule_id = s.id ORDER BY v.version DESC LIMIT 1) v ON true
 WHERE s.id = %(id)s AND s.deleted_at IS NULL
"""
LOCK = "SELECT FROM cron_schedules WHERE id = %(id)s AND deleted_at IS NULL FOR NO KEY UPDATE"


async def take(connection: Connection, schedule_id: UUID) -> dict[str, Any] | None:
    """Lock a living schedule for the caller's transaction, then read it: generators now pass it by."""
    await connection.execute(LOCK, {"id": schedule_id})
    found = await rows(connection, TAKE, {"id": schedule_id})
    return found[0] if found else None


# Only in the statement after the lock: on the snapshot from before the wait it would miss ticks just committed.
# The cursor goes back over the unbroken suffix that ends at it and was pending in every scope, and never into the
# numbers of an older rule. Whatever else is removed had its number used: it becomes a gap.
UNPLAN = """
WITH removed AS (
    DELETE FROM cron_ticks
     WHERE schedule_id = %(id)s AND (%(all)s OR execute_at > clock_timestamp())
 RETURNING scope, n, scheduled_at
), suffix AS (
    SELECT c.n, c.at FROM (
        SELECT r.n, min(r.scheduled_at) AS at, row_number() OVER (ORDER BY r.n DESC) AS k
          FROM removed r
         GROUP BY r.n
        HAVING count(*) = (SELECT cardinality(scopes) FROM cron_schedules WHERE id = %(id)s)) c
      JOIN cron_schedules s ON s.id = %(id)s
     WHERE NOT %(keep)s AND c.n = s.next_n - c.k AND c.n > %(after_n)s
), rolled AS (
    UPDATE cron_schedules
       SET next_n = coalesce((SELECT min(n) FROM suffix), next_n),
           next_tick_needed_at = coalesce((SELECT min(at) FROM suffix), next_tick_needed_at),
           capped = capped AND NOT EXISTS (SELECT FROM removed)
     WHERE id = %(id)s
), ranges AS (
    SELECT scope, min(n) AS first_n, max(n) AS last_n, min(scheduled_at) AS first_at, max(scheduled_at) AS last_at
      FROM (SELECT *, n - row_number() OVER (PARTITION BY scope ORDER BY n) AS island FROM removed
             WHERE n NOT IN (SELECT n FROM suffix)) numbered
     GROUP BY scope, island
), recorded AS (
    INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
    SELECT %(id)s, scope, first_n, last_n, %(reason)s, first_at, last_at FROM ranges
)
SELECT (SELECT count(*) FROM removed) AS removed
"""


async def unplan(
    connection: Connection,
    schedule: dict[str, Any],
    reason: str,
    *,
    all_ticks: bool = False,
    keep_numbers: bool = False,
) -> int:
    """Remove the pending ticks whose time has not come (or all); the schedule's row must be held by `take`."""
    parameters = {
        "id": schedule["id"],
        "after_n": schedule["after_n"],
        "reason": reason,
        "all": all_ticks,
        "keep": keep_numbers,
    }
    [row] = await rows(connection, UNPLAN, parameters)
    return int(row["removed"])


SETTLE = """
WITH moved AS (
    UPDATE cron_schedules SET next_n = next_n + %(count)s, next_tick_needed_at = %(next)s WHERE id = %(id)s
 RETURNING id, scopes, next_n
)
INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
SELECT id, scope, next_n - %(count)s, next_n - 1, %(reason)s, %(first)s, %(last)s
  FROM moved CROSS JOIN unnest(scopes) AS scope
"""


async def settle(connection: Connection, schedule_id: UUID, first: datetime, passed: Passed, reason: str) -> None:
    """Write planned times that passed without a tick as one gap, and move the cursor behind them."""
    parameters = {
        "id": schedule_id,
        "count": passed.number,
        "first": first,
        "last": passed.last,
        "next": passed.next,
        "reason": reason,
    }
    await connection.execute(SETTLE, parameters)


CHANGE = """
UPDATE cron_schedules
   SET interval_seconds = %(interval_seconds)s, cron_expression = %(cron_expression)s, run_at = %(run_at)s,
       timezone = %(timezone)s, anchor_at = %(anchor_at)s, start_at = %(start_at)s, end_at = %(end_at)s,
       max_runs = %(max_runs)s, jitter_ms = %(jitter_ms)s, misfire_grace_seconds = %(misfire_grace_seconds)s,
       catch_up = %(catch_up)s, catch_up_window_seconds = %(catch_up_window_seconds)s,
       max_plans_per_tick = %(max_plans_per_tick)s, overlap = %(overlap)s, target = %(target)s, payload = %(payload)s,
       timeout_seconds = %(timeout_seconds)s, delivery = %(delivery)s, max_attempts = %(max_attempts)s,
       backoff_seconds = %(backoff_seconds)s, lease_seconds = %(lease_seconds)s, labels = %(labels)s,
       metadata = %(metadata)s, note = %(note)s, next_tick_needed_at = %(cursor)s, version = %(version)s,
       capped = false, updated_at = clock_timestamp()
 WHERE id = %(id)s
"""


async def change(
    connection: Connection, schedule_id: UUID, version: int, definition: Definition, rule: Rule, cursor: datetime | None
) -> None:
    """Write an edited definition; the generator counts max_runs anew, so it may be uncapped freely."""
    parameters = {**columns(definition, rule), "id": schedule_id, "version": version, "cursor": cursor}
    await connection.execute(CHANGE, parameters)


SWITCH = """
UPDATE cron_schedules
   SET enabled = %(enabled)s, note = coalesce(%(note)s, note), updated_at = clock_timestamp(),
       paused_at = CASE WHEN NOT %(enabled)s AND NOT %(cancelled)s THEN clock_timestamp() END,
       cancelled_at = CASE WHEN %(cancelled)s THEN clock_timestamp() END
 WHERE id = %(id)s
"""


async def switch(
    connection: Connection, schedule_id: UUID, *, enabled: bool, cancelled: bool = False, note: str | None = None
) -> None:
    parameters = {"id": schedule_id, "enabled": enabled, "cancelled": cancelled, "note": note}
    await connection.execute(SWITCH, parameters)


# A schedule that cannot be planned (its zone is gone from the time-zone data, say) must not fail every pass for ever.
PARK = """
UPDATE cron_schedules
   SET enabled = false, paused_at = clock_timestamp(), updated_at = clock_timestamp(), note = %(note)s
 WHERE id = %(id)s
"""


async def park(connection: Connection, schedule_id: UUID, note: str) -> None:
    """Pause a schedule that makes its step crash, with the reason where people look."""
    await connection.execute(PARK, {"id": schedule_id, "note": note})


CLOSE = """
UPDATE cron_schedules
   SET deleted_at = clock_timestamp(), enabled = false, next_tick_needed_at = NULL, updated_at = clock_timestamp()
 WHERE id = %(id)s
"""


async def close(connection: Connection, schedule_id: UUID) -> None:
    """Delete: the name is free again, the history stays until retention takes it."""
    await connection.execute(CLOSE, {"id": schedule_id})


FIND_BY_NAME = (
    "SELECT id FROM cron_schedules WHERE workspace_id = %(workspace)s AND deleted_at IS NULL AND name = %(name)s"
)
FIND_BY_ID = (
    "SELECT id FROM cron_schedules WHERE workspace_id = %(workspace)s AND deleted_at IS NULL AND id = %(id)s::uuid"
)


async def find(connection: Connection, workspace: str, name: str) -> UUID | None:
    """The id of a living schedule by its name, or by its id written out."""
    found = await rows(connection, FIND_BY_NAME, {"workspace": workspace, "name": name})
    if not found and _is_uuid(name):
        found = await rows(connection, FIND_BY_ID, {"workspace": workspace, "id": name})
    return found[0]["id"] if found else None


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True
