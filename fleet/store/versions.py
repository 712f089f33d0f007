"""schedule_versions: every rule a schedule ever had and from which number on, so that the past can be verified."""

from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version as installed
from typing import Any
from uuid import UUID

from psycopg.types.json import Jsonb

from fleet.domain.rule import Rule
from fleet.domain.schedule import Definition, to_json
from fleet.store.connection import Connection, rows

# The rule in force by number: the j-th planned time strictly after after_at has number after_n + j.
RECORD = """
INSERT INTO schedule_versions (
    schedule_id, version, after_n, after_at, interval_seconds, cron_expression, run_at, timezone, anchor_at, start_at,
    end_at, scopes, definition, zone_data, created_at)
SELECT s.id, s.version, %(after_n)s, %(after_at)s, %(interval_seconds)s, %(cron_expression)s, %(run_at)s,
       %(timezone)s, %(anchor_at)s, %(start_at)s, %(end_at)s, s.scopes, %(definition)s, %(zone_data)s, s.updated_at
  FROM cron_schedules s WHERE s.id = %(schedule_id)s
"""


async def record(
    connection: Connection, schedule_id: UUID, definition: Definition, rule: Rule, after_n: int, after_at: datetime
) -> None:
    """Write the version the schedule's row now has."""
    parameters: dict[str, Any] = {
        **asdict(rule),
        "schedule_id": schedule_id,
        "after_n": after_n,
        "after_at": after_at,
        "definition": Jsonb(to_json(definition)),
        "zone_data": installed("tzdata"),
    }
    await connection.execute(RECORD, parameters)


# The server's clock may have stepped back: a rule never starts before a planned time that already has its fate.
NEWEST_PLANNED = """
SELECT greatest(%(now)s::timestamptz,
    (SELECT max(scheduled_at) FROM cron_ticks WHERE schedule_id = %(id)s),
    (SELECT scheduled_at FROM executions WHERE schedule_id = %(id)s AND run = '' ORDER BY scheduled_at DESC LIMIT 1),
    (SELECT max(last_scheduled_at) FROM gaps WHERE schedule_id = %(id)s)) AS at
"""


async def newest_planned(connection: Connection, schedule_id: UUID, now: datetime) -> datetime:
    """The instant after which a new rule may begin. `now` is up to when the old rule was settled: looking at the clock
    again would leave the planned times in between to nobody."""
    [row] = await rows(connection, NEWEST_PLANNED, {"id": schedule_id, "now": now})
    at: datetime = row["at"]
    return at
