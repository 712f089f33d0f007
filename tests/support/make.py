"""Puts rows into a test's database, through the product's own operations, and ages them: never the clock."""

from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from fleet.domain.schedule import Definition
from fleet.operations import schedules
from fleet.operations.schedules import Window
from fleet.store.connection import Connection, rows

WINDOW = Window(lookahead=60.0, grace=60.0)
TARGET = {"kind": "http", "url": "http://127.0.0.1:9/", "method": "POST", "headers": {}}


class Make:
    def __init__(self, db: Connection) -> None:
        self.db = db

    async def schedule(self, name: str = "s", window: Window = WINDOW, **fields: Any) -> UUID:
        """A schedule, every 10 seconds without jitter unless told otherwise."""
        defaults: dict[str, Any] = {"target": TARGET, "jitter_ms": 0}
        if not {"cron_expression", "run_at"} & set(fields):
            defaults["interval_seconds"] = 10
        return await schedules.add(self.db, replace(Definition(name, {}), **{**defaults, **fields}), window)

    async def age(self, schedule_id: UUID, seconds: float) -> None:
        """Make everything about a schedule that much older, as if that time had passed."""
        for statement in AGE:
            await self.db.execute(statement, {"id": schedule_id, "by": seconds})

    async def all(self, table: str, schedule_id: UUID | None = None) -> list[dict[str, Any]]:
        where = "" if schedule_id is None else " WHERE schedule_id = %(id)s"
        return await rows(self.db, f"SELECT * FROM {table}{where}", {"id": schedule_id})

    async def one(self, sql: str, **parameters: Any) -> Any:
        [row] = await rows(self.db, sql, parameters)
        return next(iter(row.values()))

    async def planned(self, schedule_id: UUID) -> list[datetime]:
        found = await rows(
            self.db, "SELECT scheduled_at FROM cron_ticks WHERE schedule_id = %(id)s ORDER BY n", {"id": schedule_id}
        )
        return [row["scheduled_at"] for row in found]

    async def expire_leases(self) -> None:
        await self.db.execute(
            "UPDATE executions SET leased_until = now() - interval '1 second' WHERE status = 'in_progress'"
        )


# Ids are a function of the planned time, so they are made anew.
AGE = (
    """UPDATE cron_schedules SET anchor_at = anchor_at - %(by)s * interval '1 second',
              start_at = start_at - %(by)s * interval '1 second',
              end_at = end_at - %(by)s * interval '1 second', run_at = run_at - %(by)s * interval '1 second',
              created_at = created_at - %(by)s * interval '1 second',
              next_tick_needed_at = next_tick_needed_at - %(by)s * interval '1 second',
              accounted_from = accounted_from - %(by)s * interval '1 second' WHERE id = %(id)s""",
    """UPDATE schedule_versions SET anchor_at = anchor_at - %(by)s * interval '1 second',
              start_at = start_at - %(by)s * interval '1 second', after_at = after_at - %(by)s * interval '1 second',
              end_at = end_at - %(by)s * interval '1 second', run_at = run_at - %(by)s * interval '1 second'
        WHERE schedule_id = %(id)s""",
    """UPDATE gaps SET first_scheduled_at = first_scheduled_at - %(by)s * interval '1 second',
              last_scheduled_at = last_scheduled_at - %(by)s * interval '1 second' WHERE schedule_id = %(id)s""",
    # Final executions refuse to change, so they are put back as new rows; their attempts follow them.
    """WITH old AS (DELETE FROM attempts a USING executions e
                     WHERE a.execution_id = e.id AND e.schedule_id = %(id)s
                 RETURNING a.*, e.schedule_id, e.scope, e.run, e.scheduled_at)
       INSERT INTO attempts
       SELECT fleet_id(fleet_tail(schedule_id, scope, run), scheduled_at - %(by)s * interval '1 second'),
              attempt, worker_id, started_at, finished_at, outcome, status_code, error
         FROM old ORDER BY scheduled_at""",
    """WITH old AS (DELETE FROM executions WHERE schedule_id = %(id)s RETURNING *)
       INSERT INTO executions
       SELECT (jsonb_populate_record(NULL::executions, to_jsonb(old) || jsonb_build_object(
                  'id', fleet_id(fleet_tail(schedule_id, scope, run), scheduled_at - %(by)s * interval '1 second'),
                  'slot', CASE WHEN slot > 0 THEN slot - (%(by)s::numeric * 1000000)::bigint ELSE slot END,
                  'scheduled_at', scheduled_at - %(by)s * interval '1 second',
                  'execute_at', execute_at - %(by)s * interval '1 second',
                  'next_attempt_at', next_attempt_at - %(by)s * interval '1 second'))).*
         FROM old ORDER BY scheduled_at""",
    """UPDATE cron_ticks t SET scheduled_at = scheduled_at - %(by)s * interval '1 second',
              execute_at = execute_at - %(by)s * interval '1 second',
              id = fleet_id(fleet_tail(schedule_id, scope, ''), scheduled_at - %(by)s * interval '1 second')
        WHERE schedule_id = %(id)s""",
)
