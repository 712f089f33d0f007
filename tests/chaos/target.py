"""The target of a drill: a process of its own that writes down every request before it answers, or does worse.

    python -m chaos.target FILE PORT [SEED]        prints its port when it listens; PORT 0 takes a free one

The query of a URL says how that schedule's target behaves, as probabilities that are decided in this order:
`fail` (500), `hang` (no answer until the client gives up), `reset` (RST, no work done), `drop` (work done, no reply),
`slow` (200 after a while). `POST /_behave?hang=0.5` lays the same over everybody; `POST /_behave` lifts it.

What happens to a request depends on the seed, its execution and its attempt alone, so that a seed replays it.
"""

import asyncio
import json
import os
import random
import socket
import struct
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from urllib.parse import unquote

from aiohttp import web

KINDS = ("fail", "hang", "reset", "drop", "slow")
ANSWERS = {"fail": "500", "slow": "200", "ok": "200"}
LONGEST_SLOW = 1.5
# Closing with it on and zero sends RST instead of FIN.
ABORT = struct.pack("ii", 1, 0)


class Target:
    def __init__(self, file: int, seed: str) -> None:
        self._file = file
        self._seed = seed
        self._laid_over: dict[str, float] = {}

    async def behave(self, request: web.Request) -> web.Response:
        self._laid_over = _chances(request.query)
        return web.Response()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        at = datetime.now(UTC)
        await request.read()
        dice = random.Random(f"{self._seed} {request.headers['webhook-id']} {request.headers['Fleet-Attempt']}")
        kind = _choose(dice, self._laid_over) or _choose(dice, _chances(request.query)) or "ok"
        self._write(request, at, ANSWERS.get(kind, kind))
        if kind == "hang":
            await asyncio.Event().wait()  # cancelled when the client goes away
        if kind == "slow":
            await asyncio.sleep(dice.uniform(0.2, LONGEST_SLOW))
        if kind in ("reset", "drop") and request.transport is not None:
            if kind == "reset":
                connection: socket.socket = request.transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            request.transport.abort()
        return web.Response(status=500 if kind == "fail" else 200)

    def _write(self, request: web.Request, at: datetime, answer: str) -> None:
        receipt = {
            "at": at.isoformat(timespec="microseconds"),
            "execution": request.headers["webhook-id"],
            "schedule": unquote(request.headers["Fleet-Schedule"]),
            "scheduled_at": request.headers["Fleet-Scheduled-At"],
            "attempt": int(request.headers["Fleet-Attempt"]),
            "answer": answer,
        }
        # One write straight to the kernel: it survives this process, and is there before the answer is.
        os.write(self._file, json.dumps(receipt).encode() + b"\n")


def _chances(query: Mapping[str, str]) -> dict[str, float]:
    return {kind: float(query[kind]) for kind in KINDS if kind in query}


def _choose(dice: random.Random, chances: Mapping[str, float]) -> str | None:
    drawn = dice.random()
    for kind, chance in chances.items():
        if drawn < chance:
            return kind
        drawn -= chance
    return None


async def main(file: str, port: int, seed: str) -> None:
    target = Target(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), seed)
    app = web.Application()
    app.router.add_post("/_behave", target.behave)
    app.router.add_route("*", "/{path:.*}", target.answer)
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "0"))
