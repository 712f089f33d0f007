"""The history of a drill: a folder of JSON lines that tells what was asked, changed, received and broken.

    asked.jsonl     every command of the drill and its answer ("lost": none came, it may or may not have happened)
    changes.jsonl   every committed row change, in the order made; a column that is not there is NULL. Of a changed
                    schedule only its id, its name and what changed
    receipts.jsonl  what the target received, written by its own process before it answered
    faults.jsonl    what the nemesis did
    final.json      when it ended, by both clocks, and with which settings

Instants are RFC 3339 in UTC. Changes are read from the file each time they are gone through: a long drill has millions.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    asked_at: datetime
    answered_at: datetime | None
    op: str
    schedule: str
    definition: Row | None
    answer: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    seq: int
    at: datetime
    xid: int
    table: str
    op: str
    old: Row | None
    new: Row | None
    by: str = ""
    """Whose session it was, by the name it gave itself; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class Receipt:
    at: datetime
    execution: str
    schedule: str
    scheduled_at: datetime
    attempt: int
    answer: str


@dataclass(frozen=True, slots=True)
class Fault:
    at: datetime
    until: datetime | None
    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Final:
    ended_at: datetime
    database_now: datetime
    settings: Row = field(default_factory=dict)
    seed: Any = None
    settled: bool = False
    """Whether the drill waited until nothing was left to do: then no planned time has lateness for an excuse."""


@dataclass(slots=True)
class History:
    asked: list[Asked]
    changes: Iterable[Change]
    receipts: list[Receipt]
    faults: list[Fault]
    final: Final

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("asked", "changes", "receipts", "faults"):
            with (folder / f"{name}.jsonl").open("w", encoding="utf-8") as file:
                file.writelines(line(record) for record in getattr(self, name))
        (folder / "final.json").write_text(line(self.final), encoding="utf-8")


def load(folder: Path) -> History:
    return History(
        asked=list(Lines(folder / "asked.jsonl", Asked)),
        changes=Lines(folder / "changes.jsonl", Change),
        receipts=list(Lines(folder / "receipts.jsonl", Receipt)),
        faults=list(Lines(folder / "faults.jsonl", Fault)),
        final=_record(Final, json.loads((folder / "final.json").read_text(encoding="utf-8"))),
    )


Record = TypeVar("Record", Asked, Change, Receipt, Fault, Final)
INSTANTS = frozenset({"asked_at", "answered_at", "at", "until", "scheduled_at", "ended_at", "database_now"})


class Lines(Generic[Record]):
    """The records of a file, read anew each time they are gone through; a file that is not there has none."""

    def __init__(self, path: Path, kind: type[Record]) -> None:
        self._path = path
        self._kind: type[Record] = kind

    def __iter__(self) -> Iterator[Record]:
        if not self._path.exists():
            return
        with self._path.open(encoding="utf-8") as file:
            for text in file:
                # Only the last line can lack its end: its writer was killed in mid-line, before it answered.
                if text.endswith("\n"):
                    yield _record(self._kind, json.loads(text))


def instant(text: str) -> datetime:
    return datetime.fromisoformat(text)


def written(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="microseconds")


def line(record: Asked | Change | Receipt | Fault | Final) -> str:
    values = {name: written(value) if isinstance(value, datetime) else value for name, value in asdict(record).items()}
    return json.dumps(values, separators=(",", ":")) + "\n"


def _record(kind: type[Record], values: Row) -> Record:
    known = {name: values[name] for name in _names(kind) if name in values}
    for name in INSTANTS & known.keys():
        known[name] = None if known[name] is None else instant(known[name])
    return kind(**known)


_NAMES: dict[type, tuple[str, ...]] = {}


def _names(kind: type[Record]) -> tuple[str, ...]:
    if kind not in _NAMES:
        _NAMES[kind] = tuple(f.name for f in fields(kind))
    return _NAMES[kind]
