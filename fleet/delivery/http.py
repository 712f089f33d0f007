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
from email.utils import parsedate_to_datetime
from types import SimpleNamespace, TracebackType
from typing import Self
from urllib.parse import quote

import aiohttp

from fleet import __version__, failpoints
from fleet.delivery.addresses import Policy
from fleet.delivery.egress import EgressDenied, guarded_connector
from fleet.domain.retry import RETRY_AFTER_CAP, Broken, Delivered, Outcome, Refused, TimedOutAttempt, one_line

RESPONSE_LIMIT = 64 * 1024

# Below the 5 s after which common servers (Node, uvicorn) drop an idle connection. A request sent into a closing
# connection is a spent attempt, so it is better to connect anew than to race the server's timer.
KEEPALIVE = 4.0

_RETRYABLE = frozenset({408, 425, 429})
_GONE = 410

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

    async def deliver(self, request: Request, on_sent: Callable[[], None]) -> Outcome:
        """Make one attempt. Only cancellation is raised; everything else that can happen is an outcome."""
        try:
            async with asyncio.timeout(request.timeout):
                return await self._send(request, on_sent)
        except TimeoutError:
            return TimedOutAttempt(f"No complete answer within {request.timeout:g} s.")
        except EgressDenied as denied:
            return Refused(str(denied))
        except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError):
            return Refused("The URL is not a valid http or https URL.")
        except Exception as error:  # noqa: BLE001 - whatever the engine does, an attempt must end in an outcome
            return Broken(_reason(error))

    async def _send(self, request: Request, on_sent: Callable[[], None]) -> Outcome:
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
            await _drain(response)
            failpoints.hit("http.after_body")
            return _judge(response.status, response.headers.get("Retry-After"), datetime.now(UTC))


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
    return headers | {
        "webhook-id": request.execution_id,
        "webhook-timestamp": str(int(time.time())),
        "Fleet-Schedule": quote(request.schedule, safe=_HEADER_SAFE),
        "Fleet-Scheduled-At": scheduled_at.replace("+00:00", "Z"),
        "Fleet-Attempt": str(request.attempt),
    }


async def _drain(response: aiohttp.ClientResponse) -> None:
    """Read a small answer to its end, so that its connection can be used again; drop the connection of a large one."""
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > RESPONSE_LIMIT:
            response.close()
            return


def _judge(status: int, retry_after: str | None, now: datetime) -> Outcome:
    reason = f"The target answered {status}."
    if 200 <= status < 300:
        return Delivered(status)
    if status in _RETRYABLE or status >= 500:
        return Broken(reason, status, parse_retry_after(retry_after, now))
    return Refused(reason, status, gone=status == _GONE)


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds until the moment a Retry-After header names, at most a day; None when there is none to be read."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text), RETRY_AFTER_CAP)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    # HTTP dates are in GMT; the parser leaves the zone out when it is written as -0000.
    wait = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - now
    return max(0.0, min(wait.total_seconds(), RETRY_AFTER_CAP))


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
