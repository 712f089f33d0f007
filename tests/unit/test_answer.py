"""What counts as delivered, and what is kept of an answer."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from fleet.delivery.answer import KEPT, Answer, head, judge
from fleet.domain.retry import Broken, Delivered, Refused
from fleet.domain.success import ANY_2XX, SuccessTest, success_test

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def answer(
    status: int = 200, body: bytes = b"", headers: tuple[tuple[str, str], ...] = (), whole: bool = True
) -> Answer:
    return Answer(status, headers, body, whole, 0.0123)


@pytest.mark.parametrize(
    ("test", "status", "body", "outcome"),
    [
        (ANY_2XX, 204, b"", Delivered(204)),
        (success_test("304,200-201", None), 304, b"", Delivered(304)),
        (success_test("200", None), 202, b"", Broken("The target answered 202.", 202)),
        (success_test("404", None), 410, b"", Refused("The target answered 410.", 410, gone=True)),
        (success_test(None, "done"), 200, b"all done", Delivered(200)),
        (success_test(None, "grün"), 200, "grün".encode(), Delivered(200)),
        (success_test("500", "x"), 500, b"x", Delivered(500)),
    ],
)
def test_an_answer_is_judged_by_the_targets_own_test(
    test: SuccessTest, status: int, body: bytes, outcome: object
) -> None:
    assert judge(answer(status, body), test, NOW) == outcome


def test_a_2xx_without_the_expected_text_is_tried_again() -> None:
    outcome = judge(answer(200, b"not yet"), success_test(None, "done"), NOW)
    assert isinstance(outcome, Broken)
    assert "expected" in outcome.reason


def test_a_retry_after_date_is_meant_by_the_targets_own_clock() -> None:
    theirs = NOW + timedelta(hours=2)
    headers = (("Date", format_datetime(theirs)), ("Retry-After", format_datetime(theirs + timedelta(seconds=90))))
    outcome = judge(answer(503, headers=headers), ANY_2XX, NOW)
    assert outcome == Broken("The target answered 503.", 503, 90.0)


def test_the_kept_head_is_bounded_and_can_always_be_stored() -> None:
    headers = tuple((f"X-{n}", "v" * 300) for n in range(100))
    kept = head(answer(500, b"\0\xff" + b"b" * 100_000, headers))
    assert len(kept.encode()) < 2 * KEPT
    assert "\\u0000" not in kept
    parsed = json.loads(kept)
    assert parsed["truncated"] is True
    assert parsed["ms"] == 12
    assert parsed["body"].startswith("\ufffd\ufffdbbb")
    assert 0 < len(parsed["headers"]) < 30


def test_a_small_answer_is_kept_whole() -> None:
    assert json.loads(head(answer(200, b"ok", (("Server", "x"),)))) == {
        "headers": {"Server": "x"},
        "body": "ok",
        "truncated": False,
        "ms": 12,
    }
