"""What people see of schedules: their state, their history, their numbers. Reads only, by index, page by page."""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from fleet.domain.target import public_target
from fleet.errors import NotFound
from fleet.store.connection import Connection, rows
from fleet.store.ticks import PLANNABLE

PAGE = 1000

# Each lookup beside a schedule is one descent of an index and ends at its first row, so that a page costs the same
# whatever the history. What is in flight is read once: there are never more rows of it than the workers have slots.
# The newest thousand executions stand for all when a finished schedule is asked for unfinished ones.
SCHEDULES = """
WITH in_flight AS MATERIALIZED (
    SELECT schedule_id FROM executions WHERE status = 'in_progress'
)
SELECT s.id, s.name, s.workspace_id, state.status, s.enabled,
       coalesce(tick.scheduled_at, state.cursor) AS next_scheduled_at,
       coalesce(tick.execute_at, state.cursor + fleet_jitter(s.salt, state.cursor, s.jitter_ms)
                                                * interval '1 millisecond') AS next_execute_at,
       s.queue_name, s.interval_seconds, s.cron_expression, s.run_at, s.timezone, s.start_at, s.end_at, s.max_runs,
       s.jitter_ms, s.misfire_grace_seconds, s.catch_up, s.catch_up_window_seconds, s.max_plans_per_tick, s.overlap,
       s.target, s.payload, s.timeout_seconds, s.delivery, s.max_attempts, s.backoff_seconds,
       s.lease_seconds AS stale_timeout, s.labels, s.metadata, s.note, s.version, s.created_at, s.updated_at,
       s.paused_at, s.cancelled_at, last.at AS last_execution_at, last.status AS last_status
  FROM cron_schedules s
  LEFT JOIN LATERAL (
      SELECT t.scheduled_at, t.execute_at FROM cron_ticks t
       WHERE t.schedule_id = s.id ORDER BY t.scheduled_at LIMIT 1) tick ON true
  LEFT JOIN LATERAL (
      SELECT e.status, coalesce(e.started_at, e.finished_at) AS at FROM executions e
       WHERE e.schedule_id = s.id AND e.finished_at IS NOT NULL
       ORDER BY e.scheduled_at DESC, e.finished_at DESC LIMIT 1) last ON true
 CROSS JOIN LATERAL (
      SELECT CASE WHEN s.enabled AND NOT s.capped THEN s.next_tick_needed_at END AS cursor,
             CASE WHEN s.cancelled_at IS NOT NULL THEN 'cancelled'
                  WHEN NOT s.enabled THEN 'paused'
                  WHEN s.id IN (SELECT schedule_id FROM in_flight) THEN 'running'
                  WHEN (s.next_tick_needed_at IS NULL OR s.capped) AND tick.scheduled_at IS NULL
                       AND NOT EXISTS (SELECT FROM (
                           SELECT e.status FROM executions e
                            WHERE e.schedule_id = s.id ORDER BY e.scheduled_at DESC LIMIT 1000) newest
                            WHERE newest.status = 'emitted') THEN 'completed'
                  WHEN last.status = 'failed' THEN 'failed'
                  WHEN tick.scheduled_at IS NOT NULL OR (NOT s.capped AND s.next_tick_needed_at IS NOT NULL)
                       THEN 'scheduled'
                  ELSE 'pending' END AS status) state
"""
LIST = (
    SCHEDULES
    + """
 WHERE s.workspace_id = %(workspace)s AND s.deleted_at IS NULL AND s.name > %(after)s
   AND (%(status)s::text IS NULL OR state.status = %(status)s)
   AND s.labels @> %(labels)s
   AND (%(search)s::text IS NULL OR position(lower(%(search)s) IN lower(s.name)) > 0)
 ORDER BY s.name
 LIMIT %(limit)s
"""
)


async def list_schedules(
    connection: Connection,
    workspace: str,
    *,
    status: str | None = None,
    labels: Mapping[str, str] | None = None,
    search: str | None = None,
    limit: int | None = None,
    after_name: str | None = None,
) -> list[dict[str, Any]]:
    """Living schedules by name, those after `after_name`; a page, unless no limit is given."""
    parameters = {
        "workspace": workspace,
        "status": status,
        "labels": Jsonb(dict(labels or {})),
        "search": search,
        "limit": limit,
        "after": after_name or "",
    }
    return [_public(row) for row in await rows(connection, LIST, parameters)]


async def schedule_pages(
    connection: Connection, workspace: str, *, limit: int | None = None, page: int = PAGE, **filters: Any
) -> AsyncIterator[list[dict[str, Any]]]:
    """The same for as many as there are, in pages: no statement is long, and no answer is held whole in memory."""
    after_name: str | None = None
    while limit is None or limit > 0:
        size = page if limit is None else min(page, limit)
        found = await list_schedules(connection, workspace, limit=size, after_name=after_name, **filters)
        if found:
            yield found
        if len(found) < size:
            return
        after_name = found[-1]["name"]
        limit = None if limit is None else limit - size


ONE = SCHEDULES + " WHERE s.id = %(id)s"


async def get_schedule(connection: Connection, schedule_id: UUID) -> dict[str, Any]:
    found = await rows(connection, ONE, {"id": schedule_id})
    if not found:
        raise NotFound(f"schedule {schedule_id} does not exist")
    return _public(found[0])


def _public(schedule: dict[str, Any]) -> dict[str, Any]:
    return {**schedule, "target": public_target(schedule["target"])}


EXECUTIONS = """
SELECT 'execution' AS kind, id, scheduled_at, execute_at, scope, run, status, attempt, started_at, finished_at, error
  FROM executions WHERE schedule_id = %(id)s ORDER BY scheduled_at DESC, scope, run DESC LIMIT %(limit)s
"""
# By scope, because within one the primary key is in order of time.
GAPS = """
SELECT 'gap' AS kind, g.scope, g.reason, g.first_scheduled_at, g.last_scheduled_at, g.count
  FROM cron_schedules s CROSS JOIN unnest(s.scopes) AS scope (name)
 CROSS JOIN LATERAL (
      SELECT * FROM gaps g WHERE g.schedule_id = s.id AND g.scope = scope.name
       ORDER BY g.first_n DESC LIMIT %(limit)s) g
 WHERE s.id = %(id)s
"""


async def history(connection: Connection, schedule_id: UUID, limit: int) -> list[dict[str, Any]]:
    """Executions and gaps in one line of time, newest first."""
    parameters = {"id": schedule_id, "limit": limit}
    entries = await rows(connection, EXECUTIONS, parameters) + await rows(connection, GAPS, parameters)
    entries.sort(key=lambda entry: entry.get("scheduled_at") or entry["last_scheduled_at"], reverse=True)
    return entries[:limit]


STATS = """
SELECT count(*) AS total_executions,
       count(*) FILTER (WHERE status = 'delivered') AS successful_runs,
       count(*) FILTER (WHERE status = 'failed') AS failed_runs,
       avg(date_part('epoch', finished_at - started_at) * 1000)
           FILTER (WHERE status IN ('delivered', 'failed')) AS average_duration_ms
  FROM executions WHERE schedule_id = %(id)s
"""


async def stats(connection: Connection, schedule_id: UUID) -> dict[str, Any]:
    """The numbers of one schedule over the history that is kept; the rate is of those that ended by themselves."""
    schedule = await get_schedule(connection, schedule_id)
    [found] = await rows(connection, STATS, {"id": schedule_id})
    ended = found["successful_runs"] + found["failed_runs"]
    average = found["average_duration_ms"]
    return {
        **found,
        "average_duration_ms": None if average is None else round(average, 3),
        "last_execution_at": schedule["last_execution_at"],
        "next_scheduled_at": schedule["next_scheduled_at"],
        "success_rate": round(found["successful_runs"] / ended, 4) if ended else None,
    }


PENDING = """
SELECT scheduled_at, min(execute_at) AS execute_at FROM cron_ticks
 WHERE schedule_id = %(id)s GROUP BY scheduled_at ORDER BY scheduled_at LIMIT %(limit)s
"""


async def pending(connection: Connection, schedule_id: UUID, limit: int) -> list[dict[str, Any]]:
    """The planned times that are ticks already."""
    return await rows(connection, PENDING, {"id": schedule_id, "limit": limit})


TO_COME = PLANNABLE + " WHERE s.id = %(id)s AND s.enabled AND NOT s.capped AND s.next_tick_needed_at IS NOT NULL"


async def to_come(connection: Connection, schedule_id: UUID) -> dict[str, Any] | None:
    """What the planned times after the pending ticks are computed from; None when there are none."""
    found = await rows(connection, TO_COME, {"id": schedule_id})
    return found[0] if found else None
