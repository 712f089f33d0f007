"""What one pass of the generator decides for a schedule whose rule Python computes."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fleet.domain import planning
from fleet.domain.planning import Policy, plan
from fleet.domain.rule import Rule

START = datetime(2026, 3, 1, tzinfo=UTC)
RULE = Rule(anchor_at=START, start_at=START, cron_expression="* * * * *")
POLICY = Policy(
    catch_up="latest",
    catch_up_window=timedelta(days=1),
    misfire_grace=timedelta(seconds=60),
    jitter=timedelta(0),
    max_plans=100,
)

TEN = timedelta(minutes=10)


def minute(n: int) -> datetime:
    return START + timedelta(minutes=n)


def test_within_the_grace_everything_runs() -> None:
    made = plan(RULE, minute(0), minute(1), minute(2), POLICY)
    assert (made.skipped, made.ticks, made.cursor) == (0, [minute(0), minute(1), minute(2)], minute(3))


@pytest.mark.parametrize(("catch_up", "skipped"), [("latest", 8), ("none", 9), ("all", 0)])
def test_beyond_the_grace_catch_up_decides(catch_up: str, skipped: int) -> None:
    made = plan(RULE, minute(0), minute(10), minute(11), replace(POLICY, catch_up=catch_up))
    assert made.skipped == skipped
    assert made.ticks == [minute(n) for n in range(skipped, 12)]
    assert (made.first_skipped, made.last_skipped) == ((minute(0), minute(skipped - 1)) if skipped else (None, None))


def test_all_reaches_no_further_back_than_its_window() -> None:
    made = plan(RULE, minute(0), minute(100), minute(100), replace(POLICY, catch_up="all", catch_up_window=TEN))
    assert (made.skipped, made.ticks[0]) == (90, minute(90))


def test_a_pass_makes_no_more_than_it_may_and_the_next_goes_on() -> None:
    made = plan(RULE, minute(0), minute(0), minute(9), replace(POLICY, max_plans=4))
    assert (made.ticks[-1], made.cursor) == (minute(3), minute(4))


def test_the_budget_of_max_runs_caps() -> None:
    made = plan(RULE, minute(0), minute(0), minute(9), replace(POLICY, budget=2))
    assert (len(made.ticks), made.capped, made.cursor) == (2, True, minute(2))


@pytest.mark.parametrize("missed", [3, 4, 5, 8, 9])
def test_the_newest_missed_one_runs_however_the_passes_are_cut(monkeypatch: pytest.MonkeyPatch, missed: int) -> None:
    monkeypatch.setattr(planning, "PASS_LIMIT", 4)
    now = minute(missed) + timedelta(seconds=30)  # minute(missed - 1) is 90 s late, minute(missed) only 30 s
    cursor: datetime | None = minute(0)
    ticks: list[datetime] = []
    skipped = 0
    while cursor is not None and cursor <= now:
        made = plan(RULE, cursor, now, now, POLICY)
        ticks, skipped, cursor = ticks + made.ticks, skipped + made.skipped, made.cursor
    assert ticks == [minute(missed - 1), minute(missed)]
    assert skipped == missed - 1
