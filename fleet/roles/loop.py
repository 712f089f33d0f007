"""The one loop that every role runs in: it waits for Postgres, registers, steps, sleeps, recovers and drains.

Promise     Starts while Postgres is down and survives its restarts; a step that fails is tried again after a jittered
            back-off; SIGTERM ends the sleep, drains the role and exits 0.
Writes      workers: its own row
Emits       role.started, role.stopped, role.draining, database.waiting, database.lost, database.back, schema.waiting,
            step.failed, fleet_role_steps_total, fleet_role_errors_total, fleet_worker_heartbeats_total
"""

import asyncio
import contextlib
import os
import random
import signal
import socket
from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
from psycopg_pool import PoolTimeout

from fleet import __version__, failpoints, log, metrics
from fleet.errors import Unhealthy
from fleet.operations.database import Database, check_schema, open_database, revive
from fleet.roles.alarm import listen
from fleet.roles.ending import end
from fleet.roles.health import Health, serve
from fleet.roles.role import Role
from fleet.settings import Settings
from fleet.store import workers
from fleet.store.connection import reason, wait_for_postgres
from fleet.store.pool import Pool
from fleet.store.workers import Worker

HEARTBEAT_SECONDS = 5.0
LONGEST_BACKOFF = 2.0
SIGNALS = (signal.SIGTERM, signal.SIGINT)

LOST = (psycopg.OperationalError, psycopg.InterfaceError, PoolTimeout, TimeoutError)


def worker_id(role: str) -> str:
    return f"{role}-{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:4]}"


async def run(role: Role, settings: Settings, *, once: bool = False) -> None:
    """Run a role until it is told to stop; with `once`, until it finds nothing more to do."""
    log.bind(role=role.name, worker=role.worker)
    stop = _stop_on_signals(role)
    database = await open_database(settings)
    try:
        if await _ready(database, settings, stop):
            await _Loop(role, settings, database, stop).run(once)
    finally:
        await database.close()
        # A second SIGTERM must not kill a process that is on its way out: its exit code says that all went well.
        for number in SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


class _Loop:
    def __init__(self, role: Role, settings: Settings, database: Database, stop: asyncio.Event) -> None:
        self._role = role
        self._settings = settings
        self._database = database
        self._stop = stop
        self._health = Health()
        self._pool = Pool(database.dsn, role.worker, settings)
        self._failures = 0

    async def run(self, once: bool) -> None:
        async with self._serving() as address:
            await self._pool.open()
            worker = self._describe(address)
            log.get().info("role.started", version=__version__, health=address, shard=worker.shard_id)
            async with self._beside(worker):
                await self._role.start(self._pool)
                await self._steps(once)
                log.get().info("role.draining")
                await self._role.drain()
            await self._leave(worker)
            await self._pool.close()
            log.get().info("role.stopped")

    async def _steps(self, once: bool) -> None:
        while not self._stop.is_set():
            self._role.wake.clear()
            delay = await self._step()
            if once and delay > 0 and not self._failures:
                return
            if delay > 0:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._role.wake.wait(), delay)

    async def _step(self) -> float:
        metrics.role_steps_total.labels(self._role.name).inc()
        try:
            failpoints.hit("loop.before_step")
            async with self._pool.connection() as connection:
                delay = await self._role.step(connection)
            failpoints.hit("loop.after_step")
        except LOST as error:
            return await self._recover(error)
        except Exception as error:  # noqa: BLE001 - a role never dies of one step: it is logged and tried again
            metrics.role_errors_total.labels(self._role.name).inc()
            log.get().error("step.failed", error=repr(error), exc_info=True)
            self._health.fail("steps", repr(error))
            return self._backoff()
        if self._failures:
            log.get().info("database.back", failures=self._failures)
        self._failures = 0
        self._health.ok("database")
        self._health.ok("steps")
        return delay

    async def _recover(self, error: Exception) -> float:
        metrics.role_errors_total.labels(self._role.name).inc()
        self._health.fail("database", reason(error))
        if not self._failures:
            log.get().warning("database.lost", error=reason(error))
        if self._database.embedded is not None:
            try:
                self._database = await revive(self._database, self._settings)
                await self._pool.move(self._database.dsn)
            except Exception as again:  # noqa: BLE001 - it is tried again with the next step
                log.get().warning("database.not_revived", error=str(again))
        return self._backoff()

    def _backoff(self) -> float:
        self._failures += 1
        return float(min(LONGEST_BACKOFF, 0.05 * 2 ** min(self._failures, 10)) * random.uniform(0.5, 1.0))

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[str | None]:
        settings = self._settings
        server = None
        if settings.port is not None:
            server = await serve(settings.health_addr, settings.port, self._health, settings.metrics_enabled)
        try:
            yield server.address if server else None
        finally:
            if server:
                await server.close()

    @contextlib.asynccontextmanager
    async def _beside(self, worker: Worker) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._heartbeats(worker))]
        if self._role.alarm is not None:
            tasks.append(asyncio.create_task(listen(self._pool, self._role.alarm, lambda _: self._role.wake.set())))
        try:
            yield
        finally:
            await end(tasks)

    async def _heartbeats(self, worker: Worker) -> None:
        while True:
            with contextlib.suppress(*LOST):
                failpoints.hit("loop.before_beat")
                async with self._pool.connection() as connection:
                    await workers.beat(connection, worker)
                metrics.worker_heartbeats_total.inc()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _leave(self, worker: Worker) -> None:
        with contextlib.suppress(*LOST):
            async with self._pool.connection() as connection:
                await workers.leave(connection, worker.id)

    def _describe(self, address: str | None) -> Worker:
        settings = self._settings
        return Worker(
            id=self._role.worker,
            role=self._role.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            shard_id=settings.shard_id,
            shard_count=settings.shard_count,
            health=address,
        )


async def _ready(database: Database, settings: Settings, stop: asyncio.Event) -> bool:
    """Wait for Postgres, then for its schema; False when told to stop meanwhile."""
    waiting = asyncio.create_task(_wait(database, settings))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not waiting.done():
        waiting.cancel()
        return False
    await waiting
    return True


async def _wait(database: Database, settings: Settings) -> None:
    said: set[str] = set()

    def say(event: str, why: str) -> None:
        if event not in said:
            log.get().warning(event, reason=why)
            said.add(event)

    await wait_for_postgres(
        database.dsn, settings.db_connect_wait.total_seconds(), lambda why: say("database.waiting", why)
    )
    while True:
        try:
            return await check_schema(database.dsn)
        except Unhealthy as error:
            say("schema.waiting", str(error))
        await asyncio.sleep(1.0)


def _stop_on_signals(role: Role) -> asyncio.Event:
    stop = asyncio.Event()

    def ask() -> None:
        stop.set()
        role.wake.set()

    for number in SIGNALS:
        asyncio.get_running_loop().add_signal_handler(number, ask)
    return stop
