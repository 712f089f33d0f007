"""Clean-up: what goes, what stays, and that the account of the rest still adds up."""

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg.errors import QueryCanceled
from structlog.testing import capture_logs

from fleet.operations import schedules
from fleet.roles import cleanup as cleanup_role
from fleet.roles.cleanup import Cleanup
from fleet.settings import Settings
from fleet.store import retention, ticks, workers
from fleet.store.connection import Connection, connect, rows
from fleet.store.workers import Worker
from support.make import WINDOW, Make

DAY = 86400.0
SIX_HOURS = 21600
FINISH = """
UPDATE executions SET status = 'delivered', finished_at = execute_at + interval '1 second', started_at = execute_at,
       attempt = 1 WHERE finished_at IS NULL
"""
TRY = """
INSERT INTO attempts (execution_id, attempt, worker_id, started_at, finished_at, outcome)
SELECT id, 1, 'w', started_at, finished_at, 'delivered' FROM executions
"""
# Numbers above accounted_n that do not have exactly one fate.
UNTILED = """
SELECT s.name, n FROM cron_schedules s CROSS JOIN LATERAL generate_series(s.accounted_n + 1, s.next_n - 1) AS n
 WHERE 1 <> (SELECT count(*) FROM cron_ticks t WHERE t.schedule_id = s.id AND t.n = n.n)
          + (SELECT count(*) FROM executions e WHERE e.schedule_id = s.id AND e.n = n.n)
          + (SELECT count(*) FROM gaps g WHERE g.schedule_id = s.id AND n.n BETWEEN g.first_n AND g.last_n)
"""


async def history(make: Make, name: str = "s", days: int = 60, **fields: Any) -> UUID:
    """A schedule that has run every six hours for that many days, every time with one attempt."""
    given = {"interval_seconds": SIX_HOURS, "overlap": "allow", "catch_up": "all", "max_plans_per_tick": 10_000}
    id_ = await make.schedule(name, **{**given, "catch_up_window_seconds": 10**8, **fields})
    await make.age(id_, days * DAY)
    await run_all(make.db)
    await make.db.execute(FINISH)
    await make.db.execute(TRY + " ON CONFLICT DO NOTHING")
    return id_


async def run_all(db: Connection) -> int:
    """Generate and emit until there is nothing more; the number of executions made."""
    while (await ticks.generate_intervals(db, lookahead=60, grace=60, batch=100)).schedules:
        pass
    made = 0
    while (batch := await ticks.emit(db, grace=10**8, batch=10_000)).ticks:
        made += batch.executions
    return made


def role(age_days: float = 30, runs: int = 100) -> Cleanup:
    return Cleanup(Settings(retention_age=timedelta(days=age_days), retention_runs=runs), "cleanup-test")


async def whole_pass(db: Connection, cleanup: Cleanup) -> int:
    steps = 1
    while await cleanup.step(db) == 0.0:
        steps += 1
    return steps


async def schedule_row(make: Make, id_: UUID) -> dict[str, Any]:
    [row] = await rows(make.db, "SELECT * FROM cron_schedules WHERE id = %(id)s", {"id": id_})
    return row


async def test_what_is_younger_than_the_age_is_kept(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await whole_pass(db, role(age_days=30, runs=10))
    kept = await make.all("executions", id_)
    assert 118 <= len(kept) <= 121, "thirty days of four runs each"
    assert await make.one("SELECT count(*) FROM attempts") == len(kept)
    assert await rows(db, UNTILED) == []


async def test_the_newest_runs_are_kept_however_old(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    total = len(await make.all("executions", id_))
    await whole_pass(db, role(age_days=1, runs=100))
    kept = await make.all("executions", id_)
    row = await schedule_row(make, id_)
    assert len(kept) == 100
    assert row["accounted_n"] == row["runs_removed"] == total - 100
    assert min(e["n"] for e in kept) == row["accounted_n"] + 1
    assert min(e["scheduled_at"] for e in kept) == row["accounted_from"]
    assert await rows(db, UNTILED) == []


async def test_fewer_executions_than_the_newest_runs_are_all_kept(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    before = len(await make.all("executions", id_))
    await whole_pass(db, role(age_days=1, runs=1000))
    assert len(await make.all("executions", id_)) == before
    assert (await schedule_row(make, id_))["accounted_n"] == 0


async def test_nothing_runs_again_after_clean_up(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    before = await schedule_row(make, id_)
    await whole_pass(db, role(age_days=0, runs=0))
    after = await schedule_row(make, id_)
    assert await make.all("executions", id_) == []
    assert (after["next_n"], after["next_tick_needed_at"]) == (before["next_n"], before["next_tick_needed_at"])
    assert after["accounted_n"] == after["next_n"] - 1
    assert await run_all(db) == 0
    assert await rows(db, UNTILED) == []


async def test_max_runs_still_counts_what_clean_up_removed(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60, max_runs=20)
    assert len(await make.all("executions", id_)) == 20
    await whole_pass(db, role(age_days=0, runs=0))
    await ticks.uncap(db, [id_])
    assert await run_all(db) == 0


async def test_an_unfinished_execution_stops_the_removal_before_it(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await db.execute("DELETE FROM executions WHERE n = 5")
    await db.execute(
        """INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, next_attempt_at)
           SELECT gen_random_uuid(), schedule_id, scope, scheduled_at + interval '6 hours', 5, workspace_id,
                  execute_at, now() FROM executions WHERE n = 4"""
    )
    await whole_pass(db, role(age_days=0, runs=0))
    assert (await schedule_row(make, id_))["accounted_n"] == 4
    assert min(e["n"] for e in await make.all("executions", id_)) == 5
    assert await rows(db, UNTILED) == []


async def test_a_pending_tick_stops_the_removal_before_it(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await db.execute(
        """WITH gone AS (DELETE FROM executions WHERE n = 7 RETURNING *)
           INSERT INTO cron_ticks SELECT schedule_id, scope, scheduled_at, execute_at, n, id FROM gone"""
    )
    await whole_pass(db, role(age_days=0, runs=0))
    assert (await schedule_row(make, id_))["accounted_n"] == 6
    assert await rows(db, UNTILED) == []


async def test_a_gap_goes_when_it_lies_wholly_below_the_cut_and_stays_when_not(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await db.execute(
        """WITH gone AS (DELETE FROM executions WHERE n BETWEEN 3 AND 5 OR n BETWEEN 100 AND 150 RETURNING *)
           INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
           SELECT schedule_id, scope, min(n), max(n), 'paused', min(scheduled_at), max(scheduled_at) FROM gone
            GROUP BY schedule_id, scope, n < 50"""
    )
    await whole_pass(db, role(age_days=30, runs=0))  # thirty days ago is about number 120
    [gap] = await make.all("gaps", id_)
    row = await schedule_row(make, id_)
    assert (gap["first_n"], gap["last_n"]) == (100, 150)
    assert (row["accounted_n"], row["accounted_from"]) == (99, gap["first_scheduled_at"])
    assert row["runs_removed"] == 99 - 3
    assert await rows(db, UNTILED) == []


async def test_a_gap_right_before_a_pending_tick_stays_because_a_ticker_may_lengthen_it(
    db: Connection, other: Connection, make: Make
) -> None:
    id_ = await history(make, days=60)
    await db.execute("UPDATE cron_schedules SET catch_up = 'none'")
    await db.execute(
        """WITH gone AS (DELETE FROM executions WHERE n = 7 RETURNING *)
           INSERT INTO cron_ticks SELECT schedule_id, scope, scheduled_at, execute_at, n, id FROM gone"""
    )
    await db.execute(
        """WITH gone AS (DELETE FROM executions WHERE n IN (5, 6) RETURNING *)
           INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
           SELECT schedule_id, scope, 5, 6, 'catch_up', min(scheduled_at), max(scheduled_at) FROM gone
            GROUP BY schedule_id, scope"""
    )
    async with other.transaction():
        await ticks.emit(other, grace=60, batch=100)
        await whole_pass(db, role(age_days=0, runs=0))
    [gap] = await make.all("gaps", id_)
    assert (gap["first_n"], gap["last_n"]) == (5, 7)
    assert (await schedule_row(make, id_))["accounted_n"] == 4
    assert await rows(db, UNTILED) == []


async def test_triggers_and_retries_go_with_their_time(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await db.execute(
        """INSERT INTO executions (id, schedule_id, scope, scheduled_at, run, workspace_id, execute_at, status,
                                   next_attempt_at, finished_at)
           SELECT gen_random_uuid(), schedule_id, scope, scheduled_at, 'retry-1', workspace_id, execute_at, 'failed',
                  execute_at, execute_at FROM executions WHERE n IN (1, 200)"""
    )
    await whole_pass(db, role(age_days=30, runs=10))
    [retry] = [e for e in await make.all("executions", id_) if e["run"]]
    row = await schedule_row(make, id_)
    assert retry["scheduled_at"] > row["accounted_from"]
    assert row["runs_removed"] == row["accounted_n"]


async def test_a_pass_is_bounded_and_says_that_it_is_behind(
    db: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleanup_role, "ROWS", 10)
    monkeypatch.setattr(cleanup_role, "ROUNDS", 3)
    id_ = await history(make, days=60)
    before = len(await make.all("executions", id_))
    cleanup = role(age_days=0, runs=0)
    with capture_logs() as logs:
        assert await whole_pass(db, cleanup) == 3
    assert len(await make.all("executions", id_)) == before - 30
    assert [entry["event"] for entry in logs] == ["cleanup.done", "cleanup.behind"]
    assert logs[1]["lag_seconds"] > 50 * DAY
    assert await rows(db, UNTILED) == []
    while await make.all("executions", id_):
        await whole_pass(db, cleanup)
    assert await run_all(db) == 0


async def test_a_page_that_takes_too_long_is_tried_again_smaller(
    db: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await history(make, f"s{k}", days=40) for k in range(4)]
    purge, sizes = retention.purge, []

    async def slow(connection: Connection, taken: Sequence[UUID], **given: Any) -> retention.Removed:
        sizes.append(len(taken))
        if len(taken) > 1:
            await connection.execute("SET LOCAL statement_timeout = 1")
            await connection.execute("SELECT pg_sleep(10)")
        return await purge(connection, taken, **given)

    monkeypatch.setattr(cleanup_role, "SCHEDULES", 4)
    monkeypatch.setattr(retention, "purge", slow)
    cleanup = role(age_days=0, runs=0)
    while await make.one("SELECT count(*) FROM executions"):
        with contextlib.suppress(QueryCanceled):
            await cleanup.step(db)
    assert sizes[:3] == [4, 2, 1]
    assert await rows(db, UNTILED) == []
    assert [await make.all("executions", id_) for id_ in ids] == [[]] * 4


async def test_two_cleanups_at_once_remove_everything_once(db: Connection, other: Connection, make: Make) -> None:
    ids = [await history(make, f"s{k}", days=40) for k in range(5)]
    first, second = role(age_days=1, runs=100), role(age_days=1, runs=100)
    await asyncio.gather(whole_pass(db, first), whole_pass(other, second))
    await whole_pass(db, first)
    for id_ in ids:
        row = await schedule_row(make, id_)
        assert len(await make.all("executions", id_)) == 100
        assert row["runs_removed"] == row["accounted_n"] == row["next_n"] - 1 - 100
    assert await rows(db, UNTILED) == []


async def test_a_schedule_that_is_being_edited_is_passed_by(db: Connection, other: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    before = len(await make.all("executions", id_))
    async with other.transaction():
        await schedules.update(other, "system", "s", {"interval_seconds": 3600}, WINDOW)
        await whole_pass(db, role(age_days=1, runs=100))
        assert len(await make.all("executions", id_)) == before
    await whole_pass(db, role(age_days=1, runs=100))
    assert len(await make.all("executions", id_)) == 100
    assert await rows(db, UNTILED) == []


async def test_an_edit_after_clean_up_keeps_the_account(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    await whole_pass(db, role(age_days=0, runs=0))
    await schedules.update(db, "system", "s", {"interval_seconds": 20}, WINDOW)
    await schedules.pause(db, "system", "s", None, WINDOW)
    await whole_pass(db, role(age_days=0, runs=0))
    assert (await schedule_row(make, id_))["version"] == 2
    assert await rows(db, UNTILED) == []


async def test_a_schedule_deleted_long_ago_is_forgotten_with_its_versions(db: Connection, make: Make) -> None:
    id_ = await history(make, days=60)
    kept = await make.schedule("kept")
    await schedules.delete(db, "system", "s")
    await whole_pass(db, role(age_days=30, runs=100))
    assert await make.all("executions", id_) != []

    await make.age(id_, 40 * DAY)
    await db.execute("UPDATE cron_schedules SET deleted_at = deleted_at - interval '40 days'")
    await whole_pass(db, role(age_days=30, runs=100))
    assert await make.all("executions", id_) == await make.all("gaps", id_) == []
    assert [s["id"] for s in await make.all("cron_schedules")] == [kept]
    assert [v["schedule_id"] for v in await make.all("schedule_versions")] == [kept]


async def test_ticks_without_a_living_schedule_are_removed_and_named(db: Connection, make: Make) -> None:
    id_ = await make.schedule()
    pending = len(await make.all("cron_ticks"))
    stray = uuid4()
    await db.execute(
        "INSERT INTO cron_ticks SELECT %s, scope, scheduled_at, execute_at, n, gen_random_uuid() FROM cron_ticks",
        (stray,),
    )
    with capture_logs() as logs:
        await whole_pass(db, role())
    assert {t["schedule_id"] for t in await make.all("cron_ticks")} == {id_}
    assert len(await make.all("cron_ticks")) == pending
    assert logs[0]["event"] == "tick.orphan_removed"
    assert (logs[0]["schedule"], logs[0]["ticks"]) == (str(stray), pending)


async def test_dead_workers_are_removed(db: Connection, make: Make) -> None:
    for name in ("alive", "dead"):
        await workers.beat(db, Worker(name, "ticker", "h", 1, "1", 0, 1, None))
    await db.execute("UPDATE workers SET heartbeat_at = heartbeat_at - interval '11 minutes' WHERE id = 'dead'")
    await whole_pass(db, role())
    assert [w["id"] for w in await workers.living(db)] == ["alive"]


# Remembers every execution there ever was: one that came again would break its key.
REMEMBER = """
CREATE TABLE seen (id uuid PRIMARY KEY);
CREATE FUNCTION remember() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN INSERT INTO seen VALUES (NEW.id); RETURN NULL; END $$;
CREATE TRIGGER remember AFTER INSERT ON executions FOR EACH ROW EXECUTE FUNCTION remember();
"""


async def test_clean_up_beside_generator_ticker_and_edits_loses_and_repeats_nothing(
    dsn: str, db: Connection, make: Make
) -> None:
    await db.execute(REMEMBER)
    for k in range(6):
        catch_up, overlap = (("all", "allow"), ("latest", "skip"), ("all", "queue"))[k % 3]
        fields = {"catch_up": catch_up, "overlap": overlap}
        id_ = await make.schedule(f"s{k}", interval_seconds=2, max_plans_per_tick=3, **fields)
        await make.age(id_, 400)

    async def generate(own: Connection) -> None:
        await ticks.generate_intervals(own, lookahead=10, grace=30, batch=3)

    async def emit(own: Connection) -> None:
        await ticks.emit(own, grace=30, batch=5)
        await own.execute(
            FINISH + " AND id IN (SELECT id FROM executions WHERE finished_at IS NULL ORDER BY id LIMIT 3)"
        )

    async def clean(own: Connection) -> None:
        await whole_pass(own, role(age_days=60 / DAY, runs=2))

    async def edit(own: Connection) -> None:
        await schedules.pause(own, "system", "s0", None, WINDOW)
        await schedules.update(own, "system", "s1", {"interval_seconds": random.randint(1, 3)}, WINDOW)
        await schedules.resume(own, "system", "s0", WINDOW)

    async def repeat(action: Callable[[Connection], Awaitable[None]]) -> None:
        async with connect(dsn) as own:
            for _ in range(60):
                await action(own)

    await asyncio.gather(*map(repeat, (generate, generate, emit, emit, clean, clean, edit)))
    assert await make.one("SELECT sum(accounted_n) FROM cron_schedules") > 0
    assert await rows(db, UNTILED) == []
    assert await make.one("SELECT count(*) FROM seen WHERE id NOT IN (SELECT id FROM executions)") == await make.one(
        "SELECT sum(runs_removed) FROM cron_schedules"
    )
