"""A history to put one thing wrong in, for the tests of the checker."""

from dataclasses import replace
from typing import Any

from chaos.builder import instant
from chaos.history import Asked, Change, History

# Which changes: the table, the schedule, what was done, and columns that the row had.
Where = tuple[str, str, str | None, dict[str, Any]]
DAY = 86_400


class Book:
    """Its changes, receipts and questions as lists that may be meddled with."""

    def __init__(self, history: History) -> None:
        self.asked = list(history.asked)
        self.changes = list(history.changes)
        self.receipts = list(history.receipts)
        self.faults = list(history.faults)
        self.final = history.final
        rows = [change.new for change in self.changes if change.table == "cron_schedules" and change.new]
        self.ids = {row["name"]: row["id"] for row in rows}

    def history(self) -> History:
        return History(self.asked, self.changes, self.receipts, self.faults, self.final)

    def find(self, table: str, schedule: str, op: str | None = None, **columns: Any) -> list[int]:
        """Where the changes are; of attempts by their execution."""
        executions = {c.new["id"] for c in self.changes if c.table == "executions" and c.new and self._of(c, schedule)}
        return [
            place
            for place, change in enumerate(self.changes)
            if change.table == table
            and op in (None, change.op)
            and (self._of(change, schedule) or (change.new or {}).get("execution_id") in executions)
            and all((change.new or change.old or {}).get(name) == value for name, value in columns.items())
        ]

    def _of(self, change: Change, schedule: str) -> bool:
        row = change.new or change.old or {}
        return self.ids[schedule] in (row.get("schedule_id"), row.get("id"))

    def drop(self, table: str, schedule: str, op: str | None = None, **columns: Any) -> None:
        gone = set(self.find(table, schedule, op, **columns))
        assert gone, f"no such change of {table}: {schedule} {columns}"
        self.changes = [change for place, change in enumerate(self.changes) if place not in gone]

    def set(self, where: Where, which: int = 0, **columns: Any) -> None:
        """Other columns in one change, and in what the next change of the row says it was."""
        table, schedule, op, having = where
        place = self.find(table, schedule, op, **having)[which]
        change = self.changes[place]
        row = change.new or change.old or {}
        new = {name: value for name, value in {**row, **columns}.items() if value is not None}
        self.changes[place] = replace(change, new=new if change.new else None, old=change.old if change.new else new)

    def move(self, where: Where, which: int = 0, **fields: Any) -> None:
        """Another time or transaction for one change."""
        table, schedule, op, having = where
        place = self.find(table, schedule, op, **having)[which]
        self.changes[place] = replace(self.changes[place], **fields)
        self._renumber()

    def add(self, at: float, table: str, op: str, row: dict[str, Any], xid: int = 9999) -> None:
        old, new = (row, None) if op == "DELETE" else (None, row)
        self.changes.append(Change(0, instant(at), xid, table, op, old, new))
        self._renumber()

    def again(self, where: Where, at: float, op: str, **columns: Any) -> None:
        """A change more, of the row that another change left, some columns changed."""
        table, schedule, old_op, having = where
        change = self.changes[self.find(table, schedule, old_op, **having)[-1]]
        row = {n: v for n, v in {**(change.new or change.old or {}), **columns}.items() if v is not None}
        self.add(at, table, op, row)

    def receipt(self, schedule: str, which: int = 0, **fields: Any) -> None:
        place = [i for i, receipt in enumerate(self.receipts) if receipt.schedule == schedule][which]
        self.receipts[place] = replace(self.receipts[place], **fields)

    def receive(self, schedule: str, which: int = 0, **fields: Any) -> None:
        found = [receipt for receipt in self.receipts if receipt.schedule == schedule][which]
        self.receipts.append(replace(found, **fields))

    def unreceive(self, schedule: str) -> None:
        self.receipts = [receipt for receipt in self.receipts if receipt.schedule != schedule]

    def ask(self, op: str, schedule: str, definition: dict[str, Any] | None = None) -> None:
        self.asked.append(Asked(instant(DAY), instant(DAY + 1), op, schedule, definition, "ok"))

    def _renumber(self) -> None:
        self.changes.sort(key=lambda change: change.at)
        self.changes = [replace(change, seq=seq) for seq, change in enumerate(self.changes, start=1)]


def made(schedule: str, n: int) -> Where:
    return "executions", schedule, "INSERT", {"n": n}


def state(schedule: str, n: int, status: str) -> Where:
    return "executions", schedule, "UPDATE", {"n": n, "status": status}


def ticked(schedule: str, n: int, op: str = "INSERT") -> Where:
    return "cron_ticks", schedule, op, {"n": n}
