"""Tasks beside a role's steps end, even when something swallows a cancellation."""

import asyncio

from fleet.roles.ending import end


async def test_a_task_that_swallows_its_first_cancellation_ends_all_the_same() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await asyncio.wait_for(end([task]), 30)
    assert task.cancelled()


async def test_one_that_failed_or_is_over_already_is_left_as_it_is() -> None:
    async def fail() -> None:
        raise ValueError

    task = asyncio.create_task(fail())
    await asyncio.wait([task])
    await end([task])
    assert isinstance(task.exception(), ValueError)
