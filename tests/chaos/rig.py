"""Everything a drill runs on: its own Postgres, the proxy before it, the target, the roles. Faults act on this."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import aiohttp

from chaos import recorder
from chaos.asks import Asker
from chaos.proxy import Proxy
from chaos.roles import Roles, with_parent
from fleet.domain.schedule import Definition
from fleet.operations.schedules import Window
from fleet.postgres import attach
from fleet.postgres.cluster import Cluster, postmaster
from fleet.store import migrate
from fleet.store.connection import Connection, connect
from support.processes import ROOT, environment, until

COUNTS = {"tick-generator": 2, "ticker": 2, "dispatcher": 2, "reconciler": 2, "cleanup": 1}
# A short lease and lookahead, so that takeover and planning happen many times in a drill; clean-up as eager as it gets.
SETTINGS = {
    "LEASE": "3s",
    "LOOKAHEAD": "5s",
    "GENERATE_INTERVAL": "1s",
    "RECONCILE_INTERVAL": "500ms",
    "MISFIRE_GRACE": "60s",
    "CLEANUP_INTERVAL": "2s",
    "RETENTION_RUNS": "10",
    "RETENTION_AGE": "10s",
    "DISPATCHER_DRAIN_TIMEOUT": "3s",
    "PORT": "0",
}
LEASE, LOOKAHEAD = 3.0, 5.0


class Rig:
    """`dsn` is Postgres itself, for the drill; `proxied` is what the roles are told."""

    def __init__(self, history: Path, work: Path, seed: str, settings: Mapping[str, str] | None = None) -> None:
        history.mkdir(parents=True, exist_ok=True)
        self.history = history
        self.seed = seed
        self.settings = {**SETTINGS, **(settings or {})}
        self.grace = float(self.settings["MISFIRE_GRACE"].removesuffix("s"))
        self._cluster = Cluster(work / "postgres")
        self._server = attach(self._cluster.folder)
        self.dsn = self._server.dsn
        self.proxy = Proxy(_host_and_port(self.dsn))
        self.names: list[str] = []
        """Of the schedules that may be edited."""
        self.editable: Callable[[str], Definition]
        """Such a schedule, by its name."""
        self.clock_shim = compile_shim(work)
        self._guardian = subprocess.Popen(
            [sys.executable, "-m", "chaos.guardian", str(work)],
            stdin=subprocess.PIPE,
            env=environment(PYTHONPATH=f"{ROOT / 'tests'}{os.pathsep}{ROOT}"),
            start_new_session=True,
        )
        self._logs = history / "logs"
        self._logs.mkdir()

    async def start(self) -> None:
        await self.proxy.start()
        host, port = self.proxy.address
        user = urlsplit(self.dsn).netloc.rpartition("@")[0]
        proxied = urlunsplit(urlsplit(self.dsn)._replace(netloc=f"{user}@{host}:{port}"))
        await asyncio.to_thread(migrate.upgrade, self.dsn)
        await asyncio.to_thread(recorder.install, self.dsn)
        self._start_target()
        self.target = f"http://127.0.0.1:{await asyncio.to_thread(self._target_port)}/"
        self.asker = Asker(proxied, self.history / "asked.jsonl", Window(LOOKAHEAD, self.grace), self.settings)
        self.roles = Roles(self._logs, proxied, COUNTS, self.settings, self.seed)
        self.roles.start()

    def _start_target(self) -> None:
        with (self._logs / "target.log").open("ab") as log:
            self._target = subprocess.Popen(
                [sys.executable, "-m", "chaos.target", str(self.history / "receipts.jsonl"), "0", self.seed],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(PYTHONPATH=f"{ROOT / 'tests'}{os.pathsep}{ROOT}"),
                preexec_fn=with_parent(),
            )

    def _target_port(self) -> int:
        assert self._target.stdout is not None
        return int(self._target.stdout.readline())

    async def close(self) -> None:
        """Nothing stays behind, however far `start` came."""
        if hasattr(self, "roles"):
            await self.roles.stop()
            self.asker.close()
        if hasattr(self, "_target"):
            self._target.kill()
            self._target.wait()
            if self._target.stdout is not None:
                self._target.stdout.close()
        await self.proxy.close()
        await asyncio.to_thread(self._server.close)
        await asyncio.to_thread(self._guardian.communicate)

    async def heal(self) -> None:
        self.proxy.heal()
        await self.behave()

    async def behave(self, **chances: float) -> None:
        """Lay a behaviour over the whole target; nothing lifts it."""
        query = {kind: str(chance) for kind, chance in chances.items()}
        async with aiohttp.ClientSession() as session, session.post(f"{self.target}_behave", params=query) as answer:
            answer.raise_for_status()

    async def crash_postgres(self, number: int) -> None:
        """Send a signal to the postmaster, and return when it accepts connections again."""
        found = postmaster(self._cluster)
        if found is not None:
            os.kill(found[0], number)
            await until(lambda: postmaster(self._cluster) is None, 30, "the postmaster to end", every=0.01)
        await asyncio.to_thread(self._revive)

    def _revive(self) -> None:
        # The rig's own hold keeps the server up; this one only brings it back.
        again = attach(self._cluster.folder)
        self.proxy.upstream = _host_and_port(again.dsn)
        self.dsn = again.dsn
        again.close()

    @asynccontextmanager
    async def database(self) -> AsyncIterator[Connection]:
        """A connection around the proxy, as the drill's own eyes."""
        async with connect(self.dsn, "drill's eyes") as connection:
            yield connection


def _host_and_port(dsn: str) -> tuple[str, int]:
    parts = urlsplit(dsn)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def compile_shim(work: Path) -> Path | None:
    """The clock shim as a library; None where nothing can compile it."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        return None
    library = work / "clock_shim.so"
    source = Path(__file__).with_name("clock_shim.c")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=False, capture_output=True
    )
    return library if done.returncode == 0 else None
