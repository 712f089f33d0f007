"""Dispatcher: leases emitted executions, delivers them concurrently, and writes what came of it. Any number may run.

Promise     What is leased is delivered, retried or handed back; a request leaves only under a lease that is valid by
            this worker's own monotonic clock; a result whose lease was lost changes nothing and is counted.
Writes      executions: emitted -> in_progress -> delivered | failed | emitted; attempts
Safe twice  Yes: SKIP LOCKED splits the executions; every write names the token of its lease.
Emits       execution.delivered, execution.failed, execution.retrying, execution.handed_back, lease.lost,
            result.refused, schedule.gone, fleet_deliveries_total, fleet_attempt_duration_seconds,
            fleet_execution_latency_seconds, fleet_stale_writes_refused_total, fleet_slots_busy, fleet_slots_total
"""

import asyncio
import contextlib
import random
import time
from uuid import UUID, uuid4

from psycopg import Error

from fleet import failpoints, log, metrics
from fleet.delivery.addresses import Policy
from fleet.delivery.answer import head
from fleet.delivery.http import HttpClient
from fleet.domain.retry import Broken, HandedBack, Lost, Outcome, Refused, RetryPolicy, after_attempt
from fleet.errors import FleetError, UsageError
from fleet.operations import schedules
from fleet.roles.alarm import listen
from fleet.roles.ending import end
from fleet.roles.held import Held
from fleet.roles.requests import request_of
from fleet.roles.results import Results
from fleet.roles.role import Role
from fleet.secrets import secret_box
from fleet.settings import Settings
from fleet.store import executions
from fleet.store.connection import Connection
from fleet.store.executions import Finish
from fleet.store.pool import Pool

# How often leases are looked at; each is renewed when a third of it is over. The shortest lease is 3 s.
RENEW_SECONDS = 0.5
# With work waiting and only a few slots free: rather a small pause than a statement for each of them.
SHORT_PAUSE = 0.02
FLUSH_SECONDS = 5.0


class Dispatcher(Role):
    name = "dispatcher"
    alarm = "fleet_emitted"

    def __init__(self, settings: Settings, worker: str) -> None:
        super().__init__(settings, worker)
        self._slots = settings.dispatcher_concurrency
        self._held: dict[UUID, Held] = {}
        self._unheard: list[UUID] = []
        self._more = False
        self._stack = contextlib.AsyncExitStack()
        self._tasks: list[asyncio.Task[None]] = []
        self._pausing: set[asyncio.Task[None]] = set()
        self._egress = Policy(settings.egress_deny_private, settings.egress_allow)
        metrics.slots_total.set(self._slots)

    async def start(self, pool: Pool) -> None:
        self._pool = pool
        self._box = secret_box(self.settings)
        self._client = await self._stack.enter_async_context(HttpClient(self._slots, self._egress))
        self._results = Results(pool, self.worker)
        self._writer = asyncio.create_task(self._results.run())
        self._tasks = [
            asyncio.create_task(self._renew()),
            asyncio.create_task(listen(pool, "fleet_cancelled", self._cancelled)),
        ]

    async def step(self, connection: Connection) -> float:
        if self._unheard:
            await executions.untake(connection, self.worker, self._unheard)
            self._unheard.clear()
        free = self._slots - len(self._held)
        if free == 0:
            return self.settings.db_poll_interval.total_seconds()
        leased = await self._lease(connection, free)
        metrics.slots_busy.set(len(self._held))
        self._more = leased == free
        return SHORT_PAUSE if self._more else self.settings.db_poll_interval.total_seconds()

    async def drain(self) -> None:
        """Let deliveries finish for a while; then hand back what was not sent, and give up what was."""
        if self._held:
            running = [held.task for held in self._held.values() if held.task]
            _, late = await asyncio.wait(running, timeout=self.settings.dispatcher_drain_timeout.total_seconds())
            await end(late)
        await end(self._tasks)
        self._results.close()
        await asyncio.wait({self._writer, *self._pausing}, timeout=FLUSH_SECONDS)
        await self._stack.aclose()

    async def _lease(self, connection: Connection, free: int) -> int:
        token, asked_at = uuid4(), time.monotonic()
        failpoints.hit("dispatcher.before_lease")
        try:
            leased = await executions.lease(
                connection,
                worker=self.worker,
                token=token,
                limit=free,
                seconds=self.settings.lease.total_seconds(),
                shard=self.settings.shard_id,
                shards=self.settings.shard_count,
                shard_grace=self.settings.shard_grace.total_seconds(),
            )
        except Error:
            # It may have been granted all the same. Nothing was sent under it: the next step undoes it.
            self._unheard.append(token)
            raise
        failpoints.hit("dispatcher.after_lease")
        for execution in leased:
            held = Held(execution, token, asked_at)
            self._held[execution.id] = held
            held.task = asyncio.create_task(self._deliver(held))
        return len(leased)

    async def _deliver(self, held: Held) -> None:
        try:
            outcome = await self._attempt(held)
        except asyncio.CancelledError:
            if held.is_lost:
                return
            outcome = Lost("its worker stopped before the target answered") if held.sent else HandedBack()
        finally:
            del self._held[held.execution.id]
            if self._more and len(self._held) <= self._slots * 3 // 4:
                self.wake.set()
        self._finish(held, outcome)

    async def _attempt(self, held: Held) -> Outcome:
        try:
            request = request_of(held.execution, self._box.open)
        except (UsageError, ValueError, KeyError, TypeError) as error:
            return Refused(f"The request cannot be made: {error}.")
        except FleetError as error:
            # A secret that this worker has no key for: another worker may, or will have once it is told.
            return Broken(f"The request cannot be made: {error}.")
        outcome = await self._client.deliver(request, held.sending, held.answered)
        return HandedBack() if held.is_over else outcome

    def _finish(self, held: Held, outcome: Outcome) -> None:
        failpoints.hit("dispatcher.after_answer")
        execution = held.execution
        policy = RetryPolicy(
            max_attempts=execution.max_attempts,
            base=execution.backoff[0],
            delays=tuple(execution.backoff) if len(execution.backoff) > 1 else (),
            at_most_once=execution.delivery == "at-most-once",
        )
        change = after_attempt(execution.attempt, outcome, policy, random.random())
        elapsed = time.monotonic() - held.leased_at
        metrics.deliveries_total.labels(change.outcome).inc()
        metrics.attempt_duration_seconds.observe(elapsed)
        if change.status == "delivered":
            metrics.execution_latency_seconds.observe(max(0.0, execution.late + elapsed))
        self._results.put(
            execution,
            Finish(
                execution.id,
                held.token,
                change.status,
                change.outcome,
                change.error,
                change.status_code,
                change.retry_in,
                change.spends_attempt,
                head(held.answer) if held.answer else None,
            ),
        )
        if isinstance(outcome, Refused) and outcome.gone:
            pausing = asyncio.create_task(self._pause(held))
            self._pausing.add(pausing)
            pausing.add_done_callback(self._pausing.discard)

    async def _pause(self, held: Held) -> None:
        """410 Gone: the target never wants to be asked again."""
        execution = held.execution
        note = f"paused: the target answered 410 Gone to execution {execution.id}"
        window = schedules.Window(self.settings.lookahead.total_seconds(), self.settings.misfire_grace.total_seconds())
        try:
            async with self._pool.connection() as connection:
                await schedules.pause(connection, execution.workspace_id, str(execution.schedule_id), note, window)
            log.get().warning("schedule.gone", schedule=execution.schedule, execution=str(execution.id))
        except Exception as error:  # noqa: BLE001 - the next 410 asks again; the delivery itself is written already
            log.get().error("schedule.not_paused", schedule=execution.schedule, error=str(error))

    async def _renew(self) -> None:
        """Keep the leases of what is in flight; what was lost is stopped at once."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            due = [held for held in self._held.values() if held.wants_renewal()]
            if not due:
                continue
            asked_at = time.monotonic()
            try:
                failpoints.hit("dispatcher.before_renew")
                async with self._pool.connection() as connection:
                    kept = await executions.heartbeat(
                        connection, [(held.execution.id, held.token, held.execution.lease) for held in due]
                    )
                failpoints.hit("dispatcher.after_renew")
            except Exception as error:  # noqa: BLE001 - Postgres is away: the leases run on, and end by the clock
                log.get().debug("lease.not_renewed", error=str(error))
                continue
            for held in due:
                if held.execution.id in kept:
                    held.leased_at = asked_at
                elif held.execution.id in self._held:
                    metrics.stale_writes_refused_total.inc()
                    log.get().warning("lease.lost", execution=str(held.execution.id), attempt=held.execution.attempt)
                    held.lose()

    def _cancelled(self, payload: str) -> None:
        with contextlib.suppress(ValueError, KeyError):
            self._held[UUID(payload)].lose()
