"""The schedules of a drill: one of every behaviour that planning, overlap, catch-up, retry and delivery know."""

import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from fleet.domain.schedule import Definition

# What a target does in ordinary times; bursts of worse are laid over it by faults.
WELL, SLOW, FLAKY = "", "?slow=0.2", "?fail=0.08&hang=0.01&reset=0.03&drop=0.03&slow=0.1"
ONCE = "once"

# A name, its target's behaviour, its definition.
Kind = tuple[str, str, dict[str, Any]]
# Two thirds plan once per second.
KINDS: tuple[Kind, ...] = (
    ("allow", WELL, {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0}),
    ("skip", WELL, {"interval_seconds": 1, "overlap": "skip", "jitter_ms": 200}),
    ("queue", WELL, {"interval_seconds": 1, "overlap": "queue", "jitter_ms": 200}),
    ("cron", WELL, {"cron_expression": "* * * * * *", "overlap": "allow", "jitter_ms": 0}),
    ("retry", FLAKY, {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 100}),
    ("most-once", FLAKY, {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0, "delivery": "at-most-once"}),
    (ONCE, WELL, {}),
    ("allow-late", SLOW, {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 200}),
    ("skip-slow", SLOW, {"interval_seconds": 1, "overlap": "skip", "jitter_ms": 0, "lease_seconds": 5.0}),
    ("queue-flaky", FLAKY, {"interval_seconds": 3, "overlap": "queue", "jitter_ms": 0}),
    (
        "latest",
        WELL,
        {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0, "misfire_grace_seconds": 2, "catch_up": "latest"},
    ),
    (
        "all",
        WELL,
        {"interval_seconds": 2, "overlap": "queue", "jitter_ms": 0, "misfire_grace_seconds": 2, "catch_up": "all"},
    ),
    (
        "none",
        WELL,
        {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 300, "misfire_grace_seconds": 2, "catch_up": "none"},
    ),
    (
        "cron-paris",
        WELL,
        {"cron_expression": "*/2 * * * * *", "timezone": "Europe/Paris", "overlap": "queue", "jitter_ms": 0},
    ),
    ("max-runs", WELL, {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0, "max_runs": 20}),
)
EDITED = {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0}


def schedules(
    url: Callable[[str], str],
    count: int,
    start: datetime,
    seconds: float,
    dice: random.Random,
    kinds: Sequence[Kind] = KINDS,
) -> list[Definition]:
    """So many schedules that plan from `start` for so many seconds."""
    end = start + timedelta(seconds=seconds)
    made = []
    for i in range(count):
        kind, behaviour, fields = kinds[i % len(kinds)]
        times: dict[str, Any] = {"start_at": start, "end_at": end}
        if kind == ONCE:
            times = {"run_at": start + timedelta(seconds=dice.randint(0, int(seconds))), "jitter_ms": 0}
        made.append(_definition(f"{kind}-{i}", url(behaviour), {**times, **fields}))
    return made


def edited(url: Callable[[str], str], name: str, end: datetime) -> Definition:
    """One that people edit while the drill runs; it begins when it is added."""
    return _definition(name, url(SLOW), {"end_at": end, **EDITED})


def _definition(name: str, url: str, fields: dict[str, Any]) -> Definition:
    target = {"kind": "http", "url": url, "method": "POST", "headers": {}}
    return Definition(name, target, **{"timeout_seconds": 2.0, "backoff_seconds": [1.0], **fields})
