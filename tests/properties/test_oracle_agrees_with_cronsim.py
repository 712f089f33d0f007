"""The oracle against cronsim, around every change of the clock from 2024 to 2030.

cronsim is the generator's library, so it appears only here: the oracle itself must not know it.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from itertools import takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.ledger.oracle import CronOracle

ZONES = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "America/Havana",
    "America/New_York",
    "America/Nuuk",
    "America/Santiago",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Kathmandu",
    "Atlantic/Azores",
    "Australia/Lord_Howe",
    "Europe/Paris",
]
SPAN = timedelta(days=2)
HOUR = timedelta(hours=1)


def offset(at: datetime, zone: ZoneInfo) -> timedelta:
    found = at.astimezone(zone).utcoffset()
    assert found is not None
    return found


@cache
def hours_of_change(name: str) -> list[datetime]:
    """The UTC hours in which the zone's offset changes; one ordinary hour for a zone that never does."""
    zone = ZoneInfo(name)
    hours = [datetime(2024, 1, 1, tzinfo=UTC) + HOUR * n for n in range(7 * 366 * 24)]
    changes = [at for at in hours if offset(at, zone) != offset(at + HOUR, zone)]
    return changes or [datetime(2025, 3, 30, tzinfo=UTC)]


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> str:
    first, last = sorted((draw(st.integers(low, high)), draw(st.integers(low, high))))
    # cronsim reads `5-5/15` as `5/15`; by the rule of ranges it is 5 alone, so a range with a step has two ends here.
    wide_last = max(last, first + 1) if first < high else last
    step = draw(st.integers(1, 20))
    stepped_range = f"{first}-{wide_last}/{step}" if wide_last > first else str(first)
    return draw(
        st.sampled_from(
            ["*", f"*/{step}", str(first), f"{first},{last}", f"{first}-{last}", f"{first}/{step}", stepped_range]
        )
    )


days_of_month = st.one_of(st.just("*"), fields(1, 31), st.sampled_from(["L", "LW", "L,15"]))
weekdays = st.one_of(st.just("*"), fields(0, 7), st.sampled_from(["5L", "0#3", "7#2", "mon-FRI", "Sun", "1#1,5L"]))
months = st.one_of(st.just("*"), st.sampled_from(["MAR-apr", "9,OCT,11", "2-5"]))
clock_fields = st.tuples(fields(0, 59), fields(0, 23)).map(" ".join)
seconds = st.sampled_from(["", "", "", "0 ", "30 ", "*/20 "])


@st.composite
def cases(draw: st.DrawFn) -> tuple[str, str, datetime]:
    expression = draw(seconds) + " ".join(draw(st.tuples(clock_fields, days_of_month, months, weekdays)))
    zone = draw(st.sampled_from(ZONES))
    change = draw(st.sampled_from(hours_of_change(zone)))
    return expression, zone, change - timedelta(seconds=draw(st.integers(0, 36 * 3600)))


def by_cronsim(expression: str, zone: str, start: datetime) -> list[datetime]:
    runs = (at.astimezone(UTC) for at in CronSim(expression, start.astimezone(ZoneInfo(zone))))
    # Started inside the second pass of a doubled hour it goes back to the first pass; those times are long gone.
    return [at for at in takewhile(lambda at: at <= start + SPAN, runs) if at > start]


def follows_clock(expression: str) -> bool:
    parts = expression.split()
    return len(parts) == 6 or parts[0].startswith("*") or parts[1].startswith("*")


def cronsim_is_wrong(expression: str, zone: str, start: datetime) -> bool:
    """The two places where cronsim departs from the clock as it runs, both only for wildcard expressions.

    1. It steps from hour to hour by 3600 s and keeps the minute, so a change by half an hour (Lord Howe) makes it
       begin the hours after the change at :30 and lose what was planned from :00 to :29.
    2. It jumps to the next matching day by naming 00:00, also where that midnight is in a gap: it then plans the
       missing 00:00, or goes on an hour too late and loses the first hour after the gap.
    """
    if not follows_clock(expression):
        return False
    zone_info = ZoneInfo(zone)
    return zone == "Australia/Lord_Howe" or any(
        midnight_is_missing(start.astimezone(zone_info).date() + timedelta(days=n), zone_info) for n in range(4)
    )


def midnight_is_missing(day: date, zone: ZoneInfo) -> bool:
    midnight = datetime.combine(day, time(), tzinfo=zone)
    return midnight.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != midnight.replace(tzinfo=None)


@settings(max_examples=600, deadline=None)
@given(cases())
def test_the_oracle_plans_what_cronsim_plans(case: tuple[str, str, datetime]) -> None:
    expression, zone, start = case
    assume(not cronsim_is_wrong(expression, zone, start))
    assert CronOracle(expression, zone).between(start, start + SPAN) == by_cronsim(expression, zone, start)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_the_two_ways_of_the_oracle_agree_on_every_minute(case: tuple[str, str, datetime]) -> None:
    # Needs no cronsim, so here nothing is left out: half-hour changes and missing midnights included.
    expression, zone, start = case
    oracle = CronOracle(expression, zone)
    begin = (start + timedelta(hours=18)).replace(second=0)
    end = begin + timedelta(hours=12)
    between = oracle.between(begin, end)
    walked = [at for n in range(1, 12 * 180 + 1) if oracle.matches(at := begin + timedelta(seconds=20 * n))]
    assert [at for at in between if at.second % 20 == 0] == walked
    assert all(oracle.matches(at) for at in between)


@settings(max_examples=100, deadline=None)
@given(cases(), st.data())
def test_a_time_taken_out_of_the_middle_is_found_missing(case: tuple[str, str, datetime], data: st.DataObject) -> None:
    expression, zone, start = case
    oracle = CronOracle(expression, zone)
    times = oracle.between(start, start + SPAN)
    assert oracle.check(times) == []
    assume(len(times) >= 3)
    gone = data.draw(st.integers(1, len(times) - 2))
    [problem] = oracle.check(times[:gone] + times[gone + 1 :])
    assert problem.endswith("is missing")
