"""One leased execution in a dispatcher's hands."""

import asyncio
import time
from uuid import UUID

from fleet.delivery.answer import Answer
from fleet.store.executions import Leased

# Between this worker's last look at its clock and the first byte on the wire something may take a moment.
MARGIN = 0.2


class LeaseOver(Exception):
    """By this worker's own clock the lease may have ended, so nothing may be sent."""


class Held:
    def __init__(self, execution: Leased, token: UUID, leased_at: float) -> None:
        self.execution = execution
        self.token = token
        self.leased_at = leased_at
        """On the monotonic clock, from before the lease was asked for: it never ends later than we believe."""
        self.sent = False
        self.is_over = False
        self.is_lost = False
        self.answer: Answer | None = None
        self.task: asyncio.Task[None] | None = None

    def sending(self) -> None:
        """Called right before the first byte can leave."""
        if time.monotonic() > self.leased_at + self.execution.lease * (1 - MARGIN):
            self.is_over = True
            raise LeaseOver
        self.sent = True

    def answered(self, answer: Answer) -> None:
        self.answer = answer

    def wants_renewal(self) -> bool:
        return time.monotonic() >= self.leased_at + self.execution.lease / 3

    def lose(self) -> None:
        """The lease passed to another, or the execution was cancelled: stop, and write nothing."""
        self.is_lost = True
        if self.task is not None:
            self.task.cancel()
