"""Fixtures: `dsn` is a fresh migrated database, `db` a connection to it, `make` puts rows into it."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from psycopg import AsyncConnection

from fleet.store.connection import Connection, conninfo
from support.database import TestServer
from support.make import Make


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[TestServer]:
    base = tmp_path_factory.getbasetemp()
    folder: Path = (base if worker_id == "master" else base.parent) / "postgres"
    running = TestServer(folder)
    yield running
    running.close()


@pytest.fixture
def dsn(server: TestServer) -> Iterator[str]:
    with server.database() as address:
        yield address


@pytest.fixture
def empty_dsn(server: TestServer) -> Iterator[str]:
    """A database that nothing has been migrated in."""
    with server.database("template0") as address:
        yield address


@pytest.fixture
async def db(dsn: str) -> AsyncIterator[Connection]:
    # A short lock_timeout: a missing SKIP LOCKED fails instead of hanging.
    async with await AsyncConnection.connect(
        conninfo(dsn, "test", 30.0, 5.0), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


@pytest.fixture
async def other(dsn: str) -> AsyncIterator[Connection]:
    """A second session of the same database: the other process in a race."""
    async with await AsyncConnection.connect(
        conninfo(dsn, "other", 30.0, 5.0), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


@pytest.fixture
def make(db: Connection) -> Make:
    return Make(db)
