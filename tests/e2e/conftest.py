"""Fixtures of the end-to-end tests: a target, and real processes on the test's database."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.processes import Processes, processes
from support.sink import Sink, serving


@pytest.fixture
async def sink() -> AsyncIterator[Sink]:
    async with serving() as running:
        yield running


@pytest.fixture
def fleet(dsn: str, tmp_path: Path) -> Iterator[Processes]:
    # A short lease and lookahead, so that takeover and generation happen within the test.
    with processes(
        tmp_path, DATABASE_URL=dsn, LEASE="3s", LOOKAHEAD="5s", GENERATE_INTERVAL="1s", RECONCILE_INTERVAL="500ms"
    ) as running:
        yield running
