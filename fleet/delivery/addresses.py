"""Which addresses may be called. Pure: no name is looked up here and no socket opened.

Promise  An address is judged by what it reaches, not by how it is written: one that carries another inside (mapped,
         NAT64, 6to4, Teredo, ISATAP) is judged by the one inside. What no table knows is denied for IPv6, where only
         2000::/3 is handed out.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class Kind(StrEnum):
    """What an address is for; the word a refusal gives as its reason."""

    PUBLIC = "public"
    LOOPBACK = "loopback"
    PRIVATE = "private"
    LINK_LOCAL = "link-local"
    METADATA = "cloud metadata"
    UNSPECIFIED = "unspecified"
    MULTICAST = "multicast"
    BROADCAST = "broadcast"
    DOCUMENTATION = "documentation"
    RESERVED = "reserved"


# A fleet calls its neighbours, so these are the operator's choice. All other kinds but public are always denied.
NEIGHBOURS = frozenset({Kind.LOOPBACK, Kind.PRIVATE})

# The first line that holds an address names its kind. Metadata comes first: some of it lies inside private ranges.
_TABLE: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (
        Kind.METADATA,
        (
            "169.254.169.254/32",  # nearly every cloud
            "100.100.100.200/32",  # Alibaba
            "168.63.129.16/32",  # Azure's host agent, on a public address
            "192.0.0.192/32",  # Oracle
            "fd00:ec2::/32",  # AWS: metadata, pod identity, time, DNS
            "fd00:c1::a9fe:a9fe/128",  # Oracle
            "fd00:42::42/128",  # Scaleway
            "fd20:ce::254/128",  # Google
        ),
    ),
    (Kind.LOOPBACK, ("127.0.0.0/8", "::1/128")),
    (Kind.LINK_LOCAL, ("169.254.0.0/16", "fe80::/10")),
    (Kind.UNSPECIFIED, ("0.0.0.0/8", "::/128")),
    (Kind.BROADCAST, ("255.255.255.255/32",)),
    (Kind.MULTICAST, ("224.0.0.0/4", "ff00::/8")),
    (Kind.DOCUMENTATION, ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")),
    (
        Kind.PRIVATE,
        (
            "10.0.0.0/8",
            "172.16.0.0/12",
            "192.168.0.0/16",
            "100.64.0.0/10",  # shared by a provider's customers
            "198.18.0.0/15",  # benchmarks
            "fc00::/7",
            "fec0::/10",  # site-local, the older fc00::/7
            "2001:2::/48",  # benchmarks
        ),
    ),
    (Kind.RESERVED, ("192.0.0.0/24", "192.88.99.0/24", "240.0.0.0/4", "2001::/23")),
    (Kind.PUBLIC, ("0.0.0.0/0", "2000::/3")),
    (Kind.RESERVED, ("::/0",)),
)
_KINDS = tuple((ip_network(network), kind) for kind, networks in _TABLE for network in networks)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the operator decided: EGRESS_DENY_PRIVATE and EGRESS_ALLOW.

    `allow` excepts loopback and private networks only. Metadata hands the machine's credentials to whoever asks, so
    an exception written for the network around it (100.64.0.0/10, fd00::/8) must not open it by accident.
    """

    deny_private: bool = False
    allow: tuple[Network, ...] = ()

    def denies(self, address: Address) -> Kind | None:
        """Why this address may not be called; None if it may."""
        return next((kind for layer, kind in _judged(address) if not self._allows(layer, kind)), None)

    def _allows(self, address: Address, kind: Kind) -> bool:
        if kind in NEIGHBOURS:
            return not self.deny_private or any(address in network for network in self.allow)
        return kind is Kind.PUBLIC


@lru_cache(maxsize=4096)  # each connection asks twice, and most go to the same few targets
def _judged(address: Address) -> tuple[tuple[Address, Kind], ...]:
    """Every address that matters in this one, with its kind."""
    if isinstance(address, IPv6Address) and address.scope_id:
        # A zone picks a network card and so means a neighbour on its wire, whatever the address looks like.
        return ((address, Kind.LINK_LOCAL),)
    return tuple((layer, _kind(layer)) for layer in _layers(address))


def _kind(address: Address) -> Kind:
    return next(kind for network, kind in _KINDS if address in network)


def _layers(address: Address) -> Iterator[Address]:
    """The addresses inside, and the address itself unless it is nothing but a wrapping."""
    if isinstance(address, IPv4Address):
        yield address
        return
    unwrap = next((unwrap for network, unwrap in _WRAPPINGS if address in network), None)
    if unwrap is None or int(address) <= 1:  # :: and ::1 lie among the IPv4-compatible ones but are their own
        yield address
    else:
        yield from unwrap(address.packed)
    if address.packed[8:12] in _ISATAP:
        yield IPv4Address(address.packed[12:])


def _last_bytes(packed: bytes) -> Iterator[IPv4Address]:
    yield IPv4Address(packed[12:])


def _six_to_four(packed: bytes) -> Iterator[IPv4Address]:
    yield IPv4Address(packed[2:6])


def _teredo(packed: bytes) -> Iterator[IPv4Address]:
    yield IPv4Address(packed[4:8])  # the server, which gets the first packet
    yield IPv4Address(bytes(byte ^ 0xFF for byte in packed[12:]))  # the client, written inverted


def _local_nat64(packed: bytes) -> Iterator[IPv4Address]:
    """Every reading of a NAT64 address whose prefix may have 48, 56, 64 or 96 bits: which one holds cannot be seen.

    A reading in 0.0.0.0/8 is what the padding of another looks like, so it counts only if there is no other.
    """
    readings = [bytes(packed[place] for place in places) for places in _NAT64_PLACES]
    for reading in [reading for reading in readings if reading[0]] or readings[-1:]:
        yield IPv4Address(reading)


_NAT64_PLACES = ((6, 7, 9, 10), (7, 9, 10, 11), (9, 10, 11, 12), (12, 13, 14, 15))  # RFC 6052, section 2.2

_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")  # before the IPv4 address, in any network

_WRAPPINGS: tuple[tuple[IPv6Network, Callable[[bytes], Iterator[IPv4Address]]], ...] = (
    (IPv6Network("::ffff:0:0/96"), _last_bytes),  # IPv4-mapped
    (IPv6Network("::ffff:0:0:0/96"), _last_bytes),  # IPv4-translated
    (IPv6Network("::/96"), _last_bytes),  # IPv4-compatible
    (IPv6Network("64:ff9b::/96"), _last_bytes),  # NAT64
    (IPv6Network("64:ff9b:1::/48"), _local_nat64),  # NAT64 with a prefix of the operator's own
    (IPv6Network("2002::/16"), _six_to_four),
    (IPv6Network("2001::/32"), _teredo),
)
