"""What people see of executions: lists, newest first. Reads only, by index, and never through the whole history."""

from typing import Any
from uuid import UUID

from fleet.store.connection import Connection, rows

NEWEST_SEARCHED = 100_000
"""A list over all schedules looks at this many of the newest executions, however few of them it wants."""

COLUMNS = """
SELECT e.id, e.schedule_id, s.name AS schedule, e.scheduled_at, e.execute_at, e.run, e.status, e.attempt,
       e.next_attempt_at, e.started_at, e.finished_at, e.error
"""
# An id begins with its planned time in milliseconds: the order of ids is the order of time, and the last id of a page
# is where the next one goes on.
OF_SCHEDULE = (
    COLUMNS
    + """
  FROM executions e JOIN cron_schedules s ON s.id = e.schedule_id
 WHERE e.schedule_id = %(schedule_id)s
   AND (%(status)s::text IS NULL OR e.status = %(status)s)
   AND (%(before)s::uuid IS NULL OR (e.id < %(before)s AND e.scheduled_at <= to_timestamp(%(before_at)s)))
 ORDER BY e.scheduled_at DESC, e.id DESC LIMIT %(limit)s
"""
)


async def of_schedule(
    connection: Connection, schedule_id: UUID, *, status: str | None, before: UUID | None, limit: int
) -> list[dict[str, Any]]:
    """The executions of one schedule."""
    before_at = None if before is None else (before.int >> 80) / 1000
    parameters = {
        "schedule_id": schedule_id,
        "status": status,
        "before": before,
        "before_at": before_at,
        "limit": limit,
    }
    return await rows(connection, OF_SCHEDULE, parameters)


NEWEST = (
    """
WITH newest AS (
    SELECT * FROM executions e
     WHERE (%(before)s::uuid IS NULL OR e.id < %(before)s) ORDER BY e.id DESC LIMIT %(searched)s
)"""
    + COLUMNS
    + """
  FROM newest e JOIN cron_schedules s ON s.id = e.schedule_id
 WHERE e.workspace_id = %(workspace)s AND (%(status)s::text IS NULL OR e.status = %(status)s)
 ORDER BY e.id DESC LIMIT %(limit)s
"""
)


async def newest(
    connection: Connection, workspace: str, *, status: str | None, before: UUID | None, limit: int
) -> list[dict[str, Any]]:
    """The executions of all schedules, among the newest NEWEST_SEARCHED."""
    parameters = {
        "workspace": workspace,
        "status": status,
        "before": before,
        "limit": limit,
        "searched": NEWEST_SEARCHED,
    }
    return await rows(connection, NEWEST, parameters)


BEYOND = """
SELECT FROM executions e WHERE (%(before)s::uuid IS NULL OR e.id < %(before)s)
 ORDER BY e.id DESC LIMIT 1 OFFSET %(searched)s
"""


async def older_exist(connection: Connection, before: UUID | None) -> bool:
    """Whether there are executions that `newest` did not look at."""
    cursor = await connection.execute(BEYOND, {"before": before, "searched": NEWEST_SEARCHED})
    return cursor.rowcount > 0


GET = """
SELECT e.id, e.schedule_id, s.name AS schedule, e.workspace_id, e.scope, e.scheduled_at, e.run, e.execute_at, e.status,
       e.attempt, e.next_attempt_at, e.leased_by, e.leased_until, e.started_at, e.finished_at, e.error, e.retry_of
  FROM executions e JOIN cron_schedules s ON s.id = e.schedule_id
 WHERE e.id = %(id)s AND e.workspace_id = %(workspace)s
"""
ATTEMPTS = """
SELECT execution_id, attempt, worker_id, started_at, finished_at, outcome, status_code, error, response
  FROM attempts WHERE execution_id = %(id)s ORDER BY attempt
"""
RETRIES = """
SELECT count(*) AS made FROM executions
 WHERE schedule_id = %(schedule_id)s AND scheduled_at = %(at)s AND scope = %(scope)s AND run LIKE 'retry-%%'
"""


async def get(connection: Connection, execution_id: UUID, workspace: str) -> dict[str, Any] | None:
    found = await rows(connection, GET, {"id": execution_id, "workspace": workspace})
    return found[0] if found else None


LATEST_FAILED = """
SELECT id, schedule_id, scope, scheduled_at FROM executions
 WHERE schedule_id = %(schedule_id)s AND status = 'failed' ORDER BY scheduled_at DESC, finished_at DESC LIMIT 1
"""


async def latest_failed(connection: Connection, schedule_id: UUID) -> dict[str, Any] | None:
    found = await rows(connection, LATEST_FAILED, {"schedule_id": schedule_id})
    return found[0] if found else None


async def attempts_of(connection: Connection, execution_id: UUID) -> list[dict[str, Any]]:
    return await rows(connection, ATTEMPTS, {"id": execution_id})


async def retries_made(connection: Connection, execution: dict[str, Any]) -> int:
    parameters = {
        "schedule_id": execution["schedule_id"],
        "at": execution["scheduled_at"],
        "scope": execution["scope"],
    }
    return int((await rows(connection, RETRIES, parameters))[0]["made"])
