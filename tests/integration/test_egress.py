"""The egress guard over real sockets, before a canary that listens on every address of this machine.

Loopback and private addresses are denied but for 127.0.0.2, which stands for the public internet.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address, ip_network
from itertools import permutations

import aiohttp
import pytest
import uvloop
from aiohttp.abc import AbstractResolver, ResolveResult

from fleet.delivery.addresses import Policy
from fleet.delivery.egress import EgressDenied, GuardedResolver, guarded_connector
from support.hostile import DENIED_V4, DENIED_V6, NAMES, spellings, urls

OUTSIDE = "127.0.0.2"
POLICY = Policy(deny_private=True, allow=(ip_network(OUTSIDE),))
ALLOW_PRIVATE = Policy()
Session = aiohttp.ClientSession


@dataclass
class Canary:
    """Answers every connection once and closes it; remembers on which address each came in, and what it said."""

    port: int = 0
    reached: list[str] = field(default_factory=list)
    said: list[bytes] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(writer.get_extra_info("sockname")[0].removeprefix("::ffff:"))
        self.said.append(await reader.read(4096))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Canary]:
    canary = Canary()
    dual = socket.has_dualstack_ipv6()
    listener = socket.create_server(
        ("", 0), family=socket.AF_INET6 if dual else socket.AF_INET, dualstack_ipv6=dual, backlog=128
    )
    server = await asyncio.start_server(canary.serve, sock=listener)
    canary.port = listener.getsockname()[1]
    try:
        yield canary
    finally:
        server.close()


@pytest.fixture
async def canary() -> AsyncIterator[Canary]:
    async with listening() as served:
        yield served


class Numeric(AbstractResolver):
    """Knows localhost and what the system reads as numbers (0x7f.1, 2130706433); asks no one else."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        if host.rstrip(".").lower() == "localhost":
            return [answer("127.0.0.1", port), answer("::1", port)]
        found = socket.getaddrinfo(host.rstrip("."), port, family, socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        return [answer(str(sockaddr[0]), port) for *_, sockaddr in found]

    async def close(self) -> None:
        pass


class Scripted(AbstractResolver):
    """Gives the n-th question the n-th list of addresses, the last one repeating."""

    def __init__(self, *answers: Sequence[str]) -> None:
        self.answers = answers
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        await asyncio.sleep(0)  # a real lookup lets others run
        return [answer(address, port) for address in self.answers[min(self.asked, len(self.answers)) - 1]]

    async def close(self) -> None:
        pass


def answer(address: str, port: int) -> ResolveResult:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return {"hostname": "x", "host": address, "port": port, "family": family, "proto": 0, "flags": 0}


def session(resolver: AbstractResolver | None, policy: Policy = POLICY) -> Session:
    return Session(
        connector=guarded_connector(policy, limit=64, keepalive_timeout=4.0, resolver=resolver),
        timeout=aiohttp.ClientTimeout(total=10),
        trust_env=False,
    )


async def call(client: Session, url: str) -> str:
    """How a call ended: answered, denied, not a URL, an unknown name - or anything else, which no test expects."""
    try:
        async with client.post(url, data=b"x", allow_redirects=False):
            return "answered"
    except EgressDenied:
        return "denied"
    except (aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError):
        return "not a URL"
    except aiohttp.ClientConnectorDNSError:
        return "unknown name"
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"


async def test_no_hostile_url_reaches_a_denied_address(canary: Canary) -> None:
    hostile = list(urls(canary.port))
    endings: Counter[str] = Counter()
    async with session(Numeric()) as client:
        for url in hostile:
            ending = await call(client, url)
            assert ending in ("denied", "not a URL", "unknown name"), url
            endings[ending] += 1

    assert canary.reached == []
    assert len(set(hostile)) >= 4000
    assert endings["denied"] >= 2000  # the rest fails before the guard


async def test_the_same_spellings_reach_the_canary_where_private_addresses_are_allowed(canary: Canary) -> None:
    # Only those that stay on this machine. Without this, a guard that denies everything would pass, too.
    local = [*spellings(IPv4Address("127.0.0.1")), "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", *NAMES]
    async with session(Numeric(), ALLOW_PRIVATE) as client:
        endings = Counter([await call(client, f"http://{host}:{canary.port}/") for host in local])

    assert set(endings) <= {"answered", "not a URL", "unknown name"}
    assert endings["answered"] == len(canary.reached) >= 15


@pytest.mark.parametrize("denied", [*DENIED_V4, *DENIED_V6, "::ffff:127.0.0.1", "fe80::1%eth0", "::1%lo"])
async def test_a_name_that_leads_to_a_denied_address_is_refused_with_address_and_reason(
    canary: Canary, denied: str
) -> None:
    async with session(Scripted([denied])) as client:
        with pytest.raises(EgressDenied, match=r"^The target's address \S+ is not allowed \([a-z -]+\)\.$") as caught:
            await client.get(f"http://target.example:{canary.port}/")
    assert f" {denied} " in str(caught.value)
    assert canary.reached == []


@pytest.mark.parametrize(
    "garbage", ["localhost", "2130706433", "127.1", "0x7f.0.0.1", "", "127.0.0.1\n", "127.0.0.1%lo"]
)
async def test_an_answer_that_is_no_address_is_never_dialled(canary: Canary, garbage: str) -> None:
    # The engine would hand it to the system, which would look it up a second time.
    async with session(Scripted([garbage]), ALLOW_PRIVATE) as client:
        assert await call(client, f"http://target.example:{canary.port}/") == "denied"
    assert canary.reached == []


async def test_of_mixed_answers_only_the_allowed_ones_are_dialled(canary: Canary) -> None:
    mixes = list(permutations([OUTSIDE, "127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254"], 4))
    for mix in mixes:
        async with session(Scripted(mix)) as client:
            url = f"http://target.example:{canary.port}/"
            assert await call(client, url) == ("answered" if OUTSIDE in mix else "denied"), mix
    assert set(canary.reached) == {OUTSIDE}
    assert len(canary.reached) == sum(OUTSIDE in mix for mix in mixes)


async def test_a_name_that_turns_to_a_denied_address_is_refused_from_then_on(canary: Canary) -> None:
    url = f"http://rebinding.example:{canary.port}/"
    for inside in ("127.0.0.1", "::1", "::ffff:7f00:1", "169.254.169.254", "0.0.0.0"):
        resolver = Scripted([OUTSIDE], [inside], [inside, OUTSIDE], [inside])
        async with session(resolver) as client:
            assert client.connector is not None
            endings = []
            for _ in resolver.answers:
                endings.append(await call(client, url))
                client.connector.clear_dns_cache()
        assert endings == ["answered", "denied", "answered", "denied"]
    assert set(canary.reached) == {OUTSIDE}


async def test_one_connection_asks_once_so_that_no_second_answer_can_be_dialled(canary: Canary) -> None:
    resolver = Scripted([OUTSIDE], ["127.0.0.1"])
    async with session(resolver) as client:
        assert await call(client, f"http://rebinding.example:{canary.port}/") == "answered"
    assert (resolver.asked, canary.reached) == (1, [OUTSIDE])


@pytest.mark.parametrize("remembered", ["127.0.0.1", "::1", "::ffff:7f00:1", "localhost", "2130706433", "::1%lo"])
async def test_a_remembered_answer_is_judged_again_when_it_is_dialled(canary: Canary, remembered: str) -> None:
    async with session(Numeric()) as client:
        connector = client.connector
        assert isinstance(connector, aiohttp.TCPConnector)
        # As if the answer had come into the engine's memory without the guard.
        connector._cached_hosts.add(("poisoned.example", canary.port), [answer(remembered, canary.port)])
        assert await call(client, f"http://poisoned.example:{canary.port}/") == "denied"
    assert canary.reached == []


async def test_many_calls_that_share_one_lookup_are_all_refused(canary: Canary) -> None:
    resolver = Scripted(["127.0.0.1"])
    async with session(resolver) as client:
        endings = await asyncio.gather(*(call(client, f"http://same.example:{canary.port}/") for _ in range(50)))
    assert (set(endings), resolver.asked, canary.reached) == ({"denied"}, 1, [])


@pytest.mark.parametrize("url", ["http://localhost:{}/", "http://127.0.0.1:{}/", "http://0x7f.1:{}/"])
async def test_the_systems_own_lookup_is_guarded(canary: Canary, url: str) -> None:
    async with session(None) as client:
        assert await call(client, url.format(canary.port)) == "denied"
    async with session(None, ALLOW_PRIVATE) as client:
        assert await call(client, url.format(canary.port)) == "answered"
    assert len(canary.reached) == 1


async def test_an_allowed_address_is_called_under_the_targets_name(canary: Canary) -> None:
    async with session(Scripted([OUTSIDE])) as client:
        assert await call(client, f"http://target.example:{canary.port}/") == "answered"
        assert await call(client, f"http://{OUTSIDE}:{canary.port}/") == "answered"
        assert "SSL" in await call(client, f"https://target.example:{canary.port}/")  # the canary speaks no TLS
    plain, literal, tls = canary.said
    assert f"\r\nHost: target.example:{canary.port}\r\n".encode() in plain
    assert f"\r\nHost: {OUTSIDE}:{canary.port}\r\n".encode() in literal
    assert b"target.example" in tls  # the name in the first message of TLS
    assert canary.reached == [OUTSIDE] * 3


async def test_a_name_without_any_address_is_an_unknown_name(canary: Canary) -> None:
    async with session(Scripted([])) as client:
        assert await call(client, f"http://nowhere.example:{canary.port}/") == "unknown name"


async def test_closing_the_guard_closes_the_resolver_behind_it() -> None:
    closed = asyncio.Event()

    class Closing(Numeric):
        async def close(self) -> None:
            closed.set()

    await GuardedResolver(POLICY, Closing()).close()
    assert closed.is_set()


def test_the_guard_holds_on_the_loop_that_roles_run_on() -> None:
    async def both() -> tuple[str, str, list[str]]:
        async with listening() as canary, session(Scripted([OUTSIDE])) as client:
            denied = await call(client, f"http://127.0.0.1:{canary.port}/")
            return denied, await call(client, f"http://target.example:{canary.port}/"), canary.reached

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(both()) == ("denied", "answered", [OUTSIDE])
