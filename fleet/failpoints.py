"""Named places between two steps where a test can make a process die, freeze or fail. Inert unless armed.

    FLEET_FAILPOINTS="ticker.after_emit=die@3; dispatcher.after_lease=stall:4@2; results.before_finish=raise%0.05"

    die       SIGKILL to the process itself: nothing runs after it, as with kill -9 or a power cut
    stall:S   the whole process stands still for S seconds, as with SIGSTOP or a long pause of the machine
    raise     an error at that place
    @N        at the N-th time only;   %P   with probability P each time;   neither: every time

What is armed is read once, at import. A process that has nothing armed pays one look at an empty table per place.
"""

import os
import random
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fleet.errors import UsageError

VARIABLE = "FLEET_FAILPOINTS"
SEED = "FLEET_FAILPOINT_SEED"

NAMES = (
    "loop.before_step",
    "loop.after_step",
    "loop.before_beat",
    "generator.before_intervals",
    "generator.after_intervals",
    "generator.after_take",
    "generator.before_commit",
    "generator.after_commit",
    "ticker.before_emit",
    "ticker.after_emit",
    "dispatcher.before_lease",
    "dispatcher.after_lease",
    "dispatcher.before_renew",
    "dispatcher.after_renew",
    "http.before_connect",
    "http.before_send",
    "http.after_headers",
    "http.after_body",
    "dispatcher.after_answer",
    "results.before_finish",
    "results.after_finish",
    "reconciler.before_expire",
    "reconciler.after_expire",
    "cleanup.before_retention",
    "cleanup.after_retention",
    "schedule.after_lock",
    "schedule.after_unplan",
    "schedule.before_commit",
)


class FailpointError(Exception):
    """Raised at an armed place."""


@dataclass
class Armed:
    action: str
    seconds: float = 0.0
    at: int | None = None
    probability: float = 1.0
    hits: int = 0

    def is_due(self, chance: float) -> bool:
        self.hits += 1
        return self.hits == self.at if self.at is not None else chance < self.probability


def hit(name: str) -> None:
    """Do what is armed at this place, if anything is."""
    if _armed and (armed := _armed.get(name)) is not None and armed.is_due(_random.random()):
        _act(name, armed)


def _act(name: str, armed: Armed) -> None:
    if armed.action == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if armed.action == "stall":
        time.sleep(armed.seconds)
    if armed.action == "raise":
        raise FailpointError(f"failpoint {name}")


def parse(text: str) -> dict[str, Armed]:
    """Read what is armed; a place or an action that does not exist is an error, or a test would prove nothing."""
    return dict(_parse_one(part.strip()) for part in text.split(";") if part.strip())


def _parse_one(part: str) -> tuple[str, Armed]:
    name, _, action = (word.strip() for word in part.partition("="))
    action, _, at = action.partition("@")
    action, _, probability = action.partition("%")
    action, _, seconds = action.partition(":")
    if name not in NAMES or action not in ("die", "stall", "raise"):
        raise UsageError(f"{VARIABLE} has {part!r}; write PLACE=die|stall:SECONDS|raise, with @N or %P after it")
    try:
        return name, Armed(action, float(seconds or 0), int(at) if at else None, float(probability or 1))
    except ValueError:
        raise UsageError(f"{VARIABLE} has {part!r}, whose numbers cannot be read") from None


def _load(environ: Mapping[str, str]) -> dict[str, Armed]:
    return parse(environ.get(VARIABLE, ""))


_armed = _load(os.environ)
_random = random.Random(os.environ.get(SEED))
