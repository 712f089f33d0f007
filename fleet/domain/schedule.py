"""A schedule as a person defines it: checked as a whole, with the defaults that depend on other choices filled in."""

import json
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from fleet.domain import cron
from fleet.domain.instant import format_instant
from fleet.domain.rule import INSTANT, Rule
from fleet.errors import UsageError

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONGEST_NAME = 200
LARGEST_PAYLOAD = 256 * 1024
LONGEST_INTERVAL = 10 * 366 * 86_400
LARGEST_DEFAULT_JITTER_MS = 30_000
# The database counts jitter in 32 bits of milliseconds: 24 days.
MOST_JITTER_MS = 2**31 - 2
MOST_PLANS = 10_000
MOST_RUNS = 10**15
# Ids hold milliseconds since 1970, and rules need room to look ahead before dates end.
FIRST_YEAR, LAST_YEAR = 1970, 2999

# What a change of these means: other planned times, so the grid is planned anew from the moment of the edit.
RULE_FIELDS = ("interval_seconds", "cron_expression", "run_at", "timezone", "align", "start_at", "end_at")


@dataclass(frozen=True, slots=True)
class Definition:
    name: str
    target: dict[str, Any]
    workspace_id: str = "system"
    interval_seconds: int | None = None
    cron_expression: str | None = None
    run_at: datetime | None = None
    timezone: str = "UTC"
    align: bool = False
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_runs: int | None = None
    jitter_ms: int | None = None
    misfire_grace_seconds: int | None = None
    catch_up: str = "latest"
    catch_up_window_seconds: int = 86_400
    max_plans_per_tick: int = 100
    overlap: str | None = None
    payload: Any = None
    timeout_seconds: float = 30.0
    delivery: str = "at-least-once"
    max_attempts: int = 4
    backoff_seconds: list[float] = field(default_factory=lambda: [60.0])
    lease_seconds: float | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    note: str | None = None
    enabled: bool = True

    def rule(self, created_at: datetime) -> Rule:
        """The rule this definition means for a schedule created at that instant."""
        step = timedelta(seconds=self.interval_seconds or 0)
        start = self.start_at or (created_at + step if not self.align else created_at + INSTANT)
        if self.run_at is not None:
            start = self.run_at
        return Rule(
            anchor_at=EPOCH if self.align else start,
            start_at=start,
            end_at=self.end_at,
            interval_seconds=self.interval_seconds,
            cron_expression=self.cron_expression,
            run_at=self.run_at,
            timezone=self.timezone,
        )

    def completed(self) -> "Definition":
        """The same with every default decided, so that what is stored says what will happen."""
        jitter = self.jitter_ms
        if jitter is None:
            jitter = min((self.interval_seconds or 0) * 100, LARGEST_DEFAULT_JITTER_MS)
        overlap = self.overlap or ("queue" if self.catch_up == "all" else "skip")
        expression = None if self.cron_expression is None else " ".join(self.cron_expression.split())
        return replace(self, jitter_ms=jitter, overlap=overlap, cron_expression=expression)


INSTANTS = ("run_at", "start_at", "end_at")


def to_json(definition: Definition) -> dict[str, Any]:
    """What the person wrote, without what was not said: an edit starts from here, and defaults follow the edit."""
    values = {f.name: getattr(definition, f.name) for f in fields(Definition)}
    for name in INSTANTS:
        values[name] = None if values[name] is None else format_instant(values[name])
    return {name: value for name, value in values.items() if value is not None}


def from_json(values: dict[str, Any]) -> Definition:
    instants = {name: datetime.fromisoformat(values[name]) for name in INSTANTS if name in values}
    return Definition(**{**values, **instants})


def check(definition: Definition, now: datetime) -> None:
    """Refuse what cannot work, in one sentence, before anything is written."""
    _check_name(definition)
    _check_rule(definition, now)
    _check_limits(definition)
    encoded = len(json.dumps(definition.payload, ensure_ascii=False).encode())
    if encoded > LARGEST_PAYLOAD:
        raise UsageError(f"payload is {encoded} bytes encoded; at most {LARGEST_PAYLOAD} (256 KiB) are allowed")


def _check_name(definition: Definition) -> None:
    for what, text in (("name", definition.name), ("workspace", definition.workspace_id)):
        if not text or len(text) > LONGEST_NAME:
            raise UsageError(f"{what} must be 1 to {LONGEST_NAME} characters long, got {len(text)}")
        if not text.isprintable() or text != text.strip():
            raise UsageError(f"{what} {text!r} must not begin or end with a blank or hold control characters")


def _check_rule(definition: Definition, now: datetime) -> None:
    rules = [definition.interval_seconds, definition.cron_expression, definition.run_at]
    if sum(rule is not None for rule in rules) != 1:
        raise UsageError("a schedule needs exactly one of --every, --cron, --at and --now")
    seconds = definition.interval_seconds
    if seconds is not None and not 1 <= seconds <= LONGEST_INTERVAL:
        raise UsageError(f"interval must be between 1 second and 10 years, got {seconds} seconds")
    if definition.align and seconds is None:
        raise UsageError("--align belongs to --every: a cron expression is aligned by itself")
    _check_instants(definition)
    cron.zone(definition.timezone)
    if definition.cron_expression is not None:
        cron.expand(definition.cron_expression)
    rule = definition.rule(now)
    if rule.next_after(rule.start_at - INSTANT) is None:
        raise UsageError(f"schedule {definition.name!r} would never run: no planned time lies before its --end")
    _check_jitter(definition, rule)


def _check_instants(definition: Definition) -> None:
    for what, at in (("--at", definition.run_at), ("--start", definition.start_at), ("--end", definition.end_at)):
        if at is not None and not FIRST_YEAR <= at.year <= LAST_YEAR:
            raise UsageError(f"{what} must lie in the years {FIRST_YEAR} to {LAST_YEAR}, got {format_instant(at)}")


def _check_jitter(definition: Definition, rule: Rule) -> None:
    jitter = timedelta(milliseconds=definition.jitter_ms or 0)
    distance = rule.smallest_distance() if jitter else None
    if (definition.jitter_ms or 0) > MOST_JITTER_MS:
        raise UsageError(f"jitter must be below 24 days, got {jitter.total_seconds():g} s")
    if jitter < timedelta(0) or (distance is not None and jitter >= distance):
        raise UsageError(
            f"jitter of {jitter.total_seconds():g} s must be at least 0 and below the distance between planned times"
            f" ({distance.total_seconds() if distance else 0:g} s), or they would overtake each other"
        )


def _check_limits(definition: Definition) -> None:
    _check_lateness(definition)
    if definition.catch_up == "all" and definition.overlap == "skip":
        raise UsageError("catch-up 'all' with overlap 'skip' would run one and skip the rest; use queue or allow")
    if not 1 <= definition.timeout_seconds <= 60:
        raise UsageError(f"timeout must be between 1s and 60s, got {definition.timeout_seconds:g}s")
    if not 1 <= definition.max_attempts <= 100:
        raise UsageError(f"max attempts must be between 1 and 100, got {definition.max_attempts}")
    if definition.max_runs is not None and not 1 <= definition.max_runs <= MOST_RUNS:
        raise UsageError(f"max runs must be between 1 and {MOST_RUNS}, got {definition.max_runs}")
    if definition.lease_seconds is not None and not 3 <= definition.lease_seconds <= 1800:
        raise UsageError(f"stale timeout must be between 3s and 30m, got {definition.lease_seconds:g}s")
    if definition.delivery not in ("at-least-once", "at-most-once"):
        raise UsageError(f"delivery must be at-least-once or at-most-once, got {definition.delivery!r}")
    if not definition.backoff_seconds or not all(0 < delay <= 86_400 for delay in definition.backoff_seconds):
        raise UsageError("back-off must be one or more delays between 1ms and 24h")


def _check_lateness(definition: Definition) -> None:
    if definition.catch_up not in ("latest", "all", "none"):
        raise UsageError(f"catch-up must be latest, all or none, got {definition.catch_up!r}")
    if definition.overlap not in (None, "skip", "queue", "allow"):
        raise UsageError(f"overlap must be skip, queue or allow, got {definition.overlap!r}")
    grace, window = definition.misfire_grace_seconds, definition.catch_up_window_seconds
    if grace is not None and not 0 <= grace <= LONGEST_INTERVAL:
        raise UsageError(f"misfire grace must be between 0 and 10 years, got {grace} seconds")
    if not 1 <= window <= LONGEST_INTERVAL:
        raise UsageError(f"catch-up window must be between 1 second and 10 years, got {window} seconds")
    if not 1 <= definition.max_plans_per_tick <= MOST_PLANS:
        raise UsageError(f"max plans per tick must be between 1 and {MOST_PLANS}, got {definition.max_plans_per_tick}")
