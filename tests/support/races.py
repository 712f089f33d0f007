"""Two sessions, one step at a time: a step either ends, or is seen to wait for the other's lock.

`interleave` runs two scripts through every order of their steps. A step that must wait keeps its session out of the
order until the other has moved on, as it would be in life.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import psycopg

from fleet.store.connection import Connection, rows

Step = Callable[[Connection], Awaitable[Any]]

DEADLINE = 20.0


async def waits_for_a_lock(watch: Connection, session: Connection, task: "asyncio.Task[Any]") -> bool:
    """True as soon as the session's statement waits for a lock, False as soon as it has ended."""
    deadline = time.monotonic() + DEADLINE
    parameters = {"pid": session.info.backend_pid}
    while time.monotonic() < deadline:
        if task.done():
            return False
        [row] = await rows(watch, "SELECT cardinality(pg_blocking_pids(%(pid)s)) AS blockers", parameters)
        if row["blockers"] and not task.done():
            return True
        await asyncio.sleep(0)
    raise TimeoutError("the step neither ended nor waited for a lock")


async def start_and_block(watch: Connection, session: Connection, step: Awaitable[Any]) -> "asyncio.Task[Any]":
    """Start a step that must wait for the other session."""
    task = asyncio.ensure_future(step)
    assert await waits_for_a_lock(watch, session, task), "it was expected to wait"
    return task


class Session:
    """One side of a race: an open transaction and the steps it has yet to take."""

    def __init__(self, connection: Connection, watch: Connection, steps: list[Step]) -> None:
        self.connection = connection
        self.answers: list[Any] = []
        self.waited = False
        self._watch = watch
        self._steps = list(steps)
        self._task: asyncio.Task[Any] | None = None

    async def is_blocked(self) -> bool:
        if self._task is None:
            return False
        if await waits_for_a_lock(self._watch, self.connection, self._task):
            self.waited = True
            return True
        self.answers.append(await self._task)
        self._task = None
        return False

    async def step(self) -> None:
        self._task = asyncio.ensure_future(self._steps.pop(0)(self.connection))
        await self.is_blocked()


async def begin(connection: Connection) -> None:
    await connection.execute("BEGIN")


async def commit(connection: Connection) -> None:
    await connection.execute("COMMIT")


async def rollback(connection: Connection) -> None:
    await connection.execute("ROLLBACK")


def orders(first: int, second: int) -> Iterator[tuple[int, ...]]:
    """Every order of two scripts of that many steps."""
    if not first or not second:
        yield (0,) * first + (1,) * second
        return
    yield from ((0, *rest) for rest in orders(first - 1, second))
    yield from ((1, *rest) for rest in orders(first, second - 1))


async def run_in_order(sessions: tuple[Session, Session], order: tuple[int, ...]) -> None:
    """Take the steps in that order; whoever waits is passed over until the other has moved on."""
    todo = list(order)
    try:
        while todo:
            ready = next((k for k, i in enumerate(todo) if not await sessions[i].is_blocked()), None)
            if ready is None:
                raise AssertionError("both sessions wait for each other")
            await sessions[todo.pop(ready)].step()
        for session in sessions:
            assert not await session.is_blocked()
    finally:
        for session in sessions:
            if session.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
                await rollback(session.connection)
