"""Two sessions, one statement at a time: a step either ends, or is seen to wait for the other's lock.

`every_order` plays two operations through every order of their statements and commits. A player that must wait for a
lock is left out of the choice until the other has moved on, as it would be in life.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fleet.store import schedules
from fleet.store.connection import Connection, rows

DEADLINE = 20.0

# Read before or under the schedule's lock: what they see cannot differ, so their order is not worth playing out.
UNGATED = {schedules.FIND_BY_NAME, schedules.TAKE}

Operation = Callable[[Any], Awaitable[Any]]


async def _blocked(watch: Connection, session: Connection, is_over: Callable[[], bool]) -> bool:
    """True as soon as the session's statement waits for a lock, False as soon as it is over."""
    deadline = time.monotonic() + DEADLINE
    parameters = {"pid": session.info.backend_pid}
    while time.monotonic() < deadline:
        if is_over():
            return False
        [row] = await rows(watch, "SELECT cardinality(pg_blocking_pids(%(pid)s)) AS blockers", parameters)
        if row["blockers"] and not is_over():
            return True
    raise TimeoutError("the step neither ended nor waited for a lock")


async def start_and_block(watch: Connection, session: Connection, step: Awaitable[Any]) -> "asyncio.Task[Any]":
    """Start a step that must wait for the other session."""
    task = asyncio.ensure_future(step)
    assert await _blocked(watch, session, task.done), "it was expected to wait"
    return task


class Player:
    """A connection whose every statement, and every commit, waits for its turn."""

    def __init__(self, connection: Connection, watch: Connection, operation: Operation) -> None:
        self.info = connection.info
        self._connection = connection
        self._watch = watch
        self._turns = asyncio.Semaphore(0)
        self._at_gate = False
        self.task = asyncio.ensure_future(operation(self))

    async def execute(self, sql: str, parameters: Any = None) -> Any:
        if sql not in UNGATED:
            await self._gate()
        return await self._connection.execute(sql, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self._connection.transaction():
            yield
            await self._gate()

    async def _gate(self) -> None:
        self._at_gate = True
        await self._turns.acquire()

    def _is_over(self) -> bool:
        return self._at_gate or self.task.done()

    async def is_ready(self) -> bool:
        """Whether it stands before a statement; not when it has finished or waits for a lock."""
        return not await _blocked(self._watch, self._connection, self._is_over) and not self.task.done()

    async def advance(self) -> None:
        self._at_gate = False
        self._turns.release()
        await _blocked(self._watch, self._connection, self._is_over)


async def play(players: list[Player], choose: Callable[[int], int]) -> list[Any]:
    """Let the players move, one statement at a time, until all have finished; their answers or errors."""
    while not all(player.task.done() for player in players):
        ready = [player for player in players if not player.task.done() and await player.is_ready()]
        if ready:
            await ready[choose(len(ready))].advance()
    return await asyncio.gather(*(player.task for player in players), return_exceptions=True)


async def every_order(run: Callable[[Callable[[int], int]], Awaitable[None]]) -> int:
    """Call `run` once for every sequence of choices it can make; how many there were."""
    prefix: list[int] = []
    count = 0
    while True:
        trail: list[tuple[int, int]] = []

        def choose(options: int, trail: list[tuple[int, int]] = trail, prefix: list[int] = prefix) -> int:
            choice = prefix[len(trail)] if len(trail) < len(prefix) else 0
            trail.append((choice, options))
            return choice

        await run(choose)
        count += 1
        while trail and trail[-1][0] == trail[-1][1] - 1:
            trail.pop()
        if not trail:
            return count
        prefix = [choice for choice, _ in trail]
        prefix[-1] += 1
