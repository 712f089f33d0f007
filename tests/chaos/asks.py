"""What a drill asks of the fleet while it runs, by the product's own operations, and what it was answered.

ok       it was done
refused  it was not done, and the answer said so
lost     no answer came: it may have been done, or not
"""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import errors

from chaos.roles import with_parent
from fleet.domain.schedule import Definition
from fleet.errors import FleetError
from fleet.operations import executions, schedules
from fleet.operations.schedules import Window
from fleet.store.connection import Connection, connect, rows
from support.processes import ROOT, environment

WORKSPACE = "system"
# Longer than any lock or statement may take, shorter than a swallowed connection lasts.
ANSWER_SECONDS = 20.0
# What Postgres says about itself going away; every other complaint of a server is an answer that nothing was done.
GOING_AWAY = (
    errors.AdminShutdown,
    errors.CrashShutdown,
    errors.CannotConnectNow,
    errors.IdleInTransactionSessionTimeout,
)
NOT_RECORDED = {"name", "target", "workspace_id", "payload", "labels", "metadata", "note", "enabled"}

Operation = Callable[[Connection], Awaitable[Any]]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="microseconds")


class Asker:
    def __init__(self, dsn: str, path: Path, window: Window, settings: dict[str, str]) -> None:
        self._dsn = dsn
        self._settings = settings
        self._file = path.open("a", buffering=1)
        self._window = window

    def close(self) -> None:
        self._file.close()

    async def add(self, definition: Definition) -> str:
        whole = definition.completed()
        asked = {f.name: getattr(whole, f.name) for f in fields(Definition) if f.name not in NOT_RECORDED}
        return await self._ask("add", definition.name, asked, lambda db: schedules.add(db, definition, self._window))

    async def update(self, name: str, changes: dict[str, Any]) -> str:
        return await self._ask(
            "update", name, changes, lambda db: schedules.update(db, WORKSPACE, name, changes, self._window)
        )

    async def pause(self, name: str) -> str:
        return await self._ask("pause", name, None, lambda db: schedules.pause(db, WORKSPACE, name, None, self._window))

    async def resume(self, name: str) -> str:
        return await self._ask("resume", name, None, lambda db: schedules.resume(db, WORKSPACE, name, self._window))

    async def cancel(self, name: str) -> str:
        return await self._ask("cancel", name, None, lambda db: schedules.cancel(db, WORKSPACE, name, self._window))

    async def delete(self, name: str) -> str:
        return await self._ask("delete", name, None, lambda db: schedules.delete(db, WORKSPACE, name))

    async def trigger(self, name: str) -> str:
        return await self._ask("trigger", name, None, lambda db: schedules.trigger(db, WORKSPACE, name))

    async def retry(self, name: str) -> str:
        """Of the schedule's newest finished execution."""
        return await self._ask("retry", name, None, lambda db: _on_newest(db, name, True, executions.retry))

    async def execution_cancel(self, name: str) -> str:
        """Of the schedule's newest unfinished execution."""
        return await self._ask(
            "execution_cancel", name, None, lambda db: _on_newest(db, name, False, executions.cancel)
        )

    async def by_command(self, op: str, name: str, every: int | None = None, **env: str) -> str:
        """The same as a person does it, in a process of its own that may die of what is armed in it."""
        asked: dict[str, Any] = {"asked_at": now(), "answered_at": None, "op": op, "schedule": name}
        asked["definition"] = None if every is None else {"interval_seconds": every}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "fleet", "schedule", op, name),
            *(() if every is None else ("--every", f"{every}s")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=environment(PYTHONPATH=str(ROOT), DATABASE_URL=self._dsn, **self._settings, **env),
            preexec_fn=with_parent(),
        )
        output, _ = await process.communicate()
        return self._record(asked, _by_exit(process.returncode), output.decode(errors="replace").strip()[-300:])

    async def _ask(self, op: str, name: str, definition: dict[str, Any] | None, operation: Operation) -> str:
        asked = {"asked_at": now(), "answered_at": None, "op": op, "schedule": name, "definition": _plain(definition)}
        return self._record(asked, *await self._answer(operation))

    def _record(self, asked: dict[str, Any], answer: str, detail: str) -> str:
        answered_at = None if answer == "lost" else now()
        self._file.write(json.dumps({**asked, "answered_at": answered_at, "answer": answer, "detail": detail}) + "\n")
        return answer

    async def _answer(self, operation: Operation) -> tuple[str, str]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS), connect(self._dsn, "drill") as db:
                return "ok", str(await operation(db))
        except FleetError as error:
            return "refused", str(error)
        except TimeoutError:
            return "lost", f"no answer within {ANSWER_SECONDS:g} s"
        except psycopg.Error as error:
            said = error.sqlstate is not None and not isinstance(error, GOING_AWAY)
            return "refused" if said else "lost", f"{type(error).__name__}: {error}"


NEWEST = """
SELECT e.id FROM executions e JOIN cron_schedules s ON s.id = e.schedule_id
 WHERE s.name = %(name)s AND (e.finished_at IS NOT NULL) = %(finished)s
 ORDER BY e.scheduled_at DESC LIMIT 1
"""


async def _on_newest(
    db: Connection, name: str, finished: bool, operation: Callable[[Connection, str, str], Awaitable[Any]]
) -> Any:
    found = await rows(db, NEWEST, {"name": name, "finished": finished})
    if not found:
        raise FleetError(f"schedule {name!r} has no such execution now")
    return await operation(db, WORKSPACE, str(found[0]["id"]))


def _by_exit(code: int | None) -> str:
    """fleetctl's exit codes: 0 done, 2 to 4 refused; of any other, and of a death, it cannot be told."""
    return "ok" if code == 0 else "refused" if code in (2, 3, 4) else "lost"


def _plain(definition: dict[str, Any] | None) -> dict[str, Any] | None:
    if definition is None:
        return None
    return {
        key: value.isoformat(timespec="microseconds") if isinstance(value, datetime) else value
        for key, value in definition.items()
        if value is not None
    }
