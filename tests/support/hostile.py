"""Hostile targets: every way we know to write an address that must not be called.

A wrapping is a way to put an IPv4 address inside an IPv6 one; a spelling is a way to write a host in a URL.
"""

from collections.abc import Callable, Iterator
from ipaddress import IPv4Address, IPv6Address

# Ends and middles of the ranges; with EGRESS_DENY_PRIVATE each of them is denied.
DENIED_V4 = (
    "127.0.0.1",
    "127.0.0.53",
    "127.255.255.254",
    "10.0.0.1",
    "10.255.255.255",
    "172.16.0.1",
    "172.31.255.254",
    "192.168.0.1",
    "192.168.255.254",
    "100.64.0.1",
    "100.127.255.254",
    "198.18.0.1",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.0.1",
    "169.254.255.255",
    "100.100.100.200",
    "192.0.0.192",
    "192.0.0.1",
    "168.63.129.16",
    "0.0.0.0",
    "0.1.2.3",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.2.2",
    "198.51.100.7",
    "203.0.113.9",
    "192.88.99.1",
)
DENIED_V6 = (
    "::",
    "::1",
    "fe80::1",
    "febf:ffff::1",
    "fec0::1",
    "fc00::1",
    "fd00::2",
    "fdff:ffff::1",
    "fd00:ec2::254",
    "fd00:ec2::23",
    "fd00:c1::a9fe:a9fe",
    "fd00:42::42",
    "fd20:ce::254",
    "ff02::1",
    "ff0e::1",
    "2001:db8::1",
    "3fff::1",
    "100::1",
    "2001:2::1",
    "2001:10::1",
    "2001:20::1",
    "5f00::1",
    "4000::1",
    "64:ff9b:2::1",
)

_TEREDO_SERVER = int(IPv4Address("65.54.227.120"))
_ALL = 0xFFFFFFFF


def _under(prefix: str, shift: int = 0) -> Callable[[int], int]:
    return lambda inside: int(IPv6Address(prefix)) | inside << shift


def _split_by_the_u_octet(prefix: str, bits: int) -> Callable[[int], int]:
    """RFC 6052 with a prefix of 48 or 56 bits: the address goes around the octet that must be zero."""

    def wrap(inside: int) -> int:
        before = 64 - bits
        return int(IPv6Address(prefix)) | inside >> 32 - before << 64 | (inside & (1 << 32 - before) - 1) << 24 + before

    return wrap


# What these reach is what is inside and nothing else.
WRAPPINGS: dict[str, Callable[[int], int]] = {
    "mapped": _under("::ffff:0:0"),
    "translated": _under("::ffff:0:0:0"),
    "compatible": _under("::"),
    "nat64": _under("64:ff9b::"),
    "local nat64": _under("64:ff9b:1::"),
    "6to4": _under("2002::", 80),
    "6to4 with a host": _under("2002::1:2:3:4", 80),
    "teredo client": lambda inside: int(IPv6Address("2001::")) | _TEREDO_SERVER << 64 | inside ^ _ALL,
    "teredo server": lambda inside: int(IPv6Address("2001::")) | inside << 64 | _TEREDO_SERVER ^ _ALL,
    "isatap": _under("2606:4700::5efe:0:0"),
    "unique isatap": _under("2606:4700::200:5efe:0:0"),
}

# Here the place of the address cannot be known, so what is denied stays denied but something public may be, too.
AMBIGUOUS_WRAPPINGS: dict[str, Callable[[int], int]] = {
    "local nat64, 48 bits": _split_by_the_u_octet("64:ff9b:1::", 48),
    "local nat64, 56 bits": _split_by_the_u_octet("64:ff9b:1::", 56),
    "local nat64, 64 bits": _under("64:ff9b:1::", 24),
    "local nat64, 48 bits and a suffix": _split_by_the_u_octet("64:ff9b:1::99", 48),
}


def wrapped(how: str, inside: IPv4Address) -> IPv6Address:
    return IPv6Address((WRAPPINGS | AMBIGUOUS_WRAPPINGS)[how](int(inside)))


def hosts() -> Iterator[str]:
    """Every denied address in every spelling."""
    for text in DENIED_V4:
        address = IPv4Address(text)
        yield from spellings(address)
        for how in WRAPPINGS:
            yield f"[{wrapped(how, address)}]"
        yield f"[{wrapped('mapped', address).exploded.upper()}]"
        yield f"[::ffff:{address}]"
        yield f"[64:ff9b::{address}]"
        yield f"[{wrapped('mapped', address)}%25lo]"
    for text in DENIED_V6:
        yield from (f"[{text}]", f"[{IPv6Address(text).exploded}]", f"[{text.upper()}]")
        yield from (f"[{text}%25eth0]", f"[{text}%eth0]", f"[{text}%251]")
    yield from NAMES


# Most parsers make localhost of each of them.
NAMES = (
    "localhost",
    "localhost.",
    "LOCALHOST",
    "LocalHost.",
    "ｌｏｃａｌｈｏｓｔ",
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "loc%61lhost",
    "localhost..",
)


def spellings(address: IPv4Address) -> Iterator[str]:
    """Ways to write an IPv4 address that one parser or another takes for it."""
    whole = int(address)
    a, b, c, d = address.packed
    yield from (f"{address}", f"{address}.", f"{address}..")
    yield from (f"{whole}", f"{whole}.", f"{whole:#x}", f"{whole:#X}", f"0{whole:o}", f"0x{whole:016x}")
    yield from (f"{a}.{b << 16 | c << 8 | d}", f"{a}.{b}.{c << 8 | d}", f"{a:#x}.{b << 16 | c << 8 | d:#x}")
    yield f"{a:#x}.{b:#x}.{c:#x}.{d:#x}"
    yield f"0{a:o}.0{b:o}.0{c:o}.0{d:o}"
    yield f"{a:03}.{b:03}.{c:03}.{d:03}"
    yield f"{a}.{b:#x}.0{c:o}.{d}"
    yield f"0x{a:08x}.{b}.{c}.0{d:o}"
    yield f"{address}".translate(_FULL_WIDTH)
    yield f"{address}".translate(_CIRCLED)
    yield f"{address}".translate(_SUPERSCRIPT)
    yield f"{address}".translate(_ARABIC)
    yield f"{whole}".translate(_FULL_WIDTH)
    yield f"{address}".replace(".", "。")
    yield f"{address}".replace(".", "．")
    yield f"{address}".replace(".", "%2e")
    yield "".join(f"%{ord(char):02x}" for char in f"{address}")
    yield f"[{address}]"
    yield f"{address}%00.example.com"


_FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")
_CIRCLED = str.maketrans("0123456789", "⓪①②③④⑤⑥⑦⑧⑨")
_SUPERSCRIPT = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_ARABIC = str.maketrans("0123456789", "٠١٢٣٤٥٦٧٨٩")


def urls(port: int) -> Iterator[str]:
    """Every hostile host as http and https, and in shapes that make parsers disagree about what the host is."""
    every = list(hosts())
    for host in every:
        yield f"http://{host}:{port}/"
        yield f"https://{host}:{port}/hook?x=1"
    for number, host in enumerate(every):
        # One shape per host is enough: shape and spelling do not depend on each other.
        yield _SHAPES[number % len(_SHAPES)].format(host=host, port=port)
    for host in ("127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "localhost", "0x7f.1", "0"):
        yield from (shape.format(host=host, port=port) for shape in _SHAPES)


_SHAPES = (
    "http://{host}",
    "https://{host}",
    "http://{host}:0{port}/",
    "http://{host}:22/",
    "HTTP://{host}:{port}/",
    "http://allowed.example@{host}:{port}/",
    "http://allowed.example:{port}@{host}:{port}/",
    "http://user:pa%40ss@{host}:{port}/",
    "http://a@b@{host}:{port}/",
    "http://{host}:{port}#@allowed.example/",
    "http://{host}:{port}?@allowed.example/",
    "http://{host}:{port}/@allowed.example/",
    "http://{host}:{port}\\@allowed.example/",
    "http://denied.example\\@{host}:{port}/",
    "http:\\\\{host}:{port}\\",
    "http:/{host}:{port}/",
    "http:{host}:{port}",
    "//{host}:{port}/",
    "http://{host}:{port}/../../..//allowed.example",
    " http://{host}:{port}/",
    "http://\t{host}:{port}/",
    "ftp://{host}:{port}/",
    "unix://{host}:{port}/",
    "ws://{host}:{port}/",
    "http+unix://{host}:{port}/",
    "file://{host}/etc/passwd",
    "gopher://{host}:{port}/_GET",
)
