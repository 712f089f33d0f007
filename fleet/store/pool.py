"""A role's connections. They survive a restart of Postgres, also one that comes back at another address."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg_pool import AsyncConnectionPool

from fleet.settings import Settings
from fleet.store.connection import Connection, conninfo

# A step takes a few statements, each at most DB_OP_TIMEOUT by the server's clock.
STATEMENTS = 4


class Pool:
    def __init__(self, dsn: str, name: str, settings: Settings) -> None:
        self.dsn = dsn
        self._name = name
        self._settings = settings
        self._deadline = STATEMENTS * settings.db_op_timeout.total_seconds()
        self._pool = self._make()

    async def open(self) -> None:
        await self._pool.open()

    async def close(self) -> None:
        await self._pool.close(timeout=1.0)

    async def move(self, dsn: str) -> None:
        """Use another address from now on."""
        if dsn != self.dsn:
            old, self.dsn = self._pool, dsn
            self._pool = self._make()
            await self._pool.open()
            await old.close(timeout=1.0)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for a few statements. The deadline is the client's own: behind a proxy that keeps the line open
        and swallows everything, neither the server's timeouts nor TCP's ever come."""
        async with asyncio.timeout(self._deadline), self._pool.connection() as connection:
            yield connection

    def _make(self) -> AsyncConnectionPool[Connection]:
        # In autocommit: every hot step is one statement, others open their transaction.
        own = self._settings
        return AsyncConnectionPool(
            conninfo(self.dsn, self._name, own.db_op_timeout.total_seconds()),
            kwargs={"autocommit": True, "prepare_threshold": None},
            min_size=min(1, own.db_max_idle_conns),
            max_size=own.db_max_open_conns,
            max_lifetime=own.db_conn_max_lifetime.total_seconds(),
            max_idle=own.db_conn_max_idle_time.total_seconds(),
            reconnect_timeout=1.0,
            timeout=own.db_op_timeout.total_seconds(),
            open=False,
        )
