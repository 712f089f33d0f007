"""The kinds of fault. Each acts on the rig, heals what it did, and says in words what that was.

Every choice comes from the dice it is handed, so that a seed replays it. `group` names what two faults must not both
have in hand at once.
"""

import asyncio
import contextlib
import itertools
import random
import signal
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import ClassVar

from chaos.rig import LEASE, Rig
from chaos.roles import Slot, frozen
from fleet.store.connection import rows
from support.processes import until

RESTART_SECONDS, UP_SECONDS = 60.0, 120.0


class Fault(ABC):
    name: ClassVar[str]
    group: ClassVar[str]

    @abstractmethod
    async def inject(self, rig: Rig, dice: random.Random) -> str:
        """Do it and undo it; what was done, in words."""


async def started(slot: Slot, life: int) -> None:
    """Wait until the supervisor has started that life of a slot."""
    await until(lambda: slot.lives >= life, RESTART_SECONDS, f"{slot.name} to be started again")


async def up(slots: Iterable[Slot]) -> None:
    """Wait until roles that were started with something else work with it: on a busy machine that takes a while."""
    for slot in slots:
        await until(lambda slot=slot: slot.is_up, UP_SECONDS, f"{slot.name} to work")


class Kill(Fault):
    name, group = "kill", "roles"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        slot = dice.choice(rig.roles.slots)
        await started(slot, rig.roles.restart(slot))
        return f"kill -9 of {slot.name}"


class KillEverything(Fault):
    name, group = "kill-everything", "roles"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        lives = [(slot, rig.roles.restart(slot)) for slot in rig.roles.slots]
        for slot, life in lives:
            await started(slot, life)
        return "kill -9 of every role at once"


class Freeze(Fault):
    """SIGSTOP beyond two leases: whatever it held is taken over while it believes to hold it."""

    name, group = "freeze", "roles"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        slot = dice.choice(rig.roles.of("dispatcher") if dice.random() < 0.6 else rig.roles.slots)
        seconds = 2 * LEASE + dice.uniform(0.5, 2.0)
        with frozen(slot):
            await asyncio.sleep(seconds)
        return f"SIGSTOP of {slot.name} for {seconds:.1f} s"


class PostgresRestart(Fault):
    name, group = "postgres-restart", "postgres"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        await rig.crash_postgres(signal.SIGQUIT)
        return "immediate shutdown of Postgres, started again"


class PostgresKill(Fault):
    name, group = "postgres-kill", "postgres"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        await rig.crash_postgres(signal.SIGKILL)
        return "kill -9 of the postmaster, started again"


class BackendKill(Fault):
    name, group = "backend-kill", "backends"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        async with rig.database() as db:
            found = await rows(db, BACKENDS)
            chosen = dice.sample(found, min(len(found), dice.randint(1, 4)))
            for row in chosen:
                await db.execute("SELECT pg_terminate_backend(%(pid)s)", {"pid": row["pid"]})
        return f"pg_terminate_backend of {', '.join(row['application_name'] for row in chosen) or 'nobody'}"


BACKENDS = """
SELECT pid, application_name FROM pg_stat_activity
 WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY application_name, pid
"""


class ProxyDelay(Fault):
    name, group = "proxy-delay", "proxy"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        delay, seconds = dice.uniform(0.02, 0.3), dice.uniform(2.0, 4.0)
        rig.proxy.delay(delay)
        await asyncio.sleep(seconds)
        rig.proxy.heal()
        return f"every piece to and from Postgres delayed by {delay * 1000:.0f} ms for {seconds:.1f} s"


class ProxyCut(Fault):
    name, group = "proxy-cut", "proxy"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        seconds = dice.uniform(0.0, 3.0)
        rig.proxy.cut()
        await asyncio.sleep(seconds)
        rig.proxy.heal()
        return f"every connection to Postgres reset for {seconds:.1f} s"


class ProxyHalfOpen(Fault):
    name, group = "proxy-half-open", "proxy"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        seconds = dice.uniform(2.0, 2 * LEASE)
        rig.proxy.half_open()
        await asyncio.sleep(seconds)
        rig.proxy.heal()
        return f"everything to and from Postgres swallowed for {seconds:.1f} s"


class SwallowAnswer(Fault):
    """The connection is cut after COMMIT, or a statement that commits by itself, was done and before its answer."""

    name, group = "swallow-answer", "proxy"
    WORDS: ClassVar[dict[str, bytes]] = {
        "COMMIT": b"COMMIT",
        "emit": b"DELETE FROM cron_ticks",
        "write to executions": b"UPDATE executions",
        "write to attempts": b"INTO attempts",
        "generate": b"INTO cron_ticks",
    }

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        before = rig.proxy.swallowed
        what = dice.sample(sorted(self.WORDS), 3)
        for words in what:
            target = rig.proxy.swallowed + 1
            rig.proxy.swallow_answer(self.WORDS[words])
            with contextlib.suppress(AssertionError):
                await until(lambda target=target: rig.proxy.swallowed >= target, 2.0, words)
        rig.proxy.heal()
        return f"answers swallowed after: {', '.join(what)}; {rig.proxy.swallowed - before} of them met"


class Clocks(Fault):
    """One of each role believes it is two hours later or earlier."""

    name, group = "clock", "roles"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        chosen = {slot.role: slot for slot in dice.sample(rig.roles.slots, len(rig.roles.slots))}
        said = []
        for slot in chosen.values():
            offset = dice.choice((-7200, 7200))
            said.append(f"{slot.name} {offset:+d} s")
            await started(slot, rig.roles.restart(slot, LD_PRELOAD=str(rig.clock_shim), CLOCK_OFFSET=str(offset)))
        seconds = dice.uniform(5.0, 8.0)
        await up(chosen.values())
        await asyncio.sleep(seconds)
        for slot in chosen.values():
            await started(slot, rig.roles.restart(slot))
        return f"clocks off for {seconds:.1f} s: {', '.join(said)}"


class Shards(Fault):
    """Two SHARD_COUNTs at once: some rows belong to nobody, some to two."""

    name, group = "shards", "roles"
    ROLES: ClassVar[tuple[str, ...]] = ("tick-generator", "ticker", "dispatcher")

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        slots = [slot for role in self.ROLES for slot in rig.roles.of(role)]
        shares = [{"SHARD_ID": "0", "SHARD_COUNT": "2"}, {"SHARD_ID": "1", "SHARD_COUNT": "3"}]
        for slot, share in zip(slots, itertools.cycle(shares), strict=False):
            await started(slot, rig.roles.restart(slot, **share))
        seconds = dice.uniform(5.0, 8.0)
        await up(slots)
        await asyncio.sleep(seconds)
        for slot in slots:
            await started(slot, rig.roles.restart(slot))
        return f"shards 0/2 and 1/3 at once for {seconds:.1f} s"


class TargetFault(Fault):
    group = "target"
    kind: ClassVar[str]

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        share, seconds = dice.uniform(0.3, 0.9), dice.uniform(1.5, 3.0)
        await rig.behave(**{self.kind: share})
        await asyncio.sleep(seconds)
        await rig.behave()
        return f"{share:.0%} of requests: {self.kind}, for {seconds:.1f} s"


class TargetFails(TargetFault):
    name, kind = "target-500", "fail"


class TargetHangs(TargetFault):
    name, kind = "target-hang", "hang"


class TargetResets(TargetFault):
    name, kind = "target-reset", "reset"


class TargetDrops(TargetFault):
    name, kind = "target-drop", "drop"


class Snapshot(Fault):
    """A snapshot held open: nothing dead can be cleaned away meanwhile, and nothing may depend on that."""

    name, group = "snapshot", "snapshot"

    async def inject(self, rig: Rig, dice: random.Random) -> str:
        seconds = dice.uniform(4.0, 8.0)
        async with rig.database() as db:
            await db.execute("SET idle_in_transaction_session_timeout = 0")
            await db.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await db.execute("SELECT count(*) FROM executions")
            await asyncio.sleep(seconds)
            await db.execute("ROLLBACK")
        return f"a snapshot held for {seconds:.1f} s"
