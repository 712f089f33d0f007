"""What the checker hands back."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, NamedTuple
from uuid import UUID

Kind = Literal["lost", "doubled", "orphan", "off_rule", "wrong_id"]

# A damaged table may give millions; a person reads the first ones and the number of all.
LISTED = 1000


class Problem(NamedTuple):
    kind: Kind
    schedule: str | None
    """Its name; None when no such schedule exists."""
    schedule_id: UUID
    scope: str
    first_n: int | None
    last_n: int | None
    scheduled_at: datetime | None
    detail: str


@dataclass(slots=True)
class Report:
    """planned = pending + executed + gaps where there are no problems."""

    planned: int
    pending: int
    executed: int
    gaps: int
    problems: list[Problem] = field(default_factory=list)
    found: int = 0
    """How many problems there are; `problems` lists the first of them."""

    def add(self, problems: list[Problem], found: int | None = None) -> None:
        """Take in what one check found; `found` when it stopped listing before the end."""
        self.found += len(problems) if found is None else found
        self.problems += problems[: LISTED - len(self.problems)]
