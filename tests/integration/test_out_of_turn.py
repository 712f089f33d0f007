"""Triggers and retries beside the grid, and who may reach them."""

import pytest

from fleet.errors import Conflict, NotFound
from fleet.operations import executions, schedules
from support.make import WINDOW, Make
from support.tiling import assert_tiled


async def test_a_trigger_runs_beside_the_grid_also_while_paused(make: Make) -> None:
    id_ = await make.schedule()
    await schedules.pause(make.db, "system", "s", None, WINDOW)
    made = await schedules.trigger(make.db, "system", "s")
    [row] = await make.all("executions", id_)
    assert (row["id"], row["n"], row["status"]) == (made, None, "emitted")
    assert row["run"].startswith("trigger-")
    await assert_tiled(make.db, id_)


async def test_a_trigger_obeys_overlap(make: Make) -> None:
    await make.schedule()
    await schedules.trigger(make.db, "system", "s")
    with pytest.raises(Conflict, match="unfinished"):
        await schedules.trigger(make.db, "system", "s")
    await make.schedule("free", overlap="allow")
    assert await schedules.trigger(make.db, "system", "free") != await schedules.trigger(make.db, "system", "free")


async def test_retrying_a_final_execution_makes_a_new_one_for_the_same_time(make: Make) -> None:
    id_ = await make.schedule()
    first = await schedules.trigger(make.db, "system", "s")
    with pytest.raises(Conflict, match="only a finished one"):
        await executions.retry(make.db, "system", str(first))
    await executions.cancel(make.db, "system", str(first))
    second = await executions.retry(make.db, "system", str(first))
    with pytest.raises(Conflict, match="unfinished"):
        await executions.retry(make.db, "system", str(first))
    by_id = {row["id"]: row for row in await make.all("executions", id_)}
    assert by_id[second]["retry_of"] == first
    assert by_id[second]["scheduled_at"] == by_id[first]["scheduled_at"]
    assert by_id[second]["run"] == "retry-1"


async def test_cancelling_a_final_execution_says_what_it_is(make: Make) -> None:
    await make.schedule()
    first = str(await schedules.trigger(make.db, "system", "s"))
    await executions.cancel(make.db, "system", first)
    with pytest.raises(Conflict, match="is cancelled already"):
        await executions.cancel(make.db, "system", first)


async def test_nothing_is_found_from_another_workspace(make: Make) -> None:
    await make.schedule()
    first = str(await schedules.trigger(make.db, "system", "s"))
    with pytest.raises(NotFound):
        await executions.get(make.db, "elsewhere", first)
    with pytest.raises(NotFound):
        await schedules.pause(make.db, "elsewhere", "s", None, WINDOW)


async def test_a_schedule_is_found_by_its_id_too(make: Make) -> None:
    id_ = await make.schedule()
    assert await schedules.find(make.db, "system", str(id_)) == id_
