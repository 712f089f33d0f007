"""Plan guards: the hot statements reach their rows by the index meant for them, whatever the tables look like.

A plan that flips to a scan of everything costs a factor of ten and more, and shows only under load.
"""

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Any
from uuid import UUID, uuid4

import pytest
from psycopg import AsyncConnection

from fleet.store import executions, ticks
from fleet.store.connection import Connection, conninfo, rows
from support.database import TestServer

HOT_TABLES = {"cron_schedules", "cron_ticks", "executions", "attempts"}

# 50,000 schedules; 100,000 executions, most of them final; 50,000 ticks. `scale` shrinks it.
FILL = (
    """INSERT INTO cron_schedules (id, name, interval_seconds, cron_expression, anchor_at, start_at, tails, salt,
              target, next_tick_needed_at, next_n, accounted_from, created_at, updated_at, overlap, enabled)
       SELECT md5('s' || i)::uuid, 's' || i, CASE WHEN i %% 5 > 0 THEN 60 END,
              CASE WHEN i %% 5 = 0 THEN '* * * * *' END, now(), now(), ARRAY['000000000000000000'], i,
              '{}', now() + (50 + i %% 3600) * interval '1 second', 10, now(), now(), now(),
              (ARRAY['skip', 'queue', 'allow'])[1 + i %% 3], i %% 20 > 0
         FROM generate_series(1, %(scale)s * 500) i""",
    """INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)
       SELECT md5('s' || i)::uuid, '', at, at, 9, md5('t' || i)::uuid
         FROM generate_series(1, %(scale)s * 500) i,
              LATERAL (SELECT now() + (i %% 600 - 1) * interval '100 milliseconds' AS at) at""",
    """INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, status, slot, attempt,
              next_attempt_at, leased_by, leased_at, leased_until, lease_token, finished_at)
       SELECT md5('e' || i)::uuid, md5('s' || (i / 8))::uuid, '', at, i %% 8 + 1, 'system', at, status,
              CASE WHEN status IN ('emitted', 'in_progress') THEN fleet_millis(at) * 1000 END, 1, at,
              CASE WHEN status <> 'emitted' THEN 'w' || i %% 8 END, at,
              CASE WHEN status = 'in_progress' THEN now() + (i %% 100 - 2) * interval '1 second' END,
              CASE WHEN status = 'in_progress' THEN md5('token' || i)::uuid END,
              CASE WHEN status = 'delivered' THEN at END
         FROM generate_series(1, %(scale)s * 1000) i,
              LATERAL (SELECT now() - i * interval '1 second' AS at,
                              CASE i %% 100 WHEN 0 THEN 'emitted' WHEN 1 THEN 'in_progress' ELSE 'delivered' END
                              AS status) shape""",
    """INSERT INTO attempts (execution_id, attempt, worker_id, started_at, finished_at, outcome)
       SELECT id, 1, 'w', now(), now(), 'delivered' FROM executions WHERE status = 'delivered'""",
)

IDS = [uuid4() for _ in range(100)]
SHARDING: dict[str, Any] = {"shard": 0, "shards": 1, "shard_grace": 2.0}
RESULTS: dict[str, list[Any]] = {
    "id": IDS,
    "token": IDS,
    "status": ["delivered"] * 100,
    "outcome": ["delivered"] * 100,
    "error": [None] * 100,
    "code": [200] * 100,
    "retry_in": [None] * 100,
    "spent": [True] * 100,
    "response": [None] * 100,
}
GENERATE: dict[str, Any] = {"lookahead": 60.0, "grace": 60.0, "batch": 500, **SHARDING}
LEASE: dict[str, Any] = {"worker": "w", "token": UUID(int=1), "limit": 100, "lease": 15.0, **SHARDING}
EMIT: dict[str, Any] = {"grace": 60.0, "batch": 1000, **SHARDING}

# statement, parameters, the index that must find its rows
HOT = {
    "generate": (ticks.GENERATE_INTERVALS, GENERATE, "cron_schedules_due"),
    "take due": (ticks.TAKE_DUE, GENERATE, "cron_schedules_due"),
    "emit": (ticks.EMIT, EMIT, "cron_ticks_due"),
    "emit, sharded": (ticks.EMIT, EMIT | {"shards": 3}, "cron_ticks_due"),
    "lease": (executions.LEASE, LEASE, "executions_due"),
    "lease, sharded": (executions.LEASE, LEASE | {"shards": 3}, "executions_due"),
    "heartbeat": (executions.HEARTBEAT, {"ids": IDS, "tokens": IDS, "seconds": [15.0] * 100}, "executions_pkey"),
    "finish": (executions.FINISH, RESULTS, "executions_pkey"),
    "expire": (executions.EXPIRE, {"limit": 100}, "executions_in_flight"),
    "next expiry": (executions.NEXT_EXPIRY, {}, "executions_in_flight"),
    "next due": (ticks.NEXT_DUE, {}, "cron_ticks_due"),
    "recorded": (executions.RECORDED, {"worker": "w", "ids": IDS, "attempts": [1] * 100}, "attempts_pkey"),
}
# How large, and whether the statistics still are those of the empty tables: freshly grown.
TABLES = {
    "empty": (0, True),
    "small": (1, False),
    "medium": (10, False),
    "medium, analysed": (10, True),
    "large": (100, False),
    "large, analysed": (100, True),
}


@pytest.fixture(scope="module")
def addresses(server: TestServer) -> Iterator[dict[str, str]]:
    """A database for each of TABLES, filled when first asked for."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(server.database()) for name in TABLES}


@pytest.fixture(params=TABLES)
async def filled(request: pytest.FixtureRequest, addresses: dict[str, str]) -> AsyncIterator[Connection]:
    async with await AsyncConnection.connect(
        conninfo(addresses[request.param], "test", 60.0), autocommit=True, prepare_threshold=None
    ) as connection:
        await _fill(connection, *TABLES[request.param])
        yield connection


async def _fill(connection: Connection, scale: int, analysed: bool) -> None:
    [row] = await rows(connection, "SELECT EXISTS (SELECT FROM cron_schedules) AS filled")
    if row["filled"]:
        return
    await connection.execute("ANALYZE")
    for table in sorted(HOT_TABLES):
        await connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")  # type: ignore[arg-type]
    for statement in FILL:
        await connection.execute(statement, {"scale": scale})
    if analysed:
        await connection.execute("ANALYZE")


@pytest.mark.parametrize("statement", HOT)
async def test_a_hot_statement_finds_its_rows_by_index(filled: Connection, statement: str) -> None:
    sql, parameters, index = HOT[statement]
    scans = [node for node in _nodes(await _plan(filled, sql, parameters)) if "Scan" in node["Node Type"]]
    read_whole = [node["Relation Name"] for node in scans if node["Node Type"] == "Seq Scan"]
    assert not HOT_TABLES & set(read_whole)
    assert index in {node.get("Index Name") for node in scans}, scans
    if await _is_tiny(filled):
        return  # to walk a thousand entries is as good as to look up a hundred
    unbounded = [
        node["Index Name"]
        for node in scans
        if node.get("Relation Name") in HOT_TABLES and node.get("Index Name") and not _is_bounded(node)
    ]
    assert not unbounded, f"walks the whole index: {unbounded}"


def _is_bounded(node: dict[str, Any]) -> bool:
    """A condition on the index, or an index that holds only rows still to be dealt with."""
    return "Index Cond" in node or node["Index Name"] in {"executions_in_flight", "executions_due", "cron_ticks_due"}


async def _is_tiny(connection: Connection) -> bool:
    [row] = await rows(connection, "SELECT count(*) <= 1000 AS yes FROM executions")
    return bool(row["yes"])


async def _plan(connection: Connection, sql: str, parameters: dict[str, Any]) -> dict[str, Any]:
    async with connection.transaction(force_rollback=True):
        [row] = await rows(connection, "EXPLAIN (FORMAT JSON) " + sql, parameters)
    plan: dict[str, Any] = row["QUERY PLAN"][0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)
