"""What makes a planned time itself: its id, its jitter, its shard. Pure functions of (schedule, scope, time, run).

The same three exist as SQL functions in the first migration; a property test holds the two together.
"""

from datetime import UTC, datetime
from hashlib import sha256
from uuid import UUID

PRIME = 2**31 - 1


def millis(at: datetime) -> int:
    """Whole milliseconds since the epoch, without a detour over floats."""
    delta = at - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def tail(schedule_id: UUID, scope: str = "", run: str = "") -> str:
    """The part of an id that does not depend on time; stored per schedule and scope."""
    return sha256(f"{schedule_id}\x1f{scope}\x1f{run}".encode()).hexdigest()[:18]


def execution_id(schedule_id: UUID, scope: str, scheduled_at: datetime, run: str = "") -> UUID:
    """A UUIDv8: 48 bits of milliseconds, so ids sort by time, and 72 bits of hash."""
    digits = tail(schedule_id, scope, run)
    return UUID(f"{millis(scheduled_at):012x}8{digits[:3]}8{digits[3:]}")


def salt(schedule_id: UUID) -> int:
    """31 bits that set this schedule's jitter apart from its neighbours'."""
    return int.from_bytes(sha256(schedule_id.bytes).digest()[:4]) % PRIME


def jitter_ms(salt: int, scheduled_at: datetime, bound_ms: int) -> int:
    """0 <= jitter <= bound, the same in every process and at every regeneration; never negative, so never early."""
    if bound_ms == 0:
        return 0
    return ((millis(scheduled_at) % PRIME + salt) % PRIME * 48271 % PRIME * 69621 % PRIME) % (bound_ms + 1)
