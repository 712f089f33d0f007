"""A history in which every promise was kept, with a bit of everything, for the tests of the checker."""

from typing import Any

from chaos.builder import LEASE, Builder, Schedule, stamp
from chaos.history import History

HOUR, DAY = 3600, 86_400
HOURLY: dict[str, Any] = {"interval_seconds": HOUR, "start_at": stamp(HOUR)}


def hours(count: int) -> list[float]:
    return [HOUR * n for n in range(1, count + 1)]


def hourly(builder: Builder, name: str, count: int, **definition: Any) -> Schedule:
    return Schedule(builder, name, hours(count), **{**HOURLY, "end_at": stamp(HOUR * count), **definition})


def clean() -> History:
    """Four days in the life of a fleet that keeps every promise, with a bit of everything."""
    builder = Builder()
    for tell in (plain, cron, flaky, lossy, frozen, paused, skipper, queued, deleted, once, edited, cleaned, capped):
        tell(builder)
    return builder.history(ends=4 * DAY)


def plain(builder: Builder) -> None:
    schedule = Schedule(
        builder, "plain", [2 * HOUR, 3 * HOUR, 4 * HOUR], at=HOUR, interval_seconds=HOUR, jitter_ms=5000
    )
    for n in (1, 2, 3):
        schedule.run(n, jitter=2.5)
    late = schedule.trigger(4 * HOUR + 100)
    late.lease(4 * HOUR + 100.1)
    late.receive(4 * HOUR + 100.2)
    late.finish(4 * HOUR + 100.3)
    schedule.change(5 * HOUR - 10, "pause", enabled=False)


def cron(builder: Builder) -> None:
    """Half past two in Paris: on the 29th the clock jumps over it, and it is planned right after."""
    times = [1.5 * HOUR, DAY + 1.5 * HOUR, 2 * DAY + HOUR, 3 * DAY + 0.5 * HOUR]
    schedule = Schedule(builder, "cron", times, cron_expression="30 2 * * *", timezone="Europe/Paris")
    for n in (1, 2, 3, 4):
        schedule.run(n)


def flaky(builder: Builder) -> None:
    schedule = hourly(builder, "flaky", 2, max_attempts=2)
    for n, answer, outcome, status in ((1, "200", "delivered", "delivered"), (2, "500", "broken", "failed")):
        execution = schedule.emit(n)
        execution.lease(HOUR * n + 1)
        execution.receive(HOUR * n + 2, "500")
        execution.retry(HOUR * n + 3)
        execution.lease(HOUR * n + 64)
        execution.receive(HOUR * n + 65, answer)
        execution.finish(HOUR * n + 66, outcome, status)


def lossy(builder: Builder) -> None:
    """A worker that dies after the target did the work, one that hands back, one that keeps its lease alive."""
    schedule = hourly(builder, "lossy", 3)
    execution = schedule.emit(1)
    execution.lease(HOUR + 1)
    execution.receive(HOUR + 2, "drop")
    execution.expire(HOUR + 1 + LEASE + 0.5)
    execution.lease(HOUR + 17, worker="b")
    execution.receive(HOUR + 17.1)
    execution.finish(HOUR + 17.2)
    execution = schedule.emit(2)
    execution.lease(2 * HOUR + 1)
    execution.hand_back(2 * HOUR + 2)
    execution.lease(2 * HOUR + 3)
    execution.receive(2 * HOUR + 4)
    execution.finish(2 * HOUR + 5)
    execution = schedule.emit(3)
    execution.lease(3 * HOUR + 1)
    execution.heartbeat(3 * HOUR + 6)
    execution.receive(3 * HOUR + 7)
    execution.finish(3 * HOUR + 8)


def frozen(builder: Builder) -> None:
    """A worker that freezes with its request in hand and sends it after another has delivered."""
    execution = hourly(builder, "frozen", 1).emit(1)
    execution.lease(HOUR + 1)
    execution.expire(HOUR + 1 + LEASE + 0.5)
    execution.lease(HOUR + 17, worker="b")
    execution.receive(HOUR + 17.1)
    execution.finish(HOUR + 17.2)
    execution.receive(HOUR + 30, attempt=1)


def paused(builder: Builder) -> None:
    schedule = hourly(builder, "paused", 5)
    schedule.run(1)
    schedule.run(2)
    schedule.tick(3 * HOUR - 60, 3)
    with builder.transaction():
        schedule.drop_tick(3 * HOUR - 30, 3)
        schedule.change(3 * HOUR - 29.9, "pause", enabled=False)
    with builder.transaction():
        schedule.gap(4 * HOUR + 10, 3, 4, "paused")
        schedule.change(4 * HOUR + 10.1, "resume", enabled=True)
    schedule.run(5)


def skipper(builder: Builder) -> None:
    schedule = hourly(builder, "skipper", 3, overlap="skip")
    execution = schedule.emit(1)
    execution.lease(HOUR + 1)
    execution.receive(HOUR + 2, "500")
    execution.retry(HOUR + 3, after=HOUR)
    schedule.tick(2 * HOUR - 60, 2)
    with builder.transaction():
        schedule.drop_tick(2 * HOUR + 0.01, 2)
        schedule.gap(2 * HOUR + 0.01, 2, 2, "overlap")
    execution.lease(2 * HOUR + 10)
    execution.receive(2 * HOUR + 11)
    execution.finish(2 * HOUR + 12)
    schedule.run(3)


def queued(builder: Builder) -> None:
    schedule = hourly(builder, "queued", 3, overlap="queue", catch_up="all")
    first = schedule.emit(1)
    first.lease(HOUR + 1)
    first.receive(HOUR + 2, "500")
    first.retry(HOUR + 3, after=HOUR)
    second = schedule.emit(2)
    first.lease(2 * HOUR + 4)
    first.receive(2 * HOUR + 5)
    first.finish(2 * HOUR + 6)
    second.lease(2 * HOUR + 7)
    second.receive(2 * HOUR + 8)
    second.finish(2 * HOUR + 9)
    schedule.run(3)


def deleted(builder: Builder) -> None:
    schedule = Schedule(builder, "deleted", hours(4), **HOURLY)
    schedule.run(1)
    schedule.tick(2 * HOUR - 60, 2)
    with builder.transaction():
        schedule.drop_tick(2 * HOUR + 0.5, 2)
        schedule.gap(2 * HOUR + 0.5, 2, 2, "deleted")
        schedule.change(2 * HOUR + 0.6, "delete", enabled=False, deleted_at=stamp(2 * HOUR + 0.6))


def once(builder: Builder) -> None:
    schedule = Schedule(builder, "once", [HOUR], run_at=stamp(HOUR), delivery="at-most-once")
    execution = schedule.emit(1)
    execution.lease(HOUR + 1)
    execution.receive(HOUR + 2, "drop")
    execution.expire(HOUR + 1 + LEASE + 0.5, status="failed")


def edited(builder: Builder) -> None:
    schedule = hourly(builder, "edited", 2)
    schedule.run(1)
    schedule.run(2)
    schedule.times = [HOUR, 2 * HOUR, 5 * HOUR, 8 * HOUR]
    definition = {"interval_seconds": 3 * HOUR, "start_at": stamp(2 * HOUR), "end_at": stamp(10 * HOUR)}
    schedule.edit(2 * HOUR + 600, 2, definition)
    schedule.run(3)
    with builder.transaction():
        schedule.gap(9 * HOUR, 4, 4, "catch_up")


def cleaned(builder: Builder) -> None:
    schedule = hourly(builder, "cleaned", 2)
    execution = schedule.run(1)
    schedule.run(2)
    with builder.transaction():
        execution.remove(DAY)
        schedule.change(DAY, accounted_n=1)


def capped(builder: Builder) -> None:
    schedule = Schedule(builder, "capped", hours(9), **HOURLY, max_runs=2)
    schedule.run(1)
    schedule.run(2)
