"""Retention: takes the oldest history of a schedule away, and moves the point from which its account is complete.

Never writes the cursor: what is generated next does not depend on any row that goes, so nothing can run again.
Works schedule by schedule through the index of their history, a bounded number of rows each: its cost does not grow
with the size of the tables.
"""

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

from fleet.store.connection import Connection, rows

PAGE = """
SELECT id, accounted_from < now() - %(age)s * interval '1 second'
           OR coalesce(deleted_at < now() - %(age)s * interval '1 second', false) AS old
  FROM cron_schedules WHERE id > %(after)s ORDER BY id LIMIT %(limit)s
"""


async def page(connection: Connection, after: UUID, limit: int, age: float) -> list[tuple[UUID, bool]]:
    """The next schedules by id, and whether they can have anything older than that age, in seconds."""
    found = await rows(connection, PAGE, {"after": after, "limit": limit, "age": age})
    return [(row["id"], row["old"]) for row in found]


# In a statement of its own: on a snapshot from before the lock, ticks that a generator just committed would be missed.
TAKE = "SELECT id FROM cron_schedules WHERE id = ANY(%(ids)s::uuid[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED"


async def take(connection: Connection, ids: Sequence[UUID]) -> list[UUID]:
    """Lock these schedules for the caller's transaction; those that someone is changing wait for the next pass."""
    return [row["id"] for row in await rows(connection, TAKE, {"ids": list(ids)})]


class Removed(NamedTuple):
    """`more` when some schedule has more to remove than one call may take; `lag` is the age of its oldest row."""

    executions: int
    attempts: int
    gaps: int
    more: bool
    lag: float


# Planned times rise with their numbers, so everything before one instant is a prefix of the numbers in every scope:
#   cut      what may go is older than the age and older than the newest `runs` executions; of a schedule that was
#            deleted longer ago than the age, everything
#   edge     what does go: up to the cut, the first unfinished execution, the first pending tick, or the bound
#   removed  executions of any run before the edge; all are final, and final rows are never written
#   gone     gaps that end before the edge. One that ends right before a pending tick stays with it: a ticker that
#            skips the tick may be lengthening it this moment. With several scopes a gap may begin below accounted_n
# Rows are named by arrays and tids, never joined: a join may be planned as a walk through a whole index.
# All on one snapshot: a tick that becomes an execution meanwhile is seen as the one or as the other.
PURGE = """
WITH taken AS MATERIALIZED (
    SELECT s.id, s.scopes, least(
               now() - %(age)s * interval '1 second',
               CASE WHEN %(runs)s > 0 AND (s.deleted_at < now() - %(age)s * interval '1 second') IS NOT TRUE THEN
                   coalesce((SELECT e.scheduled_at FROM executions e WHERE e.schedule_id = s.id
                              ORDER BY e.scheduled_at DESC LIMIT 1 OFFSET greatest(%(runs)s - 1, 0)),
                            (SELECT e.scheduled_at FROM executions e WHERE e.schedule_id = s.id
                              ORDER BY e.scheduled_at LIMIT 1)) END) AS cut
      FROM cron_schedules s
     WHERE s.id = ANY(%(ids)s::uuid[])
), oldest AS MATERIALIZED (
    SELECT t.id, min(e.scheduled_at) FILTER (WHERE e.finished_at IS NULL) AS unfinished_at,
           CASE WHEN count(*) = %(rows)s THEN max(e.scheduled_at) END AS full_at
      FROM taken t
     CROSS JOIN LATERAL (
           SELECT e.scheduled_at, e.finished_at FROM executions e
            WHERE e.schedule_id = t.id AND e.scheduled_at < t.cut
            ORDER BY e.scheduled_at, e.scope, e.run LIMIT %(rows)s) e
     GROUP BY t.id
), old_gaps AS MATERIALIZED (
    SELECT t.id, g.*
      FROM taken t
     CROSS JOIN LATERAL unnest(t.scopes) AS scope (name)
     CROSS JOIN LATERAL (
           SELECT g.ctid, g.first_scheduled_at, g.last_scheduled_at, row_number() OVER (ORDER BY g.first_n) AS k
             FROM gaps g WHERE g.schedule_id = t.id AND g.scope = scope.name
            ORDER BY g.first_n LIMIT %(rows)s + 1) g
), pending AS MATERIALIZED (
    SELECT t.id, min(tick.scheduled_at) AS at, min(before.first_scheduled_at) AS gap_at
      FROM taken t
     CROSS JOIN LATERAL unnest(t.scopes) AS scope (name)
     CROSS JOIN LATERAL (
           SELECT c.scheduled_at, c.n FROM cron_ticks c
            WHERE c.schedule_id = t.id AND c.scope = scope.name ORDER BY c.scheduled_at LIMIT 1) tick
      LEFT JOIN LATERAL (
           SELECT g.first_scheduled_at, g.last_n FROM gaps g
            WHERE g.schedule_id = t.id AND g.scope = scope.name AND g.first_n < tick.n
            ORDER BY g.first_n DESC LIMIT 1) before ON before.last_n = tick.n - 1
     GROUP BY t.id
), bounds AS MATERIALIZED (
    SELECT t.id, least(t.cut, o.unfinished_at, p.at, p.gap_at) AS whole, least(
               (SELECT e.scheduled_at FROM executions e
                 WHERE e.schedule_id = t.id AND e.scheduled_at > o.full_at ORDER BY e.scheduled_at LIMIT 1),
               (SELECT min(g.first_scheduled_at) FROM old_gaps g WHERE g.id = t.id AND g.k > %(rows)s)) AS bound
      FROM taken t LEFT JOIN oldest o USING (id) LEFT JOIN pending p USING (id)
), edge AS MATERIALIZED (
    SELECT id, least(whole, bound) AS at, bound < whole AS bounded FROM bounds
), removed AS (
    DELETE FROM executions e USING edge
     WHERE e.schedule_id = edge.id AND e.scheduled_at < edge.at AND e.finished_at IS NOT NULL
 RETURNING e.id, e.schedule_id, e.n, e.scheduled_at
), tried AS (
    DELETE FROM attempts WHERE execution_id = ANY (ARRAY(SELECT id FROM removed)) RETURNING 1
), gone AS (
    DELETE FROM gaps WHERE ctid = ANY (ARRAY(
        SELECT o.ctid FROM old_gaps o JOIN edge USING (id) WHERE o.last_scheduled_at < edge.at))
 RETURNING schedule_id, last_n, last_scheduled_at
), closed AS MATERIALIZED (
    SELECT schedule_id, max(n) AS n, max(at) AS at, sum(runs) AS runs
      FROM (SELECT schedule_id, n, scheduled_at AS at, 1 AS runs FROM removed WHERE n IS NOT NULL
             UNION ALL SELECT schedule_id, last_n, last_scheduled_at, 0 FROM gone) fates
     GROUP BY schedule_id
), moved AS (
    UPDATE cron_schedules s
       SET accounted_n = greatest(s.accounted_n, c.n), runs_removed = s.runs_removed + c.runs,
           accounted_from = greatest(s.accounted_from, c.at + interval '1 millisecond', least(
               (SELECT e.scheduled_at FROM executions e
                 WHERE e.schedule_id = s.id AND e.scheduled_at > c.at AND e.run = '' ORDER BY e.scheduled_at LIMIT 1),
               (SELECT min(g.first_scheduled_at) FROM old_gaps g WHERE g.id = s.id AND g.last_scheduled_at > c.at),
               (SELECT p.at FROM pending p WHERE p.id = s.id)))
      FROM closed c
     WHERE s.id = c.schedule_id AND s.id = ANY(%(ids)s::uuid[])
)
SELECT (SELECT count(*) FROM removed), (SELECT count(*) FROM tried), (SELECT count(*) FROM gone),
       (SELECT count(*) FROM edge WHERE bounded AND (id IN (SELECT schedule_id FROM removed)
                                                     OR id IN (SELECT schedule_id FROM gone))) > 0,
       (SELECT coalesce(date_part('epoch', now() - min(at)), 0) FROM edge WHERE bounded)
"""


async def purge(connection: Connection, taken: Sequence[UUID], *, age: float, runs: int, limit: int) -> Removed:
    """Remove what is too old of schedules that this transaction has taken, about `limit` rows of each and table."""
    cursor = await connection.execute(PURGE, {"ids": list(taken), "age": age, "runs": runs, "rows": limit})
    row = await cursor.fetchone()
    assert row is not None
    return Removed(*row)


# After the purge, in the same transaction. Nothing new can come: a deleted schedule is neither planned nor triggered.
FORGET = """
WITH forgotten AS (
    DELETE FROM cron_schedules s
     WHERE s.id = ANY(%(ids)s::uuid[]) AND s.deleted_at < now() - %(age)s * interval '1 second'
       AND NOT EXISTS (SELECT FROM executions e WHERE e.schedule_id = s.id)
       AND NOT EXISTS (SELECT FROM gaps g WHERE g.schedule_id = s.id)
       AND NOT EXISTS (SELECT FROM cron_ticks t WHERE t.schedule_id = s.id)
 RETURNING s.id
), versions AS (
    DELETE FROM schedule_versions v USING forgotten f WHERE v.schedule_id = f.id
)
SELECT count(*) AS schedules FROM forgotten
"""


async def forget(connection: Connection, taken: Sequence[UUID], age: float) -> int:
    """Remove the schedules that were deleted longer ago than that and have no history left, with their versions."""
    [row] = await rows(connection, FORGET, {"ids": list(taken), "age": age})
    return int(row["schedules"])


# A schedule and its ticks appear in one commit, and delete removes the ticks: one without a living schedule is wrong.
# SKIP LOCKED: a ticker that has it already drops it as well.
REMOVE_ORPHANS = """
DELETE FROM cron_ticks WHERE ctid = ANY (ARRAY(
    SELECT t.ctid FROM cron_ticks t
     WHERE t.schedule_id > %(after)s AND t.schedule_id <= %(upto)s
       AND NOT EXISTS (SELECT FROM cron_schedules s WHERE s.id = t.schedule_id AND s.deleted_at IS NULL)
     LIMIT %(limit)s
       FOR UPDATE SKIP LOCKED))
RETURNING schedule_id
"""


async def remove_orphans(connection: Connection, after: UUID, upto: UUID, limit: int) -> list[UUID]:
    """Remove ticks between two ids (the first exclusive) whose schedule does not exist; the schedule of each."""
    found = await rows(connection, REMOVE_ORPHANS, {"after": after, "upto": upto, "limit": limit})
    return [row["schedule_id"] for row in found]
