"""Every order of the statements of two operations on one schedule: the account stays exact, and nothing overlaps.

A sample of the orders is played once more with one of the two sessions killed on the way.
"""

import random
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from fleet.errors import FleetError
from fleet.operations import executions as execution_operations
from fleet.operations import schedules
from fleet.store import executions, retention, ticks
from fleet.store.connection import Connection, connect
from fleet.store.executions import Finish
from support.make import WINDOW, Make
from support.races import Operation, Player, every_order, play
from support.tiling import assert_tiled

OLD = 12.0
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


async def clean_up(db: Any) -> None:
    """What cleanup does with a page of schedules; here everything older than a few seconds may go."""
    found = await retention.page(db, UUID(int=0), 10, OLD)
    async with db.transaction():
        taken = await retention.take(db, [id_ for id_, old in found if old])
        if taken:
            await retention.purge(db, taken, age=OLD, runs=0, limit=50)
            await retention.forget(db, taken, OLD)


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
    "clean up": clean_up,
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


async def taken_back(make: Make, overlap: str) -> UUID:
    """Lost, and the reconciler has been there: the first token is worth nothing any more."""
    id_ = await lost(make, overlap)
    await executions.expire_leases(make.db, 100)
    return id_


async def ended(make: Make, overlap: str) -> UUID:
    """Delivered or skipped, and old enough to go; the next tick is due."""
    id_ = await emitted(make, overlap)
    while held := await lease_by(TOKENS[0])(make.db):
        LOST[:] = [one.id for one in held]
        await finish(make.db)
    await make.age(id_, 10)
    return id_


async def one_left(make: Make, overlap: str) -> UUID:
    """The oldest is still in progress, those after it were delivered; all are old."""
    id_ = await emitted(make, overlap)
    held = sorted(await lease_by(TOKENS[0])(make.db), key=lambda one: one.scheduled_at)
    LOST[:] = [one.id for one in held[1:]]
    await finish(make.db)
    await make.age(id_, 10)
    LOST[:] = [await make.one("SELECT id FROM executions WHERE status = 'in_progress'")]
    return id_


async def ended_and_busy(make: Make, overlap: str) -> UUID:
    """The same while an execution out of turn is unfinished: the next tick will lengthen the gap before it."""
    id_ = await ended(make, overlap)
    await schedules.trigger(make.db, "system", "s")
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
    (taken_back, "allow", "finish", "lease"),
    (taken_back, "skip", "heartbeat", "lease"),
    (ended, "allow", "clean up", "generate"),
    (ended, "skip", "clean up", "generate"),
    (ended, "allow", "clean up", "clean up"),
    (ended, "skip", "clean up", "emit"),
    (ended_and_busy, "skip", "clean up", "emit"),
    (ended, "allow", "clean up", "pause"),
    (ended, "allow", "clean up", "update"),
    (ended, "allow", "clean up", "delete"),
    (one_left, "allow", "clean up", "finish"),
    (lost, "skip", "clean up", "expire"),
]

# In which a session is killed, too.
KILLED = [
    (planned, "allow", "generate", "pause"),
    (planned, "allow", "generate", "delete"),
    (planned, "skip", "emit one", "emit one"),
    (planned, "skip", "emit one", "pause"),
    (emitted, "allow", "lease", "lease too"),
    (emitted, "allow", "lease", "delete"),
    (lost, "skip", "finish", "expire"),
    (ended, "allow", "clean up", "generate"),
    (ended, "allow", "clean up", "delete"),
    (ended_and_busy, "skip", "clean up", "emit"),
]


def names(pairs: list[Any]) -> list[str]:
    return [f"{first} x {second}, {before.__name__}, {overlap}" for before, overlap, first, second in pairs]


@pytest.fixture(autouse=True)
def two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look for executions that are in a worker's hands doubles the orders there are."""
    monkeypatch.setattr(schedules, "LOOKS", 2)
    monkeypatch.setattr(schedules, "BETWEEN_LOOKS", 0)


# Thousands of statements, each of which waits for its turn on the processor: slow only where everything is.
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("before", "overlap", "first", "second"), PAIRS, ids=names(PAIRS))
async def test_in_every_order(
    make: Make,
    other: Connection,
    third: Connection,
    watch: Connection,
    before: Any,
    overlap: str,
    first: str,
    second: str,
) -> None:
    async def run(choose: Callable[[int], int]) -> None:
        await _clear(make)
        id_ = await before(make, overlap)
        players = [Player(other, watch, OPERATIONS[first]), Player(third, watch, OPERATIONS[second])]
        answers = await play(players, choose)
        unexpected = [a for a in answers if isinstance(a, BaseException) and not isinstance(a, FleetError)]
        assert not unexpected
        assert before is not taken_back or answers[0] == set(), "a lost lease is good for nothing"
        await _assert_sound_now_and_later(make, id_, overlap)

    assert await every_order(run) > 1


@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1], ids=["the first dies", "the second dies"])
@pytest.mark.parametrize(("before", "overlap", "first", "second"), KILLED, ids=names(KILLED))
async def test_a_session_that_is_killed_leaves_nothing_half_done(
    make: Make, dsn: str, watch: Connection, before: Any, overlap: str, first: str, second: str, victim: int
) -> None:
    chance = random.Random(f"{first} {second} {victim}")
    for after in range(1, 9):
        await _clear(make)
        id_ = await before(make, overlap)
        async with connect(dsn, "first") as one, connect(dsn, "second") as two:
            players = [Player(one, watch, OPERATIONS[first]), Player(two, watch, OPERATIONS[second])]
            answers = await play(players, chance.randrange, players[victim], after)
        assert not isinstance(answers[1 - victim], BaseException) or isinstance(answers[1 - victim], FleetError)
        await _assert_sound_now_and_later(make, id_, overlap)


# Not TRUNCATE: it makes some thirty files anew each time, which takes most of a run's time, and minutes on a busy disk.
CLEAR = """
WITH s AS (DELETE FROM cron_schedules), v AS (DELETE FROM schedule_versions), t AS (DELETE FROM cron_ticks),
     e AS (DELETE FROM executions), a AS (DELETE FROM attempts)
DELETE FROM gaps
"""


async def _clear(make: Make) -> None:
    await make.db.execute(CLEAR)


async def _assert_sound_now_and_later(make: Make, schedule_id: UUID, overlap: str) -> None:
    await _assert_sound(make, schedule_id, overlap)
    await _go_on(make)
    await _assert_sound(make, schedule_id, overlap)


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
SELECT 'a delete was half done'
  FROM cron_schedules s JOIN executions e ON e.schedule_id = s.id
 WHERE s.deleted_at IS NULL AND e.error = 'cancelled: its schedule was deleted'
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
