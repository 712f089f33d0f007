"""A real `fleetctl up` in its own folder, and a local HTTP server that it can call."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

from fleet.postgres import is_running
from support import processes
from support.processes import ROOT

PATIENCE = 90.0
T = TypeVar("T")


def until(what: str, look: Callable[[], T], patience: float = PATIENCE) -> T:
    """Look again until there is something to see; fail by name when it does not come."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if seen := look():
            return seen
        time.sleep(0.05)
    raise AssertionError(f"waited {patience:.0f} s in vain for {what}")


def environment(data_dir: Path, **extra: str) -> dict[str, str]:
    # 0: every role takes a free port, whatever else runs on this machine.
    return processes.environment(**{"FLEET_DATA_DIR": str(data_dir), "PORT": "0", "PYTHONPATH": str(ROOT), **extra})


class Up:
    """A running `up`. What it says on stderr is in `log`, one JSON event per line."""

    def __init__(
        self,
        data_dir: Path,
        *arguments: str,
        command: tuple[str, ...] = (sys.executable, "-m", "fleet"),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.command = command
        self.env = environment(data_dir, **(env or {}))
        self.cwd = cwd or data_dir.parent
        self.log = data_dir.parent / f"up-{time.monotonic_ns()}.log"
        with self.log.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, "up", "--json", *arguments],
                env=self.env,
                cwd=self.cwd,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def started(self) -> dict[str, Any]:
        """What `up --json` prints, once every role answers that it is well."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"up ended before it had started:\n{self.log.read_text()}"
        told: dict[str, Any] = json.loads(line)
        for role in told["roles"]:
            until(f"{role['name']} to be well", lambda url=role["health"]: _answers(url))
        return told

    def fleetctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.command, *arguments], env=self.env, cwd=self.cwd, capture_output=True, text=True, timeout=PATIENCE
        )

    def ask(self, *arguments: str) -> Any:
        done = self.fleetctl(*arguments, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [event for event in map(json.loads, lines) if event.get("event") == name]

    def pid_of(self, role: str) -> int:
        """The pid of the newest process of a role."""
        return until(f"a {role}", lambda: self._pids().get(role, 0))

    def _pids(self) -> dict[str, int]:
        """role -> pid, of the processes that say so on their command line."""
        found = {}
        for pid in children(self.process.pid):
            words = _command_line(pid)
            if "run" in words:
                found[words[words.index("run") + 1]] = pid
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def kill_everything(self) -> None:
        """kill -9 of `up`, its roles and Postgres, all at once."""
        for pid in [self.process.pid, *children(self.process.pid)]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)

    def clean(self) -> None:
        """Leave nothing behind, whatever the test did."""
        if self.process.poll() is None:
            self.stop()
        if self.process.stdout is not None:
            self.process.stdout.close()
        until("postgres to stop", lambda: not is_running(self.data_dir), 30.0)


@contextmanager
def running(data_dir: Path, *arguments: str, **options: Any) -> Iterator[Up]:
    up = Up(data_dir, *arguments, **options)
    try:
        yield up
    finally:
        up.clean()


def children(pid: int) -> list[int]:
    done = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True)
    return [int(word) for word in done.stdout.split()]


def alive(pid: int) -> bool:
    words = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout
    return bool(words.strip()) and not words.startswith("Z")


def _command_line(pid: int) -> list[str]:
    done = subprocess.run(["ps", "-ww", "-o", "args=", "-p", str(pid)], capture_output=True, text=True)
    return done.stdout.split()


def _answers(url: str) -> bool:
    with suppress(OSError):
        return bool(urllib.request.urlopen(url, timeout=2).status == 200)
    return False


class Receiver:
    """Takes POSTs and remembers them. While `gate` is clear they wait: requests in flight."""

    def __init__(self) -> None:
        self.received: list[dict[str, str]] = []
        self.status = 200
        self.gate = threading.Event()
        self.gate.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                receiver.received.append({name.lower(): value for name, value in self.headers.items()})
                receiver.gate.wait(PATIENCE)
                with suppress(OSError):
                    self.send_response(receiver.status)
                    self.send_header("Content-Length", "0")
                    self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/hook"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
