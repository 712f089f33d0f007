"""Faults at named places inside the roles: die there, or stall there, while others go on."""

import asyncio
import importlib.util
import random
from typing import ClassVar

from chaos.faults import Fault, started
from chaos.rig import Rig
from support.processes import until

# Which role passes which place.
PLACES: dict[str, tuple[str, ...]] = {
    "tick-generator": (
        "loop.before_step",
        "loop.after_step",
        "loop.before_beat",
        "generator.before_intervals",
        "generator.after_intervals",
        "generator.after_take",
        "generator.before_commit",
        "generator.after_commit",
    ),
    "ticker": ("ticker.before_emit", "ticker.after_emit"),
    "dispatcher": (
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
    ),
    "reconciler": ("reconciler.before_expire", "reconciler.after_expire"),
    "cleanup": ("cleanup.before_retention", "cleanup.after_retention"),
}
# The longest the drill waits for a place to be reached: some are reached only when something else goes wrong.
REACHED_SECONDS = 10.0


def exist() -> bool:
    return importlib.util.find_spec("fleet.failpoints") is not None


class DieAt(Fault):
    name, group = "failpoint-die", "roles"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        role = dice.choice(sorted(PLACES))
        place, nth = dice.choice(PLACES[role]), dice.randint(1, 5)
        slot = dice.choice(rig.roles.of(role))
        life = rig.roles.restart(slot, FLEET_FAILPOINTS=f"{place}=die@{nth}")
        await started(slot, life)
        try:
            await until(lambda: slot.lives > life, REACHED_SECONDS, place)
        except AssertionError:
            await started(slot, rig.roles.restart(slot))
            return f"{slot.name} was to die at {place} the {nth}. time, and did not come there"
        return f"{slot.name} died at {place} the {nth}. time"


class StallAt(Fault):
    """Longer than two leases, and longer than a transaction may idle: Postgres ends it, and the role wakes to that."""

    name, group = "failpoint-stall", "roles"
    SECONDS = 7
    INSIDE: ClassVar[dict[str, tuple[str, ...]]] = {
        "tick-generator": ("generator.after_take", "generator.before_commit"),
        "dispatcher": (
            "dispatcher.after_lease",
            "http.before_send",
            "dispatcher.after_answer",
            "results.before_finish",
        ),
        "ticker": ("ticker.before_emit", "ticker.after_emit"),
        "reconciler": ("reconciler.before_expire",),
    }

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        role = dice.choice(sorted(self.INSIDE))
        place = dice.choice(self.INSIDE[role])
        slot = dice.choice(rig.roles.of(role))
        await started(slot, rig.roles.restart(slot, FLEET_FAILPOINTS=f"{place}=stall:{self.SECONDS}@2"))
        await asyncio.sleep(self.SECONDS + 3)
        return f"{slot.name} stalled at {place} for {self.SECONDS} s"
