"""The egress guard: no delivery connects to an address that the policy denies.

Promise  A name is looked up once per connection, every answer is judged, and only judged answers are dialled. The
         address of each socket is judged again as the socket is made: that also covers hosts written as addresses,
         which the engine does not look up, and answers it remembered. The name stays in Host and SNI.
"""

import socket
from ipaddress import ip_address

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from fleet.delivery.addresses import Policy
from fleet.domain.retry import one_line


class EgressDenied(aiohttp.ClientError):
    """The target is at an address the policy denies. The text is the reason to show; no byte was sent."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(one_line(f"The target's address {address} is not allowed ({why})."))


def guarded_connector(
    policy: Policy, *, limit: int, keepalive_timeout: float, resolver: AbstractResolver | None = None
) -> aiohttp.TCPConnector:
    """A connector that dials nothing the policy denies; `resolver` stands in for the system's."""

    def dial(addr_info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, (host, *_) = addr_info
        if denial := _denial(policy, host):
            raise denial
        return socket.socket(family, kind, protocol)

    return aiohttp.TCPConnector(
        limit=limit,
        keepalive_timeout=keepalive_timeout,
        resolver=GuardedResolver(policy, resolver or ThreadedResolver()),
        socket_factory=dial,
    )


class GuardedResolver(AbstractResolver):
    """Another resolver's answers without those the policy denies; if none is left, the first denial."""

    def __init__(self, policy: Policy, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        answers = await self._inner.resolve(host, port, family)
        denials = [_denial(self._policy, answer["host"]) for answer in answers]
        allowed = [answer for answer, denial in zip(answers, denials, strict=True) if denial is None]
        if not allowed:
            raise next(filter(None, denials), None) or socket.gaierror(socket.EAI_NONAME, "The name has no address")
        return allowed

    async def close(self) -> None:
        await self._inner.close()


def _denial(policy: Policy, host: str) -> EgressDenied | None:
    try:
        address = ip_address(host)
    except ValueError:  # a name: dialling it would look it up once more, out of our sight
        return EgressDenied(host, "not an address")
    why = policy.denies(address)
    return EgressDenied(host, why) if why else None
