"""The reconciler: leases of the dead, and an audit that names what is wrong."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from fleet.operations import schedules
from fleet.roles import reconciler as role
from fleet.roles.reconciler import Reconciler
from fleet.settings import Settings
from fleet.store import audit, execution_views, executions, ticks
from fleet.store.connection import Connection
from support.make import WINDOW, Make

START = UUID(int=0)


async def leased(db: Connection, make: Make, name: str = "s", **fields: object) -> executions.Leased:
    """One execution that a worker holds."""
    id_ = await make.schedule(name, **fields)
    await make.age(id_, 10)
    await ticks.emit(db, grace=60, batch=100)
    [one] = await executions.lease(db, worker="gone", token=uuid4(), limit=10, seconds=15)
    return one


async def status(make: Make, execution_id: UUID) -> str:
    return str(await make.one("SELECT status FROM executions WHERE id = %(id)s", id=execution_id))


def reconciler(**settings: object) -> Reconciler:
    return Reconciler(Settings(**settings), "reconciler-test")  # type: ignore[arg-type]


async def audited(db: Connection, own: Reconciler) -> list[str]:
    """The events of one whole audit, the leases left out."""
    with capture_logs() as logs:
        while await own.step(db) == 0.0:
            pass
    return [entry["event"] for entry in logs if entry["event"] != "lease.expired"]


async def test_an_expired_lease_is_taken_back_and_waits_again(db: Connection, make: Make) -> None:
    held = await leased(db, make)
    await make.expire_leases()
    with capture_logs() as logs:
        await reconciler().step(db)
    assert await status(make, held.id) == "emitted"
    [again] = await executions.lease(db, worker="next", token=uuid4(), limit=10, seconds=15)
    assert (again.id, again.attempt) == (held.id, 2)
    [attempt] = await execution_views.attempts_of(db, held.id)
    assert (attempt["outcome"], attempt["worker_id"]) == ("lost", "gone")
    assert (logs[0]["event"], logs[0]["execution"], logs[0]["leased_by"]) == ("lease.expired", str(held.id), "gone")


async def test_at_most_once_fails_as_lost(db: Connection, make: Make) -> None:
    held = await leased(db, make, delivery="at-most-once")
    await make.expire_leases()
    await reconciler().step(db)
    assert await status(make, held.id) == "failed"
    error = await make.one("SELECT error FROM executions WHERE id = %(id)s", id=held.id)
    assert error.startswith("lost: its worker gone")


async def test_a_lease_that_lives_is_left_alone_and_the_sleep_ends_with_it(db: Connection, make: Make) -> None:
    held = await leased(db, make)
    own = reconciler(reconcile_interval=timedelta(hours=1))
    assert 0.05 <= await own.step(db) <= 15
    assert await status(make, held.id) == "in_progress"


async def test_without_leases_it_sleeps_for_the_interval(db: Connection) -> None:
    assert await reconciler(reconcile_interval=timedelta(seconds=7)).step(db) == 7


async def test_a_full_batch_means_that_there_may_be_more(db: Connection, make: Make) -> None:
    for k in range(3):
        await leased(db, make, f"s{k}")
    await make.expire_leases()
    own = reconciler(reconcile_batch_size=2)
    assert await own.step(db) == 0.0
    assert await own.step(db) > 0.0
    assert await make.one("SELECT count(*) FROM executions WHERE status = 'emitted'") == 3


async def test_switched_off_it_does_nothing(db: Connection, make: Make) -> None:
    held = await leased(db, make)
    await make.expire_leases()
    assert await reconciler(reconcile_enabled=False).step(db) == 5
    assert await status(make, held.id) == "in_progress"


async def test_an_account_that_adds_up_is_not_mentioned(db: Connection, make: Make) -> None:
    await leased(db, make)
    other = await make.schedule("other")
    await make.age(other, 600)
    await ticks.generate_intervals(db, lookahead=60, grace=60, batch=100)
    await ticks.emit(db, grace=60, batch=100)
    await schedules.pause(db, "system", "other", None, WINDOW)
    assert await make.all("gaps", other) != []
    assert await audited(db, reconciler()) == []


async def test_a_planned_time_that_no_row_accounts_for_is_named_and_put_back(db: Connection, make: Make) -> None:
    wrong = await make.schedule("wrong")
    await make.schedule("right")
    await db.execute("DELETE FROM cron_ticks WHERE schedule_id = %s AND n = 2", (wrong,))
    with capture_logs() as logs:
        await reconciler().step(db)
    entry, repaired = logs
    assert (entry["event"], entry["log_level"], entry["schedule"]) == ("ledger.mismatch", "error", "wrong")
    assert entry["planned"] == entry["accounted"] + 1
    assert (repaired["event"], repaired["put_back"]) == ("ledger.repaired", 1)
    assert await audited(db, reconciler()) == []


async def test_an_overdue_schedule_is_named(db: Connection, make: Make) -> None:
    id_ = await make.schedule("late", cron_expression="* * * * *")
    await make.age(id_, 600)
    assert await audited(db, reconciler()) == ["schedule.overdue"]
    late = await audit.overdue(db, 60)
    assert (late.schedules, late.schedule) == (1, "late")
    assert late.seconds > 400


async def test_a_capped_schedule_goes_on_when_its_budget_is_free_again(db: Connection, make: Make) -> None:
    id_ = await make.schedule("few", max_runs=3)
    spent = await make.schedule("spent", max_runs=3)
    await db.execute("UPDATE cron_schedules SET max_runs = 4 WHERE id = %s", (id_,))
    assert await audited(db, reconciler()) == ["schedule.uncapped"]
    assert await make.one("SELECT capped FROM cron_schedules WHERE id = %(id)s", id=id_) is False
    assert await make.one("SELECT capped FROM cron_schedules WHERE id = %(id)s", id=spent) is True


async def test_the_audit_goes_page_by_page_over_all_schedules(db: Connection, make: Make) -> None:
    for k in range(5):
        await make.schedule(f"s{k}")
    await db.execute("DELETE FROM cron_ticks WHERE n = 1")
    seen, after = [], START
    while True:
        page = await audit.compare(db, after, 2)
        seen += [row["name"] for row in page.mismatches]
        if page.last is None:
            break
        after = page.last
    assert sorted(seen) == ["s0", "s1", "s2", "s3", "s4"]


async def test_a_page_ends_where_its_schedules_have_many_rows(
    db: Connection, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "ROWS", 1)
    ids = sorted([await make.schedule(f"s{k}") for k in range(3)])
    first = await audit.compare(db, START, 1000)
    second = await audit.compare(db, ids[0], 1000)
    third = await audit.compare(db, ids[1], 1000)
    assert (first.last, second.last, third.last) == (ids[0], ids[1], None)


async def test_the_audit_comes_once_in_its_period(db: Connection, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    id_ = await make.schedule("wrong")
    await db.execute("DELETE FROM cron_ticks WHERE schedule_id = %s AND n = 2", (id_,))
    own = reconciler()
    assert await audited(db, own) == ["ledger.mismatch", "ledger.repaired"]
    await db.execute("DELETE FROM cron_ticks WHERE schedule_id = %s AND n = 2", (id_,))
    assert await audited(db, own) == []
    monkeypatch.setattr(role, "AUDIT_SECONDS", 0.0)
    own = reconciler()
    assert await audited(db, own) == ["ledger.mismatch", "ledger.repaired"]
    await db.execute("DELETE FROM cron_ticks WHERE schedule_id = %s AND n = 2", (id_,))
    assert await audited(db, own) == ["ledger.mismatch", "ledger.repaired"]
