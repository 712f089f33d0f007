"""What an execution becomes once its attempt is over: delivered, failed, or tried again and when."""

from dataclasses import dataclass
from typing import assert_never

from fleet.domain.execution import AttemptOutcome, Status

RETRY_AFTER_CAP = 24 * 3600.0
ERROR_LENGTH = 2_000

# Enough doublings to reach any cap; one more would only risk overflowing a float.
_MOST_DOUBLINGS = 63


@dataclass(frozen=True, slots=True)
class Delivered:
    """The target's success test passed."""

    status_code: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """The target understood and said no: asking again would not help. `gone` says it never will want to be asked."""

    reason: str
    status_code: int | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Broken:
    """The attempt failed in a way that may pass. `retry_after` is when the target asked to be tried again."""

    reason: str
    status_code: int | None = None
    retry_after: float | None = None


@dataclass(frozen=True, slots=True)
class TimedOutAttempt:
    """The attempt's time ran out; the target may or may not have done the work."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The attempt was sent, and its result will never be known."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The attempt was never sent, so it is as if it had not been made."""


Outcome = Delivered | Refused | Broken | TimedOutAttempt | Lost | HandedBack


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often an execution is tried and how long it waits in between, in seconds."""

    max_attempts: int = 4
    base: float = 60.0
    cap: float = 3600.0
    delays: tuple[float, ...] = ()
    at_most_once: bool = False

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this attempt, the first being 1; `chance` in [0, 1) spreads the back-off.

        A list is taken at its word: whoever wrote the times out meant those times.
        """
        if self.delays:
            return self.delays[min(attempt, len(self.delays)) - 1]
        backoff = min(self.cap, self.base * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))
        return backoff * (0.5 + chance / 2)

    def is_last(self, attempt: int) -> bool:
        """Whether no attempt may follow this one."""
        return self.at_most_once or attempt >= self.max_attempts


@dataclass(frozen=True, slots=True)
class Transition:
    """What is written about an attempt and its execution; `retry_in` is set when it waits to be tried again."""

    status: Status
    outcome: AttemptOutcome
    error: str | None
    status_code: int | None
    retry_in: float | None
    spends_attempt: bool


def after_attempt(attempt: int, outcome: Outcome, policy: RetryPolicy, chance: float) -> Transition:
    """Decide what an execution becomes now that its attempt is over."""
    match outcome:
        case Delivered(status_code):
            return Transition(Status.DELIVERED, AttemptOutcome.DELIVERED, None, status_code, None, True)
        case Refused(reason, status_code):
            return _failed(AttemptOutcome.REFUSED, reason, status_code)
        case Broken(reason, status_code) if policy.is_last(attempt):
            return _failed(AttemptOutcome.BROKEN, reason, status_code)
        case Broken(reason, status_code, retry_after):
            asked = None if retry_after is None else max(0.0, min(retry_after, RETRY_AFTER_CAP))
            wait = policy.delay(attempt, chance) if asked is None else asked
            return _again(AttemptOutcome.BROKEN, reason, wait, status_code)
        case TimedOutAttempt(reason) if policy.is_last(attempt):
            return _failed(AttemptOutcome.TIMEOUT, reason)
        case TimedOutAttempt(reason):
            return _again(AttemptOutcome.TIMEOUT, reason, policy.delay(attempt, chance))
        case Lost(reason) if policy.is_last(attempt):
            return _failed(AttemptOutcome.LOST, f"lost: {reason}")
        case Lost(reason):
            # The target is not known to be ill: only this worker went away, so nothing is gained by waiting.
            return _again(AttemptOutcome.LOST, f"lost: {reason}", 0.0)
        case HandedBack():
            return Transition(Status.EMITTED, AttemptOutcome.HANDED_BACK, None, None, 0.0, False)
        case _:
            assert_never(outcome)


def _failed(outcome: AttemptOutcome, reason: str, status_code: int | None = None) -> Transition:
    return Transition(Status.FAILED, outcome, one_line(reason), status_code, None, True)


def _again(outcome: AttemptOutcome, reason: str, retry_in: float, status_code: int | None = None) -> Transition:
    return Transition(Status.EMITTED, outcome, one_line(reason), status_code, retry_in, True)


def one_line(text: str) -> str:
    """Make a reason storable: targets put anything in it, and Postgres takes neither NUL nor lone surrogates."""
    storable = text.replace("\0", " ").encode("utf-8", "replace").decode()
    return " ".join(storable.split())[:ERROR_LENGTH].rstrip()
