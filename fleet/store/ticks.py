"""cron_ticks, in life order: generated from the cursor, and ended as an execution or a gap.

Generate and emit are one statement each. A process that dies before, inside or after one leaves nothing half done.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from fleet.domain.planning import Plan
from fleet.store.connection import Connection, rows


class Generated(NamedTuple):
    schedules: int
    ticks: int
    skipped: int


# The row lock makes the cursor values those of the newest version, and SKIP LOCKED splits the work between
# generators. Ticks, the gap of what was missed, and the cursor commit together. A generator takes the schedules of
# its own shard, and any that is due within half the lookahead: shards divide work, they never own it.
#   past    planned times that are surely missed: later than grace even with the largest jitter
#   upto    planned times up to the horizon and the rule's end
#   budget  executions that max_runs still allows, pending ticks taken as if they will all run
GENERATE_INTERVALS = """
WITH due AS MATERIALIZED (
    SELECT s.id, s.next_tick_needed_at AS cursor, s.next_n, s.interval_seconds AS step, s.scopes, s.tails, s.salt,
           s.jitter_ms, s.catch_up, s.catch_up_window_seconds, s.max_plans_per_tick, s.end_at, s.max_runs,
           s.runs_removed, coalesce(s.misfire_grace_seconds, %(grace)s) AS grace
      FROM cron_schedules s
     WHERE s.enabled AND NOT s.capped AND s.interval_seconds IS NOT NULL
       AND s.next_tick_needed_at <= now() + %(lookahead)s * interval '1 second'
       AND (%(shards)s = 1 OR fleet_shard(s.id, %(shards)s) = %(shard)s
            OR s.next_tick_needed_at <= now() + %(lookahead)s / 2 * interval '1 second')
     ORDER BY s.next_tick_needed_at
     LIMIT %(batch)s
       FOR NO KEY UPDATE SKIP LOCKED
), counted AS MATERIALIZED (
    SELECT *,
           greatest(0, ceil(date_part('epoch', now() - cursor - (grace + jitter_ms / 1000.0) * interval '1 second')
                            / step))::bigint AS past,
           greatest(0, ceil(date_part('epoch', now() - cursor - catch_up_window_seconds * interval '1 second')
                            / step))::bigint AS expired,
           greatest(0, floor(date_part('epoch', least(now() + %(lookahead)s * interval '1 second', end_at) - cursor)
                             / step) + 1)::bigint AS upto,
           CASE WHEN max_runs IS NOT NULL THEN max_runs - runs_removed
                - (SELECT count(*) FROM executions e WHERE e.schedule_id = due.id AND e.run = '')
                - (SELECT count(*) FROM cron_ticks t WHERE t.schedule_id = due.id) END AS budget
      FROM due
), judged AS MATERIALIZED (
    SELECT *, least(upto, CASE catch_up WHEN 'latest' THEN greatest(least(past, upto) - 1, 0)
                                        WHEN 'none' THEN past ELSE expired END) AS skip
      FROM counted
), planned AS MATERIALIZED (
    SELECT *, greatest(0, least(upto - skip, max_plans_per_tick, budget)) AS take FROM judged
), ticks AS (
    INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)
    SELECT p.id, scope.name, at.at, at.at + fleet_jitter(p.salt, at.at, p.jitter_ms) * interval '1 millisecond',
           p.next_n + k, fleet_id(scope.tail, at.at)
      FROM planned p
     CROSS JOIN LATERAL unnest(p.scopes, p.tails) AS scope (name, tail)
     CROSS JOIN LATERAL generate_series(p.skip, p.skip + p.take - 1) AS k
     CROSS JOIN LATERAL (SELECT p.cursor + k * p.step * interval '1 second' AS at) AS at
    ON CONFLICT DO NOTHING
    RETURNING 1
), missed AS (
    INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
    SELECT p.id, scope, p.next_n, p.next_n + p.skip - 1, 'catch_up', p.cursor,
           p.cursor + (p.skip - 1) * p.step * interval '1 second'
      FROM planned p CROSS JOIN unnest(p.scopes) AS scope
     WHERE p.skip > 0
), advanced AS (
    UPDATE cron_schedules s
       SET next_n = p.next_n + p.skip + p.take,
           capped = p.budget IS NOT NULL AND p.take >= p.budget,
           next_tick_needed_at = CASE
               WHEN p.cursor + (p.skip + p.take) * p.step * interval '1 second' <= coalesce(p.end_at, 'infinity')
               THEN p.cursor + (p.skip + p.take) * p.step * interval '1 second' END
      FROM planned p
     WHERE s.id = p.id
)
SELECT (SELECT count(*) FROM planned), (SELECT count(*) FROM ticks), (SELECT coalesce(sum(skip), 0) FROM planned)
"""


async def generate_intervals(
    connection: Connection, *, lookahead: float, grace: float, batch: int, shard: int = 0, shards: int = 1
) -> Generated:
    """Plan the window of every interval schedule that is due, at most one batch."""
    cursor = await connection.execute(
        GENERATE_INTERVALS, {"lookahead": lookahead, "grace": grace, "batch": batch, "shard": shard, "shards": shards}
    )
    row = await cursor.fetchone()
    assert row is not None
    return Generated(*map(int, row))


# Rules that SQL cannot compute (cron, once) are taken, planned in Python and applied, in one short transaction.
PLANNABLE = """
SELECT s.id, s.next_tick_needed_at, s.next_n, s.interval_seconds, s.cron_expression, s.run_at, s.timezone,
       s.anchor_at, s.start_at, s.end_at, s.jitter_ms, s.catch_up, s.catch_up_window_seconds, s.max_plans_per_tick,
       s.misfire_grace_seconds, clock_timestamp() AS now,
       CASE WHEN s.max_runs IS NOT NULL THEN s.max_runs - s.runs_removed
            - (SELECT count(*) FROM executions e WHERE e.schedule_id = s.id AND e.run = '')
            - (SELECT count(*) FROM cron_ticks t WHERE t.schedule_id = s.id) END AS budget
  FROM cron_schedules s
"""
TAKE_DUE = (
    PLANNABLE
    + """
 WHERE s.enabled AND NOT s.capped AND s.interval_seconds IS NULL
   AND s.next_tick_needed_at <= now() + %(lookahead)s * interval '1 second'
   AND (%(shards)s = 1 OR fleet_shard(s.id, %(shards)s) = %(shard)s
        OR s.next_tick_needed_at <= now() + %(lookahead)s / 2 * interval '1 second')
 ORDER BY s.next_tick_needed_at
 LIMIT %(batch)s
   FOR NO KEY UPDATE OF s SKIP LOCKED
"""
)


async def take_due(
    connection: Connection, *, lookahead: float, batch: int, shard: int = 0, shards: int = 1
) -> list[dict[str, Any]]:
    """Lock the schedules whose planned times Python must compute. The caller applies its plans and commits."""
    return await rows(connection, TAKE_DUE, {"lookahead": lookahead, "batch": batch, "shard": shard, "shards": shards})


TAKE_ONE = (
    PLANNABLE
    + """
 WHERE s.id = %(id)s AND s.enabled AND NOT s.capped
   AND s.next_tick_needed_at <= clock_timestamp() + %(lookahead)s * interval '1 second'
   FOR NO KEY UPDATE OF s
"""
)


async def take_one(connection: Connection, schedule_id: UUID, lookahead: float) -> dict[str, Any] | None:
    """The same for one schedule whose row this transaction holds already; None when its window is planned."""
    found = await rows(connection, TAKE_ONE, {"id": schedule_id, "lookahead": lookahead})
    return found[0] if found else None


# next_n is compared once more: a belt beside the row lock.
APPLY = """
WITH plan AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(n)s::bigint[], %(skipped)s::bigint[], %(first)s::timestamptz[],
                         %(last)s::timestamptz[], %(taken)s::bigint[], %(cursor)s::timestamptz[], %(capped)s::boolean[])
        AS plan (id, n, skipped, first, last, taken, cursor, capped)
), advanced AS (
    UPDATE cron_schedules s
       SET next_n = plan.n + plan.skipped + plan.taken, next_tick_needed_at = plan.cursor, capped = plan.capped
      FROM plan
     WHERE s.id = plan.id AND s.next_n = plan.n AND s.enabled
 RETURNING s.id, s.scopes, s.tails, s.salt, s.jitter_ms, plan.n, plan.skipped, plan.first, plan.last
), missed AS (
    INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
    SELECT a.id, scope, a.n, a.n + a.skipped - 1, 'catch_up', a.first, a.last
      FROM advanced a CROSS JOIN unnest(a.scopes) AS scope
     WHERE a.skipped > 0
), ticks AS (
    INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)
    SELECT a.id, scope.name, t.at, t.at + fleet_jitter(a.salt, t.at, a.jitter_ms) * interval '1 millisecond',
           a.n + a.skipped + t.k, fleet_id(scope.tail, t.at)
      FROM unnest(%(tick_id)s::uuid[], %(tick_k)s::bigint[], %(tick_at)s::timestamptz[]) AS t (id, k, at)
      JOIN advanced a USING (id)
     CROSS JOIN LATERAL unnest(a.scopes, a.tails) AS scope (name, tail)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM advanced), (SELECT count(*) FROM ticks), (SELECT coalesce(sum(skipped), 0) FROM advanced)
"""


async def apply(connection: Connection, plans: Sequence[tuple[UUID, int, Plan]]) -> Generated:
    """Write the plans of schedules this transaction has locked: (id, its next_n, what becomes of its window)."""
    marks = [(id_, k, at) for id_, _, plan in plans for k, at in enumerate(plan.ticks)]
    cursor = await connection.execute(
        APPLY,
        {
            "id": [id_ for id_, _, _ in plans],
            "n": [n for _, n, _ in plans],
            "skipped": [plan.skipped for _, _, plan in plans],
            "first": [plan.first_skipped for _, _, plan in plans],
            "last": [plan.last_skipped for _, _, plan in plans],
            "taken": [len(plan.ticks) for _, _, plan in plans],
            "cursor": [plan.cursor for _, _, plan in plans],
            "capped": [plan.capped for _, _, plan in plans],
            "tick_id": [mark[0] for mark in marks],
            "tick_k": [mark[1] for mark in marks],
            "tick_at": [mark[2] for mark in marks],
        },
    )
    row = await cursor.fetchone()
    assert row is not None
    return Generated(*map(int, row))


class Emitted(NamedTuple):
    ticks: int
    executions: int
    skipped: int
    uncap: list[UUID]
    lateness: list[float]
    overlapped: int
    """How many of the skipped ones were skipped by overlap; the others by catch-up."""


# The tick is locked, deleted, and becomes an execution or a gap in one commit. No lock on the schedule: it would make
# ticker and generator hide each other's work, and deadlock with pause. Inserts are sorted, so that waits on the slot
# index form no ring. A tick later than its grace is judged by catch-up; under `latest` it runs only when no newer
# missed planned time is known: not by the cursor, not by a tick, not by an execution.
# ON CONFLICT hides which key conflicted: an id that exists already is that execution's fate, not an overlap.
EMIT = """
WITH taken AS (
    DELETE FROM cron_ticks WHERE ctid = ANY (ARRAY(
        SELECT t.ctid FROM cron_ticks t
         WHERE t.execute_at <= now()
           AND (%(shards)s = 1 OR fleet_shard(t.schedule_id, %(shards)s) = %(shard)s
                OR t.execute_at <= now() - %(shard_grace)s * interval '1 second')
         ORDER BY t.execute_at
         LIMIT %(batch)s
           FOR UPDATE SKIP LOCKED))
    RETURNING id, schedule_id, scope, scheduled_at, execute_at, n
), judged AS MATERIALIZED (
    SELECT d.*, s.workspace_id, s.overlap, s.max_runs,
           CASE WHEN d.execute_at >= now() - coalesce(s.misfire_grace_seconds, %(grace)s) * interval '1 second'
                THEN true
                WHEN s.catch_up = 'none' THEN false
                WHEN s.catch_up = 'all' THEN
                    d.scheduled_at >= now() - s.catch_up_window_seconds * interval '1 second'
                ELSE NOT (s.enabled AND NOT s.capped AND s.next_tick_needed_at + s.jitter_ms * interval '1 millisecond'
                          < now() - coalesce(s.misfire_grace_seconds, %(grace)s) * interval '1 second') IS TRUE
                 AND NOT EXISTS (SELECT FROM cron_ticks t
                     WHERE t.schedule_id = d.schedule_id AND t.scope = d.scope AND t.scheduled_at > d.scheduled_at
                       AND t.execute_at < now() - coalesce(s.misfire_grace_seconds, %(grace)s) * interval '1 second')
                 AND NOT EXISTS (SELECT FROM executions e
                     WHERE e.schedule_id = d.schedule_id AND e.scheduled_at > d.scheduled_at
                       AND e.scope = d.scope AND e.run = '')
           END AS runs
      FROM taken d JOIN cron_schedules s ON s.id = d.schedule_id
), emitted AS (
    INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, slot, next_attempt_at)
    SELECT j.id, j.schedule_id, j.scope, j.scheduled_at, j.n, j.workspace_id, j.execute_at,
           CASE j.overlap WHEN 'skip' THEN 0 WHEN 'queue' THEN fleet_millis(j.scheduled_at) * 1000 END, j.execute_at
      FROM judged j
     WHERE j.runs
     ORDER BY j.schedule_id, j.scope, j.n
    ON CONFLICT DO NOTHING
    RETURNING id
), skipped AS MATERIALIZED (
    SELECT j.schedule_id, j.scope, j.scheduled_at, j.n, j.max_runs,
           CASE WHEN j.runs THEN 'overlap' ELSE 'catch_up' END AS reason
      FROM judged j
     WHERE (SELECT count(*) FROM emitted) <> (SELECT count(*) FROM judged)
       AND NOT EXISTS (SELECT FROM emitted i WHERE i.id = j.id)
       AND NOT EXISTS (SELECT FROM executions e WHERE e.id = j.id)
), ranges AS (
    SELECT schedule_id, scope, reason, min(n) AS first_n, max(n) AS last_n,
           min(scheduled_at) AS first_at, max(scheduled_at) AS last_at
      FROM (SELECT *, n - row_number() OVER (PARTITION BY schedule_id, scope, reason ORDER BY n) AS island
              FROM skipped) numbered
     GROUP BY schedule_id, scope, reason, island
), recorded AS (
    INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
    SELECT r.schedule_id, r.scope, coalesce(p.first_n, r.first_n), r.last_n, r.reason,
           coalesce(p.first_scheduled_at, r.first_at), r.last_at
      FROM ranges r
      LEFT JOIN LATERAL (
          SELECT * FROM gaps g
           WHERE g.schedule_id = r.schedule_id AND g.scope = r.scope AND g.first_n < r.first_n
           ORDER BY g.first_n DESC LIMIT 1) p ON p.last_n = r.first_n - 1 AND p.reason = r.reason
    ON CONFLICT (schedule_id, scope, first_n) DO UPDATE
       SET last_n = greatest(gaps.last_n, excluded.last_n),
           last_scheduled_at = greatest(gaps.last_scheduled_at, excluded.last_scheduled_at)
), alarm AS (
    SELECT pg_notify('fleet_emitted', '') FROM (SELECT count(*) AS n FROM emitted) c WHERE c.n > 0
)
SELECT (SELECT count(*) FROM judged), (SELECT count(*) FROM emitted), (SELECT count(*) FROM skipped),
       (SELECT array_agg(DISTINCT schedule_id) FROM skipped WHERE max_runs IS NOT NULL),
       (SELECT array_agg(date_part('epoch', clock_timestamp() - execute_at)) FROM judged WHERE runs),
       (SELECT count(*) FROM skipped WHERE reason = 'overlap'),
       (SELECT count(*) FROM alarm)
"""


async def emit(
    connection: Connection, *, grace: float, batch: int, shard: int = 0, shards: int = 1, shard_grace: float = 2.0
) -> Emitted:
    """Turn due ticks into executions, or into gaps where overlap or catch-up says so; at most one batch."""
    cursor = await connection.execute(
        EMIT, {"grace": grace, "batch": batch, "shard": shard, "shards": shards, "shard_grace": shard_grace}
    )
    row = await cursor.fetchone()
    assert row is not None
    return Emitted(row[0], row[1], row[2], row[3] or [], row[4] or [], row[5])


# A planned time that was skipped does not count as a run: the generator may plan one more. It counts again itself,
# so that this is harmless when it comes twice or too early.
UNCAP = """
UPDATE cron_schedules SET capped = false
 WHERE id IN (SELECT id FROM cron_schedules WHERE id = ANY(%(ids)s) AND capped FOR NO KEY UPDATE SKIP LOCKED)
"""


async def uncap(connection: Connection, ids: Sequence[UUID]) -> None:
    await connection.execute(UNCAP, {"ids": list(ids)})


NEXT_DUE = """
SELECT greatest(0, date_part('epoch', execute_at - clock_timestamp())) FROM cron_ticks ORDER BY execute_at LIMIT 1
"""


async def seconds_to_next(connection: Connection) -> float | None:
    """How long until the next tick is due, by the database's clock."""
    row = await (await connection.execute(NEXT_DUE)).fetchone()
    return None if row is None else float(row[0])
