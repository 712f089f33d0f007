"""Supervisor: keeps the roles of one `fleetctl up` running, and stops them in order.

Promise     A role that ends is started again and the others never notice; only the operator stops the set.
            Nothing outlives `up`: Linux sends every role SIGTERM when `up` dies, however it dies.
Emits       role.ended, role.restarted, role.killed

It is honcho's manager with other rules: honcho stops everything when one process ends, and kills after 5 seconds.
"""

import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from honcho.manager import Manager
from honcho.printer import Message, Printer
from honcho.process import Process

from fleet import log

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
# A role that ran this long was well: its next end is a new story, not one more failure to start.
WELL_AFTER = 60.0
PR_SET_PDEATHSIG = 1
# Lines kept while whoever reads our output is slow; beyond it the roles wait for the reader, as with any pipe.
MOST_LINES = 10_000


class Backoff:
    """How long to wait before a role is started again."""

    def __init__(self) -> None:
        self._next = FIRST_PAUSE

    def after(self, lived: float) -> float:
        if lived >= WELL_AFTER:
            self._next = FIRST_PAUSE
        pause, self._next = self._next, min(self._next * 2, LONGEST_PAUSE)
        return pause


class RoleProcess(Process):  # type: ignore[misc]
    """honcho's process, without a shell between, and started by the main thread: its death is what Linux reports."""

    def start(self, events: "queue.Queue[Message]") -> int:
        self._events = events
        child = subprocess.Popen(
            self.cmd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            # Its own session: Ctrl-C reaches `up` alone, which then stops the roles as it should.
            start_new_session=True,
            preexec_fn=_stop_with_parent(),
        )
        threading.Thread(target=self._relay, args=(child,), daemon=True).start()
        return child.pid

    def _relay(self, child: subprocess.Popen[bytes]) -> None:
        for line in child.stdout or ():
            self._send_message(line)
        self._send_message({"returncode": child.wait()}, type="stop")


@dataclass
class Watched:
    """One role under supervision. `due` is when it is to be started, None while it runs."""

    process: RoleProcess
    backoff: Backoff
    due: float | None = 0.0
    pid: int = 0
    started: float = 0.0
    lives: int = 0


class Supervisor(Manager):  # type: ignore[misc]
    """`drain` is how many seconds a role has between being told to stop and being killed."""

    def __init__(self, printer: Printer, drain: float) -> None:
        super().__init__(printer)
        self.events: queue.Queue[Message] = queue.Queue(MOST_LINES)
        self._process_ctor = RoleProcess
        self._drain = drain
        self._roles: dict[str, Watched] = {}
        self._signals = 0
        self._kill_at: float | None = None
        self.returncode = 0

    def add_role(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        process = self.add_process(name, command, env=dict(env))
        self._roles[name] = Watched(process, Backoff())

    def loop(self) -> None:
        """Run until told to stop by SIGINT or SIGTERM and every role has ended; the second signal does not wait."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        while not self._signals:
            self._start_due()
            self._take_event()
        self._send(signal.SIGTERM)
        self._kill_at = time.monotonic() + self._drain
        while self._running():
            self._kill_if_due()
            self._take_event()
        while not self.events.empty():
            self._take_event()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1

    def _running(self) -> list[tuple[str, Watched]]:
        return [(name, role) for name, role in self._roles.items() if role.pid]

    def _start_due(self) -> None:
        now = time.monotonic()
        for name, role in self._roles.items():
            if role.due is None or role.due > now:
                continue
            role.due, role.started = None, now
            role.pid = role.process.start(self.events)
            if role.lives:
                log.get().warning("role.restarted", process=name, pid=role.pid, times=role.lives)
            role.lives += 1

    def _take_event(self) -> None:
        try:
            message = self.events.get(timeout=0.1)
        except queue.Empty:
            return
        if message.type == "line":
            self._printer.write(message)
        else:
            self._on_end(message.name, message.data["returncode"])

    def _on_end(self, name: str, code: int) -> None:
        role = self._roles[name]
        role.pid = 0
        if self._signals:
            log.get().info("role.ended", process=name, exit_code=code)
            return
        now = time.monotonic()
        pause = role.backoff.after(now - role.started)
        role.due = now + pause
        log.get().warning("role.ended", process=name, exit_code=code, restart_in=pause)

    def _kill_if_due(self) -> None:
        if self._kill_at is None or (self._signals < 2 and time.monotonic() < self._kill_at):
            return
        self._kill_at = None
        self.returncode = 1
        for name, role in self._running():
            log.get().error("role.killed", process=name, pid=role.pid)
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        for _, role in self._running():
            stop = self._procmgr.kill if number is signal.SIGKILL else self._procmgr.terminate
            stop(role.pid)


def _stop_with_parent() -> Callable[[], None] | None:
    """What a role does between fork and exec so that it is told to stop when `up` is gone, even by kill -9."""
    if not sys.platform.startswith("linux"):
        return None
    prctl: Any = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def before_exec() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it died before it could be watched
            os._exit(1)

    return before_exec
