"""The one way a delivery leaves over HTTP.

Promise  A request leaves at most once per deliver(), and on_sent is called before its first byte can. One deadline
         covers waiting for a connection, DNS, connecting, sending and reading. No redirect is followed; no proxy,
         cookie or password is taken from the environment; no address outside the egress policy is connected to; a
         large answer costs no more than a small one.
"""

import asyncio
import string
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace, TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp

from fleet import __version__, failpoints
from fleet.delivery import signing
from fleet.delivery.addresses import Policy
from fleet.delivery.answer import Answer, judge
from fleet.delivery.egress import EgressDenied, guarded_connector
from fleet.domain.retry import Broken, Outcome, Refused, TimedOutAttempt, one_line
from fleet.domain.success import ANY_2XX, SuccessTest

RESPONSE_LIMIT = 64 * 1024

# Below the 5 s after which common servers (Node, uvicorn) drop an idle connection. A request sent into a closing
# connection is a spent attempt, so it is better to connect anew than to race the server's timer.
KEEPALIVE = 4.0

# '%' is left out, so that what arrives can be decoded without doubt.
_HEADER_SAFE = (string.punctuation + " ").replace("%", "")


@dataclass(frozen=True, slots=True)
class Request:
    """Everything one attempt needs."""

    execution_id: str
    schedule: str
    scheduled_at: datetime
    attempt: int
    url: str
    method: str
    headers: Mapping[str, str]
    body: bytes
    timeout: float
    fence: int = 0
    secrets: tuple[str, ...] = ()
    success: SuccessTest = ANY_2XX


class HttpClient:
    """A pool of connections to where the policy allows, used as `async with HttpClient(64) as client`."""

    def __init__(self, concurrency: int, egress: Policy = Policy()) -> None:  # noqa: B008 - it is immutable
        self._concurrency = concurrency
        self._egress = egress

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=guarded_connector(self._egress, limit=self._concurrency, keepalive_timeout=KEEPALIVE),
            headers={"User-Agent": f"Fleet/{__version__}", "Accept-Encoding": "identity"},
            skip_auto_headers=("Content-Type",),
            cookie_jar=aiohttp.DummyCookieJar(),
            # deliver() holds the only deadline: aiohttp would round it up to whole seconds.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=None),
            trust_env=False,
            auto_decompress=False,
            # aiohttp buffers up to twice this before it stops reading from the socket.
            read_bufsize=RESPONSE_LIMIT // 2,
            trace_configs=[_report_sent()],
            middlewares=(_send_once,),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._session.close()

    async def deliver(
        self, request: Request, on_sent: Callable[[], None], on_answer: Callable[[Answer], None] = lambda _: None
    ) -> Outcome:
        """Make one attempt. Only cancellation is raised; everything else that can happen is an outcome."""
        try:
            async with asyncio.timeout(request.timeout):
                answer = await self._send(request, on_sent)
            on_answer(answer)
            return judge(answer, request.success, datetime.now(UTC))
        except TimeoutError:
            return TimedOutAttempt(f"No complete answer within {request.timeout:g} s.")
        except EgressDenied as denied:
            return Refused(str(denied))
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return Refused("The URL is not a valid http or https URL.")
        except Exception as error:  # noqa: BLE001 - whatever the engine does, an attempt must end in an outcome
            return Broken(_reason(error))

    async def _send(self, request: Request, on_sent: Callable[[], None]) -> Answer:
        began = time.monotonic()
        failpoints.hit("http.before_connect")
        async with self._session.request(
            request.method,
            request.url,
            headers=_headers(request),
            data=request.body or None,
            allow_redirects=False,
            trace_request_ctx=on_sent,
        ) as response:
            failpoints.hit("http.after_headers")
            body, is_whole = await _read(response)
            failpoints.hit("http.after_body")
            return Answer(response.status, tuple(response.headers.items()), body, is_whole, time.monotonic() - began)


class _ConnectionBroke(aiohttp.ClientError):
    """A connection broke under a request; its cause says how."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    # aiohttp sends GET, HEAD, PUT and DELETE a second time when a kept connection breaks, without telling anyone:
    # the target would see a duplicate that no attempt explains. It does so for these two errors only.
    try:
        return await handler(request)
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _ConnectionBroke from error


def _report_sent() -> aiohttp.TraceConfig:
    # A request gets its connection in exactly one of these two ways, TLS included, and only then writes to it.
    async def connected(session: aiohttp.ClientSession, context: SimpleNamespace, params: object) -> None:
        context.trace_request_ctx()
        failpoints.hit("http.before_send")

    trace = aiohttp.TraceConfig()
    trace.on_connection_create_end.append(connected)
    trace.on_connection_reuseconn.append(connected)
    return trace


def _headers(request: Request) -> dict[str, str]:
    headers = dict(request.headers)
    if request.body and not any(name.lower() == "content-type" for name in headers):
        headers["Content-Type"] = "application/json"
    scheduled_at = request.scheduled_at.astimezone(UTC).isoformat(timespec="milliseconds")
    timestamp = int(time.time())
    own = {
        "webhook-id": request.execution_id,
        "webhook-timestamp": str(timestamp),
        "Fleet-Schedule": quote(request.schedule, safe=_HEADER_SAFE),
        "Fleet-Scheduled-At": scheduled_at.replace("+00:00", "Z"),
        "Fleet-Attempt": str(request.attempt),
        "Fleet-Fence": str(request.fence),
    }
    if request.secrets:
        who, secrets = request.execution_id, request.secrets
        own["webhook-signature"] = signing.sign(secrets, who, timestamp, request.body)
        own["Fleet-Fence-Signature"] = signing.fence_signature(secrets, who, timestamp, request.fence)
    return headers | own


async def _read(response: aiohttp.ClientResponse) -> tuple[bytes, bool]:
    """As much of the answer as is looked at, and whether that is all of it.

    A small answer is read to its end, so that its connection can be used again; a large one's connection is dropped.
    """
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > RESPONSE_LIMIT:
            response.close()
            return b"".join(chunks)[:RESPONSE_LIMIT], False
    return b"".join(chunks), True


def _reason(error: Exception) -> str:
    cause = error.__cause__ if isinstance(error, _ConnectionBroke) and error.__cause__ else error
    if isinstance(cause, aiohttp.ClientConnectorError):
        what = "Could not connect to the target"
    elif isinstance(cause, aiohttp.ClientResponseError | aiohttp.ClientPayloadError):
        what = "The target's answer could not be read"
    elif isinstance(cause, aiohttp.ClientConnectionError | _ConnectionBroke):
        what = "The connection to the target broke"
    else:
        what = "The request could not be made"
    return one_line(f"{what}: {type(cause).__name__}: {cause}").rstrip(" .:") + "."
