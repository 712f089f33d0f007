"""workers: which processes run which role, by their own heartbeats. Information only: nothing is owned through it."""

from typing import Any, NamedTuple

from fleet.store.connection import Connection, rows


class Worker(NamedTuple):
    id: str
    role: str
    host: str
    pid: int
    version: str
    shard_id: int
    shard_count: int
    health: str | None


# started_at stays that of the first beat, unless the row is a former process's under the same name.
BEAT = """
INSERT INTO workers AS w (id, role, host, pid, version, shard_id, shard_count, health, started_at, heartbeat_at)
VALUES (%(id)s, %(role)s, %(host)s, %(pid)s, %(version)s, %(shard_id)s, %(shard_count)s, %(health)s,
        clock_timestamp(), clock_timestamp())
ON CONFLICT (id) DO UPDATE
   SET role = excluded.role, host = excluded.host, pid = excluded.pid, version = excluded.version,
       shard_id = excluded.shard_id, shard_count = excluded.shard_count, health = excluded.health,
       started_at = CASE WHEN (w.host, w.pid) = (excluded.host, excluded.pid) THEN w.started_at
                         ELSE excluded.started_at END,
       heartbeat_at = excluded.heartbeat_at
"""


async def beat(connection: Connection, worker: Worker) -> None:
    """Say that this worker lives, by the database's clock."""
    await connection.execute(BEAT, worker._asdict())


LEAVE = "DELETE FROM workers WHERE id = %(id)s"


async def leave(connection: Connection, worker_id: str) -> None:
    """A worker that ends on purpose is gone at once, and no one waits for its heartbeat."""
    await connection.execute(LEAVE, {"id": worker_id})


LIVING = """
SELECT id, role, host, pid, version, shard_id, shard_count, health, started_at, heartbeat_at,
       date_part('epoch', clock_timestamp() - started_at) AS uptime,
       greatest(0, date_part('epoch', clock_timestamp() - heartbeat_at)) AS age
  FROM workers
 ORDER BY role, heartbeat_at DESC, id
"""


async def living(connection: Connection) -> list[dict[str, Any]]:
    """Every worker that has not left, by role, the newest heartbeat first; `age` is that heartbeat's, in seconds."""
    return await rows(connection, LIVING)


REMOVE_DEAD = "DELETE FROM workers WHERE heartbeat_at < clock_timestamp() - %(seconds)s * interval '1 second'"


async def remove_dead(connection: Connection, seconds: float) -> int:
    """Forget the workers that have said nothing for that long; one that lives after all is back with its next beat."""
    cursor = await connection.execute(REMOVE_DEAD, {"seconds": seconds})
    return cursor.rowcount
