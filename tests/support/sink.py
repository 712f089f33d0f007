"""A real HTTP target that remembers every request it received, and can be told to hold or refuse them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import NamedTuple

from aiohttp import web


class Receipt(NamedTuple):
    execution: str
    schedule: str
    scheduled_at: datetime
    attempt: int
    received_at: datetime
    body: bytes
    path: str
    headers: dict[str, str]


class Sink:
    """`status` is what it answers; while `gate` is clear, requests are received but not answered."""

    def __init__(self) -> None:
        self.receipts: list[Receipt] = []
        self.status = 200
        self.text = ""
        self.headers: dict[str, str] = {}
        self.pause = 0.0
        self.gate = asyncio.Event()
        self.gate.set()
        self.url = ""

    def by_execution(self) -> dict[str, list[Receipt]]:
        grouped: dict[str, list[Receipt]] = defaultdict(list)
        for receipt in self.receipts:
            grouped[receipt.execution].append(receipt)
        return grouped

    def planned(self) -> set[tuple[str, datetime]]:
        return {(receipt.schedule, receipt.scheduled_at) for receipt in self.receipts}

    async def answer(self, request: web.Request) -> web.Response:
        received_at = datetime.now(UTC)
        body = await request.read()
        self.receipts.append(
            Receipt(
                execution=request.headers["webhook-id"],
                schedule=request.headers["Fleet-Schedule"],
                scheduled_at=datetime.fromisoformat(request.headers["Fleet-Scheduled-At"]),
                attempt=int(request.headers["Fleet-Attempt"]),
                received_at=received_at,
                body=body,
                path=request.path_qs,
                headers={name.lower(): value for name, value in request.headers.items()},
            )
        )
        await self.gate.wait()
        await asyncio.sleep(self.pause)
        return web.Response(status=self.status, text=self.text, headers=self.headers)


@asynccontextmanager
async def serving() -> AsyncIterator[Sink]:
    sink = Sink()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", sink.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    sink.url = f"http://{host}:{port}/"
    try:
        yield sink
    finally:
        sink.gate.set()
        await runner.cleanup()
