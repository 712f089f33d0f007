"""What the checker found, in numbers and in words."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from chaos.checker_rules import text

Kind = Literal["lost", "unexpected", "duplicate", "stale", "early", "wrong"]
SHOWN = 20

PARAGRAPHS: dict[Kind, str] = {
    "lost": "{} planned times or deliveries were lost: nothing says what became of them, or nobody received them.",
    "unexpected": "{} things ran, were planned or were received that no rule asked for.",
    "duplicate": "{} duplicates have no explanation: no attempt ended unknown and no target answered badly.",
    "stale": "{} writes were made without the lease that they needed.",
    "early": "{} things happened before their time.",
    "wrong": "{} other promises were broken.",
}


@dataclass(frozen=True, slots=True)
class Finding:
    invariant: str
    schedule: str
    scheduled_at: datetime | None
    sentence: str
    kind: Kind = "wrong"
    count: int = 1

    def __str__(self) -> str:
        at = "" if self.scheduled_at is None else f" {text(self.scheduled_at)}"
        return f"{self.invariant} {self.schedule}{at}: {self.sentence}"


@dataclass(frozen=True, slots=True)
class Matching:
    """Deliveries that nobody received, receipts of nothing, and successes beyond the one of each delivery."""

    lost: int
    unexpected: int
    surplus: int

    def __str__(self) -> str:
        return f"{self.lost} lost, {self.unexpected} unexpected, {self.surplus} more than once"


@dataclass(slots=True)
class Verdict:
    findings: list[Finding]
    by_id: Matching
    by_time: Matching
    executions: int = 0
    receipts: int = 0
    duplicates_explained: int = 0
    recovered: int = 0
    lateness: dict[str, float] = field(default_factory=dict)
    """Seconds from execute_at to the first receipt: p50, p99, max. Reported, not judged."""
    takeovers: int = 0
    takeover_max: float | None = None
    """Seconds from the end of a lost lease to the next lease of the same execution."""

    @property
    def ok(self) -> bool:
        return not self.findings

    @property
    def lost(self) -> int:
        return self._count("lost")

    @property
    def unexpected(self) -> int:
        return self._count("unexpected")

    @property
    def duplicates_unexplained(self) -> int:
        return self._count("duplicate")

    @property
    def stale_writes(self) -> int:
        return self._count("stale")

    @property
    def early(self) -> int:
        return self._count("early")

    def by_invariant(self) -> dict[str, int]:
        return dict(Counter(finding.invariant for finding in self.findings))

    def text(self) -> str:
        parts = ["Every promise held." if self.ok else "Promises were broken.", self._figures()]
        for kind, sentence in PARAGRAPHS.items():
            of_kind = [finding for finding in self.findings if finding.kind == kind]
            if of_kind:
                shown = [f"  {finding}" for finding in of_kind[:SHOWN]]
                more = [f"  … and {len(of_kind) - SHOWN} more like these"] if len(of_kind) > SHOWN else []
                parts.append("\n".join([sentence.format(self._count(kind)), *shown, *more]))
        return "\n\n".join(parts)

    def _figures(self) -> str:
        late = ", ".join(f"{name} {seconds:.3f} s" for name, seconds in self.lateness.items())
        longest = "" if self.takeover_max is None else f", the longest after {self.takeover_max:.3f} s"
        return "\n".join(
            (
                f"{self.executions} executions, {self.receipts} requests received.",
                f"Lost {self.lost}, unexpected {self.unexpected}, duplicates {self.duplicates_explained} explained and"
                f" {self.duplicates_unexplained} not, stale writes {self.stale_writes}, early {self.early}.",
                f"Deliveries matched by id: {self.by_id}; blind, by schedule and time only:"
                f" {'the same' if self.by_id == self.by_time else self.by_time}.",
                f"{self.recovered} executions were delivered after an attempt had been lost;"
                f" {self.takeovers} lost leases were taken over{longest}.",
                f"From due to received: {late}." if late else "Nothing was received.",
            )
        )

    def _count(self, kind: Kind) -> int:
        return sum(finding.count for finding in self.findings if finding.kind == kind)
