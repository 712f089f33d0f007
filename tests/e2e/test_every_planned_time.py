"""The promise: every planned time is received, once, never early; also when processes and Postgres die."""

import os
import signal
from pathlib import Path

from psycopg import AsyncConnection

from fleet.postgres import attach
from fleet.store.connection import Connection, conninfo
from support.ledger import add_many, assert_explained, assert_verified, settled
from support.make import Make
from support.processes import Processes, processes, until
from support.sink import Sink


async def test_every_planned_time_of_200_schedules_is_received_exactly_once(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    fleet.fleet(tick_generator=2, ticker=2, dispatcher=2)
    expected = await add_many(make, sink, count=200, planned=20)

    await settled(db, within=90)

    assert len(sink.receipts) == len(expected) == 4000
    assert sink.planned() == expected
    assert all(receipt.received_at >= receipt.scheduled_at for receipt in sink.receipts)
    assert await fleet.stop() == [0] * 6
    await assert_verified(db, planned=4000)


async def test_killing_each_role_and_postgres_loses_nothing_and_explains_every_duplicate(
    sink: Sink, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    server = attach(data)
    settings = {"LEASE": "3s", "LOOKAHEAD": "5s", "GENERATE_INTERVAL": "1s", "RECONCILE_INTERVAL": "500ms"}
    with processes(tmp_path, FLEET_DATA_DIR=str(data), **settings) as fleet:
        pair = [fleet.run(role) for role in ROLES for _ in range(2)]
        # The roles migrate the embedded database themselves.
        await until(lambda: all(process.events("role.started") for process in pair), 60, "the roles to start")
        db = await AsyncConnection.connect(conninfo(server.dsn, "test", 30.0), autocommit=True)
        expected = await add_many(Make(db), sink, count=200, planned=20)
        await db.close()
        sink.pause = 0.2  # so that a killed dispatcher always has requests in flight

        first = min(at for _, at in expected)
        for second, role in enumerate(ROLES):
            await until(lambda s=second: len(sink.receipts) >= 200 * (3 * s + 1), 60, f"receipts after {first}")
            victim = pair[2 * second]
            victim.kill()
            fleet.run(role)
        postmaster = int((data / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGQUIT)

        # Nobody but the roles brings the embedded Postgres back.
        await until(lambda: expected <= sink.planned(), 120, "every planned time to be received")
        server = attach(data)
        db = await AsyncConnection.connect(conninfo(server.dsn, "test", 30.0), autocommit=True)
        await settled(db, within=60)
        assert sink.planned() == expected
        assert all(receipt.received_at >= receipt.scheduled_at for receipt in sink.receipts)
        await assert_explained(db, sink)
        await assert_verified(db, planned=4000)
        await db.close()
    server.close()


ROLES = ("dispatcher", "ticker", "tick-generator", "reconciler")
