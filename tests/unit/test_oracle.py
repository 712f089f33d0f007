from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from fleet.errors import UsageError
from fleet.ledger.oracle import CronOracle


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def planned(expression: str, zone: str, after: str, until: str) -> list[str]:
    times = CronOracle(expression, zone).between(instant(after), instant(until))
    return [at.strftime("%m-%d %H:%M") for at in times]


def local_days(expression: str, year: int, month: int) -> list[int]:
    """The days of a month on which an expression that fires at noon is planned."""
    start = datetime(year, month, 1, tzinfo=UTC)
    times = CronOracle(f"0 12 {expression}", "UTC").between(start, start + timedelta(days=31))
    return [at.day for at in times if at.month == month]


# --- the missing hour, for expressions that name times of day


def test_paris_runs_a_skipped_time_right_after_the_gap() -> None:
    assert planned("30 2 * * *", "Europe/Paris", "2026-03-28", "2026-03-31") == [
        "03-28 01:30",
        "03-29 01:00",
        "03-30 00:30",
    ]


def test_paris_merges_all_skipped_times_with_the_one_that_really_falls_there() -> None:
    assert planned("0,20,40 2,3 * * *", "Europe/Paris", "2026-03-29", "2026-03-29 23:00") == [
        "03-29 01:00",
        "03-29 01:20",
        "03-29 01:40",
    ]


def test_new_york_runs_a_skipped_time_at_three_local() -> None:
    assert planned("15 2 * * *", "America/New_York", "2026-03-08", "2026-03-09") == ["03-08 07:00"]


def test_lord_howe_skips_only_half_an_hour() -> None:
    assert planned("0,15,30,45 2 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", "2026-10-04 12:00") == [
        "10-03 15:30",
        "10-03 15:45",
    ]


def test_azores_runs_the_skipped_midnight_at_one_local() -> None:
    assert planned("@daily", "Atlantic/Azores", "2026-03-28 12:00", "2026-03-30 12:00") == [
        "03-29 01:00",
        "03-30 00:00",
    ]


def test_sao_paulo_runs_the_skipped_midnight_of_2018_at_one_local() -> None:
    assert planned("@midnight", "America/Sao_Paulo", "2018-11-03 12:00", "2018-11-05 12:00") == [
        "11-04 03:00",
        "11-05 02:00",
    ]


def test_casablanca_runs_a_time_skipped_at_the_end_of_ramadan_once() -> None:
    assert planned("30 2 * * *", "Africa/Casablanca", "2026-03-21 12:00", "2026-03-23 12:00") == [
        "03-22 02:00",
        "03-23 01:30",
    ]


def test_apia_runs_a_day_that_never_was_when_the_next_begins() -> None:
    assert planned("0 12 30 12 *", "Pacific/Apia", "2011-12-01", "2012-01-31") == ["12-30 10:00"]


# --- the doubled hour, for expressions that name times of day


@pytest.mark.parametrize(
    ("zone", "expression", "day", "first_time"),
    [
        ("Europe/Paris", "30 2 * * *", "2026-10-25", "10-25 00:30"),
        ("America/New_York", "30 1 * * *", "2026-11-01", "11-01 05:30"),
        ("Australia/Lord_Howe", "45 1 * * *", "2026-04-04", "04-04 14:45"),
        ("Atlantic/Azores", "30 0 * * *", "2026-10-25", "10-25 00:30"),
        ("America/Sao_Paulo", "30 23 * * *", "2018-02-18", "02-18 01:30"),
        ("Africa/Casablanca", "30 2 * * *", "2026-02-15", "02-15 01:30"),
    ],
)
def test_a_time_that_comes_twice_runs_the_first_time(zone: str, expression: str, day: str, first_time: str) -> None:
    assert planned(expression, zone, day, f"{day} 20:00") == [first_time]


# --- wildcard expressions follow the clock


def test_a_wildcard_has_both_of_the_doubled_hour() -> None:
    assert planned("30 * * * *", "Europe/Paris", "2026-10-24 23:45", "2026-10-25 02:45") == [
        "10-25 00:30",
        "10-25 01:30",
        "10-25 02:30",
    ]
    assert planned("*/30 2 * * *", "Europe/Paris", "2026-10-25", "2026-10-25 12:00") == [
        "10-25 00:30",
        "10-25 01:00",
        "10-25 01:30",
    ]


def test_a_wildcard_has_none_of_the_missing_hour() -> None:
    assert planned("*/30 2 * * *", "Europe/Paris", "2026-03-29", "2026-03-29 12:00") == []


def test_a_wildcard_has_none_of_a_missing_midnight() -> None:
    assert planned("*/30 0 * * *", "Atlantic/Azores", "2026-03-28 12:00", "2026-03-29 12:00") == []


def test_a_wildcard_has_every_minute_of_lord_howes_short_hour_and_the_one_after_it() -> None:
    assert planned("*/15 2,3 * * *", "Australia/Lord_Howe", "2026-10-03 12:00", "2026-10-03 20:00") == [
        "10-03 15:30",
        "10-03 15:45",
        "10-03 16:00",
        "10-03 16:15",
        "10-03 16:30",
        "10-03 16:45",
    ]


def test_a_piece_of_yesterday_that_comes_again_after_midnight_keeps_the_order() -> None:
    # St John's put its clock back at 00:01 until 2011, so 23:01 of the day before came again.
    times = CronOracle("* * * * *", "America/St_Johns").between(
        instant("2010-11-07 02:00"), instant("2010-11-07 04:00")
    )
    assert times == [instant("2010-11-07 02:00") + timedelta(minutes=n) for n in range(1, 121)]


def test_seconds_make_an_expression_follow_the_clock() -> None:
    assert planned("0 30 2 * * *", "Europe/Paris", "2026-03-29", "2026-03-29 12:00") == []
    assert len(planned("0 30 2 * * *", "Europe/Paris", "2026-10-25", "2026-10-25 12:00")) == 2


def test_kathmandus_odd_offset_is_kept() -> None:
    assert planned("0 9 * * *", "Asia/Kathmandu", "2026-05-01", "2026-05-02") == ["05-01 03:15"]


# --- syntax


@pytest.mark.parametrize(
    ("minute", "expected"),
    [
        ("*/20", [0, 20, 40]),
        ("10-40/10", [10, 20, 30, 40]),
        ("5/15", [5, 20, 35, 50]),
        ("5-5/15", [5]),
        ("1,3,2-4", [1, 2, 3, 4]),
    ],
)
def test_lists_ranges_and_steps(minute: str, expected: list[int]) -> None:
    start = instant("2026-05-01 11:59")
    times = CronOracle(f"{minute} 12 * * *", "UTC").between(start, start + timedelta(hours=2))
    assert [at.minute for at in times] == expected


@pytest.mark.parametrize(
    ("days", "expected"),
    [
        ("L * *", [31]),
        ("LW * *", [29]),
        ("L,1 * *", [1, 31]),
        ("* * 5L", [29]),
        ("* * 5#3", [15]),
        ("* * Fri#5", [29]),
        ("* may sun", [3, 10, 17, 24, 31]),
        ("* 5 0", [3, 10, 17, 24, 31]),
        ("* 5 7", [3, 10, 17, 24, 31]),
        ("* JUN-AUG *", []),
        ("13 * 5", [1, 8, 13, 15, 22, 29]),
        ("*/2 * 5", [1, 15, 29]),
        ("13 * */5", []),
        ("13 * *", [13]),
    ],
)
def test_days_of_may_2026(days: str, expected: list[int]) -> None:
    assert local_days(days, 2026, 5) == expected


def test_the_last_day_knows_leap_years() -> None:
    assert local_days("L * *", 2028, 2) == [29]
    assert local_days("L * *", 2026, 2) == [28]


@pytest.mark.parametrize(
    ("macro", "count"),
    [("@hourly", 8760), ("@Daily", 365), ("@weekly", 52), ("@monthly", 12), ("@yearly", 1), ("@annually", 1)],
)
def test_macros_fire_as_often_as_they_say(macro: str, count: int) -> None:
    assert len(CronOracle(macro, "UTC").between(instant("2025-12-31 23:59"), instant("2026-12-31 23:59"))) == count


def test_an_impossible_date_is_never_planned() -> None:
    assert planned("0 0 30 2 *", "UTC", "2024-01-01", "2034-01-01") == []


@pytest.mark.parametrize(
    "expression",
    [
        *("", "* * * *", "* * * * * * *", "@reboot"),
        *("60 * * * *", "5-1 * * * *", "*/0 * * * *", "*/ * * * *", "a * * * *", "1,, * * * *", "\u0663 * * * *"),
        *("* * 0 * *", "* * * 13 *", "* * * * 8", "* * * * 5#6", "* * * * #1", "* * * * L"),
    ],
)
def test_nonsense_is_refused(expression: str) -> None:
    with pytest.raises(UsageError):
        CronOracle(expression, "UTC")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd"])
def test_an_unknown_zone_is_refused(zone: str) -> None:
    with pytest.raises(UsageError, match="time zone"):
        CronOracle("* * * * *", zone)


# --- edges and the check


def test_the_range_excludes_its_start_and_includes_its_end() -> None:
    assert planned("0 * * * *", "UTC", "2026-05-01 01:00", "2026-05-01 03:00") == ["05-01 02:00", "05-01 03:00"]
    assert planned("0 * * * *", "UTC", "2026-05-01 03:00", "2026-05-01 01:00") == []


def test_an_instant_inside_a_second_is_never_planned() -> None:
    oracle = CronOracle("* * * * * *", "UTC")
    assert oracle.matches(instant("2026-05-01"))
    assert not oracle.matches(instant("2026-05-01").replace(microsecond=1))


def test_an_instant_may_be_given_in_any_zone() -> None:
    assert CronOracle("0 9 * * *", "Europe/Paris").matches(datetime(2026, 5, 1, 16, tzinfo=ZoneInfo("Asia/Tokyo")))


YEAR = (instant("2026-01-01"), instant("2027-01-01"))


def test_the_oracles_own_times_have_no_problem() -> None:
    oracle = CronOracle("30 2 * * *", "Europe/Paris")
    assert oracle.check(oracle.between(*YEAR)) == []
    assert oracle.check([]) == []


def test_a_missing_time_is_named() -> None:
    oracle = CronOracle("30 2 * * *", "Europe/Paris")
    times = oracle.between(*YEAR)
    [problem] = oracle.check(times[:100] + times[101:])
    assert problem == "2026-04-11T00:30:00Z is a planned time of '30 2 * * *' in Europe/Paris and is missing"


def test_a_time_that_is_not_planned_is_named() -> None:
    oracle = CronOracle("30 2 * * *", "Europe/Paris")
    times = oracle.between(*YEAR)
    wrong = times[7] + timedelta(microseconds=1)
    [problem] = oracle.check([*times[:8], wrong, *times[8:]])
    assert problem == "2026-01-08T01:30:00.000001Z is not a planned time of '30 2 * * *' in Europe/Paris"


def test_a_first_time_off_the_grid_is_named() -> None:
    [problem] = CronOracle("0 * * * *", "UTC").check([instant("2026-05-01 00:00:01")])
    assert "is not a planned time" in problem


def test_times_that_repeat_or_go_back_are_named() -> None:
    oracle = CronOracle("0 * * * *", "UTC")
    one, two, three = oracle.between(instant("2026-05-01"), instant("2026-05-01 03:00"))
    assert oracle.check([one, two, two, three]) == [
        "2026-05-01T02:00:00Z follows 2026-05-01T02:00:00Z: planned times of '0 * * * *' in UTC must increase"
    ]
    assert len(oracle.check([one, three, two])) == 1


def test_a_list_that_is_wrong_all_over_gives_only_the_first_problems() -> None:
    problems = CronOracle("* * * * * *", "UTC").check([instant("2026-01-01"), instant("2036-01-01")])
    assert len(problems) == 5
    assert problems[0].startswith("2026-01-01T00:00:01Z is a planned time")
