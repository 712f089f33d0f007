"""Leases and results on a real Postgres: the token is the fence, and what was lost is taken back."""

from typing import Any
from uuid import uuid4

import pytest

from fleet.store import execution_views, executions, ticks
from fleet.store.executions import Finish
from support.make import Make
from support.steps import BROKEN, emitted, finish, lease, outcomes, row_of

# Leasing.


async def test_a_lease_takes_no_more_than_asked_and_the_oldest_first(make: Make) -> None:
    await emitted(make, 5)
    first = await lease(make.db, limit=2)
    rest = await lease(make.db, limit=10)
    assert (len(first), len(rest)) == (2, 3)
    assert max(one.scheduled_at for one in first) < min(one.scheduled_at for one in rest)
    assert await lease(make.db) == []


async def test_a_lease_says_everything_that_delivery_needs(make: Make) -> None:
    id_ = await emitted(make, payload={"a": 1}, timeout_seconds=5, lease_seconds=7, backoff_seconds=[1.0, 2.0])
    token = uuid4()
    [one] = await lease(make.db, token)
    assert (one.schedule_id, one.schedule, one.workspace_id, one.scope) == (id_, "s", "system", "")
    assert (one.attempt, one.timeout, one.lease, one.backoff) == (1, 5.0, 7.0, [1.0, 2.0])
    assert (one.delivery, one.max_attempts, one.payload) == ("at-least-once", 4, '{"a": 1}')
    assert '"url"' in one.target
    row = await row_of(make.db, one.id)
    assert (row["status"], row["lease_token"], row["leased_by"]) == ("in_progress", token, "w")
    assert 6.9 < (row["leased_until"] - row["leased_at"]).total_seconds() < 7.1
    assert row["started_at"] is not None


async def test_what_is_not_due_is_not_leased(make: Make) -> None:
    await emitted(make)
    await make.db.execute("UPDATE executions SET next_attempt_at = now() + interval '1 minute'")
    assert await lease(make.db) == []


async def test_in_a_queue_only_the_head_may_go(make: Make) -> None:
    await emitted(make, 3, overlap="queue")
    seen = []
    for _ in range(3):
        token = uuid4()
        [head] = await lease(make.db, token)
        assert await lease(make.db) == []
        seen.append(head.scheduled_at)
        await finish(make.db, head, token=token)
    assert seen == sorted(seen)


async def test_a_queues_head_that_waits_for_its_retry_holds_the_others_back(make: Make) -> None:
    await emitted(make, 2, overlap="queue")
    token = uuid4()
    [head] = await lease(make.db, token)
    await finish(make.db, head, token=token, **BROKEN)
    assert await lease(make.db) == []
    await make.db.execute("UPDATE executions SET next_attempt_at = now()")
    [again] = await lease(make.db)
    assert again.id == head.id


async def test_an_earlier_tick_holds_the_queue_back(make: Make) -> None:
    await emitted(make, 2, overlap="queue")
    await make.db.execute(
        "WITH first AS (DELETE FROM executions WHERE n = 1 RETURNING *)"
        " INSERT INTO cron_ticks (schedule_id, scope, scheduled_at, execute_at, n, id)"
        " SELECT schedule_id, scope, scheduled_at, execute_at, n, id FROM first"
    )
    assert await lease(make.db) == []
    await ticks.emit(make.db, grace=60, batch=100)
    [head] = await lease(make.db)
    assert (await row_of(make.db, head.id))["n"] == 1


async def test_a_dispatcher_takes_its_shard_and_whatever_is_overdue(make: Make) -> None:
    for i in range(60):
        await emitted(make, name=f"s{i}", max_runs=1)
    sharding = {"worker": "w", "limit": 100, "seconds": 15, "shard": 0, "shards": 3}
    own = await executions.lease(make.db, token=uuid4(), shard_grace=3600, **sharding)  # type: ignore[arg-type]
    assert 0 < len(own) < 60
    foreign = await executions.lease(make.db, token=uuid4(), shard_grace=0, **sharding)  # type: ignore[arg-type]
    assert len(own) + len(foreign) == 60


async def test_a_lease_whose_answer_was_lost_is_undone_and_spends_no_attempt(make: Make) -> None:
    await emitted(make, 2)
    lost, held = uuid4(), uuid4()
    [one] = await lease(make.db, lost, limit=1)
    [two] = await lease(make.db, held)
    assert await executions.untake(make.db, "w", [lost]) == 1
    assert (await row_of(make.db, one.id))["attempt"] == 0
    assert (await row_of(make.db, two.id))["status"] == "in_progress"
    [again] = await lease(make.db)
    assert (again.id, again.attempt) == (one.id, 1)


# Heartbeats and results.


async def test_a_heartbeat_renews_only_with_the_token(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    before = (await row_of(make.db, one.id))["leased_until"]
    assert await executions.heartbeat(make.db, [(one.id, uuid4(), 100.0)]) == set()
    assert (await row_of(make.db, one.id))["leased_until"] == before
    assert await executions.heartbeat(make.db, [(one.id, token, 100.0)]) == {one.id}
    assert (await row_of(make.db, one.id))["leased_until"] > before


async def test_a_result_with_another_token_changes_nothing(make: Make) -> None:
    await emitted(make)
    [one] = await lease(make.db)
    before = await row_of(make.db, one.id)
    assert await finish(make.db, one, token=uuid4()) == set()
    assert await row_of(make.db, one.id) == before
    assert await outcomes(make.db, one.id) == []


async def test_a_batch_of_results_is_judged_row_by_row(make: Make) -> None:
    await emitted(make, 3)
    token = uuid4()
    held = await lease(make.db, token)
    results = [
        Finish(held[0].id, token, "delivered", "delivered", None, 200, None),
        Finish(held[1].id, uuid4(), "delivered", "delivered", None, 200, None),
        Finish(held[2].id, token, "failed", "refused", "404", 404, None),
    ]
    assert await executions.finish(make.db, results) == {held[0].id, held[2].id}
    assert [(await row_of(make.db, one.id))["status"] for one in held] == ["delivered", "in_progress", "failed"]
    failed = await row_of(make.db, held[2].id)
    assert (failed["error"], failed["lease_token"], failed["leased_until"]) == ("404", None, None)
    assert failed["finished_at"] is not None
    [attempt] = await execution_views.attempts_of(make.db, held[2].id)
    assert (attempt["attempt"], attempt["worker_id"], attempt["status_code"]) == (1, "w", 404)
    assert attempt["started_at"] <= attempt["finished_at"]


async def test_a_result_written_twice_is_written_once(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    assert await finish(make.db, one, token=token) == {one.id}
    assert await finish(make.db, one, token=token, status="failed") == set()
    assert await outcomes(make.db, one.id) == [(1, "delivered")]


async def test_the_time_of_a_retry_is_a_column(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    await finish(make.db, one, token=token, **BROKEN)
    row = await row_of(make.db, one.id)
    assert (row["status"], row["attempt"], row["error"], row["finished_at"]) == ("emitted", 1, "503", None)
    away = await make.one("SELECT date_part('epoch', next_attempt_at - clock_timestamp()) FROM executions")
    assert 50 < away <= 60
    assert await lease(make.db) == []
    await make.db.execute("UPDATE executions SET next_attempt_at = now()")
    [again] = await lease(make.db)
    assert again.attempt == 2
    assert (await row_of(make.db, one.id))["started_at"] == row["started_at"], "of the first attempt"


async def test_work_handed_back_spends_no_attempt_and_its_number_is_used_again(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    back = {"status": "emitted", "outcome": "handed_back", "status_code": None, "retry_in": 0.0, "spent": False}
    assert await finish(make.db, one, token=token, **back) == {one.id}
    assert (await row_of(make.db, one.id))["attempt"] == 0
    assert await outcomes(make.db, one.id) == [(1, "handed_back")]
    [again] = await lease(make.db, token, worker="other")
    assert again.attempt == 1
    await finish(make.db, again, token=token)
    [attempt] = await execution_views.attempts_of(make.db, one.id)
    assert (attempt["outcome"], attempt["worker_id"]) == ("delivered", "other")


async def test_after_an_unknown_commit_the_worker_learns_whether_its_result_was_written(make: Make) -> None:
    await emitted(make, 2)
    token = uuid4()
    one, two = await lease(make.db, token)
    await finish(make.db, one, token=token)
    asked = [(one.id, 1), (two.id, 1)]
    assert await executions.recorded(make.db, "w", asked) == {one.id}
    assert await executions.recorded(make.db, "other", asked) == set()


async def test_a_lost_attempt_is_not_taken_for_a_written_result(make: Make) -> None:
    await emitted(make, 2)
    one, two = await lease(make.db)
    await executions.cancel(make.db, [two.id], "enough")
    await make.expire_leases()
    await executions.expire_leases(make.db, 100)
    assert await outcomes(make.db, one.id) == [(1, "lost")]
    assert await executions.recorded(make.db, "w", [(one.id, 1), (two.id, 1)]) == set()


# Leases that ran out.


async def test_a_lease_that_ran_out_is_emitted_again_and_the_late_result_is_refused(make: Make) -> None:
    await emitted(make)
    stale = uuid4()
    [one] = await lease(make.db, stale)
    assert await executions.expire_leases(make.db, 100) == [], "not yet"
    assert 0 < (await executions.seconds_to_next_expiry(make.db) or 0) <= 15
    await make.expire_leases()
    assert await executions.expire_leases(make.db, 100) == [(one.id, "emitted", "w")]
    assert await executions.seconds_to_next_expiry(make.db) is None
    assert await outcomes(make.db, one.id) == [(1, "lost")]
    fresh = uuid4()
    [again] = await lease(make.db, fresh)
    assert (again.id, again.attempt) == (one.id, 2)
    assert await finish(make.db, one, token=stale) == set()
    assert await executions.heartbeat(make.db, [(one.id, stale, 60.0)]) == set()
    assert await finish(make.db, again, token=fresh) == {one.id}
    assert await outcomes(make.db, one.id) == [(1, "lost"), (2, "delivered")]


@pytest.mark.parametrize("fields", [{"max_attempts": 1}, {"delivery": "at-most-once"}])
async def test_a_lost_lease_fails_what_may_not_be_sent_again(make: Make, fields: dict[str, Any]) -> None:
    await emitted(make, **fields)
    [one] = await lease(make.db)
    await make.expire_leases()
    assert await executions.expire_leases(make.db, 100) == [(one.id, "failed", "w")]
    row = await row_of(make.db, one.id)
    assert row["finished_at"] is not None
    assert row["error"].startswith("lost")
    assert await lease(make.db) == []


async def test_a_lost_lease_of_work_once_handed_back_keeps_its_history(make: Make) -> None:
    await emitted(make)
    token = uuid4()
    [one] = await lease(make.db, token)
    back = {"status": "emitted", "outcome": "handed_back", "status_code": None, "retry_in": 0.0, "spent": False}
    await finish(make.db, one, token=token, **back)
    await lease(make.db, token, worker="dead")
    await make.expire_leases()
    await executions.expire_leases(make.db, 100)
    [attempt] = await execution_views.attempts_of(make.db, one.id)
    assert (attempt["attempt"], attempt["outcome"], attempt["worker_id"]) == (1, "lost", "dead")
