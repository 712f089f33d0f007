"""Connections: how every process of Fleet talks to Postgres.

Hot statements are planned each time (no prepared statements, which also suits poolers), and never by a sequential
scan: plans that flip on freshly grown tables cost a factor of ten and more. Every wait has an end: connecting,
statements, locks, transactions left open, and peers that vanished.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from psycopg import AsyncConnection
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from fleet.errors import Unhealthy

Connection = AsyncConnection[Any]

SESSION = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "random_page_cost": "1.1",
    "jit": "off",
    "timezone": "UTC",
    "idle_in_transaction_session_timeout": "5000",
}
NETWORK: dict[str, str | int | None] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15000,
}


def conninfo(dsn: str, name: str, statement_timeout: float, lock_timeout: float = 5.0) -> str:
    """The address with everything a session of ours needs; what the operator put into it stays."""
    session = {
        **SESSION,
        "statement_timeout": str(int(statement_timeout * 1000)),
        "lock_timeout": str(int(lock_timeout * 1000)),
    }
    given = conninfo_to_dict(dsn)
    options = " ".join([str(given.get("options") or ""), *(f"-c {key}={value}" for key, value in session.items())])
    return make_conninfo(dsn, **NETWORK, application_name=name, options=options.strip())


@asynccontextmanager
async def connect(dsn: str, name: str = "fleetctl", statement_timeout: float = 30.0) -> AsyncIterator[Connection]:
    """One connection, for a command. Errors of connecting become one sentence without the password."""
    try:
        connection = await AsyncConnection.connect(
            conninfo(dsn, name, statement_timeout), autocommit=True, prepare_threshold=None
        )
    except psycopg.OperationalError as error:
        raise Unhealthy(f"cannot connect to Postgres: {reason(error)}; check DATABASE_URL") from None
    async with connection:
        yield connection


async def rows(connection: Connection, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Run one statement; its rows by column name."""
    cursor = await connection.execute(sql, parameters)
    names = [column.name for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in await cursor.fetchall()]


async def wait_for_postgres(dsn: str, seconds: float, on_wait: Any) -> None:
    """Return as soon as Postgres accepts a connection; give up with a sentence after that many seconds.

    A refused password or a database that does not exist will not mend itself, and fails at once.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            async with await AsyncConnection.connect(conninfo(dsn, "fleet", 5.0), autocommit=True):
                return
        except psycopg.OperationalError as error:
            if time.monotonic() >= deadline or final(error):
                raise Unhealthy(f"cannot connect to Postgres: {reason(error)}; check DATABASE_URL") from None
            on_wait(reason(error))
        await asyncio.sleep(0.5)


def final(error: psycopg.OperationalError) -> bool:
    return any(words in str(error) for words in ("authentication failed", "does not exist", "no pg_hba.conf entry"))


def reason(error: Exception) -> str:
    """The first line of a driver's error, without addresses twice over."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text.removeprefix("connection failed: ").rstrip(".")
