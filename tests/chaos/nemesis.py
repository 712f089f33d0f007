"""Injects faults in an order that the seed decides, and writes them down in faults.jsonl."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psycopg

from chaos import failpoints
from chaos.asks import now
from chaos.edits import EditDies, Edits
from chaos.faults import (
    BackendKill,
    Clocks,
    Fault,
    Freeze,
    Kill,
    KillEverything,
    PostgresKill,
    PostgresRestart,
    ProxyCut,
    ProxyDelay,
    ProxyHalfOpen,
    Shards,
    Snapshot,
    SwallowAnswer,
    TargetDrops,
    TargetFails,
    TargetHangs,
    TargetResets,
)
from chaos.rig import Rig
from fleet.errors import FleetError

FAULTS: tuple[type[Fault], ...] = (
    Kill,
    KillEverything,
    Freeze,
    PostgresRestart,
    PostgresKill,
    BackendKill,
    ProxyDelay,
    ProxyCut,
    ProxyHalfOpen,
    SwallowAnswer,
    Clocks,
    Shards,
    TargetFails,
    TargetHangs,
    TargetResets,
    TargetDrops,
    Snapshot,
    Edits,
    EditDies,
    failpoints.DieAt,
    failpoints.StallAt,
)
ARMED = (EditDies, failpoints.DieAt, failpoints.StallAt)
KINDS: dict[str, Fault] = {kind.name: kind() for kind in FAULTS}
LONGEST_CALM = 1.5


def available(rig: Rig, wanted: list[str], say: Callable[[str], None]) -> list[str]:
    """The kinds that can be done here; what is left out is said, never passed over."""
    missing = {}
    if rig.clock_shim is None:
        missing[Clocks.name] = "no C compiler, or not Linux"
    if not failpoints.exist():
        missing |= dict.fromkeys((kind.name for kind in ARMED), "there are no failpoints")
    for kind in wanted:
        if kind in missing:
            say(f"LEFT OUT: {kind}: {missing[kind]}")
    return [kind for kind in wanted if kind not in missing]


def plan(kinds: list[str], seed: str, at_once: int) -> Iterator[list[str]]:
    """Rounds without end: each kind comes once before any comes again; a round has no two of one group."""
    dice = random.Random(f"{seed} plan")
    waiting: list[str] = []
    while True:
        chosen: list[str] = []
        for _ in range(at_once):
            groups = {KINDS[kind].group for kind in chosen}
            if not any(KINDS[kind].group not in groups for kind in waiting):
                waiting += dice.sample(kinds, len(kinds))
            found = next((kind for kind in waiting if KINDS[kind].group not in groups), None)
            if found is not None:
                waiting.remove(found)
                chosen.append(found)
        yield chosen


class Nemesis:
    def __init__(self, rig: Rig, path: Path, kinds: list[str], at_once: int, say: Callable[[str], None]) -> None:
        self._rig = rig
        self._file = path.open("a", buffering=1)
        self._kinds = kinds
        self._at_once = at_once
        self._say = say
        self.injected: list[str] = []

    async def run(self, until: float) -> None:
        """Round after round until that time on the monotonic clock, and at least until every kind came once."""
        numbers = itertools.count()
        calm = random.Random(f"{self._rig.seed} calm")
        try:
            for kinds in plan(self._kinds, self._rig.seed, self._at_once):
                if time.monotonic() >= until and set(self._kinds) <= set(self.injected):
                    return
                async with asyncio.TaskGroup() as group:
                    for kind in kinds:
                        group.create_task(self._inject(KINDS[kind], next(numbers)))
                await asyncio.sleep(calm.uniform(0.3, LONGEST_CALM))
        finally:
            self._file.close()

    async def follow(self, faults: Sequence[Fault]) -> None:
        """These, in this order."""
        with self._file:
            for number, fault in enumerate(faults):
                await self._inject(fault, number)

    async def _inject(self, fault: Fault, number: int) -> None:
        dice = random.Random(f"{self._rig.seed} {number} {fault.name}")
        at, what = now(), "interrupted"
        try:
            what = await fault.inject(self._rig, dice)
        except (psycopg.Error, FleetError) as error:
            # With several at once one fault may take the ground from under another; what it did is still a fault.
            what = f"cut short by another fault: {error}"
        finally:
            self.injected.append(fault.name)
            self._file.write(json.dumps({"at": at, "until": now(), "kind": fault.name, "what": what}) + "\n")
        self._say(f"{fault.name}: {what}")
