"""executions and their attempts, in life order: leased, kept alive, finished, or taken back from the dead.

The token is the fence. A worker's name is not enough: the same worker may have leased the row again after losing it.
A token exists only while an execution is in progress, so `id and token` says everything, and says it by primary key.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from fleet.store.connection import Connection, rows


class Leased(NamedTuple):
    id: UUID
    attempt: int
    scheduled_at: datetime
    execute_at: datetime
    scope: str
    schedule_id: UUID
    schedule: str
    workspace_id: str
    target: str
    payload: str | None
    timeout: float
    delivery: str
    max_attempts: int
    backoff: list[float]
    lease: float
    late: float
    """Seconds from execute_at to the lease, by the database's clock."""
    fence: int
    """Grows with every lease: a receiver that has seen a higher one may drop this request."""


# SKIP LOCKED splits the work; the status is checked again on the locked row. In a queue only the head may go: no
# earlier unfinished execution, and no earlier tick (another ticker may hold one uncommitted). Both facts stay true
# once true, so a stale snapshot can only delay. The lease commits before anything is sent.
LEASE = """
WITH free AS MATERIALIZED (
    SELECT e.id, e.schedule_id FROM executions e
     WHERE e.status = 'emitted' AND e.next_attempt_at <= now()
       AND (%(shards)s = 1 OR fleet_shard(e.schedule_id, %(shards)s) = %(shard)s
            OR e.next_attempt_at <= now() - %(shard_grace)s * interval '1 second')
       AND (e.slot IS NULL OR e.slot = 0 OR (
            NOT EXISTS (SELECT FROM executions p
                WHERE p.schedule_id = e.schedule_id AND p.scope = e.scope AND p.slot < e.slot
                  AND p.slot IS NOT NULL AND p.status IN ('emitted', 'in_progress'))
        AND NOT EXISTS (SELECT FROM cron_ticks t
                WHERE t.schedule_id = e.schedule_id AND t.scope = e.scope AND t.scheduled_at < e.scheduled_at)))
     ORDER BY e.next_attempt_at
     LIMIT %(limit)s
       FOR UPDATE OF e SKIP LOCKED
)
UPDATE executions e
   SET status = 'in_progress', attempt = e.attempt + 1, lease_token = %(token)s, leased_by = %(worker)s,
       fence = nextval('fleet_fence'),
       leased_at = clock_timestamp(), started_at = coalesce(e.started_at, clock_timestamp()),
       leased_until = clock_timestamp() + coalesce(s.lease_seconds, %(lease)s) * interval '1 second'
  FROM free JOIN cron_schedules s ON s.id = free.schedule_id
 WHERE e.id = free.id
RETURNING e.id, e.attempt, e.scheduled_at, e.execute_at, e.scope, e.schedule_id, s.name, e.workspace_id,
          s.target::text, s.payload::text, s.timeout_seconds, s.delivery, s.max_attempts, s.backoff_seconds,
          coalesce(s.lease_seconds, %(lease)s), date_part('epoch', clock_timestamp() - e.execute_at), e.fence
"""


async def lease(
    connection: Connection,
    *,
    worker: str,
    token: UUID,
    limit: int,
    seconds: float,
    shard: int = 0,
    shards: int = 1,
    shard_grace: float = 2.0,
) -> list[Leased]:
    """Take the right to act on due executions, oldest first, as many as the caller has room for."""
    cursor = await connection.execute(
        LEASE,
        {
            "worker": worker,
            "token": token,
            "limit": limit,
            "lease": seconds,
            "shard": shard,
            "shards": shards,
            "shard_grace": shard_grace,
        },
    )
    return [Leased(*row) for row in await cursor.fetchall()]


# A lease whose answer never came was never acted on: the token, which the worker chose itself, finds what it may hold.
UNTAKE = """
UPDATE executions
   SET status = 'emitted', attempt = attempt - 1, lease_token = NULL, leased_until = NULL
 WHERE status = 'in_progress' AND leased_by = %(worker)s AND lease_token = ANY(%(tokens)s)
RETURNING id
"""


async def untake(connection: Connection, worker: str, tokens: Sequence[UUID]) -> int:
    """Undo leases of ours that were granted unheard; nothing was sent, so no attempt is spent."""
    return len(await rows(connection, UNTAKE, {"worker": worker, "tokens": list(tokens)}))


HEARTBEAT = """
UPDATE executions e SET leased_until = clock_timestamp() + held.seconds * interval '1 second'
  FROM unnest(%(ids)s::uuid[], %(tokens)s::uuid[], %(seconds)s::float8[]) AS held (id, token, seconds)
 WHERE e.id = held.id AND e.lease_token = held.token
RETURNING e.id
"""


async def heartbeat(connection: Connection, held: Sequence[tuple[UUID, UUID, float]]) -> set[UUID]:
    """Renew leases (id, token, seconds); what is missing from the answer has been lost.

    Here and in `finish` in the order of the ids: the two may meet on the same rows, and must not wait crosswise.
    """
    held = sorted(held)
    cursor = await connection.execute(
        HEARTBEAT,
        {"ids": [h[0] for h in held], "tokens": [h[1] for h in held], "seconds": [h[2] for h in held]},
    )
    return {row[0] for row in await cursor.fetchall()}


class Finish(NamedTuple):
    """What one attempt came to. `spent` is false for work handed back unsent: its number is used again."""

    id: UUID
    token: UUID
    status: str
    outcome: str
    error: str | None
    status_code: int | None
    retry_in: float | None
    spent: bool = True
    response: str | None = None
    """The head of the answer, as JSON."""


# One statement for the whole batch: the execution's new status and the attempt's history row commit together. Rows
# whose token is no longer theirs are not touched and not returned. No predicate on status: the planner would choose
# the partial index over the primary key.
FINISH = """
WITH result AS MATERIALIZED (
    SELECT * FROM unnest(%(id)s::uuid[], %(token)s::uuid[], %(status)s::text[], %(outcome)s::text[], %(error)s::text[],
                         %(code)s::int[], %(retry_in)s::float8[], %(spent)s::boolean[], %(response)s::text[])
        AS result (id, token, status, outcome, error, code, retry_in, spent, response)
), finished AS (
    UPDATE executions e
       SET status = r.status, error = r.error, lease_token = NULL, leased_until = NULL,
           attempt = CASE WHEN r.spent THEN e.attempt ELSE e.attempt - 1 END,
           finished_at = CASE WHEN r.status <> 'emitted' THEN clock_timestamp() END,
           next_attempt_at = CASE WHEN r.status = 'emitted' THEN clock_timestamp() + r.retry_in * interval '1 second'
                                  ELSE e.next_attempt_at END
      FROM result r
     WHERE e.id = r.id AND e.lease_token = r.token
 RETURNING e.id, CASE WHEN r.spent THEN e.attempt ELSE e.attempt + 1 END AS attempt, e.leased_by, e.leased_at,
           r.outcome, r.code, r.error, r.response
), history AS (
    INSERT INTO attempts (execution_id, attempt, worker_id, started_at, finished_at, outcome, status_code, error,
                          response)
    SELECT id, attempt, leased_by, leased_at, clock_timestamp(), outcome, code, error, response::jsonb FROM finished
    ON CONFLICT (execution_id, attempt) DO UPDATE
       SET worker_id = excluded.worker_id, started_at = excluded.started_at, finished_at = excluded.finished_at,
           outcome = excluded.outcome, status_code = excluded.status_code, error = excluded.error,
           response = excluded.response
     WHERE attempts.outcome = 'handed_back'
)
SELECT id FROM finished
"""


async def finish(connection: Connection, results: Sequence[Finish]) -> set[UUID]:
    """Write what attempts came to; an id missing from the answer had lost its lease and changed nothing."""
    results = sorted(results, key=lambda result: result.id)
    cursor = await connection.execute(
        FINISH,
        {
            "id": [r.id for r in results],
            "token": [r.token for r in results],
            "status": [r.status for r in results],
            "outcome": [r.outcome for r in results],
            "error": [r.error for r in results],
            "code": [r.status_code for r in results],
            "retry_in": [r.retry_in for r in results],
            "spent": [r.spent for r in results],
            "response": [r.response for r in results],
        },
    )
    return {row[0] for row in await cursor.fetchall()}


# After a COMMIT whose answer was lost: a history row of ours for that attempt means that it was written. Some rows
# under our name are others' work: the reconciler and a cancellation write them too, and work once handed back is
# leased again under the same number.
RECORDED = """
SELECT a.execution_id FROM attempts a
  JOIN unnest(%(ids)s::uuid[], %(attempts)s::int[]) AS asked (id, attempt)
    ON a.execution_id = asked.id AND a.attempt = asked.attempt
 WHERE a.worker_id = %(worker)s AND a.outcome NOT IN ('lost', 'cancelled', 'handed_back')
"""


async def recorded(connection: Connection, worker: str, asked: Sequence[tuple[UUID, int]]) -> set[UUID]:
    """Of these (execution, attempt) pairs, those whose result this worker has already written."""
    cursor = await connection.execute(
        RECORDED, {"worker": worker, "ids": [a[0] for a in asked], "attempts": [a[1] for a in asked]}
    )
    return {row[0] for row in await cursor.fetchall()}


# The condition is checked again on the locked row: a heartbeat, a result or another reconciler that came first wins,
# and nobody waits. An at-most-once execution is never sent again.
EXPIRE = """
WITH dead AS MATERIALIZED (
    SELECT e.id, e.schedule_id, e.leased_by, e.leased_at FROM executions e
     WHERE e.status = 'in_progress' AND e.leased_until < now()
     ORDER BY e.leased_until
     LIMIT %(limit)s
       FOR UPDATE OF e SKIP LOCKED
), returned AS (
    UPDATE executions e
       SET status = CASE WHEN s.delivery = 'at-most-once' OR e.attempt >= s.max_attempts
                         THEN 'failed' ELSE 'emitted' END,
           finished_at = CASE WHEN s.delivery = 'at-most-once' OR e.attempt >= s.max_attempts
                              THEN clock_timestamp() END,
           error = 'lost: its worker ' || dead.leased_by || ' let the lease run out',
           lease_token = NULL, leased_until = NULL, next_attempt_at = clock_timestamp()
      FROM dead JOIN cron_schedules s ON s.id = dead.schedule_id
     WHERE e.id = dead.id
 RETURNING e.id, e.attempt, e.status, e.error, dead.leased_by, dead.leased_at
), history AS (
    INSERT INTO attempts (execution_id, attempt, worker_id, started_at, finished_at, outcome, error)
    SELECT id, attempt, leased_by, leased_at, clock_timestamp(), 'lost', error FROM returned
    ON CONFLICT (execution_id, attempt) DO UPDATE
       SET worker_id = excluded.worker_id, started_at = excluded.started_at, finished_at = excluded.finished_at,
           outcome = excluded.outcome, status_code = NULL, error = excluded.error
     WHERE attempts.outcome = 'handed_back'
), alarm AS (
    SELECT pg_notify('fleet_emitted', '') FROM (SELECT count(*) AS n FROM returned) c WHERE c.n > 0
)
SELECT r.id, r.status, r.leased_by, (SELECT count(*) FROM alarm) FROM returned r
"""


async def expire_leases(connection: Connection, limit: int) -> list[tuple[UUID, str, str]]:
    """Take back what dead workers held: (execution, what it became, whose it was)."""
    cursor = await connection.execute(EXPIRE, {"limit": limit})
    return [(row[0], row[1], row[2]) for row in await cursor.fetchall()]


NEXT_EXPIRY = """
SELECT date_part('epoch', min(leased_until) - clock_timestamp()) FROM executions WHERE status = 'in_progress'
"""


async def seconds_to_next_expiry(connection: Connection) -> float | None:
    row = await (await connection.execute(NEXT_EXPIRY)).fetchone()
    return None if row is None or row[0] is None else max(0.0, float(row[0]))


# A cancelled execution is final at once: its token is gone, so whatever its worker writes later is refused; the
# alarm tells the worker to stop. SKIP LOCKED: a row that is being finished this moment is left to finish.
CANCEL = """
WITH chosen AS MATERIALIZED (
    SELECT e.id, e.status, e.leased_by, e.leased_at FROM executions e
     WHERE e.id = ANY(%(ids)s::uuid[]) AND e.status = ANY(%(statuses)s::text[])
     ORDER BY e.id
       FOR UPDATE OF e SKIP LOCKED
), cancelled AS (
    UPDATE executions e
       SET status = 'cancelled', finished_at = clock_timestamp(), error = %(why)s,
           lease_token = NULL, leased_until = NULL
      FROM chosen WHERE e.id = chosen.id
 RETURNING e.id, e.attempt, chosen.status AS was, chosen.leased_by, chosen.leased_at
), history AS (
    INSERT INTO attempts (execution_id, attempt, worker_id, started_at, finished_at, outcome, error)
    SELECT id, attempt, leased_by, leased_at, clock_timestamp(), 'cancelled', %(why)s FROM cancelled
     WHERE was = 'in_progress'
    ON CONFLICT (execution_id, attempt) DO UPDATE
       SET worker_id = excluded.worker_id, started_at = excluded.started_at, finished_at = excluded.finished_at,
           outcome = excluded.outcome, status_code = NULL, error = excluded.error
     WHERE attempts.outcome = 'handed_back'
)
SELECT id, CASE WHEN was = 'in_progress' THEN pg_notify('fleet_cancelled', id::text) END FROM cancelled
"""


async def cancel(
    connection: Connection, ids: Sequence[UUID], why: str, statuses: Sequence[str] = ("emitted", "in_progress")
) -> list[UUID]:
    """Cancel these executions where they are still unfinished; returns those that were."""
    cursor = await connection.execute(CANCEL, {"ids": list(ids), "why": why, "statuses": list(statuses)})
    return [row[0] for row in await cursor.fetchall()]


# Two halves, so that each may use the partial index of its status instead of reading a long history.
UNFINISHED = """
SELECT id FROM executions
 WHERE schedule_id = %(schedule_id)s AND status = 'emitted' AND 'emitted' = ANY(%(statuses)s::text[])
UNION ALL
SELECT id FROM executions
 WHERE schedule_id = %(schedule_id)s AND status = 'in_progress' AND 'in_progress' = ANY(%(statuses)s::text[])
"""


async def unfinished(connection: Connection, schedule_id: UUID, statuses: Sequence[str]) -> list[UUID]:
    """The executions of a schedule that `cancel` may take."""
    parameters = {"schedule_id": schedule_id, "statuses": list(statuses)}
    return [row["id"] for row in await rows(connection, UNFINISHED, parameters)]


HOLD = "SELECT FROM executions WHERE id = %(id)s FOR UPDATE"


async def hold(connection: Connection, execution_id: UUID) -> None:
    """Wait until no worker's statement has this row in hand, and keep it for the caller's transaction.

    Only for one row, by a caller that holds no other: workers wait for each other's rows in any order.
    """
    await connection.execute(HOLD, {"id": execution_id})


# Executions that no tick made: a trigger, or the retry of a final one. They have no number: the account does not
# know them. They take the schedule's slot like any other, so that overlap holds; in a queue an odd number of
# microseconds, which is no planned time's.
CREATE = """
INSERT INTO executions (id, schedule_id, scope, scheduled_at, run, workspace_id, execute_at, slot, next_attempt_at,
                        retry_of)
SELECT fleet_id(fleet_tail(s.id, %(scope)s, %(run)s), at.at), s.id, %(scope)s, at.at, %(run)s, s.workspace_id,
       date_trunc('milliseconds', clock_timestamp()),
       CASE s.overlap WHEN 'skip' THEN 0
                      WHEN 'queue' THEN round(date_part('epoch', clock_timestamp()) * 1000000)::bigint | 1 END,
       clock_timestamp(), %(retry_of)s
  FROM cron_schedules s,
       (SELECT coalesce(%(scheduled_at)s::timestamptz, date_trunc('milliseconds', clock_timestamp())) AS at) at
 WHERE s.id = %(schedule_id)s AND s.deleted_at IS NULL
ON CONFLICT DO NOTHING
RETURNING id, pg_notify('fleet_emitted', '')
"""


async def create(
    connection: Connection,
    schedule_id: UUID,
    run: str,
    *,
    scope: str = "",
    scheduled_at: datetime | None = None,
    retry_of: UUID | None = None,
) -> UUID | None:
    """Make one execution outside the grid; None when overlap or the same run refuses it."""
    cursor = await connection.execute(
        CREATE,
        {
            "schedule_id": schedule_id,
            "run": run,
            "scope": scope,
            "scheduled_at": scheduled_at,
            "retry_of": retry_of,
        },
    )
    row = await cursor.fetchone()
    return None if row is None else row[0]
