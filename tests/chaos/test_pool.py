"""A connection that swallows everything ends by the client's own deadline, and the next one works."""

import asyncio

import pytest

from chaos.proxy import proxied
from fleet.config import load
from fleet.store.pool import Pool


async def test_a_line_that_stays_open_and_silent_is_given_up(dsn: str) -> None:
    settings = load({"db_op_timeout": "1s"}, {})
    async with proxied(dsn) as (proxy, address), asyncio.timeout(60):
        pool = Pool(address, "test", settings)
        await pool.open()
        async with pool.connection() as connection:
            await connection.execute("SELECT 1")
        proxy.half_open()
        with pytest.raises(TimeoutError):
            async with pool.connection() as connection:
                await connection.execute("SELECT 1")
        proxy.heal()
        async with pool.connection() as connection:
            assert await (await connection.execute("SELECT 1")).fetchone() == (1,)
        await pool.close()
