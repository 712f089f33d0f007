"""Ticker: turns due ticks into executions, or into gaps where overlap or catch-up says so. Any number may run.

Promise     A due tick has become its execution, or a gap, within a period, and is never early.
Writes      cron_ticks (deletes), executions, gaps, in one statement
Safe twice  Yes: SKIP LOCKED splits the ticks; a killed ticker's statement rolls back and the tick is there again.
Emits       ticks.emitted, fleet_executions_emitted_total, fleet_tick_lateness_seconds, fleet_gaps_total
"""

from psycopg.errors import QueryCanceled

from fleet import failpoints, log, metrics
from fleet.roles.role import Batch, Role
from fleet.settings import Settings
from fleet.store import ticks
from fleet.store.connection import Connection
from fleet.store.ticks import Emitted


class Ticker(Role):
    name = "ticker"

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(settings, worker)
        self._batch = Batch(settings.tick_batch)

    async def step(self, connection: Connection) -> float:
        period = self.settings.tick_interval.total_seconds()
        due_in = await ticks.seconds_to_next(connection)
        if due_in is None or due_in > 0:
            return period if due_in is None else min(period, due_in)
        failpoints.hit("ticker.before_emit")
        emitted = await self._emit(connection)
        failpoints.hit("ticker.after_emit")
        if emitted.uncap:
            await ticks.uncap(connection, emitted.uncap)
        self._report(emitted)
        # None taken although one is due: another ticker holds it, or it belongs to another shard and is not late yet.
        return 0.0 if emitted.ticks else period

    async def _emit(self, connection: Connection) -> Emitted:
        try:
            emitted = await ticks.emit(
                connection,
                grace=self.settings.misfire_grace.total_seconds(),
                batch=self._batch.size,
                shard=self.settings.shard_id,
                shards=self.settings.shard_count,
                shard_grace=self.settings.shard_grace.total_seconds(),
            )
        except QueryCanceled:
            self._batch.shrink()
            raise
        self._batch.grow()
        return emitted

    def _report(self, emitted: Emitted) -> None:
        metrics.executions_emitted_total.inc(emitted.executions)
        for seconds in emitted.lateness:
            metrics.tick_lateness_seconds.observe(max(0.0, seconds))
        if emitted.skipped:
            metrics.gaps_total.labels("overlap").inc(emitted.overlapped)
            metrics.gaps_total.labels("catch_up").inc(emitted.skipped - emitted.overlapped)
        if emitted.ticks:
            log.get().debug("ticks.emitted", executions=emitted.executions, skipped=emitted.skipped)
