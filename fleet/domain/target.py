"""Where an execution is delivered to, checked before it is stored: a bad one should fail its author, not its runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from fleet.errors import UsageError

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD")
URL_LENGTH = 2048
HIDDEN = "***"

# These frame the request on its connection or are Fleet's own word about the execution; a second, different
# value would let a schedule smuggle requests or forge where a delivery came from.
RESERVED_HEADERS = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
RESERVED_PREFIXES = ("webhook-", "fleet-")

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_NOT_IN_A_URL = re.compile(r"[\x00-\x20\x7f-\xa0\u2028\u2029]")
_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class HttpTarget:
    """A request to make; only `validate_http` should build one from what a person wrote."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def validate_http(url: str, method: str, headers: Mapping[str, str]) -> HttpTarget:
    """Return the target, or raise UsageError with the sentence its author should read."""
    _check_url(url)
    if method.upper() not in METHODS:
        raise UsageError(f"The method must be one of {', '.join(METHODS)}, got {method!r}.")
    seen: set[str] = set()
    for name, value in headers.items():
        _check_header(name, value)
        if name.lower() in seen:
            raise UsageError(f"The header {name} is given twice in different spellings; give it once.")
        seen.add(name.lower())
    return HttpTarget(url, method.upper(), dict(headers))


def public_target(target: Mapping[str, Any]) -> dict[str, Any]:
    """A stored target as people see it: that there are secrets, never which, not even sealed."""
    hidden: dict[str, Any] = {"secrets": [HIDDEN] * len(target.get("secrets", ()))} if "secrets" in target else {}
    if "secret_headers" in target:
        hidden["secret_headers"] = dict.fromkeys(target["secret_headers"], HIDDEN)
    return {**target, **hidden}


def _check_url(url: str) -> None:
    if len(url) > URL_LENGTH:
        raise UsageError(f"The URL must be at most {URL_LENGTH} characters, got {len(url)}.")
    if _NOT_IN_A_URL.search(url):
        raise UsageError(f"The URL {url!r} has a space or control character; percent-encode it.")
    parts = _split(url)
    if "@" in parts.netloc:
        # Neither here nor in _split is the URL repeated: it may hold a password.
        raise UsageError("The URL must not carry a user name or password; put them in an Authorization header.")
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"The URL {url!r} must start with http:// or https://.")
    if not parts.hostname:
        raise UsageError(f"The URL {url!r} names no host; write it like https://example.com/path.")


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # read only because reading it is what checks it
    except ValueError as error:
        raise UsageError(
            "The URL has no readable host and port; write it like https://example.com:8443/path."
        ) from error
    return parts


def _check_header(name: str, value: str) -> None:
    if not _TOKEN.fullmatch(name):
        raise UsageError(f"The header name {name!r} may hold only letters, digits and !#$%&'*+-.^_`|~.")
    if name.lower() in RESERVED_HEADERS or name.lower().startswith(RESERVED_PREFIXES):
        raise UsageError(f"The header {name} is set by Fleet itself; remove it.")
    if _NOT_IN_A_HEADER.search(value):
        # The value is not repeated here: it may be a secret.
        raise UsageError(f"The value of the header {name} has a line break or control character; remove it.")
