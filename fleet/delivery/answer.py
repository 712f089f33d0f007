"""What a target answered: whether that is a delivery, and how much of it is kept."""

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import orjson

from fleet.domain.retry import RETRY_AFTER_CAP, Broken, Delivered, Outcome, Refused
from fleet.domain.success import SuccessTest

# The head of an answer is kept with its attempt: enough to see what went wrong, little enough to keep every one.
KEPT = 4 * 1024
KEPT_HEADERS = 30

_RETRYABLE = frozenset({408, 425, 429})
_GONE = 410


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    """As much of it as was read, as it was sent: nothing is ever decompressed."""
    is_whole: bool
    seconds: float

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


def judge(answer: Answer, test: SuccessTest, now: datetime) -> Outcome:
    """What an attempt came to. A retry may mend what is missing from a 2xx, but not a plain refusal."""
    why_not = test.why_not(answer.status, answer.body)
    if why_not is None:
        return Delivered(answer.status)
    if answer.status in _RETRYABLE or answer.status >= 500 or 200 <= answer.status < 300:
        return Broken(why_not, answer.status, parse_retry_after(answer.header("retry-after"), _clock(answer, now)))
    return Refused(why_not, answer.status, gone=answer.status == _GONE)


def _clock(answer: Answer, now: datetime) -> datetime:
    """A Retry-After date is meant by the target's clock, and this worker's may be wrong."""
    try:
        said = parsedate_to_datetime(answer.header("date") or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return now
    return said if said.tzinfo else said.replace(tzinfo=UTC)


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds until the moment a Retry-After header names, at most a day; None when there is none to be read."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_CAP)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # HTTP dates are in GMT; the parser leaves the zone out when it is written as -0000.
    wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    return max(0.0, min(wait.total_seconds(), RETRY_AFTER_CAP))


def head(answer: Answer) -> str:
    """The part that is kept, as JSON: headers, the beginning of the body as text, and how long it took."""
    room = KEPT
    headers: dict[str, str] = {}
    for name, value in answer.headers[:KEPT_HEADERS]:
        room -= len(name) + len(value)
        if room < KEPT // 2:
            break
        headers[_storable(name)] = _storable(value)
    body = answer.body[: KEPT // 2].decode("utf-8", "replace")
    kept = {
        "headers": headers,
        "body": _storable(body),
        "truncated": not answer.is_whole or len(answer.body) > KEPT // 2,
        "ms": round(answer.seconds * 1000),
    }
    return orjson.dumps(kept).decode()


def _storable(text: str) -> str:
    """Postgres takes neither NUL nor lone surrogates."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()
