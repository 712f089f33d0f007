"""Faults with an aim, for the drills of the seeded bugs: no dice, the same thing to the same role each time."""

import asyncio
import random
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from chaos.faults import Fault, started
from chaos.rig import Rig
from chaos.roles import Slot, frozen
from fleet.store.connection import rows
from support.processes import until

SWALLOW_SECONDS, BUSY_SECONDS = 3.0, 30.0


@dataclass(frozen=True)
class Restart(Fault):
    """kill -9 of every process of a role at once; each comes back with something else in its environment."""

    name, group = "restart", "roles"
    role: str
    env: dict[str, str] = field(default_factory=dict)
    clocks: tuple[int, ...] = ()
    """How many seconds the clock of each is off, where the clocks can be shifted."""

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        slots = rig.roles.of(self.role)
        offsets = self.clocks if rig.clock_shim is not None and self.clocks else (0,) * len(slots)
        lives = []
        for slot, offset in zip(slots, offsets, strict=True):
            shim = {"LD_PRELOAD": str(rig.clock_shim), "CLOCK_OFFSET": str(offset)} if offset else {}
            lives.append((slot, rig.roles.restart(slot, **self.env, **shim)))
        for slot, life in lives:
            await started(slot, life)
        return f"kill -9 of every {self.role}, started with {self.env}, clocks off by {offsets} s"


@dataclass(frozen=True)
class FreezeAll(Fault):
    name, group = "freeze-all", "roles"
    roles: tuple[str, ...]
    seconds: float

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        with ExitStack() as stack:
            for slot in (slot for role in self.roles for slot in rig.roles.of(role)):
                stack.enter_context(frozen(slot))
            await asyncio.sleep(self.seconds)
        return f"SIGSTOP of every {' and '.join(self.roles)} for {self.seconds:g} s"


@dataclass(frozen=True)
class FreezeBusiest(Fault):
    """SIGSTOP of a dispatcher that has several executions in its hands."""

    name, group = "freeze-busiest", "roles"
    seconds: float
    least: int = 4

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        busy: list[Slot] = []

        async def found() -> bool:
            async with rig.database() as db:
                holders = await rows(db, HOLDERS, {"least": self.least})
            for slot in rig.roles.of("dispatcher"):
                if any(f"-{slot.pid}-" in row["leased_by"] for row in holders):
                    busy.append(slot)
            return bool(busy)

        await until(found, BUSY_SECONDS, "a dispatcher to be busy")
        with frozen(busy[0]):
            await asyncio.sleep(self.seconds)
        return f"SIGSTOP of {busy[0].name}, which had work in hand, for {self.seconds:g} s"


HOLDERS = """
SELECT leased_by FROM executions WHERE status = 'in_progress' GROUP BY leased_by HAVING count(*) >= %(least)s
"""


@dataclass(frozen=True)
class Swallow(Fault):
    """The connection is cut after a statement was done and before its answer."""

    name, group = "swallow", "proxy"
    words: bytes
    times: int = 1

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        before = rig.proxy.swallowed
        for met in range(1, self.times + 1):
            rig.proxy.swallow_answer(self.words)
            with suppress(AssertionError):
                await until(lambda met=met: rig.proxy.swallowed - before >= met, SWALLOW_SECONDS, "it")  # type: ignore[misc]
        rig.proxy.heal()
        return f"{rig.proxy.swallowed - before} of {self.times} answers swallowed after {self.words!r}"


@dataclass(frozen=True)
class Ask(Fault):
    """Someone pauses or resumes a schedule, by its place among those that may be edited."""

    name, group = "ask", "edits"
    op: str
    place: int

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        name = rig.names[self.place]
        return f"{self.op} of {name}: {await getattr(rig.asker, self.op)(name)}"


@dataclass(frozen=True)
class Wait(Fault):
    name, group = "wait", "nothing"
    seconds: float

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        await asyncio.sleep(self.seconds)
        return f"nothing for {self.seconds:g} s"
