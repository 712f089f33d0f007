"""Durations are read as people write them, and what cannot be read is refused with a sentence."""

from contextlib import suppress
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.duration import LONGEST, format_duration, parse_duration
from fleet.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", timedelta(seconds=30)),
        ("5m", timedelta(minutes=5)),
        ("6h", timedelta(hours=6)),
        ("1d", timedelta(days=1)),
        ("100ms", timedelta(milliseconds=100)),
        ("1h30m", timedelta(hours=1, minutes=30)),
        ("1s500ms", timedelta(seconds=1.5)),
        (" 30s\n", timedelta(seconds=30)),
        ("0", timedelta(0)),
        ("36500d", LONGEST),
    ],
)
def test_a_duration_is_read_as_written(text: str, expected: timedelta) -> None:
    assert parse_duration(text) == expected


@pytest.mark.parametrize(
    "text", ["30", "s", "1.5h", "30 s", "5M", "30m1h", "1h1h", "\u0663\u0660s", "1e3s", "+5s", "5s\x00", "∞"]
)
def test_what_is_not_a_duration_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(UsageError, match="is not a duration: write whole numbers with d, h, m, s or ms"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("  ", "is empty"),
        ("-5s", "is negative"),
        ("36501d", "longest is 36500d"),
        ("9" * 30 + "d", "too long"),
    ],
)
def test_an_empty_negative_or_huge_duration_says_so(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_duration(text)


def test_a_value_of_thousands_of_digits_is_cut_in_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration("9" * 10_000 + "s")
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", ["0s", "100ms", "60s", "90s", "5m", "1h30m", "1d", "30d", "1d1ms"])
def test_common_durations_are_written_as_people_write_them(text: str) -> None:
    assert format_duration(parse_duration(text)) == text


def test_a_negative_difference_is_written_with_a_minus() -> None:
    assert format_duration(timedelta(seconds=-5)) == "-5s"


@given(st.integers(min_value=0, max_value=LONGEST // timedelta(milliseconds=1)))
def test_every_duration_written_is_read_back(milliseconds: int) -> None:
    duration = timedelta(milliseconds=milliseconds)
    assert parse_duration(format_duration(duration)) == duration


@given(st.text(max_size=60))
def test_no_text_makes_the_reader_crash(text: str) -> None:
    with suppress(UsageError):
        assert timedelta(0) <= parse_duration(text) <= LONGEST
