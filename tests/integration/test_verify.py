"""The ledger's checker: clean histories are clean, and every kind of damage is found and named."""

import ast
import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import fleet
from fleet.cli import fleetctl
from fleet.errors import NotFound
from fleet.ledger.report import LISTED, Report
from fleet.ledger.verify import verify
from fleet.operations import schedules
from fleet.operations.planning import plan_window
from fleet.store import ticks
from fleet.store.connection import Connection
from support.make import WINDOW, Make

DAY = 86_400


def kinds(report: Report) -> set[str]:
    return {problem.kind for problem in report.problems}


def problems(report: Report) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(p.kind, p.schedule, p.first_n, p.last_n) for p in report.problems]


async def emit(db: Connection) -> None:
    await ticks.emit(db, grace=3600.0, batch=1000)


async def interval_history(make: Make) -> None:
    """`s`: 1 is an execution, 2 to 3 a gap (overlap), 4 and more are ticks."""
    id_ = await make.schedule("s", interval_seconds=100, window=schedules.Window(650.0, 60.0))
    await make.age(id_, 350)
    await emit(make.db)


async def cron_history(make: Make) -> None:
    """`c`, every minute: 1 to 1438 or so are a gap (catch-up), then come executions, then ticks of five minutes."""
    id_ = await make.schedule("c", cron_expression="* * * * *", overlap="allow")
    await make.age(id_, DAY)
    async with make.db.transaction():
        await plan_window(make.db, id_, 300.0, 60.0)
    await emit(make.db)


async def test_an_empty_database_is_clean(db: Connection) -> None:
    assert await verify(db) == Report(0, 0, 0, 0)


async def test_what_was_added_ticked_paused_edited_and_deleted_is_clean(db: Connection, make: Make) -> None:
    await interval_history(make)
    await cron_history(make)
    for name in ("paused", "edited", "deleted", "cancelled", "aligned", "ended", "counted"):
        fields = {
            "aligned": {"align": True, "overlap": "allow"},
            "ended": {"end_at": datetime.now(UTC) + timedelta(seconds=60)},
            "counted": {"max_runs": 3},
        }.get(name, {})
        await make.age(await make.schedule(name, **fields), 45)
    await make.schedule("once", run_at=datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=30))
    await emit(db)
    await schedules.pause(db, "system", "paused", None, WINDOW)
    await schedules.update(db, "system", "edited", {"interval_seconds": 7}, WINDOW)
    await schedules.update(db, "system", "edited", {"timeout_seconds": 5.0}, WINDOW)
    await schedules.update(db, "system", "edited", {"cron_expression": "*/2 * * * *"}, WINDOW)
    await schedules.update(db, "system", "edited", {"interval_seconds": 3}, WINDOW)
    await schedules.delete(db, "system", "deleted")
    await schedules.cancel(db, "system", "cancelled", WINDOW)
    await schedules.trigger(db, "system", "aligned")
    for row in await make.all("cron_schedules"):
        if row["name"] not in ("s", "c", "aligned"):
            await make.age(row["id"], 30)
    await schedules.resume(db, "system", "paused", WINDOW)
    await schedules.resume(db, "system", "cancelled", WINDOW)
    await ticks.generate_intervals(db, lookahead=120.0, grace=60.0, batch=100)
    await emit(db)

    report = await verify(db)

    assert report.problems == []
    assert report.planned == report.pending + report.executed + report.gaps
    assert min(report.pending, report.executed, report.gaps) > 0


async def test_a_cron_gap_too_long_to_count_is_held_at_both_ends(db: Connection, make: Make) -> None:
    id_ = await make.schedule("long", cron_expression="* * * * *")
    await schedules.pause(db, "system", "long", None, WINDOW)
    await make.age(id_, 20 * DAY)
    await schedules.resume(db, "system", "long", WINDOW)
    assert (await verify(db)).problems == []

    await db.execute("UPDATE gaps SET last_scheduled_at = last_scheduled_at - interval '1 second'")

    assert kinds(await verify(db)) == {"off_rule"}


async def test_what_retention_has_removed_is_not_missed(db: Connection, make: Make) -> None:
    await interval_history(make)
    await cron_history(make)
    await db.execute("DELETE FROM executions WHERE n = 1")
    await db.execute("UPDATE cron_schedules SET accounted_n = 2")

    report = await verify(db)

    assert report.problems == []
    assert report.planned == report.pending + report.executed + report.gaps


async def test_an_unfinished_execution_that_retention_left_is_no_orphan(db: Connection, make: Make) -> None:
    await interval_history(make)
    await db.execute("UPDATE cron_schedules SET accounted_n = 1")
    assert (await verify(db)).problems == []


DOUBLED_TICK = """
INSERT INTO cron_ticks
SELECT schedule_id, scope, scheduled_at + interval '1 second', execute_at + interval '1 second', n,
       fleet_id(fleet_tail(schedule_id, scope, ''), scheduled_at + interval '1 second') FROM cron_ticks WHERE n = 5
"""
MOVED_TICK = """
UPDATE cron_ticks SET scheduled_at = scheduled_at + interval '1 second', execute_at = execute_at + interval '1 second',
       id = fleet_id(fleet_tail(schedule_id, scope, ''), scheduled_at + interval '1 second') WHERE n = 5
"""
DOUBLED_EXECUTION = """
INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, next_attempt_at)
SELECT fleet_id(fleet_tail(schedule_id, scope, ''), scheduled_at - interval '100 seconds'), schedule_id, scope,
       scheduled_at - interval '100 seconds', n, workspace_id, execute_at, next_attempt_at FROM executions
"""
DOUBLED_GAP = """
INSERT INTO gaps (schedule_id, scope, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
SELECT schedule_id, scope, last_n, last_n, 'paused', last_scheduled_at, last_scheduled_at FROM gaps
"""
LENGTHENED_GAP = "UPDATE gaps SET last_n = 4, last_scheduled_at = last_scheduled_at + interval '100 seconds'"
SHORTENED_GAP = "UPDATE gaps SET last_n = 2, last_scheduled_at = first_scheduled_at"
UNKNOWN_SCHEDULE = "UPDATE gaps SET schedule_id = gen_random_uuid()"
CLOSED_TICK = "UPDATE cron_schedules SET accounted_n = 4"

INTERVAL_DAMAGE = [
    ("DELETE FROM cron_ticks WHERE n = 5", {"lost"}),
    (DOUBLED_TICK, {"doubled", "off_rule"}),
    (MOVED_TICK, {"off_rule"}),
    ("UPDATE cron_ticks SET id = gen_random_uuid() WHERE n = 5", {"wrong_id"}),
    ("UPDATE cron_ticks SET scope = 'nowhere' WHERE n = 5", {"lost", "orphan"}),
    ("DELETE FROM executions", {"lost"}),
    (DOUBLED_EXECUTION, {"doubled", "off_rule"}),
    ("UPDATE executions SET id = gen_random_uuid()", {"wrong_id"}),
    ("UPDATE executions SET execute_at = scheduled_at - interval '1 second'", {"off_rule"}),
    ("UPDATE executions SET n = 0", {"lost", "orphan"}),
    ("DELETE FROM gaps", {"lost"}),
    (UNKNOWN_SCHEDULE, {"lost", "orphan"}),
    (DOUBLED_GAP, {"doubled"}),
    (SHORTENED_GAP, {"lost"}),
    (LENGTHENED_GAP, {"doubled"}),
    ("UPDATE gaps SET last_scheduled_at = last_scheduled_at + interval '1 second'", {"off_rule"}),
    ("UPDATE gaps SET last_n = 9e18", {"doubled", "orphan"}),
    ("UPDATE cron_schedules SET next_n = next_n + 1", {"lost", "off_rule"}),
    ("UPDATE cron_schedules SET next_n = next_n - 1", {"orphan", "off_rule"}),
    ("UPDATE cron_schedules SET next_n = 9e18", {"lost", "off_rule"}),
    ("UPDATE cron_schedules SET next_tick_needed_at = next_tick_needed_at + interval '100 seconds'", {"off_rule"}),
    ("UPDATE cron_schedules SET next_tick_needed_at = NULL", {"off_rule"}),
    (CLOSED_TICK, {"orphan"}),
    ("DELETE FROM schedule_versions", {"off_rule"}),
    ("UPDATE schedule_versions SET end_at = now()", {"off_rule"}),
]


@pytest.mark.parametrize(("damage", "expected"), INTERVAL_DAMAGE)
async def test_damage_to_an_interval_schedule_is_found(
    db: Connection, make: Make, damage: str, expected: set[str]
) -> None:
    await interval_history(make)
    assert (await verify(db)).problems == []
    await db.execute(damage)
    assert kinds(await verify(db)) == expected


MOVED_CRON_TICK = """
UPDATE cron_ticks SET scheduled_at = scheduled_at + %(by)s::interval, execute_at = execute_at + %(by)s::interval,
       id = fleet_id(fleet_tail(schedule_id, scope, ''), scheduled_at + %(by)s::interval)
 WHERE n = (SELECT max(n) FROM cron_ticks)
"""
CRON_DAMAGE = [
    (MOVED_CRON_TICK, {"off_rule"}),
    ("DELETE FROM cron_ticks WHERE n = (SELECT max(n) FROM cron_ticks)", {"lost"}),
    ("UPDATE gaps SET first_n = first_n + 1", {"lost", "off_rule"}),
    ("UPDATE gaps SET last_scheduled_at = last_scheduled_at - interval '1 minute'", {"off_rule"}),
    ("UPDATE cron_schedules SET next_tick_needed_at = next_tick_needed_at + interval '1 minute'", {"off_rule"}),
    ("UPDATE cron_schedules SET next_tick_needed_at = NULL", {"off_rule"}),
    ("UPDATE schedule_versions SET cron_expression = '*/7 * * * *'", {"off_rule"}),
    ("UPDATE schedule_versions SET cron_expression = 'never'", {"off_rule"}),
]


@pytest.mark.parametrize(("damage", "expected"), CRON_DAMAGE)
async def test_damage_to_a_cron_schedule_is_found(db: Connection, make: Make, damage: str, expected: set[str]) -> None:
    await cron_history(make)
    assert (await verify(db)).problems == []
    await db.execute(damage, {"by": "30 seconds"} if "%(by)s" in damage else None)
    assert kinds(await verify(db)) == expected


async def test_a_cron_tick_on_the_minute_of_another_number_is_found_alone(db: Connection, make: Make) -> None:
    await cron_history(make)
    last = await make.one("SELECT max(n) FROM cron_ticks")

    await db.execute(MOVED_CRON_TICK, {"by": "1 minute"})

    assert problems(await verify(db)) == [("off_rule", "c", last, last)]


async def test_a_lost_range_is_one_problem_with_its_numbers(db: Connection, make: Make) -> None:
    await interval_history(make)
    await db.execute("DELETE FROM gaps")
    report = await verify(db)
    assert problems(report) == [("lost", "s", 2, 3)]
    assert report.planned == report.pending + report.executed + report.gaps + 2


async def test_only_the_first_problems_are_listed_and_all_are_counted(db: Connection, make: Make) -> None:
    await make.schedule("s", interval_seconds=1, max_plans_per_tick=2000, window=schedules.Window(1500.0, 60.0))
    await db.execute("UPDATE cron_ticks SET id = gen_random_uuid()")
    report = await verify(db)
    assert len(report.problems) == LISTED
    assert report.found == report.pending > LISTED


async def test_one_workspace_or_one_schedule_can_be_checked_alone(db: Connection, make: Make) -> None:
    await make.schedule("well", workspace_id="a")
    await make.schedule("ill", workspace_id="b")
    await db.execute("""DELETE FROM cron_ticks
        WHERE n = 2 AND schedule_id = (SELECT id FROM cron_schedules WHERE name = 'ill')""")
    assert (await verify(db, workspace="a")).found == 0
    assert (await verify(db, workspace="b")).found == 1
    assert (await verify(db, workspace="a", schedule="well")).found == 0
    assert problems(await verify(db, schedule="ill")) == [("lost", "ill", 2, 2)]
    with pytest.raises(NotFound, match="'ill' does not exist in workspace 'a'"):
        await verify(db, workspace="a", schedule="ill")


async def test_checking_writes_nothing_and_leaves_the_session_as_it_was(db: Connection, make: Make) -> None:
    await interval_history(make)
    await verify(db)
    assert await make.one("SELECT current_setting('enable_seqscan')") == "off"
    assert await make.one("SELECT current_setting('transaction_read_only')") == "off"


async def fleetctl_verify(dsn: str, *arguments: str) -> Result:
    """The command in a thread: it runs an event loop of its own."""
    runner = CliRunner(env={"DATABASE_URL": dsn})
    return await asyncio.to_thread(runner.invoke, fleetctl, ["verify", *arguments])


async def test_the_command_exits_0_and_says_so_when_all_is_well(dsn: str, make: Make) -> None:
    await interval_history(make)
    result = await fleetctl_verify(dsn)
    assert result.exit_code == 0, result.output
    assert "Every planned time is accounted for." in result.output


async def test_the_command_exits_1_and_lists_what_is_wrong(dsn: str, db: Connection, make: Make) -> None:
    await interval_history(make)
    await db.execute("DELETE FROM cron_ticks WHERE n = 5")
    result = await fleetctl_verify(dsn, "s")
    assert result.exit_code == 1
    assert "lost  s: no tick, execution or gap says what became of number 5" in result.output


async def test_the_command_prints_one_json_object(dsn: str, db: Connection, make: Make) -> None:
    await interval_history(make)
    await db.execute(MOVED_TICK)
    result = await fleetctl_verify(dsn, "--json")
    assert result.exit_code == 1
    value = json.loads(result.stdout)
    assert value["planned"] == value["pending"] + value["executed"] + value["gaps"]
    [problem] = value["problems"]
    assert (problem["kind"], problem["schedule"], problem["first_n"]) == ("off_rule", "s", 5)


PLANNING = {"fleet.domain.cron", "fleet.domain.planning", "fleet.domain.rule", "fleet.domain.identity"}


def test_the_checker_shares_no_code_with_the_planning_it_judges() -> None:
    reached = imports_of("fleet.ledger.verify")
    assert "fleet.ledger.oracle" in reached
    assert reached & PLANNING == set()
    assert "fleet.domain.cron" in imports_of("fleet.operations.schedules")  # the walk does find it where it is


def imports_of(module: str) -> set[str]:
    """Every module of ours that importing this one leads to, those inside functions included."""
    reached: set[str] = set()
    waiting = {module}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for node in ast.walk(ast.parse(source(name).read_text())):
            found = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            waiting |= {each for each in found if each.startswith("fleet") and source(each).exists()} - reached
    return reached


def source(module: str) -> Path:
    path = Path(fleet.__file__).parent.parent / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# 100,000 schedules, every minute, six numbers each: three executions, a gap of one, two ticks.
MANY = (
    """
INSERT INTO cron_schedules (id, name, interval_seconds, anchor_at, start_at, tails, salt, target, next_tick_needed_at,
                            next_n, accounted_from, created_at, updated_at)
SELECT id, 's' || k, 60, at, at, ARRAY[fleet_tail(id, '', '')], k, '{}', at + interval '6 minutes', 7, at, at, at
  FROM (SELECT k, gen_random_uuid() AS id, date_trunc('second', now()) - interval '230 seconds' AS at
          FROM generate_series(1, 100000) AS k) made
""",
    """
INSERT INTO schedule_versions (schedule_id, version, after_n, after_at, interval_seconds, timezone, anchor_at, start_at,
                               scopes, definition, zone_data, created_at)
SELECT id, 1, 0, start_at - interval '1 millisecond', 60, 'UTC', anchor_at, start_at, scopes, '{}', '', created_at
  FROM cron_schedules
""",
    """
INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, next_attempt_at)
SELECT fleet_id(s.tails[1], at), s.id, '', at, n, 'system', at, at
  FROM cron_schedules s, generate_series(1, 3) AS n,
       LATERAL (SELECT s.start_at + (n - 1) * interval '1 minute') AS t (at)
""",
    """
INSERT INTO gaps (schedule_id, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)
SELECT id, 4, 4, 'overlap', start_at + interval '3 minutes', start_at + interval '3 minutes' FROM cron_schedules
""",
    """
INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)
SELECT s.id, '', at, at, n, fleet_id(s.tails[1], at)
  FROM cron_schedules s, generate_series(5, 6) AS n,
       LATERAL (SELECT s.start_at + (n - 1) * interval '1 minute') AS t (at)
""",
    "ANALYZE",
)


@pytest.mark.long
async def test_a_hundred_thousand_schedules_are_checked_in_seconds(db: Connection, make: Make) -> None:
    await db.execute("SET statement_timeout = '300s'")
    for statement in MANY:
        await db.execute(statement)
    began = time.monotonic()
    report = await verify(db)
    took = time.monotonic() - began
    print(f"\n100,000 schedules, 600,000 planned times: {took:.1f} s")
    assert (report.planned, report.pending, report.executed, report.gaps) == (600_000, 200_000, 300_000, 100_000)
    assert report.found == 0
    assert took < 60
