"""One step of each role, as the tests take them: generate, emit, lease, finish."""

from typing import Any
from uuid import UUID, uuid4

from fleet.operations.planning import plan_of
from fleet.store import execution_views, executions, ticks
from fleet.store.connection import Connection, rows
from fleet.store.executions import Finish, Leased
from support.make import Make


async def generate(db: Connection, *, lookahead: float = 60, grace: float = 60, **sharding: int) -> ticks.Generated:
    """A generator's pass until nothing is due: intervals in SQL, the others planned in Python."""
    total = ticks.Generated(0, 0, 0)
    for _ in range(50):
        intervals = await ticks.generate_intervals(db, lookahead=lookahead, grace=grace, batch=100, **sharding)
        async with db.transaction():
            due = await ticks.take_due(db, lookahead=lookahead, batch=100, **sharding)
            plans = [(row["id"], row["next_n"], plan_of(row, lookahead, grace)) for row in due]
            others = await ticks.apply(db, plans) if plans else ticks.Generated(0, 0, 0)
        if not intervals.schedules and not others.schedules:
            return total
        total = ticks.Generated(*(sum(parts) for parts in zip(total, intervals, others, strict=True)))
    raise AssertionError("the generator never comes to an end")


async def emit(db: Connection, *, grace: float = 60, batch: int = 1000) -> ticks.Emitted:
    return await ticks.emit(db, grace=grace, batch=batch)


async def state(db: Connection, schedule_id: UUID) -> dict[str, Any]:
    [row] = await rows(db, "SELECT * FROM cron_schedules WHERE id = %(id)s", {"id": schedule_id})
    return row


async def finish_all(db: Connection) -> None:
    await db.execute(
        "UPDATE executions SET status = 'delivered', finished_at = now(), lease_token = NULL, leased_until = NULL"
        " WHERE finished_at IS NULL"
    )


async def emitted(make: Make, count: int = 1, **fields: Any) -> UUID:
    """A schedule with that many executions waiting."""
    id_ = await make.schedule(**{"overlap": "allow", **fields})
    await make.age(id_, 10 * count)
    assert (await ticks.emit(make.db, grace=60, batch=100)).executions == count
    return id_


async def lease(db: Connection, token: UUID | None = None, worker: str = "w", limit: int = 100) -> list[Leased]:
    return await executions.lease(db, worker=worker, token=token or uuid4(), limit=limit, seconds=15)


async def finish(db: Connection, *leased: Leased, token: UUID, **fields: Any) -> set[UUID]:
    result = {
        "status": "delivered",
        "outcome": "delivered",
        "error": None,
        "status_code": 200,
        "retry_in": None,
        **fields,
    }
    return await executions.finish(db, [Finish(id=one.id, token=token, **result) for one in leased])


async def row_of(db: Connection, execution_id: UUID) -> dict[str, Any]:
    [row] = await rows(db, "SELECT * FROM executions WHERE id = %(id)s", {"id": execution_id})
    return row


async def outcomes(db: Connection, execution_id: UUID) -> list[tuple[int, str]]:
    return [(row["attempt"], row["outcome"]) for row in await execution_views.attempts_of(db, execution_id)]


BROKEN = {"status": "emitted", "outcome": "broken", "error": "503", "status_code": 503, "retry_in": 60.0}
