"""Writes what attempts came to, in batches: what piles up while one batch is being written is the next batch."""

import asyncio

import psycopg

from fleet import failpoints, log, metrics
from fleet.store import executions
from fleet.store.connection import reason
from fleet.store.executions import Finish, Leased
from fleet.store.pool import Pool

BATCH = 1000
RETRY_SECONDS = 0.5


class Results:
    def __init__(self, pool: Pool, worker: str) -> None:
        self._pool = pool
        self._worker = worker
        self._waiting: list[tuple[Leased, Finish]] = []
        self._something = asyncio.Event()
        self._closed = False

    def put(self, execution: Leased, finish: Finish) -> None:
        self._waiting.append((execution, finish))
        self._something.set()

    def close(self) -> None:
        """Nothing more will be put; `run` ends when everything is written."""
        self._closed = True
        self._something.set()

    async def run(self) -> None:
        while self._waiting or not self._closed:
            await self._something.wait()
            self._something.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
                await self._write(batch)

    async def _write(self, batch: list[tuple[Leased, Finish]]) -> None:
        """Write one batch, as often as it takes: Postgres may be away, and an answer may have been lost."""
        uncertain = False
        while True:
            try:
                failpoints.hit("results.before_finish")
                async with self._pool.connection() as connection:
                    written = await executions.finish(connection, [finish for _, finish in batch])
                    if uncertain:
                        asked = [(leased.id, leased.attempt) for leased, _ in batch]
                        written |= await executions.recorded(connection, self._worker, asked)
                failpoints.hit("results.after_finish")
                break
            except (psycopg.DataError, psycopg.IntegrityError) as error:
                return await self._write_apart(batch, error)
            except Exception as error:  # noqa: BLE001 - a result is never given up: it is written again, or refused
                log.get().warning("results.waiting", count=len(batch), error=reason(error))
                uncertain = True
                await asyncio.sleep(RETRY_SECONDS)
        for leased, finish in batch:
            _report(leased, finish, refused=leased.id not in written)

    async def _write_apart(self, batch: list[tuple[Leased, Finish]], error: Exception) -> None:
        """One result that Postgres will never take must not hold up the others; its lease runs out."""
        if len(batch) > 1:
            for one in batch:
                await self._write([one])
        else:
            log.get().error("result.unwritable", execution=str(batch[0][0].id), error=reason(error))


def _report(leased: Leased, finish: Finish, refused: bool) -> None:
    fields = {"execution": str(leased.id), "schedule": leased.schedule, "attempt": leased.attempt}
    if refused:
        metrics.stale_writes_refused_total.inc()
        log.get().warning("result.refused", **fields, outcome=finish.outcome)
    elif finish.status == "delivered":
        log.get().debug("execution.delivered", **fields)
    elif finish.status == "failed":
        log.get().warning("execution.failed", **fields, error=finish.error)
    elif not finish.spent:
        log.get().info("execution.handed_back", **fields)
    else:
        log.get().info("execution.retrying", **fields, error=finish.error, retry_in=finish.retry_in)
