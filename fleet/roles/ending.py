"""How tasks that run beside the steps are ended."""

import asyncio
from collections.abc import Collection
from typing import Any

AGAIN_SECONDS = 0.2


async def end(tasks: Collection["asyncio.Task[Any]"]) -> None:
    """Cancel tasks until they are over. Once is not enough: a connection pool swallows a cancellation that comes
    together with the connection it waited for, and the task would run on for ever."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=AGAIN_SECONDS)
