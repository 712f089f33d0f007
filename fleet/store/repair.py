"""Put back the fate of planned times that no row accounts for, in a transaction that holds the schedule."""

from datetime import datetime
from typing import Any
from uuid import UUID

from fleet.store.connection import Connection, rows

LOCK = "SELECT id FROM cron_schedules WHERE id = %(id)s FOR NO KEY UPDATE SKIP LOCKED"
SCHEDULE = "SELECT enabled, deleted_at FROM cron_schedules WHERE id = %(id)s"


async def take(connection: Connection, schedule_id: UUID) -> dict[str, Any] | None:
    """Lock the schedule, so that nobody plans or removes meanwhile; None when somebody has it now."""
    if not await rows(connection, LOCK, {"id": schedule_id}):
        return None
    [row] = await rows(connection, SCHEDULE, {"id": schedule_id})
    return row


VERSIONS = """
SELECT DISTINCT ON (after_n) after_n, after_at, interval_seconds, cron_expression, run_at, timezone, anchor_at,
       start_at, end_at
  FROM schedule_versions WHERE schedule_id = %(id)s ORDER BY after_n, version DESC
"""


async def versions(connection: Connection, schedule_id: UUID) -> list[dict[str, Any]]:
    """The rules by the number after which each began; of several that began at one number, the newest."""
    return await rows(connection, VERSIONS, {"id": schedule_id})


# The ticker judges them like any other tick: by lateness, catch-up and overlap.
PUT_TICKS = """
INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)
SELECT s.id, %(scope)s, t.at, t.at + fleet_jitter(s.salt, t.at, s.jitter_ms) * interval '1 millisecond', t.n,
       fleet_id(fleet_tail(s.id, %(scope)s, ''), t.at)
  FROM cron_schedules s, unnest(%(ns)s::bigint[], %(ats)s::timestamptz[]) AS t (n, at)
 WHERE s.id = %(id)s
ON CONFLICT DO NOTHING
"""


async def put_ticks(connection: Connection, schedule_id: UUID, scope: str, times: list[tuple[int, datetime]]) -> None:
    parameters = {"id": schedule_id, "scope": scope, "ns": [n for n, _ in times], "ats": [at for _, at in times]}
    await connection.execute(PUT_TICKS, parameters)


PUT_GAP = """
INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
VALUES (%(id)s, %(scope)s, %(first_n)s, %(last_n)s, %(reason)s, %(first)s, %(last)s)
ON CONFLICT DO NOTHING
"""


async def put_gap(
    connection: Connection, schedule_id: UUID, scope: str, times: list[tuple[int, datetime]], reason: str
) -> None:
    (first_n, first), (last_n, last) = times[0], times[-1]
    parameters = {
        "id": schedule_id,
        "scope": scope,
        "first_n": first_n,
        "last_n": last_n,
        "first": first,
        "last": last,
        "reason": reason,
    }
    await connection.execute(PUT_GAP, parameters)
