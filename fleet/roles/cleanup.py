"""Cleanup: removes old history, dead workers and stray ticks. Any number may run.

Promise     What is older than RETENTION_AGE and not among the newest RETENTION_RUNS of its schedule goes away; what
            goes can never run again, and the rest still accounts for every planned time.
Writes      executions, attempts, gaps, accounted_n, accounted_from and runs_removed of cron_schedules, workers,
            and what was deleted long ago
Safe twice  Yes: SKIP LOCKED splits the schedules; what one has removed the other does not find.
Emits       cleanup.done, cleanup.behind, tick.orphan_removed, fleet_cleanup_removed_total, fleet_cleanup_lag_seconds
"""

from collections import Counter
from uuid import UUID

from psycopg.errors import QueryCanceled

from fleet import failpoints, log, metrics
from fleet.roles.role import Batch, Role
from fleet.settings import Settings
from fleet.store import retention, workers
from fleet.store.connection import Connection

FIRST, LAST = UUID(int=0), UUID(int=2**128 - 1)
# A transaction holds at most this many schedules and removes about this many rows of each: generators pass a schedule
# by while it is held, so it must be short. A schedule loses at most ROWS * ROUNDS executions in one pass.
SCHEDULES = 200
ROWS = 50
ROUNDS = 20
DEAD_AFTER = 600.0


class Cleanup(Role):
    name = "cleanup"

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(settings, worker)
        self._age = settings.retention_age.total_seconds()
        self._batch = Batch(SCHEDULES)
        self._begin()

    def _begin(self) -> None:
        self._after = FIRST
        self._round = 0
        self._behind = False
        self._lag = 0.0
        self._removed: Counter[str] = Counter()

    async def step(self, connection: Connection) -> float:
        """One page of schedules; a pass goes once over all of them."""
        page = await retention.page(connection, self._after, self._batch.size, self._age)
        upto = page[-1][0] if len(page) == self._batch.size else LAST
        try:
            more = await self._purge(connection, [id_ for id_, old in page if old])
        except QueryCanceled:
            self._batch.shrink()
            raise
        self._batch.grow()
        if more and self._round + 1 < ROUNDS:
            self._round += 1
            return 0.0
        self._behind = self._behind or more
        self._round = 0
        await self._remove_orphans(connection, upto)
        self._after = upto
        if upto != LAST:
            return 0.0
        self._count("workers", await workers.remove_dead(connection, DEAD_AFTER))
        self._end()
        return self.settings.cleanup_interval.total_seconds()

    async def _purge(self, connection: Connection, ids: list[UUID]) -> bool:
        async with connection.transaction():
            taken = await retention.take(connection, ids) if ids else []
            if not taken:
                return False
            failpoints.hit("cleanup.before_retention")
            removed = await retention.purge(
                connection, taken, age=self._age, runs=self.settings.retention_runs, limit=ROWS
            )
            forgotten = await retention.forget(connection, taken, self._age)
            failpoints.hit("cleanup.after_retention")
        self._count("executions", removed.executions)
        self._count("attempts", removed.attempts)
        self._count("gaps", removed.gaps)
        self._count("cron_schedules", forgotten)
        if removed.more and self._round + 1 == ROUNDS:
            self._lag = max(self._lag, removed.lag)
        return removed.more

    async def _remove_orphans(self, connection: Connection, upto: UUID) -> None:
        strays = Counter(await retention.remove_orphans(connection, self._after, upto, ROWS * SCHEDULES))
        for schedule_id, ticks in strays.items():
            log.get().warning("tick.orphan_removed", schedule=str(schedule_id), ticks=ticks)
        self._count("cron_ticks", strays.total())

    def _count(self, table: str, number: int) -> None:
        if number:
            self._removed[table] += number
            metrics.cleanup_removed_total.labels(table).inc(number)

    def _end(self) -> None:
        metrics.cleanup_lag_seconds.set(self._lag)
        if self._removed:
            log.get().info("cleanup.done", **self._removed)
        if self._behind:
            log.get().warning("cleanup.behind", lag_seconds=round(self._lag))
        self._begin()
