"""Leases: a frozen worker's result is refused and counted; a stopping worker drains or hands back."""

import asyncio
import re
import signal
from uuid import UUID

import httpx

from fleet.store.connection import Connection, rows
from support.ledger import add_many, assert_explained, assert_verified, settled
from support.make import Make
from support.processes import Process, Processes, until
from support.sink import Sink


async def _metric(process: Process, name: str) -> float:
    await until(lambda: bool(process.events("health.listening")), 30, "its health server")
    address = process.events("health.listening")[0]["address"]
    async with httpx.AsyncClient(trust_env=False) as client:
        text = (await client.get(f"http://{address}/metrics")).text
    found = re.search(rf"^{name} (\S+)$", text, re.MULTILINE)
    return float(found.group(1)) if found else 0.0


async def test_a_result_that_comes_after_its_lease_was_lost_is_refused_and_counted(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    sink.gate.clear()
    frozen = fleet.run("dispatcher", PORT="0")
    fleet.run("ticker")
    await add_many(make, sink, count=1, planned=1)
    await until(lambda: len(sink.receipts) == 1, 60, "the first request")
    frozen.signal(signal.SIGSTOP)
    fleet.run("reconciler")
    fleet.run("dispatcher")
    await until(lambda: len(sink.receipts) == 2, 60, "the request of the one who took over")
    sink.gate.set()
    await settled(db, within=60)
    before = await rows(db, "SELECT * FROM executions")

    frozen.signal(signal.SIGCONT)

    async def counted() -> bool:
        return await _metric(frozen, "fleet_stale_writes_refused_total") == 1.0

    await until(counted, 60, "the refused result to be counted")
    assert await rows(db, "SELECT * FROM executions") == before
    assert before[0]["status"] == "delivered"
    assert before[0]["attempt"] == 2
    await assert_explained(db, sink)
    await assert_verified(db, planned=1)


async def test_a_stopped_dispatcher_lets_requests_in_flight_finish(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    sink.gate.clear()
    dispatcher = fleet.run("dispatcher")
    fleet.run("ticker")
    await add_many(make, sink, count=20, planned=1)
    await until(lambda: len(sink.receipts) == 20, 60, "all requests in flight")
    dispatcher.signal(signal.SIGTERM)
    await until(lambda: bool(dispatcher.events("role.draining")), 30, "it to drain")
    sink.gate.set()

    assert await dispatcher.stop() == 0

    statuses = await rows(db, "SELECT status, attempt FROM executions")
    assert statuses == [{"status": "delivered", "attempt": 1}] * 20
    assert len(sink.receipts) == 20


async def test_a_stopped_dispatcher_hands_back_what_it_could_not_finish(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    sink.gate.clear()
    dispatcher = fleet.run("dispatcher", DISPATCHER_DRAIN_TIMEOUT="1s")
    fleet.run("ticker")
    await add_many(make, sink, count=10, planned=1)
    await add_many(make, sink, count=1, planned=1, delivery="at-most-once", catch_up="none")
    await until(lambda: len(sink.receipts) == 11, 60, "all requests in flight")

    assert await dispatcher.stop() == 0

    left = await rows(db, "SELECT status, error, count(*)::int AS n FROM executions GROUP BY 1, 2 ORDER BY 1")
    assert [(row["status"], row["n"]) for row in left] == [("emitted", 10), ("failed", 1)]
    assert left[1]["error"].startswith("lost: ")
    sink.gate.set()
    fleet.run("dispatcher")
    await settled(db, within=60)
    await assert_explained(db, sink)
    assert len(sink.receipts) == 21
    await assert_verified(db, planned=11)


async def test_a_cancelled_execution_is_stopped_in_flight_and_stays_cancelled(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    from fleet.operations import executions

    sink.gate.clear()
    dispatcher = fleet.run("dispatcher", PORT="0", LEASE="60s")
    fleet.run("ticker")
    await add_many(make, sink, count=1, planned=1)
    await until(lambda: len(sink.receipts) == 1, 60, "the request")
    execution: UUID = await make.one("SELECT id FROM executions")

    await executions.cancel(db, "system", str(execution))

    async def freed() -> bool:
        return await _metric(dispatcher, "fleet_slots_busy") == 0.0

    async with asyncio.timeout(30):
        await until(freed, 20, "its slot to be free")
    sink.gate.set()
    assert await dispatcher.stop() == 0
    assert await make.one("SELECT status FROM executions") == "cancelled"
    assert await make.one("SELECT outcome FROM attempts") == "cancelled"
