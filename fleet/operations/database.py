"""Find the database: the operator's by DATABASE_URL, or the embedded one, brought up by whoever is first."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psycopg

from fleet import postgres
from fleet.errors import Unhealthy
from fleet.settings import Settings
from fleet.store import migrate
from fleet.store.connection import reason, wait_for_postgres


@dataclass(frozen=True, slots=True)
class Database:
    dsn: str
    embedded: postgres.Server | None = None

    @property
    def data_dir(self) -> Path | None:
        return self.embedded.data_dir if self.embedded else None

    async def close(self) -> None:
        """Let go of the embedded server; the last one out stops it."""
        if self.embedded is not None:
            await asyncio.to_thread(self.embedded.close)


async def revive(database: Database, settings: Settings) -> Database:
    """Bring the embedded server up again if it died; nobody else may be there to do it."""
    if database.embedded is None or postgres.is_running(database.embedded.data_dir):
        return database
    revived = await open_database(settings)
    await database.close()
    return revived


async def open_database(settings: Settings) -> Database:
    """The database's address. The operator's own is neither contacted nor migrated here."""
    if settings.database_url is not None:
        return Database(settings.database_url)
    server = await asyncio.to_thread(postgres.attach, settings.data_dir)
    try:
        await asyncio.to_thread(_migrate, server.dsn)
    except BaseException:
        await asyncio.to_thread(server.close)
        raise
    return Database(server.dsn, server)


async def prepare_database(settings: Settings, on_wait: Callable[[str], None]) -> Database:
    """Like open_database, but the operator's own is waited for and migrated as well."""
    database = await open_database(settings)
    if database.embedded is None:
        await wait_for_postgres(database.dsn, settings.db_connect_wait.total_seconds(), on_wait)
        await asyncio.to_thread(_migrate, database.dsn)
    return database


def _migrate(dsn: str) -> None:
    if migrate.current(dsn) != migrate.HEAD:
        migrate.upgrade(dsn)


async def check_schema(dsn: str) -> None:
    """Refuse a database whose schema is not the one this version needs."""
    try:
        found = await asyncio.to_thread(migrate.current, dsn)
    except psycopg.OperationalError as error:
        raise Unhealthy(f"cannot connect to Postgres: {reason(error)}; check DATABASE_URL") from None
    if found != migrate.HEAD:
        has = "no Fleet schema" if found is None else f"the schema version {found}"
        raise Unhealthy(f"the database has {has}, this Fleet needs {migrate.HEAD}; run `fleetctl db upgrade`")
