"""How a receiver trusts a request of Fleet's. Standard library only: copy it. See guides/verifying.md."""

import base64
import hashlib
import hmac
import time
from collections.abc import Mapping

TOLERANCE = 300  # seconds between Fleet's clock and ours


class Untrusted(Exception):
    """Do not act on this request."""


def verify(secret: str, headers: Mapping[str, str], body: bytes, last_fence: int = 0, now: float | None = None) -> int:
    """Return the request's fence, to be kept as the next `last_fence` of its schedule; raise Untrusted otherwise."""
    given = {name.lower(): value for name, value in headers.items()}
    message_id, sent, fence = (given.get(name, "") for name in ("webhook-id", "webhook-timestamp", "fleet-fence"))
    start = f"{message_id}.{sent}.".encode()
    if not _signed(secret, start + body, given.get("webhook-signature", "")):
        raise Untrusted("The signature does not match.")
    if not _signed(secret, start + fence.encode(), given.get("fleet-fence-signature", "")):
        raise Untrusted("The fence's signature does not match.")
    if abs((time.time() if now is None else now) - int(sent)) > TOLERANCE:
        raise Untrusted("The request is too old or too new.")
    if int(fence) <= last_fence:
        raise Untrusted("A newer request of this schedule was here before.")
    return int(fence)


def _signed(secret: str, message: bytes, signatures: str) -> bool:
    key = base64.b64decode(secret.removeprefix("whsec_") + "==")
    expected = "v1," + base64.b64encode(hmac.digest(key, message, hashlib.sha256)).decode()
    return any(hmac.compare_digest(expected.encode(), one.encode()) for one in signatures.split(" "))
