"""A TCP proxy between the roles and Postgres that can be told to treat them badly while it runs.

    pass       everything goes through
    delay      every piece waits, in both directions
    cut        every link is reset, and new ones are too
    half-open  everything is swallowed in both directions, silently; healing resets the links that lost something

`swallow_answer` is apart from the mode: the next request that holds the given words reaches Postgres, its answer is
waited for, dropped, and the link reset. That is a connection cut after COMMIT was sent and before its answer came.
"""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

CHUNK = 64 * 1024
PASS, DELAY, CUT, HALF_OPEN = "pass", "delay", "cut", "half-open"
ABORT = struct.pack("ii", 1, 0)
# ReadyForQuery, the last message of every answer, less its last byte (the transaction's state).
READY = b"Z\x00\x00\x00\x05"
RETRY_SECONDS = 0.05


@dataclass(eq=False)
class Link:
    """One client's connection, and ours to Postgres for it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    lost_bytes: bool = False
    dropping_answer: bool = False
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)

    def reset(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                with contextlib.suppress(OSError):
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
                writer.transport.abort()

    def close(self) -> None:
        for writer in (self.client, self.server):
            if writer is not None:
                writer.close()


class Proxy:
    """`address` is where clients connect; `upstream` may be set anew while it runs."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        self.upstream = upstream
        self.address = ("", 0)
        self.mode = PASS
        self.swallowed = 0
        self._delay = 0.0
        self._words: bytes | None = None
        self._links: set[Link] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.reset()
        for link in list(self._links):
            for task in link.tasks:
                task.cancel()
            await asyncio.gather(*link.tasks, return_exceptions=True)

    def delay(self, seconds: float) -> None:
        self.mode, self._delay = DELAY, seconds

    def cut(self) -> None:
        self.mode = CUT
        self.reset()

    def half_open(self) -> None:
        self.mode = HALF_OPEN

    def swallow_answer(self, words: bytes) -> None:
        """Drop the answer to the next request with these words in it, and reset its link."""
        self._words = words

    def heal(self) -> None:
        self.mode, self._words = PASS, None
        for link in self._links:
            if link.lost_bytes:
                link.reset()

    def reset(self) -> None:
        for link in self._links:
            link.reset()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        self._links.add(link)
        try:
            await self._relay(link, reader)
        except OSError:
            pass  # Postgres is away, or a link was reset: the client learns it by its own connection
        finally:
            link.close()
            self._links.discard(link)

    async def _relay(self, link: Link, reader: asyncio.StreamReader) -> None:
        if self.mode == CUT:
            return link.reset()
        while self.mode == HALF_OPEN:
            link.lost_bytes = True
            await asyncio.sleep(RETRY_SECONDS)
        if link.lost_bytes:
            return link.reset()
        from_server, link.server = await asyncio.open_connection(*self.upstream)
        link.tasks = [
            asyncio.create_task(self._requests(link, reader)),
            asyncio.create_task(self._answers(link, from_server)),
        ]
        # Whichever side ends first ends both: Postgres has no use for half a connection.
        await asyncio.wait(link.tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in link.tasks:
            task.cancel()
        await asyncio.gather(*link.tasks, return_exceptions=True)

    async def _requests(self, link: Link, reader: asyncio.StreamReader) -> None:
        assert link.server is not None
        while data := await reader.read(CHUNK):
            if not await self._lets_through(link):
                continue
            if self._words is not None and self._words in data:
                self._words, link.dropping_answer = None, True
            link.server.write(data)
            await link.server.drain()

    async def _answers(self, link: Link, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK):
            if not await self._lets_through(link):
                continue
            if link.dropping_answer:
                # Postgres sends a long answer in pieces; only the last one says that the work is committed.
                if data[:-1].endswith(READY):
                    self.swallowed += 1
                    link.reset()
                    return
                continue
            link.client.write(data)
            await link.client.drain()

    async def _lets_through(self, link: Link) -> bool:
        if self.mode == DELAY:
            await asyncio.sleep(self._delay)
        if self.mode == HALF_OPEN:
            link.lost_bytes = True
        return not link.lost_bytes


@contextlib.asynccontextmanager
async def proxied(dsn: str) -> AsyncIterator[tuple[Proxy, str]]:
    """A proxy before a database, and the address through it."""
    parts = urlsplit(dsn)
    proxy = Proxy((str(parts.hostname), int(parts.port or 0)))
    await proxy.start()
    user = parts.netloc.rpartition("@")[0]
    try:
        yield proxy, urlunsplit(parts._replace(netloc=f"{user}@{proxy.address[0]}:{proxy.address[1]}"))
    finally:
        await proxy.close()
