"""Writes histories by hand: a fleet without faults, one step at a time, for the tests of the checker.

Every step happens `at` seconds after the start. Steps of different schedules may be written in any order; the changes
are numbered in the order of their time.
"""

import hashlib
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from chaos.history import Asked, Change, Fault, Final, History, Receipt, Row, written

START = datetime(2026, 3, 27, tzinfo=UTC)
LEASE = 15.0
DEFAULTS: Row = {
    "timezone": "UTC",
    "jitter_ms": 0,
    "overlap": "allow",
    "catch_up": "latest",
    "delivery": "at-least-once",
    "max_attempts": 4,
    "backoff_seconds": [60.0],
    "scopes": [""],
    "enabled": True,
    "version": 1,
    "accounted_n": 0,
}


def instant(at: float) -> datetime:
    return START + timedelta(seconds=at)


def stamp(at: float) -> str:
    return written(instant(at))


class Builder:
    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.receipts: list[Receipt] = []
        self.faults: list[Fault] = [Fault(instant(0), None, "kill", "a dispatcher")]
        self._changes: list[Change] = []
        self._rows: dict[tuple[str, Any], Row] = {}
        self.tokens = itertools.count(1)
        self._xids = itertools.count(700)
        self._xid: int | None = None

    def history(self, ends: float) -> History:
        changes = sorted(self._changes, key=lambda change: change.at)
        numbered = [Change(seq, c.at, c.xid, c.table, c.op, c.old, c.new) for seq, c in enumerate(changes, start=1)]
        settings = {"lease_seconds": LEASE, "misfire_grace_seconds": 60, "lookahead_seconds": 60}
        return History(
            self.asked, numbered, self.receipts, self.faults, Final(instant(ends), instant(ends), settings, seed=1)
        )

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self._xid = next(self._xids)
        yield
        self._xid = None

    def write(self, at: float, table: str, key: Any, new: Row | None) -> None:
        """One row change; None removes the row. Nulls are left out, as they are in what a drill records."""
        old = self._rows.get((table, key))
        row = None if new is None else {name: value for name, value in new.items() if value is not None}
        op = "DELETE" if row is None else "INSERT" if old is None else "UPDATE"
        xid = next(self._xids) if self._xid is None else self._xid
        self._changes.append(Change(0, instant(at), xid, table, op, old, row))
        if row is None:
            del self._rows[table, key]
        else:
            self._rows[table, key] = row

    def ask(self, at: float, op: str, schedule: str, definition: Row | None = None, answer: str = "ok") -> None:
        self.asked.append(Asked(instant(at - 0.01), instant(at + 0.01), op, schedule, definition, answer))


class Schedule:
    """A schedule of a written history; its planned times are given as seconds after the start."""

    def __init__(self, builder: Builder, name: str, times: list[float], at: float = 0, **definition: Any) -> None:
        self.builder, self.name, self.times = builder, name, times
        self.id = str(UUID(bytes=hashlib.md5(name.encode()).digest()))
        builder.ask(at, "add", name, definition)
        rule = self._rule(definition, at)
        self.row = {**DEFAULTS, **definition, **rule, "id": self.id, "name": name, "created_at": stamp(at)}
        with builder.transaction():
            builder.write(at, "cron_schedules", self.id, self.row)
            self.version(at, 1, 0, self._seconds(rule["start_at"]) - 0.001, definition, rule)

    def version(self, at: float, number: int, after_n: int, after: float, definition: Row, rule: Row) -> None:
        row = {
            "schedule_id": self.id,
            "version": number,
            "after_n": after_n,
            "after_at": stamp(after),
            "timezone": definition.get("timezone", "UTC"),
            "definition": definition,
            **rule,
        }
        self.builder.write(at, "schedule_versions", (self.id, number), row)

    def change(self, at: float, op: str | None = None, definition: Row | None = None, **columns: Any) -> None:
        if op is not None:
            self.builder.ask(at, op, self.name, definition)
        self.row = {**self.row, **columns}
        self.builder.write(at, "cron_schedules", self.id, self.row)

    def edit(self, at: float, after_n: int, definition: Row) -> None:
        """Another rule, from now on."""
        with self.builder.transaction():
            rule = self._rule(definition, 0)
            self.change(at, "update", definition, version=2, **rule)
            self.version(at, 2, after_n, at, definition, rule)

    def tick(self, at: float, n: int, jitter: float = 0) -> None:
        scheduled = self.times[n - 1]
        row = {**self._key(n), "execute_at": stamp(scheduled + jitter), "n": n, "id": self.execution_id(n)}
        self.builder.write(at, "cron_ticks", (self.id, n), row)

    def drop_tick(self, at: float, n: int) -> None:
        self.builder.write(at, "cron_ticks", (self.id, n), None)

    def emit(self, n: int, late: float = 0.01, jitter: float = 0) -> "Execution":
        """Plan it a minute ahead, and make it an execution when it is due."""
        due = self.times[n - 1] + jitter
        self.tick(due - 60, n, jitter)
        with self.builder.transaction():
            self.drop_tick(due + late, n)
            return Execution(self, due + late, {**self._key(n), "n": n, "run": "", "execute_at": stamp(due)})

    def run(self, n: int, jitter: float = 0) -> "Execution":
        execution = self.emit(n, jitter=jitter)
        execution.lease(execution.began + 0.01)
        execution.receive(execution.began + 0.02)
        execution.finish(execution.began + 0.03)
        return execution

    def trigger(self, at: float) -> "Execution":
        self.builder.ask(at, "trigger", self.name)
        key = {"schedule_id": self.id, "scope": "", "scheduled_at": stamp(at)}
        return Execution(self, at, {**key, "run": "trigger-1", "execute_at": stamp(at)})

    def gap(self, at: float, first: int, last: int, reason: str) -> None:
        row = {
            "schedule_id": self.id,
            "scope": "",
            "first_n": first,
            "last_n": last,
            "reason": reason,
            "first_scheduled_at": stamp(self.times[first - 1]),
            "last_scheduled_at": stamp(self.times[last - 1]),
        }
        self.builder.write(at, "gaps", (self.id, first), row)

    def execution_id(self, n: int) -> str:
        return identity(self.id, self.times[n - 1], "")

    def _key(self, n: int) -> Row:
        return {"schedule_id": self.id, "scope": "", "scheduled_at": stamp(self.times[n - 1])}

    def _rule(self, definition: Row, created: float) -> Row:
        start = definition.get("run_at") or definition.get("start_at")
        start = start or stamp(created + definition.get("interval_seconds", 0))
        kinds = {kind: definition.get(kind) for kind in ("interval_seconds", "cron_expression", "run_at", "end_at")}
        return {**kinds, "anchor_at": start, "start_at": start}

    def _seconds(self, text: str) -> float:
        return (datetime.fromisoformat(text) - START).total_seconds()


def identity(schedule: str, at: float, run: str) -> str:
    tail = hashlib.sha256(f"{schedule}\x1f\x1f{run}".encode()).hexdigest()[:18]
    return str(UUID(f"{round(instant(at).timestamp() * 1000):012x}8{tail[:3]}8{tail[3:]}"))


class Execution:
    def __init__(self, schedule: Schedule, at: float, row: Row) -> None:
        self.builder, self.schedule, self.began = schedule.builder, schedule, at
        scheduled = (datetime.fromisoformat(row["scheduled_at"]) - START).total_seconds()
        overlap = schedule.row["overlap"]
        slot = {"skip": 0, "queue": round(scheduled * 1_000_000) + 1}.get(overlap)
        self.id = identity(schedule.id, scheduled, row["run"])
        self.row = {**row, "id": self.id, "slot": slot, "status": "emitted", "attempt": 0}
        self.write(at, next_attempt_at=row["execute_at"])

    def write(self, at: float, **columns: Any) -> None:
        self.row = {**self.row, **columns}
        self.builder.write(at, "executions", self.id, self.row)

    def lease(self, at: float, worker: str = "a") -> None:
        attempt = self.row["attempt"] + 1
        token = str(UUID(int=next(self.builder.tokens)))
        until = stamp(at + LEASE)
        self.write(
            at,
            status="in_progress",
            attempt=attempt,
            lease_token=token,
            leased_by=worker,
            leased_at=stamp(at),
            leased_until=until,
        )

    def heartbeat(self, at: float) -> None:
        self.write(at, leased_until=stamp(at + LEASE))

    def receive(self, at: float, answer: str = "200", attempt: int | None = None) -> None:
        number = self.row["attempt"] if attempt is None else attempt
        scheduled_at = datetime.fromisoformat(self.row["scheduled_at"])
        self.builder.receipts.append(Receipt(instant(at), self.id, self.schedule.name, scheduled_at, number, answer))

    def finish(self, at: float, outcome: str = "delivered", status: str = "delivered", **columns: Any) -> None:
        attempt, code = self.row["attempt"], 200 if outcome == "delivered" else None
        done = {"finished_at": stamp(at)} if status != "emitted" else {}
        with self.builder.transaction():
            self.write(
                at, **{"status": status, "lease_token": None, "leased_until": None, "error": None, **done, **columns}
            )
            row = {"execution_id": self.id, "attempt": attempt, "outcome": outcome, "status_code": code}
            row["error"] = columns.get("error")
            self.builder.write(at, "attempts", (self.id, attempt), row)

    def retry(self, at: float, after: float = 60, outcome: str = "broken") -> None:
        self.finish(at, outcome, "emitted", next_attempt_at=stamp(at + after))

    def expire(self, at: float, status: str = "emitted") -> None:
        self.finish(at, "lost", status, next_attempt_at=stamp(at), error="lost: its worker a let the lease run out")

    def hand_back(self, at: float) -> None:
        self.finish(at, "handed_back", "emitted", next_attempt_at=stamp(at), attempt=self.row["attempt"] - 1)

    def remove(self, at: float) -> None:
        self.builder.write(at, "executions", self.id, None)
