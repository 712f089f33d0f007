"""fleetctl status and ps: what they print, and when they say that something is wrong."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.fleetctl import Fleetctl

URL = ["--url", "http://127.0.0.1:9/"]
BEAT = """
INSERT INTO workers VALUES (%(id)s, %(role)s, 'host', 7, '1.0', %(shard)s, %(shards)s, 'http://127.0.0.1:8080',
    now() - interval '2 hours', now() - %(age)s * interval '1 second')
"""


@pytest.fixture
def fleetctl(dsn: str) -> Fleetctl:
    return Fleetctl(dsn)


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def beat(sql: psycopg.Connection[Any], role: str, shard: int = 0, shards: int = 1, age: float = 1) -> None:
    parameters = {"id": f"{role}-{shard}-{shards}", "role": role, "shard": shard, "shards": shards, "age": age}
    sql.execute(BEAT, parameters)


def all_roles(sql: psycopg.Connection[Any]) -> None:
    for role in ("tick-generator", "ticker", "dispatcher"):
        beat(sql, role)


def test_a_fleet_without_problems_is_well(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    all_roles(sql)
    fleetctl("schedule", "add", "a", "--every", "1h", *URL)
    fleetctl("schedule", "add", "b", "--every", "1h", "--disabled", *URL)
    found = fleetctl.json("status")
    assert found["healthy"] is True
    assert found["problems"] == []
    assert found["schedules"] == {"active": 1, "paused": 1, "cancelled": 0, "ended": 0, "overdue": 0}
    assert found["executions"] == {"due": 0, "oldest_due_seconds": None, "in_flight": 0}
    assert found["ticks"] == {"due": 0, "late": 0, "oldest_due_seconds": None}
    assert [(w["role"], w["alive"]) for w in found["workers"]] == [
        ("tick-generator", 1),
        ("ticker", 1),
        ("dispatcher", 1),
    ]
    text = fleetctl("status")
    assert text.code == 0
    assert "1 active, 1 paused" in text.out
    assert text.out.endswith("all is well\n")


def test_a_role_without_a_living_worker_is_named_and_ends_with_5(
    fleetctl: Fleetctl, sql: psycopg.Connection[Any]
) -> None:
    beat(sql, "tick-generator")
    beat(sql, "dispatcher", age=31)
    answer = fleetctl("status", "--json")
    assert answer.code == 5
    assert answer.json["problems"] == [
        "no ticker is alive; start one with `fleetctl run ticker` or `fleetctl up`",
        "no dispatcher is alive; start one with `fleetctl run dispatcher` or `fleetctl up`",
    ]
    assert answer.err == f"fleetctl: {'; '.join(answer.json['problems'])}\n"
    assert fleetctl.process("status").code == 5


def test_an_execution_that_waits_longer_than_the_grace_is_a_problem(
    fleetctl: Fleetctl, sql: psycopg.Connection[Any]
) -> None:
    all_roles(sql)
    fleetctl("schedule", "add", "a", "--every", "1h", *URL)
    fleetctl("schedule", "trigger", "a")
    assert fleetctl.json("status")["executions"]["due"] == 1
    sql.execute("UPDATE executions SET next_attempt_at = now() - interval '5 minutes'")
    answer = fleetctl("status")
    assert answer.code == 5
    assert "executions wait for 5m" in answer.err
    assert "1 due (the oldest for 5m" in answer.out


def test_one_that_waits_in_its_queue_is_not_late(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    all_roles(sql)
    fleetctl("schedule", "add", "a", "--every", "1h", "--overlap", "queue", *URL)
    fleetctl("schedule", "trigger", "a")
    sql.execute(
        "UPDATE executions SET status = 'in_progress', lease_token = gen_random_uuid(), leased_by = 'w',"
        " leased_at = now(), leased_until = now() + interval '1 minute'"
    )
    fleetctl("schedule", "trigger", "a")
    sql.execute("UPDATE executions SET next_attempt_at = now() - interval '5 minutes' WHERE status = 'emitted'")
    found = fleetctl.json("status")
    assert found["executions"] == {"due": 1, "oldest_due_seconds": None, "in_flight": 1}


def test_late_ticks_and_overdue_schedules_are_problems(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    all_roles(sql)
    fleetctl("schedule", "add", "a", "--every", "10s", *URL)
    sql.execute(
        "UPDATE cron_ticks SET scheduled_at = scheduled_at - interval '1 h', execute_at = now() - interval '90s'"
    )
    sql.execute("UPDATE cron_schedules SET next_tick_needed_at = now() - interval '10 minutes'")
    answer = fleetctl("status", "--json")
    assert answer.code == 5
    assert answer.json["ticks"]["late"] == answer.json["ticks"]["due"] > 0
    assert [problem.partition(" (")[0] for problem in answer.json["problems"]] == [
        "planning is behind by 10m at schedule 'a'",
        "ticks are late by 90s",
    ]


def test_a_large_backlog_is_counted_only_so_far(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    all_roles(sql)
    fleetctl("schedule", "add", "a", "--every", "1h", *URL)
    sql.execute(
        """INSERT INTO executions (id, schedule_id, scope, scheduled_at, run, workspace_id, execute_at, next_attempt_at)
           SELECT gen_random_uuid(), id, '', now(), 'trigger-' || k, 'system', now(), now()
             FROM cron_schedules, generate_series(1, 10002) k"""
    )
    assert "executions  10000+ due" in fleetctl("status").out


def test_ps_lists_workers_with_their_state(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    beat(sql, "ticker", age=1)
    beat(sql, "dispatcher", age=60)
    beat(sql, "cleanup", age=500)
    found = fleetctl.json("ps")
    assert {w["role"]: w["state"] for w in found["workers"]} == {
        "ticker": "alive",
        "dispatcher": "late",
        "cleanup": "dead",
    }
    assert found["problems"] == []
    text = fleetctl("ps")
    [line] = [line for line in text.out.splitlines() if line.startswith("ticker-0-1")]
    assert [word for word in line.split() if word] == [
        *("ticker-0-1", "ticker", "host", "7", "0/1", "1.0", "http://127.0.0.1:8080", "2h", "1s", "ago", "alive")
    ]
    assert text.code == 0


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        ([(0, 1), (0, 1)], []),
        ([(0, 2), (1, 2)], []),
        (
            [(0, 3), (1, 3)],
            ["shard 2 of 3 has no living ticker; others take its work over once it is late"],
        ),
        (
            [(1, 4)],
            ["shards 0, 2, 3 of 4 have no living ticker; others take their work over once it is late"],
        ),
        (
            [(0, 1), (0, 2), (1, 2)],
            ["tickers run with different SHARD_COUNTs (1 and 2); give all of them the same"],
        ),
        (
            [(0, 2), (1, 3)],
            [
                "tickers run with different SHARD_COUNTs (2 and 3); give all of them the same",
                "shard 1 of 2 has no living ticker; others take its work over once it is late",
                "shards 0, 2 of 3 have no living ticker; others take their work over once it is late",
            ],
        ),
    ],
)
def test_ps_names_what_is_wrong_with_the_sharding(
    fleetctl: Fleetctl, sql: psycopg.Connection[Any], shards: list[tuple[int, int]], expected: list[str]
) -> None:
    for shard, count in set(shards):
        beat(sql, "ticker", shard, count)
    beat(sql, "ticker", 9, 99, age=31)
    beat(sql, "reconciler", 1, 7)
    assert fleetctl.json("ps")["problems"] == expected
    assert fleetctl("ps").out.splitlines()[len(set(shards)) + 3 :] == expected
