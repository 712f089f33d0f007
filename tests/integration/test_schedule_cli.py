"""fleetctl schedule that changes things: add, update, pause, resume, cancel, delete, trigger, retry."""

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from support.fleetctl import Fleetctl, counts, ended, finish

URL = ("--url", "http://127.0.0.1:9/")
FIELDS = [
    "id",
    "name",
    "workspace_id",
    "status",
    "enabled",
    "next_scheduled_at",
    "next_execute_at",
    "queue_name",
    "interval_seconds",
    "cron_expression",
    "run_at",
    "timezone",
    "start_at",
    "end_at",
    "max_runs",
    "jitter_ms",
    "misfire_grace_seconds",
    "catch_up",
    "catch_up_window_seconds",
    "max_plans_per_tick",
    "overlap",
    "target",
    "payload",
    "timeout_seconds",
    "delivery",
    "max_attempts",
    "backoff_seconds",
    "stale_timeout",
    "labels",
    "metadata",
    "note",
    "version",
    "created_at",
    "updated_at",
    "paused_at",
    "cancelled_at",
    "last_execution_at",
    "last_status",
]


@pytest.fixture
def fleetctl(dsn: str) -> Fleetctl:
    return Fleetctl(dsn)


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


def test_a_schedule_is_added_with_every_option(fleetctl: Fleetctl) -> None:
    made = fleetctl.json(
        *("schedule", "add", "full", "--cron", "0 9 * * mon-fri", "--tz", "Europe/Paris", "--end", "in 300d"),
        *("--max-runs", "5", "--jitter", "5s", "--misfire-grace", "2m", "--catch-up", "all", "--catch-up-window", "2h"),
        *("--max-plans-per-tick", "7", "--overlap", "allow", "--url", "https://example.com/a", "--method", "put"),
        *("--header", "X-One: 1", "--header", "X-Two: 2", "--payload", '{"a": "ü"}', "--timeout", "10s"),
        *("--max-attempts", "2", "--backoff", "10s,1m", "--delivery", "at-most-once", "--stale-timeout", "30s"),
        *("--label", "team=a", "--label", "tier=1", "--metadata", '{"owner": "ada"}', "--note", "hello"),
    )
    assert list(made) == FIELDS
    headers = {"X-One": "1", "X-Two": "2"}
    expected = {
        "cron_expression": "0 9 * * mon-fri",
        "timezone": "Europe/Paris",
        "max_runs": 5,
        "jitter_ms": 5000,
        "misfire_grace_seconds": 120,
        "catch_up": "all",
        "catch_up_window_seconds": 7200,
        "max_plans_per_tick": 7,
        "overlap": "allow",
        "target": {"kind": "http", "url": "https://example.com/a", "method": "PUT", "headers": headers},
        "payload": {"a": "ü"},
        "timeout_seconds": 10.0,
        "max_attempts": 2,
        "backoff_seconds": [10.0, 60.0],
        "delivery": "at-most-once",
        "stale_timeout": 30.0,
        "labels": {"team": "a", "tier": "1"},
        "metadata": {"owner": "ada"},
        "note": "hello",
        "status": "scheduled",
        "enabled": True,
        "version": 1,
        "workspace_id": "system",
    }
    assert {key: made[key] for key in expected} == expected
    assert made["next_scheduled_at"].endswith(("07:00:00Z", "08:00:00Z"))


def test_adding_says_when_it_runs_first_and_its_default_jitter(fleetctl: Fleetctl) -> None:
    added = fleetctl("schedule", "add", "a", "--every", "30s", *URL)
    assert added.out.splitlines()[1] == "jitter up to 3s, the default of 10 % of the interval"
    assert fleetctl.json("schedule", "show", "a")["next_scheduled_at"] in added.out
    long = fleetctl("schedule", "add", "b", "--every", "1d", *URL)
    assert long.out.endswith("jitter up to 30s, the default of 10 % of the interval, at most 30s\n")
    zoned = fleetctl("schedule", "add", "c", "--cron", "0 9 * * *", "--tz", "Asia/Tokyo", *URL)
    assert zoned.out.count("\n") == 1
    assert "T00:00:00Z (" in zoned.out
    assert " 09:00:00 JST, Asia/Tokyo)" in zoned.out


def test_now_is_the_databases_now(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    [before] = sql.execute("SELECT date_trunc('milliseconds', now())").fetchone() or []
    made = fleetctl.json("schedule", "add", "once", "--now", *URL)
    assert made["run_at"] == made["next_scheduled_at"] == made["next_execute_at"]
    assert sql.execute("SELECT run_at BETWEEN %s AND now() FROM cron_schedules", (before,)).fetchone() == (True,)


def test_now_is_not_the_past_even_without_grace(fleetctl: Fleetctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MISFIRE_GRACE", "0s")
    assert fleetctl.json("schedule", "add", "once", "--now", *URL)["status"] == "scheduled"


def test_a_disabled_schedule_plans_nothing_until_it_is_resumed(fleetctl: Fleetctl) -> None:
    made = fleetctl.json("schedule", "add", "x", "--every", "1s", "--disabled", *URL)
    assert (made["status"], made["next_scheduled_at"]) == ("paused", None)
    assert counts(fleetctl.dsn)["cron_ticks"] == 0
    assert fleetctl.json("schedule", "resume", "x")["status"] == "scheduled"


def test_an_update_changes_only_what_is_given(fleetctl: Fleetctl) -> None:
    before = fleetctl.json(
        "schedule", "add", "x", "--every", "1h", *URL, "--header", "A: 1", "--label", "a=1", "--max-runs", "9"
    )
    after = fleetctl.json("schedule", "update", "x", "--method", "PUT", "--max-runs", "none", "--jitter", "1%")
    changed = {"target", "max_runs", "jitter_ms", "version", "updated_at", "next_execute_at"}
    assert {key for key in before if before[key] != after[key]} == changed
    assert after["target"] == {**before["target"], "method": "PUT"}
    assert (after["max_runs"], after["jitter_ms"], after["version"]) == (None, 36_000, 2)
    cron = fleetctl.json("schedule", "update", "x", "--cron", "@daily", "--jitter", "0", "--disabled")
    assert (cron["interval_seconds"], cron["cron_expression"], cron["status"]) == (None, "@daily", "paused")


def test_an_update_that_is_refused_changes_nothing(fleetctl: Fleetctl) -> None:
    before = fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    assert fleetctl("schedule", "update", "x").code == 2
    assert fleetctl("schedule", "update", "x", "--url", "http://").code == 2
    assert fleetctl("schedule", "update", "x", "--cron", "0 0 30 2 *").code == 2
    assert fleetctl("schedule", "update", "x", "--cron", "@daily", "--jitter", "1%").code == 2
    same = fleetctl("schedule", "update", "x", "--every", "60m")
    assert same.out.startswith("nothing changed in x")
    assert fleetctl.json("schedule", "show", "x") == before


def test_pausing_and_resuming_and_cancelling(fleetctl: Fleetctl) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", "--start", "in 30s", *URL)
    paused = fleetctl.json("schedule", "pause", "x", "--note", "deploy")
    assert (paused["status"], paused["next_scheduled_at"], paused["note"]) == ("paused", None, "deploy")
    assert fleetctl.json("schedule", "next", "x") == []
    assert fleetctl.json("schedule", "resume", "x")["status"] == "scheduled"
    fleetctl.json("schedule", "trigger", "x")
    cancelled = fleetctl("schedule", "cancel", "x")
    assert cancelled.out == "cancelled x and 1 unfinished execution, nothing is planned\n"
    assert fleetctl.json("schedule", "show", "x")["status"] == "cancelled"
    assert fleetctl.json("schedule", "next", "x") == []
    assert fleetctl.json("schedule", "resume", "x")["status"] == "scheduled"
    assert [entry["kind"] for entry in fleetctl.json("schedule", "history", "x")] == ["gap", "execution"]


def test_a_deleted_schedule_is_gone_and_its_name_free(fleetctl: Fleetctl) -> None:
    first = fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    deleted = fleetctl.json("schedule", "delete", "x")
    assert deleted == {"id": first["id"], "name": "x", "workspace_id": "system", "deleted": True}
    assert fleetctl("schedule", "delete", "x", "--yes").code == 3
    assert fleetctl.json("schedule", "list") == []
    assert fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)["id"] != first["id"]


def test_workspaces_do_not_see_each_other(fleetctl: Fleetctl) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    other = fleetctl.json("schedule", "add", "x", "--every", "2h", *URL, "--workspace", "b")
    assert other["workspace_id"] == "b"
    assert [s["id"] for s in fleetctl.json("schedule", "list", "-w", "b")] == [other["id"]]
    assert fleetctl("schedule", "show", other["id"]).code == 3


def test_a_trigger_is_shown_and_obeys_overlap(fleetctl: Fleetctl) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    made = fleetctl.json("schedule", "trigger", "x")
    assert (made["status"], made["schedule"], made["attempt"]) == ("emitted", "x", 0)
    assert made["run"].startswith("trigger-")
    assert fleetctl("schedule", "trigger", "x").code == 4


@pytest.mark.parametrize(("status", "code"), [("delivered", 0), ("failed", 1)])
def test_a_trigger_that_waits_ends_with_its_execution(
    fleetctl: Fleetctl, sql: psycopg.Connection[Any], status: str, code: int
) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    waiting = fleetctl.start("schedule", "trigger", "x", "--wait", "--json")
    deadline = time.monotonic() + 60
    while not (found := sql.execute("SELECT id FROM executions").fetchall()):
        assert time.monotonic() < deadline, "nothing was triggered"
        assert waiting.poll() is None
    finish(sql, found[0][0], status)
    answer = ended(waiting)
    assert (answer.code, answer.json["status"]) == (code, status)


def test_waiting_ends_at_its_timeout(fleetctl: Fleetctl) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    answer = fleetctl("schedule", "trigger", "x", "--wait", "--timeout", "1ms")
    assert answer.code == 6
    assert "still emitted" in answer.err
    assert fleetctl("schedule", "trigger", "x", "--timeout", "1s").code == 2


def test_retry_takes_the_latest_failed_execution(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    fleetctl.json("schedule", "add", "x", "--every", "1h", *URL)
    assert fleetctl("schedule", "retry", "x").code == 4
    failed = fleetctl.json("schedule", "trigger", "x")
    finish(sql, failed["id"], "failed", "HTTP 500")
    again = fleetctl.json("schedule", "retry", "x")
    assert (again["run"], again["retry_of"], again["scheduled_at"]) == ("retry-1", failed["id"], failed["scheduled_at"])
