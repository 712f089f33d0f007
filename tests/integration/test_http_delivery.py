"""Deliveries over real sockets, against a server that says exactly the bytes a test gives it."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from fleet import __version__
from fleet.delivery.addresses import Policy
from fleet.delivery.answer import parse_retry_after
from fleet.delivery.http import HttpClient, Request
from fleet.domain.retry import Broken, Delivered, Outcome, Refused, TimedOutAttempt

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
METHODS = ["GET", "HEAD", "PUT", "DELETE", "POST", "PATCH"]
Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Target:
    """A server that answers the n-th request it gets with the n-th answer, the last one repeating."""

    answers: list[Answer]
    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    connections: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while not writer.is_closing():
                head = await reader.readuntil(b"\r\n\r\n")
                self.requests.append(head)
                self.bodies.append(await reader.readexactly(int(headers_of(head).get("content-length", "0"))))
                await self.answers[min(len(self.requests), len(self.answers)) - 1](writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def target(*answers: Answer) -> AsyncIterator[Target]:
    served = Target(list(answers))
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()


def says(data: bytes) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return answer


def status(code: int, *headers: str) -> Answer:
    return says("\r\n".join([f"HTTP/1.1 {code} Some", "Content-Length: 0", *headers, "", ""]).encode())


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()


async def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def pour(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000000\r\n\r\n")
    while True:
        writer.write(b"x" * 65536)
        await writer.drain()


async def drip(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.01)  # the pace of the drip, not a wait for anything


def headers_of(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:-2]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


def request_to(port: int, **changes: object) -> Request:
    values: dict[str, object] = {
        "execution_id": "0198",
        "schedule": "nightly",
        "scheduled_at": datetime(2030, 1, 2, 3, 4, 5, 678900, UTC),
        "attempt": 2,
        "url": f"http://127.0.0.1:{port}/hook?a=1",
        "method": "POST",
        "headers": {},
        "body": b'{"x":1}',
        "timeout": 20.0,
    }
    return Request(**(values | changes))  # type: ignore[arg-type]


async def deliver(served: Target, **changes: object) -> Outcome:
    async with HttpClient(4) as client:
        return await client.deliver(request_to(served.port, **changes), lambda: None)


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("code", [200, 201, 204, 299])
async def test_every_2xx_is_delivered(code: int) -> None:
    async with target(status(code)) as served:
        assert await deliver(served) == Delivered(code)


@pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 599])
async def test_a_status_that_may_pass_is_broken(code: int) -> None:
    async with target(status(code)) as served:
        assert await deliver(served) == Broken(f"The target answered {code}.", code)


@pytest.mark.parametrize("code", [101, 300, 304, 400, 401, 403, 404, 409, 422])
async def test_a_status_that_will_not_pass_is_refused(code: int) -> None:
    async with target(status(code)) as served:
        assert await deliver(served) == Refused(f"The target answered {code}.", code)


async def test_410_says_that_the_target_is_gone() -> None:
    async with target(status(410)) as served:
        assert await deliver(served) == Refused("The target answered 410.", 410, gone=True)


@pytest.mark.parametrize("code", [301, 302, 303, 307, 308])
async def test_a_redirect_is_refused_and_not_followed(code: int) -> None:
    async with target(status(code, "Location: /elsewhere"), says(OK)) as served:
        assert isinstance(await deliver(served, method="GET"), Refused)
        assert len(served.requests) == 1


async def test_retry_after_in_seconds_comes_with_the_outcome() -> None:
    async with target(status(429, "Retry-After: 120")) as served:
        assert await deliver(served) == Broken("The target answered 429.", 429, 120.0)


async def test_retry_after_as_a_date_comes_with_the_outcome() -> None:
    moment = format_datetime(datetime.now(UTC) + timedelta(hours=2), usegmt=True)
    async with target(status(503, f"Retry-After: {moment}")) as served:
        outcome = await deliver(served)

    assert isinstance(outcome, Broken)
    assert 7000 < (outcome.retry_after or 0) <= 7200


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("²", None),
        ("0", 0.0),
        (" 60 ", 60.0),
        ("9" * 5000, 86400.0),
        ("Wed, 02 Jan 2030 00:01:00 GMT", 60.0),
        ("Wed, 02 Jan 2030 00:01:00 -0000", 60.0),
        ("Tue, 01 Jan 2030 00:00:00 GMT", 0.0),
        ("Fri, 01 Feb 2030 00:00:00 GMT", 86400.0),
        ("Wed, 99 Jan 2030 00:01:00 GMT", None),
    ],
)
def test_retry_after_is_read_in_both_forms_and_bounded(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, datetime(2030, 1, 2, tzinfo=UTC)) == seconds


@pytest.mark.parametrize("answer", [hang, drip])
async def test_an_answer_that_is_not_whole_in_time_is_a_timeout(answer: Answer) -> None:
    async with target(answer) as served:
        assert await deliver(served, timeout=0.3) == TimedOutAttempt("No complete answer within 0.3 s.")


@pytest.mark.parametrize("answer", [hang_up, reset, says(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nx")])
async def test_a_connection_that_breaks_is_broken(answer: Answer) -> None:
    async def answer_and_leave(writer: asyncio.StreamWriter) -> None:
        await answer(writer)
        writer.close()

    async with target(answer_and_leave) as served:
        assert isinstance(await deliver(served), Broken)
        assert len(served.requests) == 1


async def test_an_answer_that_is_not_http_is_broken() -> None:
    async with target(says(b"SSH-2.0-nonsense\r\n\r\n")) as served:
        assert isinstance(await deliver(served), Broken)


async def test_an_endless_body_is_dropped_and_the_status_counts() -> None:
    async with target(pour) as served:
        assert await deliver(served) == Delivered(200)


async def test_a_compressed_answer_is_never_unpacked() -> None:
    async with target(says(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\njunk")) as served:
        assert await deliver(served) == Delivered(200)
        assert "gzip" not in headers_of(served.requests[0]).get("accept-encoding", "")


async def test_a_refused_connection_is_broken_and_nothing_was_sent() -> None:
    sent: list[bool] = []
    async with HttpClient(4) as client:
        outcome = await client.deliver(request_to(unused_port()), lambda: sent.append(True))

    assert isinstance(outcome, Broken)
    assert outcome.reason.startswith("Could not connect to the target")
    assert sent == []


async def test_a_target_that_does_not_speak_tls_is_sent_nothing() -> None:
    sent: list[bool] = []
    async with target(says(OK)) as served, HttpClient(4) as client:
        url = f"https://127.0.0.1:{served.port}/"
        outcome = await client.deliver(request_to(0, url=url, timeout=0.3), lambda: sent.append(True))

        assert isinstance(outcome, Broken | TimedOutAttempt)
        assert sent == []
        assert served.requests == []


async def test_on_sent_is_called_once_and_before_the_target_sees_anything() -> None:
    seen_when_sent: list[int] = []
    async with target(says(OK)) as served, HttpClient(4) as client:
        for _ in range(2):
            await client.deliver(request_to(served.port), lambda: seen_when_sent.append(len(served.requests)))

    assert seen_when_sent == [0, 1]


async def test_connections_are_kept() -> None:
    async with target(says(OK)) as served, HttpClient(4) as client:
        for _ in range(3):
            assert await client.deliver(request_to(served.port), lambda: None) == Delivered(200)
        assert (served.connections, len(served.requests)) == (1, 3)


@pytest.mark.parametrize("answer", [hang_up, reset])
@pytest.mark.parametrize("method", METHODS)
async def test_a_kept_connection_that_closes_under_a_request_is_not_silently_tried_again(
    method: str, answer: Answer
) -> None:
    first = b"HTTP/1.1 204 No\r\n\r\n"
    async with target(says(first), answer, says(first)) as served, HttpClient(4) as client:
        sent: list[bool] = []
        assert await client.deliver(request_to(served.port, method=method), lambda: None) == Delivered(204)
        outcome = await client.deliver(request_to(served.port, method=method), lambda: sent.append(True))

        assert isinstance(outcome, Broken)
        assert served.connections == 1
        assert len(served.requests) == 2
        assert sent == [True]


async def test_the_request_says_which_execution_it_is() -> None:
    async with target(says(OK)) as served:
        scheduled_at = datetime(2030, 1, 2, 5, 4, 5, 678900, timezone(timedelta(hours=2)))
        await deliver(served, scheduled_at=scheduled_at, headers={"X-Team": "ops"})
        headers = headers_of(served.requests[0])

    assert served.requests[0].startswith(b"POST /hook?a=1 HTTP/1.1\r\n")
    assert served.bodies == [b'{"x":1}']
    assert headers["content-type"] == "application/json"
    assert headers["user-agent"] == f"Fleet/{__version__}"
    assert headers["webhook-id"] == "0198"
    assert abs(int(headers["webhook-timestamp"]) - datetime.now(UTC).timestamp()) < 60
    assert headers["fleet-schedule"] == "nightly"
    assert headers["fleet-scheduled-at"] == "2030-01-02T03:04:05.678Z"
    assert headers["fleet-attempt"] == "2"
    assert headers["x-team"] == "ops"


async def test_a_content_type_of_ones_own_is_kept() -> None:
    async with target(says(OK)) as served:
        await deliver(served, headers={"content-type": "text/plain"})
        assert served.requests[0].lower().count(b"content-type") == 1
        assert headers_of(served.requests[0])["content-type"] == "text/plain"


async def test_a_request_without_a_body_claims_no_content_type() -> None:
    async with target(says(OK)) as served:
        await deliver(served, body=b"")
        assert "content-type" not in headers_of(served.requests[0])


async def test_a_schedule_name_cannot_break_out_of_its_header() -> None:
    async with target(says(OK)) as served:
        await deliver(served, schedule="größe 100%\r\nX-Evil: 1")
        headers = headers_of(served.requests[0])

    assert headers["fleet-schedule"] == "gr%C3%B6%C3%9Fe 100%25%0D%0AX-Evil: 1"
    assert "x-evil" not in headers


async def test_cookies_and_proxies_of_the_surroundings_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{unused_port()}")
    cookie = says(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nContent-Length: 0\r\n\r\n")
    async with target(cookie) as served, HttpClient(4) as client:
        for _ in range(2):
            assert await client.deliver(request_to(served.port), lambda: None) == Delivered(200)
        assert "cookie" not in headers_of(served.requests[1])


@pytest.mark.parametrize("url", ["http://", "nonsense", "ftp://127.0.0.1/"])
async def test_a_url_that_can_never_work_is_refused(url: str) -> None:
    async with HttpClient(4) as client:
        assert isinstance(await client.deliver(request_to(0, url=url), lambda: None), Refused)


async def test_a_header_that_would_split_the_request_is_not_sent() -> None:
    async with target(says(OK)) as served:
        assert isinstance(await deliver(served, headers={"X-A": "1\r\nX-Evil: 1"}), Broken)
        assert served.requests == []


async def test_cancelling_a_delivery_ends_it_at_once() -> None:
    arrived = asyncio.Event()

    async def arrive_and_hang(writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await hang(writer)

    async with target(arrive_and_hang) as served, HttpClient(4) as client:
        delivery = asyncio.create_task(client.deliver(request_to(served.port), lambda: None))
        await asyncio.wait_for(arrived.wait(), 20)
        delivery.cancel()
        with pytest.raises(asyncio.CancelledError):
            await delivery


async def test_an_address_outside_the_policy_is_refused_and_nothing_was_sent() -> None:
    sent: list[bool] = []
    async with target(says(OK)) as served, HttpClient(4, Policy(deny_private=True)) as client:
        outcome = await client.deliver(request_to(served.port), lambda: sent.append(True))
        assert outcome == Refused("The target's address 127.0.0.1 is not allowed (loopback).")
        assert (sent, served.connections) == ([], 0)
