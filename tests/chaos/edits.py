"""Edits as a fault: people change schedules while the fleet works on them, several at once."""

import asyncio
import random
from typing import Any, ClassVar

from chaos.faults import Fault
from chaos.rig import Rig

CLIENTS, EDITS_EACH = 3, 4
# Often what changes planning, rarely what ends a schedule; `add` makes up for those.
OPS = (
    *("update",) * 6,
    *("pause", "resume") * 3,
    *("trigger",) * 3,
    *("retry", "execution_cancel") * 2,
    *("cancel", "delete", "add"),
)
CHANGES: tuple[dict[str, Any], ...] = (
    {"interval_seconds": 1},
    {"interval_seconds": 2},
    {"interval_seconds": 3},
    {"cron_expression": "*/2 * * * * *"},
    {"overlap": "skip"},
    {"overlap": "queue"},
    {"overlap": "allow"},
    {"jitter_ms": 100},
    {"jitter_ms": 0},
    {"max_attempts": 2},
)


class Edits(Fault):
    name, group = "edits", "edits"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        # All is chosen before anything is asked: how long an answer takes must not change what a seed means.
        plans = [[_choose(rig, dice) for _ in range(EDITS_EACH)] for _ in range(CLIENTS)]
        answers = await asyncio.gather(*(self._client(rig, plan) for plan in plans))
        counted = [answer for several in answers for answer in several]
        words = ", ".join(f"{counted.count(answer)} {answer}" for answer in ("ok", "refused", "lost"))
        return f"{CLIENTS} people edit at once: {words}"

    async def _client(self, rig: Rig, plan: list[tuple[str, str, dict[str, Any]]]) -> list[str]:
        answers = []
        for op, name, changes in plan:
            if op == "update":
                answers.append(await rig.asker.update(name, changes))
            elif op == "add":
                answers.append(await rig.asker.add(rig.editable(name)))
            else:
                answers.append(await getattr(rig.asker, op)(name))
        return answers


class EditDies(Fault):
    """A person's command dies inside its transaction, or stands still there with the schedule's row in its hands."""

    name, group = "edit-dies", "edits"
    PLACES: ClassVar[tuple[str, ...]] = ("schedule.after_lock", "schedule.after_unplan", "schedule.before_commit")
    # `stall` is longer than a transaction may idle.
    ACTIONS: ClassVar[tuple[str, ...]] = ("die", "die", "stall:7")

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        op, name = dice.choice(("update", "update", "pause", "resume", "cancel", "trigger")), dice.choice(rig.names)
        armed = f"{dice.choice(self.PLACES)}={dice.choice(self.ACTIONS)}"
        every = dice.randint(1, 3) if op == "update" else None
        answer = await rig.asker.by_command(op, name, every, FLEET_FAILPOINTS=armed)
        return f"`schedule {op} {name}` with {armed}: {answer}"


def _choose(rig: Rig, dice: random.Random) -> tuple[str, str, dict[str, Any]]:
    op, name, changes = dice.choice(OPS), dice.choice(rig.names), dice.choice(CHANGES)
    if op == "add":
        name = f"edited-{dice.getrandbits(32):08x}"
        rig.names.append(name)
    return op, name, changes
