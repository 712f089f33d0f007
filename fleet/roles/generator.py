"""Tick-generator: writes planned times as ticks, ahead of time. Any number may run.

Promise     Every planned time up to now + lookahead is a tick, an execution or a gap, and never two of them.
Writes      cron_ticks, gaps, and the cursor of cron_schedules, in one transaction
Safe twice  Yes: SKIP LOCKED splits the schedules; the cursor alone decides what is made.
Emits       ticks.generated, schedule.parked, fleet_ticks_generated_total, fleet_gaps_total
"""

import time
from typing import Any
from uuid import UUID

from psycopg.errors import QueryCanceled

from fleet import failpoints, log, metrics
from fleet.domain.planning import Plan
from fleet.domain.retry import one_line
from fleet.operations.planning import plan_of
from fleet.roles.role import Batch, Role
from fleet.settings import Settings
from fleet.store import schedules, ticks
from fleet.store.connection import Connection
from fleet.store.ticks import Generated

# Planning in Python happens inside a transaction that others must not wait for long.
PLAN_SECONDS = 1.0


class Generator(Role):
    name = "tick-generator"

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(settings, worker)
        self._batch = Batch(settings.generate_batch)

    async def step(self, connection: Connection) -> float:
        try:
            failpoints.hit("generator.before_intervals")
            intervals = await ticks.generate_intervals(
                connection, grace=self.settings.misfire_grace.total_seconds(), **self._share()
            )
            failpoints.hit("generator.after_intervals")
            others = await self._generate_planned(connection)
            failpoints.hit("generator.after_commit")
        except QueryCanceled:
            self._batch.shrink()
            raise
        self._batch.grow()
        self._report(intervals, others)
        return 0.0 if intervals.schedules or others.schedules else self.settings.generate_interval.total_seconds()

    def _share(self) -> dict[str, Any]:
        return {
            "lookahead": self.settings.lookahead.total_seconds(),
            "batch": self._batch.size,
            "shard": self.settings.shard_id,
            "shards": self.settings.shard_count,
        }

    async def _generate_planned(self, connection: Connection) -> Generated:
        """Cron and once, whose rule is no arithmetic. What time does not allow is left for the next step."""
        async with connection.transaction():
            plans: list[tuple[UUID, int, Plan]] = []
            deadline = time.monotonic() + PLAN_SECONDS
            taken = await ticks.take_due(connection, **self._share())
            failpoints.hit("generator.after_take")
            for row in taken:
                if (plan := await self._plan(connection, row)) is not None:
                    plans.append((row["id"], row["next_n"], plan))
                if time.monotonic() > deadline:
                    break
            made = await ticks.apply(connection, plans) if plans else Generated(0, 0, 0)
            failpoints.hit("generator.before_commit")
            return made

    async def _plan(self, connection: Connection, row: dict[str, Any]) -> Plan | None:
        lookahead, grace = self.settings.lookahead, self.settings.misfire_grace
        try:
            return plan_of(row, lookahead.total_seconds(), grace.total_seconds())
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one schedule must not stop the others
            note = f"parked: its next planned time cannot be computed: {one_line(str(error))}"
            await schedules.park(connection, row["id"], note)
            log.get().error("schedule.parked", schedule=str(row["id"]), error=str(error))
            return None

    def _report(self, *parts: Generated) -> None:
        made = Generated(*map(sum, zip(*parts, strict=True)))
        metrics.ticks_generated_total.inc(made.ticks)
        if made.skipped:
            metrics.gaps_total.labels("catch_up").inc(made.skipped)
        if made.schedules:
            log.get().debug("ticks.generated", schedules=made.schedules, ticks=made.ticks, skipped=made.skipped)
