"""A drill: real roles on a real Postgres under faults, which leaves a folder that tells everything that happened.

    PYTHONPATH=tests python -m chaos.drill --seed 7 --seconds 60 --schedules 50 --faults all --out /tmp/drill

The seed decides the schedules, the faults, their order and every choice in them; it is in final.json too. How the
processes interleave is the machine's, so a replay is the same drill but not the same history.
"""

import argparse
import asyncio
import json
import random
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from chaos import checker, figures, mix, recorder
from chaos.asks import now
from chaos.faults import Fault
from chaos.nemesis import KINDS, Nemesis, available
from chaos.rig import COUNTS, LEASE, LOOKAHEAD, Rig
from fleet.errors import FleetError
from fleet.ledger.verify import verify
from fleet.store.connection import rows
from support.processes import until

START_SECONDS, SETTLE_SECONDS = 60.0, 180.0
# Faults end so long before the schedules do: some planned times follow the last fault and show that all works again.
CALM_END = 5.0
# Of the planned times of the mix about so many per schedule and second become executions.
RATE = 0.7

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Focus:
    """A drill with an aim: its own schedules, its faults in their order, its settings; it waits less for the end."""

    schedules: Sequence[mix.Kind] = mix.KINDS
    faults: Sequence[Fault] | None = None
    settings: Mapping[str, str] = field(default_factory=dict)
    settle_seconds: float = SETTLE_SECONDS


async def run_drill(
    folder: Path,
    *,
    seed: int,
    schedules: int,
    seconds: float | None = None,
    executions: int | None = None,
    kinds: Sequence[str] = tuple(KINDS),
    at_once: int = 1,
    focus: Focus = Focus(),
    say: Say = lambda _: None,
) -> Path:
    """Run one drill, as long as told or as it takes for about so many executions; returns its folder."""
    lasting = seconds if seconds is not None else max(20.0, (executions or 500) / (schedules * RATE))
    with tempfile.TemporaryDirectory(prefix="drill-", ignore_cleanup_errors=True) as work:
        rig = await asyncio.to_thread(Rig, folder, Path(work), str(seed), focus.settings)
        try:
            await rig.start()
            await _all_registered(rig)
            say(f"seed {seed}: {schedules} schedules for {lasting:.0f} s")
            ends = await _add_schedules(rig, focus.schedules, schedules, lasting)
            faults = Nemesis(rig, folder / "faults.jsonl", available(rig, list(kinds), say), at_once, say)
            await _first_received(rig)
            await (faults.run(ends - CALM_END) if focus.faults is None else faults.follow(focus.faults))
            settled = await _settle(rig, ends, focus.settle_seconds, say)
            await _write_down(rig, seed, settled, say)
        finally:
            await rig.close()
    return folder


async def _all_registered(rig: Rig) -> None:
    async def registered() -> bool:
        async with rig.database() as db:
            [row] = await rows(db, "SELECT count(*) AS n FROM workers")
        return int(row["n"]) >= sum(COUNTS.values())

    await until(registered, START_SECONDS, "every role to register", every=0.2)


async def _first_received(rig: Rig) -> None:
    receipts = rig.history / "receipts.jsonl"
    await until(lambda: receipts.exists() and receipts.stat().st_size > 0, START_SECONDS, "the first delivery")


async def _add_schedules(rig: Rig, kinds: Sequence[mix.Kind], count: int, seconds: float) -> float:
    """Add them all; returns when the last planned time comes, on the monotonic clock."""
    async with rig.database() as db:
        [row] = await rows(db, "SELECT date_trunc('second', clock_timestamp()) AS now")
    start: datetime = row["now"] + timedelta(seconds=3)

    def url(behaviour: str) -> str:
        return rig.target + behaviour

    rig.editable = lambda name: mix.edited(url, name, start + timedelta(seconds=seconds))
    rig.names = [f"edited-{i}" for i in range(max(3, count // 10))]
    made = mix.schedules(url, count, start, seconds, random.Random(f"{rig.seed} mix"), kinds)
    for definition in made + [rig.editable(name) for name in rig.names]:
        if await rig.asker.add(definition) != "ok":
            raise RuntimeError(f"schedule {definition.name} could not be added; see asked.jsonl")
    return time.monotonic() + 3 + seconds


UNFINISHED = """
SELECT (SELECT count(*) FROM executions WHERE status IN ('emitted', 'in_progress')) AS executions,
       (SELECT count(*) FROM cron_ticks) AS ticks,
       (SELECT count(*) FROM cron_schedules
         WHERE enabled AND NOT capped AND next_tick_needed_at IS NOT NULL) AS schedules
"""


async def _settle(rig: Rig, ends: float, seconds: float, say: Say) -> bool:
    """Heal everything, let paused schedules go on, and wait until nothing is unfinished."""
    await rig.heal()
    await asyncio.sleep(max(0.0, ends - time.monotonic()))
    # One stays as it was left: a schedule may end its days paused.
    for name in rig.names[1:]:
        await rig.asker.resume(name)
    left: dict[str, Any] = {}

    async def done() -> bool:
        nonlocal left
        async with rig.database() as db:
            [left] = await rows(db, UNFINISHED)
        return not any(left.values())

    try:
        await until(done, seconds, "every planned time to be finished", every=0.3)
    except AssertionError:
        say(f"NOT SETTLED within {seconds:g} s: {left}")
        return False
    return True


async def _write_down(rig: Rig, seed: int, settled: bool, say: Say) -> None:
    async with rig.database() as db:
        [row] = await rows(db, "SELECT clock_timestamp() AS now")
        report = await verify(db)
    ended_at = now()
    await rig.roles.stop()
    changes = await asyncio.to_thread(recorder.export, rig.dsn, rig.history / "changes.jsonl")
    final = {
        "ended_at": ended_at,
        "database_now": row["now"].isoformat(timespec="microseconds"),
        "settings": {
            "lease_seconds": LEASE,
            "misfire_grace_seconds": rig.grace,
            "lookahead_seconds": LOOKAHEAD,
            "roles": COUNTS,
            "environment": rig.settings,
        },
        "seed": seed,
        "settled": settled,
        "verify": {"planned": report.planned, "problems": [str(problem) for problem in report.problems]},
        "figures": figures.of(rig.history),
    }
    (rig.history / "final.json").write_text(json.dumps(final, indent=1) + "\n")
    say(f"{changes} changes recorded; {json.dumps(final['figures'])}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.drill", description="Run one drill.")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--executions", type=int)
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--faults", default="all", help=f"all, or some of {','.join(KINDS)}")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--check", action="store_true", help="judge it afterwards; exits 1 when a promise was broken")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    kinds = list(KINDS) if given.faults == "all" else given.faults.split(",")
    if unknown := [kind for kind in kinds if kind not in KINDS]:
        parser.error(f"no such fault: {', '.join(unknown)}")
    try:
        asyncio.run(_interruptible(given, kinds))
    except (FleetError, psycopg.Error) as error:
        sys.exit(f"drill: {error}")
    if given.check:
        sys.exit(checker.main([str(given.out)]))


async def _interruptible(given: argparse.Namespace, kinds: list[str]) -> None:
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f}  {text}", file=sys.stderr, flush=True)

    task = asyncio.create_task(
        run_drill(
            given.out,
            seed=given.seed,
            seconds=given.seconds,
            executions=given.executions,
            schedules=given.schedules,
            kinds=kinds,
            at_once=given.at_once,
            say=say,
        )
    )
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    await task


if __name__ == "__main__":
    main()
