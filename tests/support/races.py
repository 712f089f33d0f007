"""Two sessions, one statement at a time: a step either ends, or is seen to wait for the other's lock.

`every_order` plays two operations through every order of their statements and commits. A player that must wait for a
lock is left out of the choice until the other has moved on, as it would be in life.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from fleet.store import retention, schedules
from fleet.store.connection import Connection, rows

DEADLINE = 60.0
MOMENT = 0.01

# Read before or under the schedule's lock: what they see cannot differ, so their order is not worth playing out.
UNGATED = {schedules.FIND_BY_NAME, schedules.TAKE, retention.PAGE, retention.FORGET}

Operation = Callable[[Any], Awaitable[Any]]


BLOCKERS = "SELECT cardinality(pg_blocking_pids(%(pid)s)) AS blockers"


async def _blocked(
    watch: Connection, pid: int, over: Callable[[], Awaitable[Any]], is_over: Callable[[], bool]
) -> bool:
    """True as soon as the session's statement waits for a lock, False as soon as it is over.

    Most are over in a moment: only then is Postgres asked. To ask all the time takes the processor from the very
    statement that is waited for, and on a busy machine makes a minute of a second.
    """
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over(), MOMENT)
        if is_over():
            return False
        [row] = await rows(watch, BLOCKERS, {"pid": pid})
        if row["blockers"] and not is_over():
            return True
    raise TimeoutError("the step neither ended nor waited for a lock")


async def start_and_block(watch: Connection, session: Connection, step: Awaitable[Any]) -> "asyncio.Task[Any]":
    """Start a step that must wait for the other session."""
    task = asyncio.ensure_future(step)
    blocked = await _blocked(watch, session.info.backend_pid, lambda: asyncio.wait({task}), task.done)
    assert blocked, "it was expected to wait"
    return task


class Player:
    """A connection whose every statement, and every commit, waits for its turn."""

    def __init__(self, connection: Connection, watch: Connection, operation: Operation) -> None:
        self.info = connection.info
        self._pid = connection.info.backend_pid
        self._connection = connection
        self._watch = watch
        self._turns = asyncio.Semaphore(0)
        self._resting = asyncio.Event()
        self.task = asyncio.ensure_future(operation(self))
        self.task.add_done_callback(lambda _: self._resting.set())

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
        self._resting.set()
        await self._turns.acquire()

    async def is_ready(self) -> bool:
        """Whether it stands before a statement; not when it has finished or waits for a lock."""
        return not await self._is_blocked() and not self.task.done()

    async def advance(self) -> None:
        self._resting.clear()
        self._turns.release()
        await self._is_blocked()

    async def _is_blocked(self) -> bool:
        return await _blocked(self._watch, self._pid, self._resting.wait, self._resting.is_set)

    async def kill(self) -> None:
        """End its session as an administrator would, and wait until its locks are gone."""
        await self._watch.execute("SELECT pg_terminate_backend(%(pid)s, 20000)", {"pid": self._pid})


async def play(
    players: list[Player], choose: Callable[[int], int], victim: Player | None = None, after: int = 0
) -> list[Any]:
    """Let the players move, one statement at a time, until all have finished; their answers or errors.

    A victim is killed after so many moves.
    """
    moves = 0
    while not all(player.task.done() for player in players):
        if victim is not None and moves == after:
            await victim.kill()
            victim = None
        ready = [player for player in players if not player.task.done() and await player.is_ready()]
        if ready:
            await ready[choose(len(ready))].advance()
            moves += 1
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
