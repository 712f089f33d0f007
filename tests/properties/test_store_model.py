"""A state machine over the store: random operations on a few schedules, against a model of plain dictionaries.

The model knows what an execution may do; the account of every planned time is counted anew after each step.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any, ClassVar
from uuid import UUID, uuid4

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from psycopg import AsyncConnection

from fleet.errors import Conflict
from fleet.operations import schedules
from fleet.store import executions, ticks
from fleet.store.connection import Connection, conninfo
from fleet.store.executions import Finish
from support.database import TestServer
from support.make import WINDOW, Make
from support.tiling import assert_all_tiled

FINAL = {"delivered", "failed", "cancelled"}
NAMES = st.sampled_from(["a", "a", "a", "b"])


class Store(RuleBasedStateMachine):
    """Steps of all roles and people, in any order. `finals` and `held` are the model."""

    address: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.db: Connection = self.run(
            AsyncConnection.connect(conninfo(self.address, "test", 30.0), autocommit=True, prepare_threshold=None)
        )
        self.make = Make(self.db)
        self.ids: dict[str, UUID] = {}
        self.overlap: dict[UUID, str] = {}
        self.held: dict[UUID, UUID] = {}
        self.stale: list[tuple[UUID, UUID]] = []
        self.finals: dict[UUID, str] = {}

    def run(self, step: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(step)

    def teardown(self) -> None:
        self.run(self.db.close())
        self.loop.close()

    @initialize(
        interval=st.sampled_from([1, 7, 10, 30]),
        overlaps=st.tuples(*[st.sampled_from(["skip", "queue", "allow"])] * 2),
        catch_up=st.sampled_from(["latest", "none"]),
        max_runs=st.sampled_from([None, 3, 30]),
    )
    def begin(self, interval: int, overlaps: tuple[str, str], catch_up: str, max_runs: int | None) -> None:
        self.run(self.db.execute("TRUNCATE cron_schedules, schedule_versions, cron_ticks, executions, attempts, gaps"))
        for name, overlap in zip("ab", overlaps, strict=True):
            id_ = self.run(
                self.make.schedule(
                    name, interval_seconds=interval, overlap=overlap, catch_up=catch_up, max_runs=max_runs
                )
            )
            self.ids[name], self.overlap[id_] = id_, overlap

    # Time passes: only while nothing runs, as the ids of executions change with their age.
    @precondition(lambda self: not self.held)
    @rule(name=NAMES, seconds=st.sampled_from([1, 10, 45, 200]))
    def age(self, name: str, seconds: int) -> None:
        self.run(self.make.age(self.ids[name], seconds))
        self.stale.clear()
        self.finals = self.run(self._finals())

    @rule(lookahead=st.sampled_from([0, 60]))
    def generate(self, lookahead: int) -> None:
        self.run(ticks.generate_intervals(self.db, lookahead=lookahead, grace=60, batch=100))

    @rule(batch=st.sampled_from([1, 3, 1000]))
    def emit(self, batch: int) -> None:
        done = self.run(ticks.emit(self.db, grace=60, batch=batch))
        assert done.executions + done.skipped == done.ticks
        self.run(ticks.uncap(self.db, done.uncap))

    @rule(limit=st.sampled_from([1, 5]))
    def lease(self, limit: int) -> None:
        token = uuid4()
        for one in self.run(executions.lease(self.db, worker="w", token=token, limit=limit, seconds=60)):
            assert one.id not in self.held
            assert one.id not in self.finals
            self.held[one.id] = token

    @precondition(lambda self: self.held)
    @rule(data=st.data(), status=st.sampled_from(["delivered", "failed", "emitted"]))
    def finish(self, data: st.DataObject, status: str) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.held)))
        token = self.held.pop(id_)
        result = Finish(id_, token, status, "broken", None, 500, 0.0 if status == "emitted" else None)
        assert self.run(executions.finish(self.db, [result])) == {id_}
        self.stale.append((id_, token))
        if status in FINAL:
            self.finals[id_] = status

    @precondition(lambda self: self.stale)
    @rule(data=st.data())
    def a_late_result_is_refused(self, data: st.DataObject) -> None:
        id_, token = data.draw(st.sampled_from(self.stale))
        assert self.run(executions.finish(self.db, [Finish(id_, token, "failed", "broken", None, 1, None)])) == set()
        assert self.run(executions.heartbeat(self.db, [(id_, token, 60.0)])) == set()

    @precondition(lambda self: self.held)
    @rule()
    def lose_all_leases(self) -> None:
        self.run(self.make.expire_leases())
        back = {row[0]: row[1] for row in self.run(executions.expire_leases(self.db, 1000))}
        assert set(back) == set(self.held)
        self.stale += self.held.items()
        self.held.clear()
        self.finals |= {id_: status for id_, status in back.items() if status in FINAL}

    @rule(name=NAMES)
    def pause_or_resume(self, name: str) -> None:
        [row] = [row for row in self.run(self.make.all("cron_schedules")) if row["name"] == name]
        if row["enabled"]:
            self.run(schedules.pause(self.db, "system", name, None, WINDOW))
        else:
            self.run(schedules.resume(self.db, "system", name, WINDOW))

    @rule(name=NAMES, step=st.integers(1, 40))
    def update(self, name: str, step: int) -> None:
        self.run(schedules.update(self.db, "system", name, {"interval_seconds": step}, WINDOW))

    @rule(name=NAMES)
    def trigger(self, name: str) -> None:
        try:
            self.run(schedules.trigger(self.db, "system", name))
        except Conflict:
            assert self.overlap[self.ids[name]] == "skip"

    @rule(name=NAMES)
    def cancel(self, name: str) -> None:
        self.run(schedules.cancel(self.db, "system", name, WINDOW))
        now = self.run(self._finals())
        self.stale += [(id_, token) for id_, token in self.held.items() if id_ in now]
        self.held = {id_: token for id_, token in self.held.items() if id_ not in now}
        assert self.finals.items() <= now.items()
        self.finals = now

    async def _finals(self) -> dict[UUID, str]:
        return {row["id"]: row["status"] for row in await self.make.all("executions") if row["status"] in FINAL}

    @invariant()
    def every_planned_time_has_one_fate(self) -> None:
        self.run(assert_all_tiled(self.db))

    @invariant()
    def the_model_and_the_table_agree(self) -> None:
        found = self.run(self.make.all("executions"))
        assert {row["id"]: row["status"] for row in found if row["status"] in FINAL} == self.finals
        assert {row["id"]: row["lease_token"] for row in found if row["status"] == "in_progress"} == self.held
        for id_, overlap in self.overlap.items():
            unfinished = [row for row in found if row["schedule_id"] == id_ and row["finished_at"] is None]
            if overlap == "skip":
                assert len(unfinished) <= 1
            if overlap == "queue":
                assert sum(row["status"] == "in_progress" for row in unfinished) <= 1


@pytest.fixture(scope="module")
def address(server: TestServer) -> Iterator[str]:
    with server.database() as dsn:
        yield dsn


def test_the_store_behaves_like_its_model(address: str) -> None:
    Store.address = address
    run_state_machine_as_test(
        Store,
        settings=settings(
            max_examples=40,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
        ),
    )
