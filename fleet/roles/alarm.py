"""NOTIFY as an alarm clock: it wakes in a tenth of a millisecond, and everything works without it."""

import asyncio
from collections.abc import Callable

from psycopg import AsyncConnection, OperationalError, sql

from fleet.store.connection import conninfo
from fleet.store.pool import Pool


async def listen(pool: Pool, channel: str, ring: Callable[[str], None]) -> None:
    """Call `ring` with the payload of each notification, on a connection of its own, for ever."""
    while True:
        try:
            async with await AsyncConnection.connect(
                conninfo(pool.dsn, f"alarm {channel}", 5.0), autocommit=True
            ) as own:
                await own.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
                async for notification in own.notifies():
                    ring(notification.payload)
        except OperationalError:
            await asyncio.sleep(1.0)
