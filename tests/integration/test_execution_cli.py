"""fleetctl execution: lists, one with its attempts, retry and cancel."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from fleet.store import execution_views as views
from support.fleetctl import Fleetctl

URL = ["--url", "http://127.0.0.1:9/"]
FIELDS = ["id", "schedule_id", "schedule", "scheduled_at", "execute_at", "run", "status", "attempt"]
FIELDS += ["next_attempt_at", "started_at", "finished_at", "error"]
# Every minute one, the newest a minute ago, and every third has failed.
FILL = """
INSERT INTO executions (id, schedule_id, scope, scheduled_at, n, workspace_id, execute_at, status, attempt,
                        next_attempt_at, started_at, finished_at, error)
SELECT fleet_id(s.tails[1], at), s.id, '', at, %(count)s + 1 - k, s.workspace_id, at,
       CASE k %% 3 WHEN 0 THEN 'failed' ELSE 'delivered' END, 1, at, at, at + interval '1 second',
       CASE k %% 3 WHEN 0 THEN 'the target said [500]' END
  FROM cron_schedules s, generate_series(1, %(count)s) k,
       LATERAL (SELECT date_trunc('minute', now()) - k * interval '1 minute' AS at) planned
 WHERE s.name = %(name)s
"""


@pytest.fixture
def fleetctl(dsn: str) -> Fleetctl:
    return Fleetctl(dsn)


@pytest.fixture
def sql(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def filled(fleetctl: Fleetctl, sql: psycopg.Connection[Any]) -> Fleetctl:
    """Two schedules, with 9 and 4 executions."""
    for name, count in (("many", 9), ("few", 4)):
        fleetctl.json("schedule", "add", name, "--every", "1h", *URL)
        sql.execute(FILL, {"name": name, "count": count})
    return fleetctl


def test_the_list_is_newest_first_and_has_every_field(filled: Fleetctl) -> None:
    found = filled.json("execution", "list")
    assert len(found) == 13
    assert list(found[0]) == FIELDS
    times = [e["scheduled_at"] for e in found]
    assert times == sorted(times, reverse=True)
    assert {e["schedule"] for e in found} == {"many", "few"}


def test_it_can_be_narrowed_by_schedule_status_and_number(filled: Fleetctl) -> None:
    assert len(filled.json("execution", "list", "--schedule", "few")) == 4
    assert len(filled.json("execution", "list", "--status", "failed")) == 4
    assert len(filled.json("execution", "list", "--schedule", "many", "--status", "failed")) == 3
    assert len(filled.json("execution", "list", "--limit", "2")) == 2
    assert filled.json("execution", "list", "--workspace", "elsewhere") == []


@pytest.mark.parametrize("narrow", [[], ["--schedule", "many"]])
def test_pages_put_together_are_the_whole_list(filled: Fleetctl, narrow: list[str]) -> None:
    whole = filled.json("execution", "list", *narrow)
    paged: list[Any] = []
    while page := filled.json(
        "execution", "list", *narrow, "--limit", "2", *(["--before", paged[-1]["id"]] if paged else [])
    ):
        paged += page
    assert paged == whole


def test_people_see_a_table(filled: Fleetctl) -> None:
    lines = filled("execution", "list", "--schedule", "few").out.splitlines()
    assert lines[0].split() == ["ID", "SCHEDULE", "PLANNED", "RUN", "STATUS", "ATTEMPT", "FINISHED", "ERROR"]
    assert len(lines) == 5
    assert lines[3].endswith("the target said [500]")


def test_a_search_that_did_not_reach_the_end_says_so(filled: Fleetctl, monkeypatch: pytest.MonkeyPatch) -> None:
    assert filled("execution", "list", "--status", "failed").err == ""
    monkeypatch.setattr(views, "NEWEST_SEARCHED", 5)
    answer = filled("execution", "list", "--status", "failed", "--json")
    assert len(answer.json) < 4
    assert "only the newest 5 executions were searched" in answer.err
    assert filled("execution", "list", "--limit", "5").err == ""


def test_what_does_not_exist_is_refused(filled: Fleetctl) -> None:
    for arguments, code in (
        (["list", "--schedule", "nobody"], 3),
        (["list", "--before", "x"], 2),
        (["list", "--status", "lost"], 2),
        (["show", str(uuid4())], 3),
        (["show", "x"], 3),
        (["retry", "x"], 3),
        (["cancel", "x"], 3),
    ):
        assert filled("execution", *arguments).code == code, arguments


def test_show_has_the_attempts(filled: Fleetctl, sql: psycopg.Connection[Any]) -> None:
    [failed, *_] = filled.json("execution", "list", "--schedule", "few", "--status", "failed")
    sql.execute("INSERT INTO attempts VALUES (%s, 1, 'w-1', now(), now(), 'broken', 500, 'HTTP 500')", (failed["id"],))
    shown = filled.json("execution", "show", failed["id"])
    assert {name: shown[name] for name in FIELDS} == failed
    assert [(a["attempt"], a["outcome"], a["status_code"]) for a in shown["attempts"]] == [(1, "broken", 500)]
    text = filled("execution", "show", failed["id"]).out
    assert "the target said [500]" in text
    assert text.splitlines()[-1].endswith("HTTP 500")


def test_retry_makes_a_new_execution_of_the_same_planned_time(filled: Fleetctl) -> None:
    [failed, *_] = filled.json("execution", "list", "--schedule", "few", "--status", "failed")
    made = filled.json("execution", "retry", failed["id"])
    assert (made["run"], made["status"], made["retry_of"]) == ("retry-1", "emitted", failed["id"])
    assert made["scheduled_at"] == failed["scheduled_at"]
    again = filled("execution", "retry", made["id"])
    assert again.code == 4
    assert "only a finished one can be retried" in again.err


def test_cancel_is_final(filled: Fleetctl) -> None:
    [failed, *_] = filled.json("execution", "list", "--schedule", "few", "--status", "failed")
    assert filled("execution", "cancel", failed["id"]).code == 4
    made = filled.json("execution", "retry", failed["id"])
    answer = filled("execution", "cancel", made["id"])
    assert (answer.code, answer.out) == (0, f"execution {made['id']} of few is cancelled\n")
    assert filled.json("execution", "show", made["id"])["status"] == "cancelled"
    assert filled("execution", "cancel", made["id"]).code == 4
