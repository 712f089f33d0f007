"""Adding, editing, pausing and deleting: what becomes of the ticks, in the same transaction."""

from itertools import pairwise

from fleet.store import ticks
from support.make import Make


async def test_adding_writes_the_window_at_once(make: Make) -> None:
    id_ = await make.schedule(interval_seconds=10)
    planned = await make.planned(id_)
    assert len(planned) in (5, 6)
    assert all((b - a).total_seconds() == 10 for a, b in pairwise(planned))


async def test_cron(make: Make) -> None:
    id_ = await make.schedule(cron_expression="* * * * *")
    assert len(await make.planned(id_)) == 1
    [g] = [await ticks.generate_intervals(make.db, lookahead=60, grace=60, batch=100)]
    assert g == (0, 0, 0)
