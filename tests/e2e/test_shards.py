"""Shards divide work, they never own it: a missing shard or another SHARD_COUNT loses nothing and doubles nothing."""

import json

from fleet.store.connection import Connection
from support.ledger import add_many, assert_verified, settled
from support.make import Make
from support.processes import Processes, until
from support.sink import Sink

ROLES = ("tick-generator", "ticker", "dispatcher")


async def test_a_shard_without_workers_is_served_by_the_others(
    db: Connection, make: Make, sink: Sink, fleet: Processes, dsn: str
) -> None:
    for role in ROLES:
        for shard in ("0", "1"):
            fleet.run(role, SHARD_ID=shard, SHARD_COUNT="3")
    expected = await add_many(make, sink, count=60, planned=10)

    await settled(db, within=120)

    assert len(sink.receipts) == len(expected) == 600
    assert sink.planned() == expected
    ps = fleet.start(["ps", "--json"])
    await until(lambda: ps.returncode is not None, 60, "ps")
    problems = json.loads(ps.log.read_text())["problems"]
    assert [role for role in ROLES if any("shard 2 of 3" in problem and role in problem for problem in problems)] == [
        *ROLES
    ]
    await assert_verified(db, planned=600)


async def test_workers_that_disagree_about_the_number_of_shards_double_nothing(
    db: Connection, make: Make, sink: Sink, fleet: Processes
) -> None:
    for role in ROLES:
        for shard in ("0", "1", "2"):
            fleet.run(role, SHARD_ID=shard, SHARD_COUNT="3")
        fleet.run(role, SHARD_ID="1", SHARD_COUNT="2")
    expected = await add_many(make, sink, count=60, planned=8)

    await settled(db, within=120)

    assert len(sink.receipts) == len(expected) == 480
    assert sink.planned() == expected
    await assert_verified(db, planned=480)
