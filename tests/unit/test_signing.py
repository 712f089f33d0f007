"""Signatures, as the official library of the receivers sees them."""

import base64
import time

import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from fleet.delivery.signing import check_secret, fence_signature, new_secret, sign
from fleet.errors import UsageError

BODY = '{"name": "Zoë"}'.encode()


def headers(secrets: list[str | bytes], body: bytes = BODY) -> dict[str, str]:
    now = int(time.time())
    return {
        "webhook-id": "msg-1",
        "webhook-timestamp": str(now),
        "webhook-signature": sign(secrets, "msg-1", now, body),
    }


def test_the_official_library_accepts_a_signature() -> None:
    secret = new_secret()
    assert Webhook(secret).verify(BODY, headers([secret])) == {"name": "Zoë"}


def test_the_example_of_the_specification_comes_out() -> None:
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    assert sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == (
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
    )


def test_a_receiver_that_knows_either_secret_is_content_during_rotation() -> None:
    old, new = new_secret(), new_secret()
    both = headers([new, old])
    assert len(both["webhook-signature"].split(" ")) == 2
    Webhook(old).verify(BODY, both)
    Webhook(new).verify(BODY, both)
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(BODY, both)


def test_a_changed_body_is_not_accepted() -> None:
    secret = new_secret()
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(BODY + b" ", headers([secret]))


def test_a_secret_as_bytes_signs_like_its_text() -> None:
    secret = new_secret()
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    assert sign([raw], "m", 1, BODY) == sign([secret], "m", 1, BODY)


def test_an_empty_body_is_signed_too() -> None:
    secret = new_secret()
    Webhook(secret).verify("", headers([secret], b""), json_parse=False)


def test_a_body_that_no_receiver_could_verify_is_refused() -> None:
    with pytest.raises(UsageError, match="UTF-8"):
        sign([new_secret()], "m", 1, b"\xff\xfe")


def test_the_fence_is_signed_with_every_secret_over_id_timestamp_and_fence() -> None:
    old, new = new_secret(), new_secret()
    assert fence_signature([new, old], "m", 7, 42) == sign([new, old], "m", 7, b"42")
    assert fence_signature([new], "m", 7, 42) != fence_signature([new], "m", 7, 43)
    assert fence_signature([new], "m", 7, 42) != fence_signature([new], "m", 8, 42)


def test_new_secrets_are_good_and_differ() -> None:
    secrets = {new_secret() for _ in range(100)}
    assert len(secrets) == 100
    for secret in secrets:
        check_secret(secret)


@pytest.mark.parametrize("size", [24, 25, 26, 64])
def test_secrets_of_24_to_64_bytes_are_accepted_padded_or_not(size: int) -> None:
    secret = "whsec_" + base64.b64encode(b"k" * size).decode()
    check_secret(secret)
    check_secret(secret.rstrip("="))


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "hunter2hunter2hunter2hunter2hunter2",
        "whsec_" + base64.b64encode(b"k" * 23).decode(),
        "whsec_" + base64.b64encode(b"k" * 65).decode(),
        "whsec_" + "not base64 at all, but long enough",
        "whsec_" + "é" * 40,
        "whsec_" + "A" * 41,
        "Whsec_" + base64.b64encode(b"k" * 32).decode(),
    ],
)
def test_a_bad_secret_is_refused_and_not_repeated(secret: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_secret(secret)
    assert str(caught.value).startswith("The signing secret must be whsec_ followed by 24 to 64 bytes in base64")
    assert len(secret) < 7 or secret[6:] not in str(caught.value)
