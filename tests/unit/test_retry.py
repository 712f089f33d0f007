"""What an execution becomes after each kind of attempt."""

import pytest

from fleet.domain.execution import AttemptOutcome, Status
from fleet.domain.retry import (
    Broken,
    Delivered,
    HandedBack,
    Lost,
    Outcome,
    Refused,
    RetryPolicy,
    TimedOutAttempt,
    Transition,
    after_attempt,
)

POLICY = RetryPolicy()
ONCE = RetryPolicy(at_most_once=True)


def test_a_delivered_attempt_ends_the_execution() -> None:
    assert after_attempt(1, Delivered(204), POLICY, 0) == Transition(
        Status.DELIVERED, AttemptOutcome.DELIVERED, None, 204, None, True
    )


def test_a_refused_attempt_fails_at_once_although_attempts_are_left() -> None:
    assert after_attempt(1, Refused("no", 404), POLICY, 0) == Transition(
        Status.FAILED, AttemptOutcome.REFUSED, "no", 404, None, True
    )


def test_a_broken_attempt_waits_for_its_back_off() -> None:
    assert after_attempt(2, Broken("down", 503), POLICY, 0) == Transition(
        Status.EMITTED, AttemptOutcome.BROKEN, "down", 503, 60.0, True
    )


def test_a_timed_out_attempt_waits_for_its_back_off() -> None:
    assert after_attempt(1, TimedOutAttempt("slow"), POLICY, 0) == Transition(
        Status.EMITTED, AttemptOutcome.TIMEOUT, "slow", None, 30.0, True
    )


def test_a_lost_attempt_is_tried_again_at_once() -> None:
    assert after_attempt(1, Lost("the worker went away"), POLICY, 0) == Transition(
        Status.EMITTED, AttemptOutcome.LOST, "lost: the worker went away", None, 0.0, True
    )


@pytest.mark.parametrize("policy", [POLICY, ONCE])
def test_work_handed_back_unsent_spends_no_attempt_even_when_only_one_is_allowed(policy: RetryPolicy) -> None:
    assert after_attempt(4, HandedBack(), policy, 0) == Transition(
        Status.EMITTED, AttemptOutcome.HANDED_BACK, None, None, 0.0, False
    )


@pytest.mark.parametrize("outcome", [Broken("down", 503, 10), TimedOutAttempt("slow"), Lost("gone")])
def test_the_last_attempt_fails_the_execution(outcome: Outcome) -> None:
    assert after_attempt(4, outcome, POLICY, 0).status is Status.FAILED
    assert after_attempt(4, outcome, POLICY, 0).retry_in is None


@pytest.mark.parametrize("outcome", [Broken("down", 503, 10), TimedOutAttempt("slow"), Lost("gone")])
def test_at_most_once_is_never_tried_again(outcome: Outcome) -> None:
    assert after_attempt(1, outcome, ONCE, 0).status is Status.FAILED


def test_a_lost_at_most_once_attempt_says_that_it_was_lost() -> None:
    assert (after_attempt(1, Lost("shutdown"), ONCE, 0).error or "").startswith("lost")


@pytest.mark.parametrize(("asked", "waited"), [(0.0, 0.0), (7.0, 7.0), (10.0**9, 86400.0), (-5.0, 0.0)])
def test_retry_after_overrides_the_back_off_up_to_a_day(asked: float, waited: float) -> None:
    assert after_attempt(1, Broken("busy", 429, asked), POLICY, 0.9).retry_in == waited


def test_the_back_off_doubles_up_to_its_cap() -> None:
    assert [RetryPolicy(cap=300).delay(attempt, 0) * 2 for attempt in (1, 2, 3, 4, 5)] == [60, 120, 240, 300, 300]


def test_a_list_of_delays_is_kept_exactly_and_its_last_one_repeats() -> None:
    policy = RetryPolicy(delays=(5.0, 50.0))

    assert [policy.delay(attempt, 0.3) for attempt in (1, 2, 3, 4)] == [5.0, 50.0, 50.0, 50.0]
