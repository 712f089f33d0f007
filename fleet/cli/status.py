"""fleetctl status and ps: whether the fleet is well, and which processes it is made of."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import click

from fleet.cli.session import Session, command, json_option, print_json, print_table, session
from fleet.domain.duration import format_duration
from fleet.errors import Unhealthy
from fleet.store import audit, workers

Row = dict[str, Any]

# Without one of each, planned times do not run.
NEEDED = ("tick-generator", "ticker", "dispatcher")
# Heartbeats come every few seconds: one may be lost, several may not. The dead are forgotten after ten minutes.
ALIVE_SECONDS = 30.0
DEAD_SECONDS = 120.0
# A grace of nothing must not make every moment a late one.
LEAST_GRACE = 5.0


@click.command()
@json_option
@command
async def status(as_json: bool) -> None:
    """Show whether the fleet is well: backlog, lateness, workers."""
    async with session() as own:
        found = await _look(own)
    if as_json:
        print_json(found)
    else:
        _print_status(found)
    if found["problems"]:
        raise Unhealthy("; ".join(found["problems"]))


async def _look(own: Session) -> Row:
    grace = max(own.settings.misfire_grace.total_seconds(), LEAST_GRACE)
    waiting = await audit.backlog(own.connection, grace)
    overdue = await audit.overdue(own.connection, grace)
    living = await workers.living(own.connection)
    problems = [*_missing_roles(living), *_lateness(waiting, overdue, grace)]
    return {
        "healthy": not problems,
        "schedules": {**await audit.schedules(own.connection), "overdue": overdue.schedules},
        "executions": {
            "due": waiting["executions_due"],
            "oldest_due_seconds": waiting["oldest_execution_seconds"],
            "in_flight": waiting["in_flight"],
        },
        "ticks": {
            "due": waiting["ticks_due"],
            "late": waiting["ticks_late"],
            "oldest_due_seconds": waiting["oldest_tick_seconds"],
        },
        "workers": _by_role(living),
        "problems": problems,
    }


def _by_role(living: Sequence[Row]) -> list[Row]:
    """The roles that must be there first, then the others that are."""
    others = sorted({w["role"] for w in living} - set(NEEDED))
    return [
        {
            "role": role,
            "alive": sum(w["age"] < ALIVE_SECONDS for w in living if w["role"] == role),
            "heartbeat_age": min((w["age"] for w in living if w["role"] == role), default=None),
        }
        for role in (*NEEDED, *others)
    ]


def _missing_roles(living: Sequence[Row]) -> list[str]:
    return [
        f"no {row['role']} is alive; start one with `fleetctl run {row['role']}` or `fleetctl up`"
        for row in _by_role(living)
        if row["role"] in NEEDED and not row["alive"]
    ]


def _lateness(waiting: Row, overdue: audit.Overdue, grace: float) -> list[str]:
    problems = []
    if overdue.schedules:
        problems.append(
            f"planning is behind by {_span(overdue.seconds)} at schedule {overdue.schedule!r}"
            f" ({_many(overdue.schedules)} overdue); look at the tick-generators"
        )
    if (seconds := waiting["oldest_tick_seconds"] or 0.0) > grace:
        problems.append(f"ticks are late by {_span(seconds)} ({_many(waiting['ticks_due'])} due); look at the tickers")
    if (seconds := waiting["oldest_execution_seconds"] or 0.0) > grace:
        problems.append(
            f"executions wait for {_span(seconds)} ({_many(waiting['executions_due'])} due);"
            " look at the dispatchers, or start more"
        )
    return problems


def _many(count: int) -> str:
    return f"{audit.COUNT_LIMIT}+" if count > audit.COUNT_LIMIT else str(count)


def _span(seconds: float | None) -> str:
    return "-" if seconds is None else format_duration(timedelta(seconds=round(seconds)))


def _print_status(found: Row) -> None:
    executions, ticks = found["executions"], found["ticks"]
    states = ", ".join(f"{_many(n) if state == 'overdue' else n} {state}" for state, n in found["schedules"].items())
    click.echo(f"schedules   {states}")
    click.echo(f"ticks       {_many(ticks['due'])} due, {_many(ticks['late'])} late{_oldest(ticks)}")
    click.echo(
        f"executions  {_many(executions['due'])} due{_oldest(executions)}, {_many(executions['in_flight'])} in flight"
    )
    for row in found["workers"]:
        beat = f", last heartbeat {_span(row['heartbeat_age'])} ago" if row["heartbeat_age"] is not None else ""
        click.echo(f"{row['role']:<14}  {row['alive']} alive{beat}")
    if not found["problems"]:
        click.echo("all is well")


def _oldest(waiting: Row) -> str:
    seconds = waiting["oldest_due_seconds"]
    return "" if seconds is None else f" (the oldest for {_span(seconds)})"


@click.command()
@json_option
@command
async def ps(as_json: bool) -> None:
    """List the workers and what is wrong with their sharding."""
    async with session() as own:
        living = await workers.living(own.connection)
    listed = [{**worker, "state": _state(worker["age"])} for worker in living]
    problems = sharding_problems([w for w in listed if w["state"] == "alive"])
    if as_json:
        print_json({"workers": listed, "problems": problems})
        return
    columns = ["id", "role", "host", "pid", "shard", "version", "health", "uptime", "heartbeat", "state"]
    print_table(columns, [_line(worker) for worker in listed])
    for problem in problems:
        click.echo(problem)


def _line(worker: Row) -> list[Any]:
    shard = f"{worker['shard_id']}/{worker['shard_count']}"
    cells = [worker[column] for column in ("id", "role", "host", "pid")]
    spans = [_span(worker["uptime"]), f"{_span(worker['age'])} ago"]
    return [*cells, shard, worker["version"], worker["health"], *spans, worker["state"]]


def _state(age: float) -> str:
    if age < ALIVE_SECONDS:
        return "alive"
    return "late" if age < DEAD_SECONDS else "dead"


def sharding_problems(alive: Sequence[Row]) -> list[str]:
    """What is wrong with how the living workers of each role divide the schedules among themselves."""
    problems = []
    for role in NEEDED:
        shards: dict[int, set[int]] = {}
        for worker in alive:
            if worker["role"] == role:
                shards.setdefault(worker["shard_count"], set()).add(worker["shard_id"])
        if len(shards) > 1:
            counts = " and ".join(map(str, sorted(shards)))
            problems.append(f"{role}s run with different SHARD_COUNTs ({counts}); give all of them the same")
        for count, present in sorted(shards.items()):
            problems += [_missing(role, sorted(set(range(count)) - present), count)] if len(present) < count else []
    return problems


def _missing(role: str, missing: Sequence[int], count: int) -> str:
    first = ", ".join(map(str, missing[:5])) + (" and others" if len(missing) > 5 else "")
    shards, have, work = ("shard", "has", "its") if len(missing) == 1 else ("shards", "have", "their")
    return f"{shards} {first} of {count} {have} no living {role}; others take {work} work over once it is late"
