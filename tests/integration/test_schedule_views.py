"""fleetctl schedule that only looks: show, list, next, history, stats."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest

from fleet.store import overview
from fleet.store.connection import Connection
from support.fleetctl import Fleetctl, finish
from support.make import Make

URL = ("--url", "http://127.0.0.1:9/")


@pytest.fixture
def fleetctl(dsn: str) -> Fleetctl:
    return Fleetctl(dsn)


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def test_status_says_the_first_thing_that_fits(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    def status() -> str:
        return str(fleetctl.json("schedule", "show", "x")["status"])

    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    assert status() == "scheduled"
    first = fleetctl.json("schedule", "trigger", "x")["id"]
    sql.execute(
        "UPDATE executions SET status = 'in_progress', leased_by = 'w', leased_until = now(),"
        " lease_token = gen_random_uuid() WHERE id = %s",
        (first,),
    )
    assert status() == "running"
    sql.execute(
        "UPDATE executions SET lease_token = NULL, leased_until = NULL, status = 'emitted' WHERE id = %s", (first,)
    )
    finish(sql, first, "failed")
    assert status() == "failed"
    finish(sql, fleetctl.json("schedule", "retry", "x")["id"], "delivered")
    assert status() == "scheduled"


def test_a_schedule_without_planned_times_left_is_completed(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    fleetctl.json("schedule", "add", "once", "--now", "--overlap", "allow", *URL)
    assert fleetctl.json("schedule", "show", "once")["status"] == "scheduled"
    sql.execute("DELETE FROM cron_ticks")
    waiting = fleetctl.json("schedule", "trigger", "once")["id"]
    assert fleetctl.json("schedule", "show", "once")["status"] == "pending"
    finish(sql, waiting, "failed")
    shown = fleetctl.json("schedule", "show", "once")
    assert (shown["status"], shown["next_scheduled_at"], shown["last_status"]) == ("completed", None, "failed")
    assert shown["last_execution_at"] is not None


def test_listing_filters_and_limits(fleetctl: Fleetctl) -> None:
    for name, label in (("alpha", "a"), ("beta", "b"), ("gamma", "b")):
        fleetctl.json("schedule", "add", name, "--every", "1h", "--label", f"team={label}", *URL)
    fleetctl.json("schedule", "pause", "gamma")

    def names(*options: str) -> list[str]:
        return [schedule["name"] for schedule in fleetctl.json("schedule", "list", *options)]

    assert names() == ["alpha", "beta", "gamma"]
    assert names("--label", "team=b") == ["beta", "gamma"]
    assert names("--label", "team=b", "--status", "paused") == ["gamma"]
    assert names("--search", "ET") == ["beta"]
    assert names("--search", "_") == []
    assert names("--limit", "2") == ["alpha", "beta"]
    assert fleetctl("schedule", "list", "--status", "failed", "--json").out == "[]\n"
    table = fleetctl("schedule", "list", "--limit", "2")
    assert "gamma" not in table.out
    assert "there are more" in table.err
    assert fleetctl("schedule", "list").err == ""


async def test_pages_hold_every_schedule_once(db: Connection, make: Make) -> None:
    names = sorted(f"job {i}" for i in range(7))
    for name in names:
        await make.schedule(name, interval_seconds=3600)
    for limit, page in ((None, 3), (None, 7), (5, 3), (6, 3), (0, 3)):
        pages = [p async for p in overview.schedule_pages(db, "system", limit=limit, page=page)]
        assert [s["name"] for p in pages for s in p] == names[:limit]
        assert all(0 < len(p) <= page for p in pages)


def test_next_tells_the_ticks_and_then_the_grid(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    made = fleetctl.json("schedule", "add", "x", "--every", "10s", "--jitter", "3s", *URL)
    ticks = sql.execute("SELECT scheduled_at, execute_at FROM cron_ticks ORDER BY n").fetchall()
    times = fleetctl.json("schedule", "next", "x", "-n", "12")
    told = [(instant(t["scheduled_at"]), instant(t["execute_at"])) for t in times]
    assert told[: len(ticks)] == ticks
    assert 0 < len(ticks) < len(told) == 12
    assert all(b - a == timedelta(seconds=10) for (a, _), (b, _) in pairwise(told))
    assert times[0]["scheduled_at"] == made["next_scheduled_at"]
    for at, execute_at in told:
        row = sql.execute(
            "SELECT fleet_jitter(salt, %s, jitter_ms) * interval '1 millisecond' FROM cron_schedules", (at,)
        ).fetchone()
        assert row == (execute_at - at,)


def test_next_ends_with_the_schedule(fleetctl: Fleetctl) -> None:
    fleetctl.json("schedule", "add", "runs", "--every", "30s", "--max-runs", "5", *URL)
    assert len(fleetctl.json("schedule", "next", "runs")) == 5
    fleetctl.json("schedule", "add", "end", "--every", "30s", "--start", "in 30s", "--end", "in 5m", *URL)
    assert len(fleetctl.json("schedule", "next", "end")) == 10
    fleetctl.json("schedule", "add", "once", "--at", "in 1h", *URL)
    assert len(fleetctl.json("schedule", "next", "once")) == 1


def test_next_does_not_promise_what_catch_up_will_skip(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", "--start", "in 30m", "--jitter", "0", *URL)
    sql.execute(
        "UPDATE cron_schedules SET anchor_at = anchor_at - interval '10 hours',"
        " start_at = start_at - interval '10 hours', next_tick_needed_at = next_tick_needed_at - interval '10 hours'"
    )
    times = [instant(t["scheduled_at"]) for t in fleetctl.json("schedule", "next", "x", "-n", "3")]
    row = sql.execute("SELECT next_tick_needed_at FROM cron_schedules").fetchone()
    assert row is not None
    assert times == [row[0] + timedelta(hours=hours) for hours in (9, 10, 11)]


def test_next_of_an_expression_needs_no_database() -> None:
    fleetctl = Fleetctl("postgresql://nobody@127.0.0.1:1/nowhere")
    arguments = ("--tz", "Europe/Paris", "--from", "2026-03-28T00:00:00Z", "-n", "3")
    times = fleetctl.json("schedule", "next", "--cron", "30 2 * * *", *arguments)
    # On the 29th 02:30 does not exist there: it runs right after the gap.
    expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    assert times == [{"scheduled_at": at, "execute_at": at} for at in expected]
    table = fleetctl("schedule", "next", "--cron", "30 2 * * *", *arguments).out
    assert "2026-03-29 03:00:00 CEST" in table
    every = fleetctl.json("schedule", "next", "--every", "6h", "--from", "2026-03-28T00:00:00Z", "-n", "2")
    assert [t["scheduled_at"] for t in every] == ["2026-03-28T06:00:00Z", "2026-03-28T12:00:00Z"]


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--cron", "@daily", "--every", "1h"),
        ("x", "--cron", "@daily"),
        ("--cron", "0 0 30 2 *"),
        ("--cron", "@daily", "--tz", "Nowhere"),
        ("--cron", "@daily", "--from", "9999-12-31T00:00:00Z"),
        ("--cron", "@daily", "-n", "0"),
    ],
    ids=" ".join,
)
def test_next_refuses_what_makes_no_sense(arguments: tuple[str, ...]) -> None:
    assert Fleetctl("postgresql://nobody@127.0.0.1:1/nowhere")("schedule", "next", *arguments).code == 2


def test_history_and_stats_tell_what_happened(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", "--overlap", "allow", *URL)
    empty = fleetctl.json("schedule", "stats", "x")
    assert (empty["total_executions"], empty["average_duration_ms"], empty["success_rate"]) == (0, None, None)
    for status in ("delivered", "delivered", "delivered", "failed", "cancelled"):
        finish(sql, fleetctl.json("schedule", "trigger", "x")["id"], status, "no" if status == "failed" else None)
    fleetctl.json("schedule", "trigger", "x")
    sql.execute(
        "INSERT INTO gaps (schedule_id, first_n, last_n, reason, first_scheduled_at, last_scheduled_at)"
        " SELECT id, 100, 102, 'paused', now() + interval '1 hour', now() + interval '3 hours' FROM cron_schedules"
    )
    stats = fleetctl.json("schedule", "stats", "x")
    assert stats["last_execution_at"] is not None
    assert stats["next_scheduled_at"] == fleetctl.json("schedule", "show", "x")["next_scheduled_at"]
    numbers = {key: value for key, value in stats.items() if not key.endswith("_at")}
    assert numbers == {
        "total_executions": 6,
        "successful_runs": 3,
        "failed_runs": 1,
        "average_duration_ms": 2000,
        "success_rate": 0.75,
    }
    entries = fleetctl.json("schedule", "history", "x")
    assert [e["status"] if e["kind"] == "execution" else (e["reason"], e["count"]) for e in entries] == [
        ("paused", 3),
        "emitted",
        "cancelled",
        "failed",
        "delivered",
        "delivered",
        "delivered",
    ]
    assert len(fleetctl.json("schedule", "history", "x", "--limit", "2")) == 2
    assert "gap: paused, 3 planned" in fleetctl("schedule", "history", "x").out
    assert "75.0%" in fleetctl("schedule", "stats", "x").out
