"""What exists twice, in SQL for the hot path and in Python for the rest, must say the same."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import AsyncConnection

from fleet.domain import identity
from fleet.domain.planning import PASS_LIMIT, Policy, plan
from fleet.domain.rule import Rule
from fleet.store import ticks
from fleet.store.connection import conninfo
from support.database import TestServer

PHASES = [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink]
SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "phases": PHASES}

INSTANTS = st.datetimes(datetime(1970, 1, 2), datetime(2200, 1, 1), timezones=st.just(UTC)).map(
    lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)
)
TEXTS = st.text(st.characters(exclude_characters="\x00", exclude_categories=["Cs"]), max_size=20)
KEYS = st.tuples(st.uuids(), TEXTS, INSTANTS, TEXTS, st.integers(0, 2**31 - 2), st.integers(0, 10**9))

FUNCTIONS = """
SELECT fleet_tail(k.id, k.scope, k.run), fleet_millis(k.at), fleet_id(fleet_tail(k.id, k.scope, k.run), k.at),
       fleet_jitter(k.salt, k.at, k.bound)
  FROM unnest(%(id)s::uuid[], %(scope)s::text[], %(at)s::timestamptz[], %(run)s::text[], %(salt)s::int[],
              %(bound)s::int[]) WITH ORDINALITY AS k (id, scope, at, run, salt, bound, nr)
 ORDER BY nr
"""


@pytest.fixture(scope="module")
def address(server: TestServer) -> Iterator[str]:
    with server.database() as dsn:
        yield dsn


@settings(max_examples=100, **SETTINGS)  # type: ignore[arg-type]
@given(keys=st.lists(KEYS, min_size=1, max_size=100))
def test_identity_and_jitter(address: str, keys: list[tuple[UUID, str, datetime, str, int, int]]) -> None:
    names = ("id", "scope", "at", "run", "salt", "bound")
    columns = dict(zip(names, map(list, zip(*keys, strict=True)), strict=True))
    with psycopg.connect(address) as connection:
        found = connection.execute(FUNCTIONS, columns).fetchall()
    assert found == [
        (
            identity.tail(id_, scope, run),
            identity.millis(at),
            identity.execution_id(id_, scope, at, run),
            identity.jitter_ms(salt, at, bound),
        )
        for id_, scope, at, run, salt, bound in keys
    ]


# One schedule as the generator finds it: (columns, how many seconds before now its cursor lies).
SCHEDULES = st.fixed_dictionaries(
    {
        "interval_seconds": st.integers(1, 400),
        "behind_ms": st.one_of(st.integers(-100_000, 100_000), st.integers(0, 3_000_000)),
        "end_after_ms": st.one_of(st.none(), st.integers(0, 3_200_000)),
        "jitter_share": st.floats(0, 0.99),
        "misfire_grace_seconds": st.one_of(st.none(), st.integers(0, 600)),
        "catch_up": st.sampled_from(["latest", "all", "none"]),
        "catch_up_window_seconds": st.integers(1, 2_000),
        "max_plans_per_tick": st.integers(1, 200),
        "max_runs": st.one_of(st.none(), st.integers(1, 50)),
    }
)

INSERT = """
INSERT INTO cron_schedules (id, name, interval_seconds, anchor_at, start_at, end_at, max_runs, tails, salt, jitter_ms,
       misfire_grace_seconds, catch_up, catch_up_window_seconds, max_plans_per_tick, target, next_tick_needed_at,
       accounted_from, created_at, updated_at)
VALUES (%(id)s, %(id)s, %(interval_seconds)s, %(cursor)s, %(cursor)s, %(end_at)s, %(max_runs)s, ARRAY[%(tail)s],
        %(salt)s, %(jitter_ms)s, %(misfire_grace_seconds)s, %(catch_up)s, %(catch_up_window_seconds)s,
        %(max_plans_per_tick)s, '{}', %(cursor)s, %(cursor)s, now(), now())
"""
WRITTEN = """
SELECT s.id, s.next_tick_needed_at, s.next_n, s.capped,
       (SELECT array_agg(t.scheduled_at ORDER BY t.n) FROM cron_ticks t WHERE t.schedule_id = s.id),
       (SELECT array_agg(t.n ORDER BY t.n) FROM cron_ticks t WHERE t.schedule_id = s.id),
       (SELECT array_agg(ARRAY[g.first_n, g.last_n]) FROM gaps g WHERE g.schedule_id = s.id),
       (SELECT array_agg(ARRAY[g.first_scheduled_at, g.last_scheduled_at]) FROM gaps g WHERE g.schedule_id = s.id)
  FROM cron_schedules s
"""
LOOKAHEAD, GRACE = 60.0, 60.0


@settings(max_examples=400, **SETTINGS)  # type: ignore[arg-type]
@given(drawn=st.lists(SCHEDULES, min_size=1, max_size=30))
def test_the_generator_in_sql_plans_like_the_one_in_python(address: str, drawn: list[dict[str, Any]]) -> None:
    asyncio.run(_compare(address, drawn))


async def _compare(address: str, drawn: list[dict[str, Any]]) -> None:
    async with await AsyncConnection.connect(conninfo(address, "test", 30.0), autocommit=False) as connection:
        # now() is the transaction's: the SQL and the Python plan see the same instant.
        [(now,)] = await (await connection.execute("SELECT now()")).fetchall()
        rows = {row["id"]: row for row in (_row(number, fields, now) for number, fields in enumerate(drawn))}
        for row in rows.values():
            await connection.execute(INSERT, row)
        await ticks.generate_intervals(connection, lookahead=LOOKAHEAD, grace=GRACE, batch=1000)
        for id_, cursor, next_n, capped, times, numbers, gap, gap_times in await (
            await connection.execute(WRITTEN)
        ).fetchall():
            expected = _planned(rows[id_], now)
            context = (rows[id_], now)
            assert (times or []) == expected.ticks, context
            assert (cursor, capped) == (expected.cursor, expected.capped), context
            assert next_n == 1 + expected.skipped + len(expected.ticks), context
            assert (numbers or []) == list(range(1 + expected.skipped, next_n)), context
            if expected.skipped:
                assert gap == [[1, expected.skipped]], context
                assert gap_times == [[expected.first_skipped, expected.last_skipped]], context
            else:
                assert gap is None, context
        await connection.rollback()


def _row(number: int, fields: dict[str, Any], now: datetime) -> dict[str, Any]:
    id_ = UUID(int=number + 1)
    cursor = now - timedelta(milliseconds=fields["behind_ms"])
    end = fields["end_after_ms"]
    return {
        **fields,
        "id": id_,
        "cursor": cursor,
        "end_at": None if end is None else cursor + timedelta(milliseconds=end),
        "jitter_ms": int(fields["jitter_share"] * fields["interval_seconds"] * 1000),
        "tail": identity.tail(id_),
        "salt": identity.salt(id_),
    }


def _planned(row: dict[str, Any], now: datetime) -> Any:
    rule = Rule(
        anchor_at=row["cursor"],
        start_at=row["cursor"],
        end_at=row["end_at"],
        interval_seconds=row["interval_seconds"],
    )
    grace = GRACE if row["misfire_grace_seconds"] is None else row["misfire_grace_seconds"]
    policy = Policy(
        catch_up=row["catch_up"],
        catch_up_window=timedelta(seconds=row["catch_up_window_seconds"]),
        misfire_grace=timedelta(seconds=grace),
        jitter=timedelta(milliseconds=row["jitter_ms"]),
        max_plans=row["max_plans_per_tick"],
        budget=row["max_runs"],
    )
    planned = plan(rule, row["cursor"], now, now + timedelta(seconds=LOOKAHEAD), policy)
    assert planned.skipped + len(planned.ticks) < PASS_LIMIT
    if row["cursor"] > now + timedelta(seconds=LOOKAHEAD):
        return planned._replace(capped=False)  # the generator does not look at it yet
    return planned
