"""Every order of the statements of two operations on one schedule: the account stays exact, and nothing overlaps."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from fleet.errors import FleetError
from fleet.operations import executions as execution_operations
from fleet.operations import schedules
from fleet.store import executions, ticks
from fleet.store.connection import Connection
from fleet.store.executions import Finish
from support.make import WINDOW, Make
from support.races import Operation, Player, every_order, play
from support.tiling import assert_tiled

TOKENS = [UUID(int=i) for i in range(1, 5)]


def as_one(operation: Operation) -> Operation:
    """A hot statement in a transaction of its own, so that it can be held before its commit."""

    async def run(db: Any) -> Any:
        async with db.transaction():
            return await operation(db)

    return run


def lease_by(token: UUID) -> Operation:
    return lambda db: executions.lease(db, worker=str(token), token=token, limit=100, seconds=15)


LOST: list[UUID] = []
"""What was leased with the first token before the race began."""


async def finish(db: Any) -> set[UUID]:
    return await executions.finish(
        db, [Finish(id_, TOKENS[0], "delivered", "delivered", None, 200, None) for id_ in LOST]
    )


async def heartbeat(db: Any) -> set[UUID]:
    return await executions.heartbeat(db, [(id_, TOKENS[0], 15.0) for id_ in LOST])


async def cancel_one(db: Any) -> UUID:
    return await execution_operations.cancel(db, "system", str(LOST[0]))


OPERATIONS: dict[str, Operation] = {
    "generate": as_one(lambda db: ticks.generate_intervals(db, lookahead=60, grace=60, batch=100)),
    "emit": as_one(lambda db: ticks.emit(db, grace=60, batch=100)),
    "emit one": as_one(lambda db: ticks.emit(db, grace=60, batch=1)),
    "lease": as_one(lease_by(TOKENS[1])),
    "lease too": as_one(lease_by(TOKENS[2])),
    "expire": as_one(lambda db: executions.expire_leases(db, 100)),
    "finish": as_one(finish),
    "heartbeat": as_one(heartbeat),
    "cancel one": cancel_one,
    "pause": lambda db: schedules.pause(db, "system", "s", None, WINDOW),
    "resume": lambda db: schedules.resume(db, "system", "s", WINDOW),
    "update": lambda db: schedules.update(db, "system", "s", {"interval_seconds": 7}, WINDOW),
    "cancel": lambda db: schedules.cancel(db, "system", "s", WINDOW),
    "delete": lambda db: schedules.delete(db, "system", "s"),
    "trigger": lambda db: schedules.trigger(db, "system", "s"),
}


# What there is before each run: two ticks are due, more are pending, and more are to be generated.


async def planned(make: Make, overlap: str) -> UUID:
    id_ = await make.schedule(overlap=overlap)
    await make.age(id_, 25)
    return id_


async def emitted(make: Make, overlap: str) -> UUID:
    id_ = await planned(make, overlap)
    await ticks.emit(make.db, grace=60, batch=100)
    return id_


async def lost(make: Make, overlap: str) -> UUID:
    """Leased, and the lease ran out."""
    id_ = await emitted(make, overlap)
    LOST[:] = [one.id for one in await lease_by(TOKENS[0])(make.db)]
    await make.expire_leases()
    return id_


PAIRS = [
    (planned, "allow", "generate", "generate"),
    (planned, "allow", "generate", "pause"),
    (planned, "allow", "generate", "update"),
    (planned, "allow", "generate", "delete"),
    (planned, "allow", "generate", "cancel"),
    (planned, "skip", "emit", "emit"),
    (planned, "skip", "emit one", "emit one"),
    (planned, "queue", "emit one", "emit one"),
    (planned, "skip", "emit one", "pause"),
    (planned, "skip", "emit one", "update"),
    (planned, "skip", "emit", "delete"),
    (planned, "skip", "emit one", "cancel"),
    (planned, "skip", "emit one", "trigger"),
    (planned, "allow", "emit", "generate"),
    (planned, "skip", "pause", "resume"),
    (emitted, "allow", "lease", "lease too"),
    (emitted, "queue", "lease", "lease too"),
    (emitted, "allow", "lease", "pause"),
    (emitted, "allow", "lease", "delete"),
    (emitted, "allow", "lease", "cancel"),
    (lost, "skip", "finish", "expire"),
    (lost, "allow", "heartbeat", "expire"),
    (lost, "allow", "expire", "expire"),
    (lost, "queue", "lease", "expire"),
    (lost, "skip", "finish", "emit"),
    (lost, "skip", "finish", "cancel one"),
    (lost, "skip", "expire", "cancel one"),
    (lost, "allow", "finish", "cancel"),
    (lost, "allow", "finish", "delete"),
]


@pytest.mark.parametrize(
    ("before", "overlap", "first", "second"), PAIRS, ids=[f"{p[2]} x {p[3]}, {p[0].__name__}, {p[1]}" for p in PAIRS]
)
async def test_in_every_order(
    make: Make,
    other: Connection,
    third: Connection,
    watch: Connection,
    before: Any,
    overlap: str,
    first: str,
    second: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(schedules, "LOOKS", 2)  # each look doubles the orders there are
    monkeypatch.setattr(schedules, "BETWEEN_LOOKS", 0)

    async def run(choose: Callable[[int], int]) -> None:
        await _clear(make)
        id_ = await before(make, overlap)
        players = [Player(other, watch, OPERATIONS[first]), Player(third, watch, OPERATIONS[second])]
        answers = await play(players, choose)
        unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, FleetError)]
        assert not unexpected
        await _assert_sound(make, id_, overlap)
        await _go_on(make)
        await _assert_sound(make, id_, overlap)

    assert await every_order(run) > 1


async def _clear(make: Make) -> None:
    await make.db.execute("TRUNCATE cron_schedules, schedule_versions, cron_ticks, executions, attempts, gaps")


async def _go_on(make: Make) -> None:
    """What the roles do next, whatever the race left behind."""
    await ticks.generate_intervals(make.db, lookahead=60, grace=60, batch=100)
    await ticks.emit(make.db, grace=60, batch=100)
    await executions.expire_leases(make.db, 100)
    held = await lease_by(TOKENS[3])(make.db)
    await executions.finish(
        make.db, [Finish(one.id, TOKENS[3], "delivered", "delivered", None, 200, None) for one in held]
    )


PROBLEMS = """
SELECT 'a planned time is a tick and an execution' AS problem FROM cron_ticks JOIN executions USING (id)
UNION ALL
SELECT 'a disabled schedule has a tick whose time has not come'
  FROM cron_ticks t JOIN cron_schedules s ON s.id = t.schedule_id
 WHERE NOT s.enabled AND t.execute_at > clock_timestamp()
UNION ALL
SELECT 'a deleted schedule has work left'
  FROM cron_schedules s JOIN executions e ON e.schedule_id = s.id
 WHERE s.deleted_at IS NOT NULL AND e.status = 'emitted' AND e.attempt = 0
UNION ALL
SELECT 'two unfinished executions overlap' FROM executions
 WHERE finished_at IS NULL AND %(overlap)s = 'skip' HAVING count(*) > 1
UNION ALL
SELECT 'two of a queue run at once' FROM executions
 WHERE status = 'in_progress' AND %(overlap)s = 'queue' HAVING count(*) > 1
UNION ALL
SELECT 'attempts and history differ' FROM executions e
 WHERE e.attempt - (e.status = 'in_progress')::int <> (SELECT count(*) FROM attempts a WHERE a.execution_id = e.id)
UNION ALL
SELECT 'emitted early' FROM executions WHERE n IS NOT NULL AND execute_at > clock_timestamp()
"""


async def _assert_sound(make: Make, schedule_id: UUID, overlap: str) -> None:
    found = await (await make.db.execute(PROBLEMS, {"overlap": overlap})).fetchall()
    assert found == []
    await assert_tiled(make.db, schedule_id)
