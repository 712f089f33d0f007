"""What a drill measured, read from its folder: how much there was, how fast it was taken over, how fast it was back."""

import bisect
import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

# So long after a fault everything works again: a reconciler starts, or waits out its back-off.
COMING_BACK = timedelta(seconds=5)
# Nothing in these keeps a role from its work.
HARMLESS = ("target", "edit", "snapshot")
POSTGRES = ("postgres-restart", "postgres-kill")


def of(history: Path) -> dict[str, Any]:
    faults = list(_lines(history / "faults.jsonl"))
    received = sorted(_at(receipt["at"]) for receipt in _lines(history / "receipts.jsonl"))
    counted = Counter(fault["kind"] for fault in faults)
    final: Counter[str] = Counter()
    takeover = 0.0
    for change in _lines(history / "changes.jsonl"):
        if change["table"] != "executions" or change["new"] is None:
            continue
        if "finished_at" in change["new"] and change["op"] == "UPDATE":
            final[change["new"]["status"]] += 1
        takeover = max(takeover, _taken_over(change, faults))
    return {
        "executions": sum(final.values()),
        "by_status": dict(final),
        "received": len(received),
        "faults": sum(counted.values()),
        "kinds": dict(counted),
        "working_again_seconds": _working_again(received, faults),
        "longest_takeover_seconds": round(takeover, 3),
    }


def _taken_over(change: dict[str, Any], faults: list[dict[str, Any]]) -> float:
    """How long after its end a lease was taken from its holder, where nothing hindered those who take."""
    old, new = change["old"] or {}, change["new"]
    if old.get("status") != "in_progress" or new.get("lease_token") == old.get("lease_token"):
        return 0.0
    at = _at(change["at"])
    hindered = any(_at(fault["at"]) <= at <= _at(fault["until"]) + COMING_BACK for fault in faults if _hinders(fault))
    return 0.0 if hindered else (at - _at(old["leased_until"])).total_seconds()


def _hinders(fault: dict[str, Any]) -> bool:
    """Not a fault of a target, of a dispatcher or of a person: those are what others take over from."""
    return not (fault["kind"].startswith(HARMLESS) or "dispatcher-" in fault["what"])


def _working_again(received: list[datetime], faults: list[dict[str, Any]]) -> list[float]:
    """From Postgres accepting connections to the next request received, unless another fault fell in between."""
    found = []
    for fault in faults:
        accepts = _at(fault["until"])
        place = bisect.bisect_right(received, accepts)
        if fault["kind"] not in POSTGRES or place == len(received):
            continue
        again = received[place]
        others = (other for other in faults if other is not fault and not other["kind"].startswith(HARMLESS))
        if not any(_at(other["at"]) < again and _at(other["until"]) > accepts for other in others):
            found.append(round((again - accepts).total_seconds(), 3))
    return found


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        with path.open() as file:
            for line in file:
                yield json.loads(line)


def _at(text: str) -> datetime:
    return datetime.fromisoformat(text)
