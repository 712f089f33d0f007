"""Role processes under a supervisor that starts again whatever ends; faults kill, freeze and misconfigure them."""

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.processes import ROOT, environment, until

LOOK_SECONDS = 0.05
LONGEST_PAUSE = 1.0
PR_SET_PDEATHSIG = 1
_prctl: Any = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None


def with_parent() -> Callable[[], None] | None:
    """What a child does before exec so that it does not outlive a drill that was killed itself."""
    if _prctl is None:
        return None
    return lambda: _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Slot:
    """A place in the fleet: one role, whose process is another after each restart."""

    def __init__(self, role: str, number: int, folder: Path, env: dict[str, str]) -> None:
        self.role = role
        self.name = f"{role}-{number}"
        self.extra: dict[str, str] = {}
        """Environment of the next start only."""
        self.lives = 0
        self.due = 0.0
        self._log = folder / f"{self.name}.log"
        self._env = env
        self._log_start = 0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def start(self) -> None:
        extra, self.extra = self.extra, {}
        with self._log.open("ab") as log:
            self._log_start = log.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fleet", "run", self.role],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment(**{**self._env, **extra}),
                cwd=self._log.parent,
                preexec_fn=with_parent(),
            )
        self.lives += 1

    @property
    def is_up(self) -> bool:
        """Whether its process has found the database and works."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return self.pid is not None and b"role.started" in log.read()

    def signal(self, number: int) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)


class Roles:
    """Starts again what ended, after up to a second, until `stop`."""

    def __init__(self, folder: Path, dsn: str, counts: dict[str, int], settings: dict[str, str], seed: str) -> None:
        env = {"PYTHONPATH": str(ROOT), "DATABASE_URL": dsn, **settings}
        self.slots = [Slot(role, i, folder, env) for role, count in counts.items() for i in range(count)]
        self._dice = random.Random(f"{seed} restarts")
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._supervise())

    def of(self, role: str) -> list[Slot]:
        return [slot for slot in self.slots if slot.role == role]

    def restart(self, slot: Slot, **extra: str) -> int:
        """Kill it and start it with something else in its environment; returns which life that will be."""
        slot.extra = extra
        slot.kill()
        return slot.lives + 1

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for what does not end in time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for number, seconds in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 10.0)):
            for slot in self.slots:
                slot.signal(signal.SIGCONT)
                slot.signal(number)
            with contextlib.suppress(AssertionError):
                await until(lambda: not any(slot.pid for slot in self.slots), seconds, "the roles to end")

    async def _supervise(self) -> None:
        while True:
            now = time.monotonic()
            for slot in self.slots:
                if slot.pid is None and slot.due == 0.0:
                    slot.due = now + (self._dice.uniform(0.0, LONGEST_PAUSE) if slot.lives else 0.0)
                if slot.pid is None and now >= slot.due:
                    slot.due = 0.0
                    slot.start()
            await asyncio.sleep(LOOK_SECONDS)


@contextlib.contextmanager
def frozen(slot: Slot) -> Any:
    """SIGSTOP it for a while. It wakes whatever happens, and only the process that was frozen is woken."""
    pid = slot.pid
    slot.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        if pid is not None and slot.pid == pid:
            os.kill(pid, signal.SIGCONT)
