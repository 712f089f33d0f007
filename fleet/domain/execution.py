"""The life of an execution, and how one attempt of it can end.

    emitted -> in_progress      leased by a dispatcher or a queue worker
    emitted -> failed           waited longer than it may, or its circuit is open and the policy is to fail
    emitted -> cancelled        cancelled while it waited
    in_progress -> emitted      to be tried again: a broken attempt, a lost lease, work handed back unsent
    in_progress -> delivered    the target's success test passed
    in_progress -> failed       refused, or its attempts are used up
    in_progress -> cancelled    cancelled in flight

delivered, failed and cancelled are final: nothing leads out of them.
"""

from enum import StrEnum


class Status(StrEnum):
    """Where an execution stands."""

    EMITTED = "emitted"
    IN_PROGRESS = "in_progress"
    DELIVERED = "delivered"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        """Whether this status can never change again."""
        return not TRANSITIONS[self]


class AttemptOutcome(StrEnum):
    """How one attempt ended, as its history row says it."""

    DELIVERED = "delivered"
    REFUSED = "refused"
    BROKEN = "broken"
    TIMEOUT = "timeout"
    LOST = "lost"
    CANCELLED = "cancelled"
    HANDED_BACK = "handed_back"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.EMITTED: frozenset({Status.IN_PROGRESS, Status.FAILED, Status.CANCELLED}),
    Status.IN_PROGRESS: frozenset({Status.EMITTED, Status.DELIVERED, Status.FAILED, Status.CANCELLED}),
    Status.DELIVERED: frozenset(),
    Status.FAILED: frozenset(),
    Status.CANCELLED: frozenset(),
}
