"""Standard Webhooks signatures: how a receiver knows that a request is ours, and that it is not a late one.

Each current secret gives one signature; during a rotation there are two, and a receiver that knows either is content.
"""

import base64
import binascii
import secrets as entropy
from collections.abc import Sequence
from datetime import UTC, datetime

from standardwebhooks import Webhook

from fleet.errors import UsageError

PREFIX = "whsec_"
SHORTEST, LONGEST = 24, 64  # bytes, as the specification has it
_NEW = 32


def new_secret() -> str:
    return PREFIX + base64.b64encode(entropy.token_bytes(_NEW)).decode()


def check_secret(text: str) -> None:
    """Refuse what a receiver's library could not use. The message never repeats the secret."""
    encoded = text.removeprefix(PREFIX)
    try:
        size = len(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if encoded == text or not SHORTEST <= size <= LONGEST:
        raise UsageError(
            f"The signing secret must be {PREFIX} followed by {SHORTEST} to {LONGEST} bytes in base64; "
            f"`echo {PREFIX}$(openssl rand -base64 {_NEW})` makes one."
        )


def sign(secrets: Sequence[str | bytes], message_id: str, timestamp: int, body: bytes) -> str:
    """The value of `webhook-signature`. A secret is `whsec_…` text, or the bytes that stand for it."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        # The receivers' libraries decode before they verify, so no signature of such a body would ever be accepted.
        raise UsageError("A signed body must be UTF-8 text; encode it, for example as base64.") from error
    moment = datetime.fromtimestamp(timestamp, UTC)
    return " ".join(Webhook(secret).sign(message_id, moment, text) for secret in secrets)


def fence_signature(secrets: Sequence[str | bytes], message_id: str, timestamp: int, fence: int) -> str:
    """The value of `Fleet-Fence-Signature`: the fence is no part of the body, and so needs a signature of its own."""
    return sign(secrets, message_id, timestamp, str(fence).encode())
