"""Laws of retrying that hold for every policy and every outcome."""

from hypothesis import given
from hypothesis import strategies as st

from fleet.domain.execution import TRANSITIONS, Status
from fleet.domain.retry import (
    ERROR_LENGTH,
    RETRY_AFTER_CAP,
    Broken,
    Delivered,
    HandedBack,
    Lost,
    Outcome,
    Refused,
    RetryPolicy,
    TimedOutAttempt,
    after_attempt,
)

codes = st.none() | st.integers(100, 599)
texts = st.text(max_size=50) | st.text(max_size=50).map(lambda text: (text or "x") * ERROR_LENGTH)
seconds = st.floats(0, 10**7)
chances = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 5000)
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Delivered, codes),
    st.builds(Refused, texts, codes, st.booleans()),
    st.builds(Broken, texts, codes, st.none() | seconds),
    st.builds(TimedOutAttempt, texts),
    st.builds(Lost, texts),
    st.just(HandedBack()),
)
policies = st.builds(
    RetryPolicy,
    max_attempts=st.integers(1, 5000),
    base=seconds,
    cap=seconds,
    delays=st.lists(seconds, max_size=5).map(tuple),
    at_most_once=st.booleans(),
)


@given(attempts, outcomes, policies, chances)
def test_an_attempt_leads_only_where_an_execution_in_progress_may_go(
    attempt: int, outcome: Outcome, policy: RetryPolicy, chance: float
) -> None:
    assert after_attempt(attempt, outcome, policy, chance).status in TRANSITIONS[Status.IN_PROGRESS]


@given(attempts, outcomes, policies, chances)
def test_it_waits_exactly_when_it_is_to_be_tried_again_and_never_for_ever(
    attempt: int, outcome: Outcome, policy: RetryPolicy, chance: float
) -> None:
    after = after_attempt(attempt, outcome, policy, chance)

    assert (after.retry_in is not None) == (after.status is Status.EMITTED)
    assert 0 <= (after.retry_in or 0.0) <= max(RETRY_AFTER_CAP, policy.cap, *policy.delays, 0.0)


@given(attempts, outcomes, policies, chances)
def test_no_attempt_is_spent_beyond_the_last(
    attempt: int, outcome: Outcome, policy: RetryPolicy, chance: float
) -> None:
    after = after_attempt(attempt, outcome, policy, chance)

    if after.spends_attempt and (policy.at_most_once or attempt >= policy.max_attempts):
        assert after.status.is_final


@given(attempts, outcomes, policies, chances)
def test_an_error_is_always_one_short_line_that_postgres_can_store(
    attempt: int, outcome: Outcome, policy: RetryPolicy, chance: float
) -> None:
    error = after_attempt(attempt, outcome, policy, chance).error or ""

    assert len(error) <= ERROR_LENGTH
    assert len(error.splitlines()) <= 1
    assert b"\0" not in error.encode()


@given(attempts, seconds, seconds, chances)
def test_the_back_off_is_spread_over_its_upper_half(attempt: int, base: float, cap: float, chance: float) -> None:
    whole = RetryPolicy(base=base, cap=cap).delay(attempt, 0) * 2

    assert whole / 2 <= RetryPolicy(base=base, cap=cap).delay(attempt, chance) <= whole <= cap
