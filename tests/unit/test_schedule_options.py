"""What the options of `schedule add` and `update` mean, and the sentences that refuse them."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.schedule_options import (
    read_fields,
    read_instants,
    read_jitter,
    read_json,
    read_labels,
)
from fleet.cli.target_options import read_headers, read_target
from fleet.errors import UsageError

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
URL = "https://example.com/hook"


@pytest.mark.parametrize(
    ("option", "text", "field", "value"),
    [
        ("every", "1h30m", "interval_seconds", 5400),
        ("cron", "@daily", "cron_expression", "@daily"),
        ("tz", "Europe/Paris", "timezone", "Europe/Paris"),
        ("align", False, "align", False),
        ("max_runs", "3", "max_runs", 3),
        ("max_runs", "none", "max_runs", None),
        ("misfire_grace", "2m", "misfire_grace_seconds", 120),
        ("misfire_grace", "none", "misfire_grace_seconds", None),
        ("timeout", "1500ms", "timeout_seconds", 1.5),
        ("backoff", "10s", "backoff_seconds", [10.0]),
        ("backoff", "10s,1m,10m", "backoff_seconds", [10.0, 60.0, 600.0]),
        ("stale_timeout", "45s", "lease_seconds", 45.0),
        ("payload", '{"a": [1, null]}', "payload", {"a": [1, None]}),
        ("payload", "null", "payload", None),
        ("labels", ("team=a", "x="), "labels", {"team": "a", "x": ""}),
        ("metadata", '{"owner": "ada"}', "metadata", {"owner": "ada"}),
        ("note", "", "note", ""),
    ],
)
def test_an_option_becomes_its_field(option: str, text: Any, field: str, value: Any) -> None:
    assert read_fields({option: text}) == {field: value}


def test_what_is_not_given_changes_nothing() -> None:
    assert read_fields({"every": None, "labels": (), "align": None}) == {}


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("every", "-5s", "negative"),
        ("every", "1500ms", "whole seconds"),
        ("every", "soon", "not a duration"),
        ("max_runs", "-1", "whole number"),
        ("max_runs", "9" * 40, "whole number"),
        ("backoff", "10s,,1m", "empty"),
        ("metadata", "[1]", "JSON object"),
        ("labels", ("team",), "team=billing"),
        ("labels", ("=a",), "team=billing"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(option: str, text: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_fields({option: text})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": }', "line 1 column 7"),
        ("", "line 1 column 1"),
        ("[1]\n[2]", "line 2 column 1"),
        ("NaN", "no NaN"),
        ("[-Infinity]", "no -Infinity"),
        ("1e400", "too large"),
        ("9" * 5000, "too large"),
        ("[" * 100_000, "nests too deeply"),
        ('"\\u0000"', "NUL"),
        ('{"\\u0000": 1}', "NUL"),
        ('["\\ud800"]', "surrogate"),
    ],
)
def test_json_that_postgres_could_not_keep_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as refused:
        read_json(text, "--payload")
    assert "\n" not in str(refused.value)


def test_a_backslash_before_u0000_is_only_text() -> None:
    assert read_json(r'"\\u0000"', "--payload") == r"\u0000"


def test_a_payload_comes_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text(json.dumps({"grüße": "🚀"}), encoding="utf-8")
    assert read_fields({"payload": f"@{file}"}) == {"payload": {"grüße": "🚀"}}


def test_a_payload_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_fields({"payload": f"@{tmp_path / 'none.json'}"})
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_fields({"payload": f"@{binary}"})


@pytest.mark.parametrize(("text", "ms"), [("5s", 5000), ("250ms", 250), ("0", 0), ("10%", 3000), ("2.5%", 750)])
def test_jitter_is_a_duration_or_a_part_of_the_interval(text: str, ms: int) -> None:
    assert read_jitter(text, 30) == ms


def test_jitter_in_percent_needs_an_interval() -> None:
    with pytest.raises(UsageError, match="belongs to --every"):
        read_jitter("10%", None)


@pytest.mark.parametrize("text", ["-1%", "100%", "x%", "%"])
def test_a_percentage_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="percentage"):
        read_jitter(text, 30)


def test_instants_count_from_the_clock_they_are_given() -> None:
    assert read_instants({"now": True}, NOW) == {"run_at": NOW}
    assert read_instants({"at": "in 5m", "end": "none"}, NOW) == {"run_at": NOW + timedelta(minutes=5), "end_at": None}
    assert read_instants({"start": "2026-05-01T14:00:00+02:00"}, NOW) == {"start_at": NOW}
    assert read_instants({}, NOW) == {}


def test_at_and_now_exclude_each_other() -> None:
    with pytest.raises(UsageError, match="exactly one"):
        read_instants({"now": True, "at": "in 5m"}, NOW)


@pytest.mark.parametrize("text", ["tomorrow", "0001-01-01T00:00:00+14:00", "in five minutes", "none"])
def test_a_time_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_instants({"at": text}, NOW)


def test_a_target_is_posted_to_unless_told_otherwise() -> None:
    assert read_target({"url": URL}) == {"kind": "http", "url": URL, "method": "POST", "headers": {}}


def test_an_edited_target_keeps_what_is_not_given() -> None:
    before = read_target({"url": URL, "method": "put", "headers": ("Accept: text/plain",)})
    assert read_target({"url": URL + "/2"}, before) == {**before, "url": URL + "/2"}
    assert read_target({"headers": ("X-A:1", "X-B: a: b ")}, before)["headers"] == {"X-A": "1", "X-B": "a: b"}


@pytest.mark.parametrize("given", [{}, {"url": ""}, {"url": "", "method": "GET"}])
def test_a_target_needs_an_address(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--url"):
        read_target(given, None)


def test_a_header_without_colon_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError, match="no colon") as refused:
        read_headers(["Bearer s3cret"])
    assert "s3cret" not in str(refused.value)


def test_a_header_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        read_headers(["A: 1", "A: 2"])


def test_a_label_may_hold_an_equals_sign() -> None:
    assert read_labels(["query=a=b"]) == {"query": "a=b"}


def test_what_counts_as_delivered_is_kept_with_the_target_and_can_be_lifted() -> None:
    target = read_target({"url": URL, "expect_status": "200-204,304", "expect_body": "done"})
    assert (target["expect_status"], target["expect_body"]) == ("200-204,304", "done")
    assert read_target({"method": "PUT"}, target)["expect_body"] == "done"
    assert "expect_body" not in read_target({"expect_body": "none"}, target)


@pytest.mark.parametrize("text", ["", "abc", "99", "600", "300-200", "200,", "2xx", "200-", "²00"])
def test_statuses_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expect-status"):
        read_target({"url": URL, "expect_status": text})
