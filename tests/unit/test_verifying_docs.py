"""The receivers' helpers in docs/ are run here, against what Fleet signs and against forgeries."""

import base64
import importlib.util
import json
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.delivery.signing import fence_signature, new_secret, sign

DOCS = Path(__file__).parents[2] / "docs"
NODE = shutil.which("node")
NOW = 1_800_000_000
SECRET, OLD = new_secret(), new_secret()
BODY = '{"name": "Zoë"}'.encode()

# What a helper answers: the fence, or the sentence with which it refuses.
Verify = Callable[[str, dict[str, str], bytes, int, int], int | str]


def in_python(secret: str, headers: dict[str, str], body: bytes, last_fence: int, now: int) -> int | str:
    spec = importlib.util.spec_from_file_location("verify_webhook", DOCS / "verify_webhook.py")
    assert spec is not None
    assert spec.loader is not None
    helper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helper)
    try:
        return helper.verify(secret, headers, body, last_fence, now)
    except helper.Untrusted as error:
        return str(error)


CALL = """
import { verify } from "./verify_webhook.mjs";
import { readFileSync } from "node:fs";
const [secret, headers, body, lastFence, now] = JSON.parse(readFileSync(0));
const lower = Object.fromEntries(Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value]));
let answer;
try {
  answer = verify(secret, lower, Buffer.from(body, "base64"), lastFence, now);
} catch (error) {
  answer = error.message;
}
console.log(JSON.stringify(answer));
"""


def in_node(secret: str, headers: dict[str, str], body: bytes, last_fence: int, now: int) -> int | str:
    assert NODE is not None
    call = json.dumps([secret, headers, base64.b64encode(body).decode(), last_fence, now])
    command = [NODE, "--input-type=module", "-e", CALL]
    done = subprocess.run(command, cwd=DOCS, input=call, capture_output=True, text=True, check=True, timeout=60)
    answer: int | str = json.loads(done.stdout)
    return answer


@pytest.fixture(params=[in_python, in_node] if NODE else [in_python])
def verify(request: pytest.FixtureRequest) -> Verify:
    chosen: Verify = request.param
    return chosen


def headers(secrets: list[str], fence: int = 7, sent: int = NOW) -> dict[str, str]:
    return {
        "webhook-id": "msg-1",
        "webhook-timestamp": str(sent),
        "webhook-signature": sign(secrets, "msg-1", sent, BODY),
        "Fleet-Fence": str(fence),
        "Fleet-Fence-Signature": fence_signature(secrets, "msg-1", sent, fence),
    }


def test_the_javascript_helper_is_run_where_node_is() -> None:
    if NODE is None:
        warnings.warn("node is not on PATH: docs/verify_webhook.mjs was not run, only the Python helper", stacklevel=1)


def test_a_true_request_gives_its_fence(verify: Verify) -> None:
    assert verify(SECRET, headers([SECRET]), BODY, 6, NOW) == 7


def test_either_secret_verifies_during_rotation(verify: Verify) -> None:
    both = headers([SECRET, OLD])
    assert [verify(secret, both, BODY, 0, NOW) for secret in (SECRET, OLD)] == [7, 7]
    assert verify(new_secret(), both, BODY, 0, NOW) == "The signature does not match."


def test_a_changed_body_id_or_time_is_refused(verify: Verify) -> None:
    true = headers([SECRET])
    forged = [true | {"webhook-id": "msg-2"}, true | {"webhook-timestamp": str(NOW + 1)}]
    answers = [verify(SECRET, true, BODY + b" ", 0, NOW), *(verify(SECRET, one, BODY, 0, NOW) for one in forged)]
    assert answers == ["The signature does not match."] * 3


@pytest.mark.parametrize("name", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_missing_header_is_refused(verify: Verify, name: str) -> None:
    assert verify(SECRET, _without(headers([SECRET]), name), BODY, 0, NOW) == "The signature does not match."


@pytest.mark.parametrize("name", ["Fleet-Fence", "Fleet-Fence-Signature"])
def test_a_missing_or_forged_fence_is_refused(verify: Verify, name: str) -> None:
    true = headers([SECRET])
    refused = "The fence's signature does not match."
    assert verify(SECRET, _without(true, name), BODY, 0, NOW) == refused
    assert verify(SECRET, true | {"Fleet-Fence": "8"}, BODY, 0, NOW) == refused


@pytest.mark.parametrize(("drift", "good"), [(-301, False), (-300, True), (300, True), (301, False)])
def test_five_minutes_of_drift_are_forgiven_and_no_more(verify: Verify, drift: int, good: bool) -> None:
    answer = verify(SECRET, headers([SECRET], sent=NOW + drift), BODY, 0, NOW)
    assert answer == (7 if good else "The request is too old or too new.")


@pytest.mark.parametrize("last_fence", [7, 8])
def test_a_late_zombie_is_dropped(verify: Verify, last_fence: int) -> None:
    assert (
        verify(SECRET, headers([SECRET]), BODY, last_fence, NOW) == "A newer request of this schedule was here before."
    )


def _without(headers: dict[str, str], name: str) -> dict[str, str]:
    return {key: value for key, value in headers.items() if key != name}
