"""How schedules are shown to people: lines, tables, and times in the schedule's own zone with UTC beside."""

import json
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click

from fleet.cli.session import print_table, shown
from fleet.domain.duration import format_duration
from fleet.domain.instant import format_instant
from fleet.domain.schedule import LARGEST_DEFAULT_JITTER_MS

Row = dict[str, Any]


def rule_words(schedule: Row) -> str:
    if schedule["interval_seconds"] is not None:
        return f"every {format_duration(timedelta(seconds=schedule['interval_seconds']))}"
    if schedule["cron_expression"] is not None:
        zone = "" if schedule["timezone"] == "UTC" else f" {schedule['timezone']}"
        return f"cron {schedule['cron_expression']}{zone}"
    return f"once at {format_instant(schedule['run_at'])}"


def local(at: datetime, timezone: str) -> str:
    """The wall clock there, with the zone's name for it: CET and CEST are an hour apart."""
    return at.astimezone(ZoneInfo(timezone)).strftime("%Y-%m-%d %H:%M:%S %Z")


def both_clocks(at: datetime, timezone: str) -> str:
    return format_instant(at) if timezone == "UTC" else f"{format_instant(at)} ({local(at, timezone)}, {timezone})"


def say_secret(secret: str | None) -> None:
    if secret is not None:
        click.echo(f"the signing secret, shown this once: {secret}", err=True)


def say_added(schedule: Row, jitter_given: bool) -> None:
    name = schedule["name"]
    if not schedule["enabled"]:
        click.echo(f"added {name}, paused; `fleetctl schedule resume` starts it")
    elif schedule["next_scheduled_at"] is None:
        click.echo(f"added {name}")
    else:
        click.echo(
            f"added {name}, next planned time {both_clocks(schedule['next_scheduled_at'], schedule['timezone'])}"
        )
    if schedule["jitter_ms"] and not jitter_given:
        most = ", at most 30s" if schedule["jitter_ms"] == LARGEST_DEFAULT_JITTER_MS else ""
        length = format_duration(timedelta(milliseconds=schedule["jitter_ms"]))
        click.echo(f"jitter up to {length}, the default of 10 % of the interval{most}")


def print_schedules(schedules: list[Row]) -> None:
    print_table(
        ["name", "status", "rule", "next", "last", "last status"],
        [
            [s["name"], s["status"], rule_words(s), s["next_scheduled_at"], s["last_execution_at"], s["last_status"]]
            for s in schedules
        ],
    )


def print_schedule(schedule: Row) -> None:
    """Every field that says something, one a line."""
    lines = [(key, value) for key, value in schedule.items() if value not in (None, {}, [])]
    width = max(len(key) for key, _ in lines)
    click.echo(f"{'rule':<{width}}  {rule_words(schedule)}")
    for key, value in lines:
        click.echo(f"{key:<{width}}  {_field(value, schedule['timezone'])}")


def _field(value: Any, timezone: str) -> str:
    if isinstance(value, datetime):
        return both_clocks(value, timezone)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, bool | dict | list) else str(value)


def print_next(times: list[dict[str, datetime]], timezone: str) -> None:
    if timezone == "UTC":
        print_table(["planned", "runs at"], [[t["scheduled_at"], t["execute_at"]] for t in times])
        return
    print_table(
        [f"planned in {timezone}", "planned", "runs at"],
        [[local(t["scheduled_at"], timezone), t["scheduled_at"], t["execute_at"]] for t in times],
    )


def print_history(entries: list[Row]) -> None:
    print_table(
        ["planned", "what", "run", "attempt", "took", "error"],
        [_gap_line(e) if e["kind"] == "gap" else _execution_line(e) for e in entries],
    )


def _execution_line(entry: Row) -> list[Any]:
    took = None
    if entry["started_at"] and entry["finished_at"]:
        took = format_duration(entry["finished_at"] - entry["started_at"])
    return [entry["scheduled_at"], entry["status"], entry["run"], entry["attempt"], took, entry["error"]]


def _gap_line(entry: Row) -> list[Any]:
    first, last = entry["first_scheduled_at"], entry["last_scheduled_at"]
    planned = shown(first) if first == last else f"{shown(first)} to {shown(last)}"
    return [planned, f"gap: {entry['reason']}, {entry['count']} planned", "", "", "", ""]


def print_stats(name: str, stats: Row) -> None:
    rate = stats["success_rate"]
    values = {**stats, "success_rate": None if rate is None else f"{rate:.1%}"}
    width = max(map(len, values))
    click.echo(f"{'schedule':<{width}}  {name}")
    for key, value in values.items():
        text = format_instant(value) if isinstance(value, datetime) else value
        click.echo(f"{key:<{width}}  {'-' if text is None else text}")


def print_execution(execution: Row) -> None:
    error = f": {execution['error']}" if execution["error"] else ""
    tries = "attempt" if execution["attempt"] == 1 else "attempts"
    click.echo(
        f"execution {execution['id']} of {execution['schedule']} is {execution['status']}"
        f" after {execution['attempt']} {tries}{error}"
    )
