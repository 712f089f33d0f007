"""The test an answer must pass to count as delivered: by default any 2xx."""

import re
from dataclasses import dataclass

from fleet.errors import UsageError

LONGEST_BODY = 1000
_RANGE = re.compile(r"([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?")


@dataclass(frozen=True, slots=True)
class SuccessTest:
    """`statuses` are ranges, both ends included; `body` is text that must stand in the answer."""

    statuses: tuple[tuple[int, int], ...] = ((200, 299),)
    body: str | None = None

    def why_not(self, status: int, body: bytes) -> str | None:
        """What is missing, or None when the answer passes."""
        if not any(low <= status <= high for low, high in self.statuses):
            return f"The target answered {status}."
        if self.body is not None and self.body.encode() not in body:
            return f"The target answered {status}, but not with the text that was expected."
        return None


ANY_2XX = SuccessTest()


def parse_statuses(text: str) -> tuple[tuple[int, int], ...]:
    """Read `200-299,304`."""
    ranges = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if low > high:
            raise UsageError(f"--expect-status {text!r} is not understood; write codes and ranges like 200-299,304")
        ranges.append((low, high))
    return tuple(ranges)


def success_test(expect_status: str | None, expect_body: str | None) -> SuccessTest:
    """The test of a target as it is stored."""
    if expect_body is not None and not 0 < len(expect_body) <= LONGEST_BODY:
        raise UsageError(f"--expect-body must be 1 to {LONGEST_BODY} characters long, got {len(expect_body)}")
    return SuccessTest(ANY_2XX.statuses if expect_status is None else parse_statuses(expect_status), expect_body)
