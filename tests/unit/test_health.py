"""The health server tells what the role last learned, and never stops the role."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from structlog.testing import capture_logs

from fleet.roles.health import Health, Server, serve


@asynccontextmanager
async def serving(health: Health, metrics_enabled: bool = True) -> AsyncIterator[Server]:
    server = await serve("127.0.0.1", 0, health, metrics_enabled)
    assert server is not None
    try:
        yield server
    finally:
        await server.close()


async def get(server: Server, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{server.address}{path}") as answer:
        is_json = answer.content_type == "application/json"
        return answer.status, await (answer.json() if is_json else answer.text())


@pytest.mark.asyncio
async def test_a_role_that_is_well_says_ok() -> None:
    health = Health()
    health.ok("database")
    async with serving(health) as server:
        for path in ("/health", "/health/ready", "/health/live"):
            assert await get(server, path) == (200, {"status": "ok"})


@pytest.mark.asyncio
async def test_a_role_without_its_database_is_degraded_but_alive() -> None:
    health = Health()
    health.ok("loop")
    health.fail("database", "connection refused")
    async with serving(health) as server:
        assert await get(server, "/health") == (503, {"status": "degraded"})
        assert await get(server, "/health/ready") == (503, {"status": "degraded"})
        assert await get(server, "/health/live") == (200, {"status": "ok"})
        _, body = await get(server, "/health?verbose=true")
        assert body["components"] == {
            "database": {"ok": False, "detail": "connection refused"},
            "loop": {"ok": True, "detail": ""},
        }
        health.ok("database")
        assert await get(server, "/health") == (200, {"status": "ok"})


def test_a_role_that_has_reported_nothing_yet_is_not_ready() -> None:
    assert not Health().ready


@pytest.mark.asyncio
async def test_metrics_are_served_unless_switched_off() -> None:
    async with serving(Health()) as server:
        status, text = await get(server, "/metrics")
        assert status == 200
        assert "fleet_ticks_generated_total" in text
    async with serving(Health(), metrics_enabled=False) as server:
        assert (await get(server, "/metrics"))[0] == 404


@pytest.mark.asyncio
async def test_a_taken_port_is_a_warning_and_not_the_end() -> None:
    async with serving(Health()) as server:
        port = int(server.address.rpartition(":")[2])
        with capture_logs() as events:
            assert await serve("127.0.0.1", port, Health(), True) is None
    assert [(event["event"], event["log_level"]) for event in events] == [("health.port_taken", "warning")]
