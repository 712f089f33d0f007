"""The registry of workers: beats, ages by the database's clock, and who is gone."""

from fleet.store import workers
from fleet.store.connection import Connection
from fleet.store.workers import Worker
from support.make import Make

TICKER = Worker("ticker-a", "ticker", "host", 1, "1.0", 0, 1, "http://127.0.0.1:1")


async def test_a_beat_adds_the_worker_and_the_next_one_renews_it(db: Connection, make: Make) -> None:
    await workers.beat(db, TICKER)
    await db.execute(
        "UPDATE workers SET started_at = started_at - interval '1 hour', heartbeat_at = now() - interval '1 minute'"
    )
    [late] = await workers.living(db)
    await workers.beat(db, TICKER)
    [fresh] = await workers.living(db)
    assert late["age"] >= 60 > fresh["age"] >= 0
    assert fresh["uptime"] >= 3600
    assert {name: fresh[name] for name in TICKER._fields} == TICKER._asdict()


async def test_another_process_under_the_same_name_starts_anew(db: Connection) -> None:
    await workers.beat(db, TICKER)
    await db.execute("UPDATE workers SET started_at = started_at - interval '1 hour'")
    await workers.beat(db, TICKER._replace(pid=2, shard_id=1, shard_count=2))
    [worker] = await workers.living(db)
    assert worker["uptime"] < 3600
    assert (worker["pid"], worker["shard_id"], worker["shard_count"]) == (2, 1, 2)


async def test_workers_are_listed_by_role_and_the_newest_heartbeat_first(db: Connection) -> None:
    for name, role in (("old", "ticker"), ("d", "dispatcher"), ("new", "ticker")):
        await workers.beat(db, TICKER._replace(id=name, role=role))
    assert [w["id"] for w in await workers.living(db)] == ["d", "new", "old"]


async def test_one_that_leaves_is_gone_at_once(db: Connection) -> None:
    await workers.beat(db, TICKER)
    await workers.leave(db, TICKER.id)
    assert await workers.living(db) == []


async def test_the_dead_are_removed_and_one_that_lives_after_all_comes_back(db: Connection) -> None:
    await workers.beat(db, TICKER)
    await workers.beat(db, TICKER._replace(id="ticker-b"))
    await db.execute("UPDATE workers SET heartbeat_at = now() - interval '11 minutes' WHERE id = 'ticker-a'")
    assert await workers.remove_dead(db, 600) == 1
    assert [w["id"] for w in await workers.living(db)] == ["ticker-b"]
    await workers.beat(db, TICKER)
    assert len(await workers.living(db)) == 2
