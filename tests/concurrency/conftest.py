from collections.abc import AsyncIterator

import pytest
from psycopg import AsyncConnection

from fleet.store.connection import Connection, conninfo


@pytest.fixture
async def watch(dsn: str) -> AsyncIterator[Connection]:
    """A third session, which takes no part in the race and sees who waits for whom."""
    async with await AsyncConnection.connect(
        conninfo(dsn, "watch", 30.0, 5.0), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection


@pytest.fixture
async def third(dsn: str) -> AsyncIterator[Connection]:
    """One more session that takes part, where `db` looks on from outside."""
    async with await AsyncConnection.connect(
        conninfo(dsn, "third", 30.0, 5.0), autocommit=True, prepare_threshold=None
    ) as connection:
        yield connection
