"""What a role is: one step at a time. The loop owns sleeping, signals, errors and connections."""

import asyncio
from abc import ABC, abstractmethod
from typing import ClassVar

from fleet.settings import Settings
from fleet.store.connection import Connection
from fleet.store.pool import Pool


class Role(ABC):
    name: ClassVar[str]
    alarm: ClassVar[str | None] = None
    """A NOTIFY channel that cuts this role's sleep short. Polling stays the truth: an alarm may be lost."""

    def __init__(self, settings: Settings, worker: str) -> None:
        self.settings = settings
        self.worker = worker
        self.wake = asyncio.Event()

    async def start(self, pool: Pool) -> None:  # noqa: B027 - most roles have nothing to start
        """Begin what runs beside the steps."""

    @abstractmethod
    async def step(self, connection: Connection) -> float:
        """Do one bounded batch; say how many seconds until the next look, 0 when there may be more at once."""

    async def drain(self) -> None:  # noqa: B027 - nor to drain: a step is one transaction
        """Finish or hand back what is in hand; no step follows."""


class Batch:
    """How many rows a step takes: halved when a statement ran out of time, grown back when it did not."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = most

    def shrink(self) -> None:
        self.size = max(1, self.size // 2)

    def grow(self) -> None:
        self.size = min(self._most, self.size * 2)
