"""Reconciler: takes back what dead workers held, and audits the account. Any number may run.

Promise     An execution whose lease ran out waits again (or has failed as lost, where it may not be sent twice) within
            RECONCILE_INTERVAL. Every five minutes all schedules are looked over: what is overdue or does not add up
            is named, a planned time without fate gets one again, and a schedule whose max_runs became free goes on.
Writes      executions: in_progress -> emitted | failed; attempts; cron_schedules.capped
Safe twice  Yes: SKIP LOCKED splits the rows; the token refuses the late result; a repair holds its schedule.
Emits       lease.expired, schedule.overdue, ledger.mismatch, ledger.repaired, schedule.uncapped,
            fleet_leases_expired_total
"""

import time
from uuid import UUID

from psycopg.errors import QueryCanceled

from fleet import failpoints, log, metrics
from fleet.operations.repair import put_back
from fleet.roles.role import Batch, Role
from fleet.settings import Settings
from fleet.store import audit, executions, ticks
from fleet.store.connection import Connection

AUDIT_SECONDS = 300.0
AUDIT_SCHEDULES = 1000
SHORTEST_SLEEP = 0.05
# When a whole dispatcher dies, the first ones tell enough.
LINES = 50
START = UUID(int=0)


class Reconciler(Role):
    name = "reconciler"

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(settings, worker)
        self._audit_at = time.monotonic()
        self._audited: UUID | None = None
        self._audit_batch = Batch(AUDIT_SCHEDULES)

    async def step(self, connection: Connection) -> float:
        longest = self.settings.reconcile_interval.total_seconds()
        if not self.settings.reconcile_enabled:
            return longest
        if await self._expire(connection) or await self._audit(connection):
            return 0.0
        expiry = await executions.seconds_to_next_expiry(connection)
        return longest if expiry is None else min(longest, max(SHORTEST_SLEEP, expiry))

    async def _expire(self, connection: Connection) -> bool:
        """Take one batch back; True when there may be more."""
        batch = self.settings.reconcile_batch_size
        failpoints.hit("reconciler.before_expire")
        expired = await executions.expire_leases(connection, limit=batch)
        failpoints.hit("reconciler.after_expire")
        metrics.leases_expired_total.inc(len(expired))
        for execution, became, worker in expired[:LINES]:
            log.get().warning("lease.expired", execution=str(execution), became=became, leased_by=worker)
        if len(expired) > LINES:
            log.get().warning("lease.expired", and_others=len(expired) - LINES)
        return len(expired) == batch

    async def _audit(self, connection: Connection) -> bool:
        """One page of an audit that has begun or is due; True while it has more pages."""
        if self._audited is None:
            if time.monotonic() < self._audit_at:
                return False
            self._audit_at = time.monotonic() + AUDIT_SECONDS
            await self._report_overdue(connection)
        page = await self._compare(connection)
        self._audited = page.last
        for row in page.mismatches[:LINES]:
            log.get().error(
                "ledger.mismatch",
                schedule=row["name"],
                schedule_id=str(row["id"]),
                workspace=row["workspace_id"],
                planned=row["planned"],
                accounted=row["ticks"] + row["executions"] + row["skipped"],
            )
            repaired = await put_back(connection, row["id"])
            log.get().warning("ledger.repaired", schedule=row["name"], put_back=repaired.put_back, left=repaired.beyond)
        if page.free:
            await ticks.uncap(connection, page.free)
            log.get().info("schedule.uncapped", schedules=len(page.free))
        return page.last is not None

    async def _compare(self, connection: Connection) -> audit.Page:
        try:
            page = await audit.compare(connection, self._audited or START, self._audit_batch.size)
        except QueryCanceled:
            self._audit_batch.shrink()
            raise
        self._audit_batch.grow()
        return page

    async def _report_overdue(self, connection: Connection) -> None:
        late = await audit.overdue(connection, self.settings.lookahead.total_seconds())
        if late.schedules:
            log.get().warning(
                "schedule.overdue", schedules=late.schedules, oldest=late.schedule, seconds=round(late.seconds)
            )
