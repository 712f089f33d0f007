"""Real role processes, started, killed and asked to stop by their pid."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


def environment(**extra: str) -> dict[str, str]:
    """This process's environment without what would tell a role something else."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(("FLEET_", "PG", "DATABASE_URL"))}
    kept = {"FLEET_PG_BIN": os.environ["FLEET_PG_BIN"]} if "FLEET_PG_BIN" in os.environ else {}
    return {**own, **kept, "LOG_FORMAT": "json", **extra}


class Process:
    def __init__(self, arguments: list[str], log: Path, env: dict[str, str], cwd: Path) -> None:
        self.log = log
        with log.open("ab") as stream:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "fleet", *arguments], stdout=stream, stderr=stream, env=env, cwd=cwd
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        return self._popen.poll()

    def signal(self, number: int) -> None:
        if self._popen.poll() is None:
            self._popen.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._popen.wait(30)

    async def stop(self, within: float = 60.0) -> int:
        """SIGTERM, and its exit code."""
        self.signal(signal.SIGTERM)
        await until(lambda: self.returncode is not None, within, f"process {self.pid} to end; see {self.log}")
        assert self.returncode is not None
        return self.returncode

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        parsed = [json.loads(line) for line in lines if line.startswith("{")]
        return [event for event in parsed if event.get("event") == name]


class Processes:
    """The roles of one test; whatever still runs at its end is killed."""

    def __init__(self, folder: Path, **env: str) -> None:
        self._folder = folder
        self._env = env
        self.all: list[Process] = []

    def run(self, role: str, **env: str) -> Process:
        return self.start(["run", role], **env)

    def start(self, arguments: list[str], **env: str) -> Process:
        log = self._folder / f"{len(self.all)}-{arguments[-1]}.log"
        process = Process(arguments, log, environment(**{"PYTHONPATH": str(ROOT), **self._env, **env}), self._folder)
        self.all.append(process)
        return process

    def fleet(self, **counts: int) -> None:
        """As many of each role; underscores for dashes."""
        for role, count in counts.items():
            for _ in range(count):
                self.run(role.replace("_", "-"))

    async def stop(self) -> list[int]:
        for process in self.all:
            process.signal(signal.SIGTERM)
        return [await process.stop() for process in self.all]


@contextmanager
def processes(folder: Path, **env: str) -> Iterator[Processes]:
    own = Processes(folder, **env)
    try:
        yield own
    finally:
        for process in own.all:
            process.signal(signal.SIGCONT)
            process.kill()


async def until(
    condition: Callable[[], bool] | Callable[[], Awaitable[bool]], within: float, what: str, every: float = 0.05
) -> None:
    """Wait for a condition; fails loudly, with what was waited for, when it does not come."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        result = condition()
        if await result if isinstance(result, Awaitable) else result:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise AssertionError(f"waited {within:g} s in vain for {what}")
        await asyncio.sleep(every)
