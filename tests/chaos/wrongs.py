"""Every single thing that is put wrong in a clean history, and the promise under which the checker must find it."""

from collections.abc import Callable
from dataclasses import replace

from chaos.book import Book, made, state, ticked
from chaos.builder import instant, stamp
from chaos.clean import DAY, HOUR
from chaos.history import Receipt

OTHER_ID = "01a1ee81-7158-84bc-851d-d478615f6929"
NOBODY = Receipt(instant(DAY), OTHER_ID, "nobody", instant(DAY), 1, "200")

Step = Callable[[Book], object]

WRONG: dict[str, tuple[str, *tuple[Step, ...]]] = {
    "a second tick beside the first": ("I1", lambda b: b.again(ticked("plain", 1), 2 * HOUR - 50, "INSERT")),
    "a tick again after it ran": ("I1", lambda b: b.again(ticked("plain", 1), 2 * HOUR + 50, "INSERT")),
    "a second execution": ("I1", lambda b: b.again(made("plain", 1), 2 * HOUR + 50, "INSERT", id=OTHER_ID)),
    "a second execution, and both were removed since": (
        "I1",
        lambda b: b.again(made("plain", 1), 2 * HOUR + 50, "INSERT", id=OTHER_ID),
        lambda b: b.again(made("plain", 1), 2 * DAY, "DELETE"),
    ),
    "a tick off the grid": ("I2", lambda b: b.set(ticked("plain", 2), scheduled_at=stamp(3 * HOUR + 1))),
    "an execution off the grid": ("I2", lambda b: b.set(made("cron", 3), scheduled_at=stamp(2 * DAY + 1.5 * HOUR))),
    "a number given to another time": ("I2", lambda b: b.set(made("plain", 2), n=3)),
    "the old rule after an edit": ("I2", lambda b: b.set(ticked("edited", 3), scheduled_at=stamp(3 * HOUR))),
    "a gap of other times": ("I2", lambda b: b.set(("gaps", "paused", None, {}), last_scheduled_at=stamp(4.5 * HOUR))),
    "a rule that begins elsewhere": (
        "I2",
        lambda b: b.set(("schedule_versions", "plain", None, {}), anchor_at=stamp(9)),
    ),
    "another definition than was asked": (
        "I2",
        lambda b: b.set(("cron_schedules", "flaky", "INSERT", {}), max_attempts=3),
    ),
    "an edit that was stored differently": ("I2", lambda b: b.ask("update", "flaky", {"overlap": "queue"})),
    "more runs than allowed": (
        "I2",
        lambda b: b.asked.clear(),
        lambda b: b.set(("cron_schedules", "capped", "INSERT", {}), max_runs=1),
    ),
    "run though it was paused": (
        "I2",
        lambda b: b.move(("cron_schedules", "paused", "UPDATE", {"enabled": False}), at=instant(1.5 * HOUR)),
    ),
    "no execution": ("I3", lambda b: b.drop("executions", "plain", n=2)),
    "no gap": ("I3", lambda b: b.drop("gaps", "paused")),
    "a gap removed before its time": ("I3", lambda b: b.again(("gaps", "paused", None, {}), DAY, "DELETE")),
    "nothing at all on the day the clock jumps": (
        "I3",
        lambda b: b.drop("cron_ticks", "cron", n=3),
        lambda b: b.drop("executions", "cron", n=3),
    ),
    "a tick that nobody took": (
        "I3",
        lambda b: b.drop("cron_ticks", "cron", "DELETE", n=4),
        lambda b: b.drop("executions", "cron", n=4),
    ),
    "two fates": (
        "I3",
        lambda b: b.again(
            ("gaps", "skipper", None, {}),
            DAY,
            "INSERT",
            first_n=3,
            last_n=3,
            first_scheduled_at=stamp(3 * HOUR),
            last_scheduled_at=stamp(3 * HOUR),
        ),
    ),
    "a tick that stays beside its gap": ("I3", lambda b: b.drop("cron_ticks", "skipper", "DELETE", n=2)),
    "an edit that passes planned times by": (
        "I3",
        lambda b: b.set(("schedule_versions", "edited", None, {"version": 1}), end_at=None),
        lambda b: b.set(("schedule_versions", "edited", None, {"version": 2}), after_at=stamp(3.5 * HOUR)),
    ),
    "given up though attempts were left": (
        "I3",
        lambda b: b.set(("cron_schedules", "flaky", "INSERT", {}), max_attempts=3),
    ),
    "an execution left in progress": ("I3", lambda b: b.drop("executions", "lossy", status="delivered", n=3)),
    "an unfinished execution removed": ("I3", lambda b: b.drop("executions", "cleaned", status="delivered", n=1)),
    "history removed that is not closed": (
        "I3",
        lambda b: b.set(("cron_schedules", "cleaned", "UPDATE", {}), accounted_n=0),
    ),
    "skipped for overlap, but nothing was unfinished": (
        "I3",
        lambda b: b.set(("gaps", "paused", None, {}), reason="overlap"),
    ),
    "catch-up within the grace": ("I3", lambda b: b.set(("gaps", "deleted", None, {}), reason="catch_up")),
    "the tick ended in another transaction": ("I4", lambda b: b.move(ticked("plain", 1, "DELETE"), xid=9999)),
    "an execution without a tick": ("I4", lambda b: b.drop("cron_ticks", "plain", n=1)),
    "a tick that ended in nothing": ("I4", lambda b: b.move(("gaps", "skipper", None, {}), xid=9999)),
    "a final status changed": (
        "I5",
        lambda b: b.again(state("plain", 1, "delivered"), 3 * HOUR, "UPDATE", status="failed"),
    ),
    "delivered, but never received": ("I6", lambda b: b.unreceive("cron")),
    "delivered, but the target said no": ("I6", lambda b: b.receipt("cron", answer="500")),
    "delivered before the target answered": ("I6", lambda b: b.receipt("cron", at=instant(1.5 * HOUR + 1))),
    "received before its lease": ("I7", lambda b: b.receipt("cron", at=instant(1.5 * HOUR + 0.015))),
    "received as an attempt never leased": ("I7", lambda b: b.receive("lossy", attempt=7)),
    "received of an unknown schedule": ("I7", lambda b: b.receipts.append(NOBODY)),
    "received with another planned time": ("I7", lambda b: b.receipt("cron", scheduled_at=instant(HOUR))),
    "an attempt that nobody wrote down": ("I7", lambda b: b.drop("attempts", "cron")),
    "finished after the lease was lost": (
        "I8",
        lambda b: b.again(
            state("lossy", 1, "emitted"), HOUR + 16.8, "UPDATE", status="delivered", finished_at=stamp(HOUR + 16.8)
        ),
    ),
    "put back by one who had lost it": (
        "I8",
        lambda b: b.again(state("lossy", 1, "emitted"), HOUR + 16.8, "UPDATE", next_attempt_at=stamp(HOUR + 60)),
    ),
    "a lease taken from its holder": (
        "I8",
        lambda b: b.again(state("lossy", 3, "in_progress"), 3 * HOUR + 6.5, "UPDATE", lease_token=OTHER_ID),
    ),
    "a heartbeat that goes on under another name": (
        "I8",
        lambda b: b.set(state("lossy", 3, "in_progress"), 1, leased_by="b"),
    ),
    "a heartbeat by one who had lost it": (
        "I8",
        lambda b: b.move(state("lossy", 3, "in_progress"), 1, by="b"),
    ),
    "a result by one who had lost it": ("I8", lambda b: b.move(state("lossy", 3, "delivered"), by="b")),
    "an attempt's outcome overwritten": (
        "I8",
        lambda b: b.again(
            ("attempts", "lossy", "INSERT", {"outcome": "lost"}), HOUR + 20, "UPDATE", outcome="delivered"
        ),
    ),
    "the answer to another attempt": (
        "I8",
        lambda b: b.set(("attempts", "flaky", "INSERT", {"attempt": 1}), status_code=200),
    ),
    "a lease expired before its time": ("I9", lambda b: b.move(state("lossy", 1, "emitted"), at=instant(HOUR + 10))),
    "a lease within the lease before": (
        "I9",
        lambda b: b.set(state("lossy", 1, "in_progress"), 1, leased_at=stamp(HOUR + 15)),
    ),
    "a lease by the worker's clock": (
        "I9",
        lambda b: b.set(state("cron", 1, "in_progress"), leased_until=stamp(3.5 * HOUR)),
    ),
    "a heartbeat by the worker's clock": (
        "I9",
        lambda b: b.set(state("lossy", 3, "in_progress"), 1, leased_until=stamp(HOUR)),
    ),
    "the same attempt twice": ("I10", lambda b: b.receive("cron", at=instant(1.5 * HOUR + 0.035))),
    "sent again after success": (
        "I10",
        lambda b: b.receipt("flaky", answer="200"),
        lambda b: b.set(("attempts", "flaky", "INSERT", {"attempt": 1}), outcome="delivered"),
    ),
    "sent twice without any fault": (
        "I10",
        lambda b: b.faults.clear(),
        lambda b: setattr(b, "receipts", [replace(receipt, answer="200") for receipt in b.receipts]),
    ),
    "at most once, twice": ("I10", lambda b: b.receive("once", attempt=2, at=instant(HOUR + 20))),
    "a tick with another id": ("I11", lambda b: b.set(ticked("cron", 1), id=OTHER_ID)),
    "an id for each attempt": ("I11", lambda b: b.set(made("cron", 1), id=OTHER_ID)),
    "a tick due before its planned time": ("I12", lambda b: b.set(ticked("cron", 1), execute_at=stamp(1.5 * HOUR - 1))),
    "a tick put off beyond its jitter": ("I12", lambda b: b.set(ticked("plain", 1), execute_at=stamp(2 * HOUR + 6))),
    "an execution made early": ("I12", lambda b: b.move(made("cron", 1), at=instant(1.5 * HOUR - 1))),
    "a lease before it is due": (
        "I12",
        lambda b: b.set(state("cron", 1, "in_progress"), leased_at=stamp(1.5 * HOUR - 1)),
    ),
    "received early": ("I12", lambda b: b.receipt("cron", at=instant(1.5 * HOUR - 0.001))),
    "a retry before its time": ("I14", lambda b: b.set(state("flaky", 1, "emitted"), next_attempt_at=stamp(HOUR + 70))),
    "a retry without back-off": ("I14", lambda b: b.set(state("flaky", 1, "emitted"), next_attempt_at=stamp(HOUR + 4))),
    "skip overlapped": ("I15", lambda b: b.move(state("skipper", 1, "delivered"), at=instant(3 * HOUR + 1))),
    "skip overlapped, and both were removed since": (
        "I15",
        lambda b: b.move(state("skipper", 1, "delivered"), at=instant(3 * HOUR + 1)),
        lambda b: b.again(made("skipper", 1), 2 * DAY, "DELETE"),
        lambda b: b.again(made("skipper", 3), 2 * DAY, "DELETE"),
    ),
    "two of a queue at once": ("I15", lambda b: b.move(state("queued", 1, "delivered"), at=instant(2 * HOUR + 7.5))),
    "a queue out of order": ("I15", lambda b: b.move(state("queued", 1, "in_progress"), 1, at=instant(2 * HOUR + 9.5))),
    "an add answered ok, but absent": ("I16", lambda b: b.ask("add", "nowhere", {"interval_seconds": 60})),
    "a pause answered ok, but absent": ("I16", lambda b: b.ask("pause", "cron")),
    "a delete answered ok, but absent": ("I16", lambda b: b.ask("delete", "cron")),
    "a trigger answered ok, but absent": ("I16", lambda b: b.ask("trigger", "cron")),
    "a cancellation answered ok, but absent": ("I16", lambda b: b.ask("execution_cancel", "cron")),
    "a schedule nobody asked for": ("I16", lambda b: b.asked.pop(0)),
    "run again after clean-up": ("I19", lambda b: b.again(made("cleaned", 1), DAY + 60, "INSERT")),
    "planned again after clean-up": ("I19", lambda b: b.again(ticked("cleaned", 1), DAY + 60, "INSERT")),
}
