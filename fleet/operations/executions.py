"""Cancel an execution, or try a final one again as a new execution."""

from typing import Any
from uuid import UUID

from fleet.errors import Conflict, NotFound
from fleet.store import execution_views, executions
from fleet.store.connection import Connection


async def get(connection: Connection, workspace: str, execution_id: str) -> dict[str, Any]:
    """The execution with its attempts."""
    found = None if (uuid := _uuid(execution_id)) is None else await execution_views.get(connection, uuid, workspace)
    if found is None:
        raise NotFound(f"execution {execution_id!r} does not exist in workspace {workspace!r}")
    return {**found, "attempts": await execution_views.attempts_of(connection, found["id"])}


async def cancel(connection: Connection, workspace: str, execution_id: str) -> UUID:
    """Final at once; a worker that has it in flight is told to stop, and its result is refused."""
    execution = await get(connection, workspace, execution_id)
    async with connection.transaction():
        await executions.hold(connection, execution["id"])
        cancelled = await executions.cancel(connection, [execution["id"]], "cancelled by request")
    if not cancelled:
        now = await get(connection, workspace, execution_id)
        raise Conflict(f"execution {execution_id} is {now['status']} already, there is nothing to cancel")
    return cancelled[0]


async def retry(connection: Connection, workspace: str, execution_id: str) -> UUID:
    """Run a final execution once more, for the same planned time, as an execution of its own."""
    execution = await get(connection, workspace, execution_id)
    if execution["finished_at"] is None:
        raise Conflict(f"execution {execution_id} is {execution['status']}, only a finished one can be retried")
    return await _retry(connection, execution)


async def retry_latest_failed(connection: Connection, schedule_id: UUID, name: str) -> UUID:
    """Retry what failed last of a schedule."""
    failed = await execution_views.latest_failed(connection, schedule_id)
    if failed is None:
        raise Conflict(f"schedule {name!r} has no failed execution to retry")
    return await _retry(connection, failed)


async def _retry(connection: Connection, execution: dict[str, Any]) -> UUID:
    made = await executions.create(
        connection,
        execution["schedule_id"],
        f"retry-{await execution_views.retries_made(connection, execution) + 1}",
        scope=execution["scope"],
        scheduled_at=execution["scheduled_at"],
        retry_of=execution["id"],
    )
    if made is None:
        raise Conflict(
            f"execution {execution['id']} cannot be retried now: its schedule has an unfinished execution,"
            " was deleted, or the same retry was asked for twice at once"
        )
    return made


def _uuid(text: str) -> UUID | None:
    try:
        return UUID(text)
    except ValueError:
        return None
