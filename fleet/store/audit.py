"""What is wrong or late, as counts: for the reconciler's audit and for people. Reads only, every statement bounded."""

from typing import Any, NamedTuple
from uuid import UUID

from fleet.store.connection import Connection, rows

COUNT_LIMIT = 10_000
"""What is counted is counted up to here; one more means `at least this many`."""


class Overdue(NamedTuple):
    """Schedules whose cursor lies in the past: how many (at most COUNT_LIMIT + 1), and the one that waits longest."""

    schedules: int
    schedule: str | None
    seconds: float


OVERDUE = """
WITH late AS MATERIALIZED (
    SELECT s.name, s.next_tick_needed_at AS at FROM cron_schedules s
     WHERE s.enabled AND NOT s.capped
       AND s.next_tick_needed_at < now() - %(seconds)s * interval '1 second'
     ORDER BY s.next_tick_needed_at LIMIT %(most)s
)
SELECT count(*) AS schedules, (SELECT name FROM late ORDER BY at LIMIT 1) AS schedule,
       coalesce(date_part('epoch', now() - min(at)), 0) AS seconds
  FROM late
"""


async def overdue(connection: Connection, seconds: float) -> Overdue:
    """Schedules whose next planned time should have been a tick for longer than that."""
    [row] = await rows(connection, OVERDUE, {"seconds": seconds, "most": COUNT_LIMIT + 1})
    return Overdue(**row)


class Page(NamedTuple):
    """`last` is where the next page goes on, None at the end."""

    last: UUID | None
    mismatches: list[dict[str, Any]]
    free: list[UUID]


# Counts, not tiles: one snapshot, one number per table and schedule. A gap may begin below accounted_n. The page ends
# early where its schedules have many rows: `planned` says beforehand how many there must be.
COMPARE = """
WITH page AS MATERIALIZED (
    SELECT s.id, s.name, s.workspace_id, s.capped AND s.enabled AS capped, s.max_runs, s.runs_removed, s.accounted_n,
           (s.next_n - 1 - s.accounted_n) * cardinality(s.scopes) AS planned
      FROM cron_schedules s WHERE s.id > %(after)s ORDER BY s.id LIMIT %(limit)s
), taken AS MATERIALIZED (
    SELECT * FROM (SELECT *, sum(planned) OVER (ORDER BY id) - planned AS before FROM page) running
     WHERE before < %(rows)s
), counted AS MATERIALIZED (
    SELECT t.*,
           (SELECT count(*) FROM cron_ticks c WHERE c.schedule_id = t.id) AS ticks,
           (SELECT count(*) FROM executions e WHERE e.schedule_id = t.id AND e.run = '') AS executions,
           (SELECT coalesce(sum(g.last_n - greatest(g.first_n, t.accounted_n + 1) + 1), 0) FROM gaps g
             WHERE g.schedule_id = t.id AND g.last_n > t.accounted_n) AS skipped
      FROM taken t
)
SELECT id, name, workspace_id, planned::bigint, ticks, executions, skipped::bigint,
       ticks + executions + skipped <> planned AS wrong,
       capped AND coalesce(max_runs - runs_removed - executions - ticks, 1) > 0 AS free,
       (SELECT count(*) FROM page) AS page
  FROM counted ORDER BY id
"""
ROWS = 100_000


async def compare(connection: Connection, after: UUID, limit: int) -> Page:
    """One page of schedules by id: where the fates do not add up, and where max_runs has become free again."""
    found = await rows(connection, COMPARE, {"after": after, "limit": limit, "rows": ROWS})
    complete = not found or (len(found) == found[0]["page"] and len(found) < limit)
    return Page(
        None if complete else found[-1]["id"],
        [row for row in found if row["wrong"]],
        [row["id"] for row in found if row["free"]],
    )


# An execution that waits in its queue for the one before it is not late.
BACKLOG = """
WITH due AS MATERIALIZED (
    SELECT e.next_attempt_at, e.slot, e.schedule_id, e.scope FROM executions e
     WHERE e.status = 'emitted' AND e.next_attempt_at <= now()
     ORDER BY e.next_attempt_at LIMIT %(most)s
), late AS MATERIALIZED (
    SELECT d.next_attempt_at FROM due d
     WHERE d.slot IS NULL OR d.slot = 0 OR NOT EXISTS (
           SELECT FROM executions p
            WHERE p.schedule_id = d.schedule_id AND p.scope = d.scope AND p.slot < d.slot AND p.slot IS NOT NULL
              AND p.status IN ('emitted', 'in_progress'))
     ORDER BY d.next_attempt_at LIMIT 1
), ticks AS MATERIALIZED (
    SELECT t.execute_at FROM cron_ticks t WHERE t.execute_at <= now() ORDER BY t.execute_at
     LIMIT %(most)s
)
SELECT (SELECT count(*) FROM due) AS executions_due,
       (SELECT date_part('epoch', now() - next_attempt_at) FROM late) AS oldest_execution_seconds,
       (SELECT count(*) FROM ticks) AS ticks_due,
       (SELECT count(*) FROM ticks WHERE execute_at < now() - %(grace)s * interval '1 second')
           AS ticks_late,
       (SELECT date_part('epoch', now() - min(execute_at)) FROM ticks) AS oldest_tick_seconds,
       (SELECT count(*) FROM (SELECT FROM executions WHERE status = 'in_progress' LIMIT %(most)s) f) AS in_flight
"""


async def backlog(connection: Connection, grace: float) -> dict[str, Any]:
    """What waits and since when; counts go up to COUNT_LIMIT + 1."""
    [row] = await rows(connection, BACKLOG, {"grace": grace, "most": COUNT_LIMIT + 1})
    return row


SCHEDULES = """
SELECT count(*) FILTER (WHERE enabled AND NOT capped AND next_tick_needed_at IS NOT NULL) AS active,
       count(*) FILTER (WHERE NOT enabled AND cancelled_at IS NULL) AS paused,
       count(*) FILTER (WHERE NOT enabled AND cancelled_at IS NOT NULL) AS cancelled,
       count(*) FILTER (WHERE enabled AND (capped OR next_tick_needed_at IS NULL)) AS ended
  FROM cron_schedules WHERE deleted_at IS NULL
"""


async def schedules(connection: Connection) -> dict[str, int]:
    """How many living schedules are in which state."""
    [row] = await rows(connection, SCHEDULES)
    return row
