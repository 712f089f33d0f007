"""What a target receives: signed while secrets rotate, filled in from the payload, fenced; no secret shows anywhere."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from fleet.delivery.signing import new_secret
from fleet.secrets import SecretBox
from fleet.store.connection import Connection, rows
from support.fleetctl import Answer, Fleetctl
from support.make import Make
from support.processes import Processes, until
from support.sink import Receipt, Sink

OLD, NEW = new_secret(), new_secret()
HEADER_SECRET = "canary-in-a-header-5d1f"
KEY = SecretBox.generate_key()
TABLES = ("cron_schedules", "schedule_versions", "executions", "attempts", "workers")


Call = Callable[..., Awaitable[Answer]]


@pytest.fixture
def fleetctl(dsn: str) -> Call:
    """Calls a process, beside the event loop that answers for the target."""

    async def call(*arguments: str) -> Answer:
        return await asyncio.to_thread(Fleetctl(dsn, SECRET_KEY=KEY).process, *arguments)

    return call


async def _next(sink: Sink, count: int) -> Receipt:
    await until(lambda: len(sink.receipts) >= count, 60, f"request {count}")
    return sink.receipts[count - 1]


def _verifies(secret: str, receipt: Receipt) -> bool:
    try:
        Webhook(secret).verify(receipt.body, receipt.headers, json_parse=False)
    except WebhookVerificationError:
        return False
    return True


async def test_requests_are_signed_filled_in_and_fenced_and_secrets_stay_secret(
    db: Connection, make: Make, sink: Sink, fleet: Processes, fleetctl: Call
) -> None:
    fleet.run("ticker")
    fleet.run("dispatcher", SECRET_KEY=KEY, LOG_LEVEL="debug")
    url = f"{sink.url}orders/{{{{ payload.id }}}}?at={{{{ scheduled_at }}}}"
    payload = json.dumps({"id": "a/b", "note": "attempt {{ attempt }} of {{ schedule }}"})
    said = [
        await fleetctl("schedule", "add", "s", "--every", "1h", "--url", url, "--payload", payload, "--secret", OLD,
                 "--secret-header", f"Authorization: Bearer {HEADER_SECRET}", "--json"),
        await fleetctl("schedule", "trigger", "s"),
    ]  # fmt: skip

    first = await _next(sink, 1)
    assert first.path.startswith("/orders/a%2Fb?at=20")
    assert json.loads(first.body)["note"] == "attempt 1 of s"
    assert first.headers["authorization"] == f"Bearer {HEADER_SECRET}"
    assert _verifies(OLD, first)
    assert not _verifies(NEW, first)

    said += [await fleetctl("schedule", "update", "s", "--secret", NEW), await fleetctl("schedule", "trigger", "s")]
    second = await _next(sink, 2)
    assert _verifies(OLD, second)
    assert _verifies(NEW, second)
    assert int(second.headers["fleet-fence"]) > int(first.headers["fleet-fence"])

    said += [
        await fleetctl("schedule", "update", "s", "--retire-secret", "--json"),
        await fleetctl("schedule", "trigger", "s"),
    ]
    third = await _next(sink, 3)
    assert _verifies(NEW, third)
    assert not _verifies(OLD, third)

    said += [await fleetctl("schedule", "show", "s", "--json"), await fleetctl("schedule", "list", "--json")]
    assert await fleet.stop() == [0, 0]
    assert {answer.code for answer in said} == {0}
    shown = "".join(answer.out + answer.err for answer in said)
    logged = "".join(process.log.read_text() for process in fleet.all)
    dumped = "".join([json.dumps(await _dump(db, table), default=str) for table in TABLES])
    for secret in (OLD, NEW, HEADER_SECRET):
        assert secret not in shown + logged + dumped
        assert secret.removeprefix("whsec_") not in dumped
    assert '"***"' in said[0].out


async def _dump(db: Connection, table: str) -> list[dict[str, Any]]:
    return await rows(db, f"SELECT * FROM {table}")


async def test_the_targets_own_test_decides_and_the_head_of_its_answer_is_kept(
    db: Connection, sink: Sink, fleet: Processes, fleetctl: Call
) -> None:
    sink.text, sink.headers = "not ready yet", {"X-Queue": "17"}
    fleet.run("ticker")
    fleet.run("dispatcher")
    added = await fleetctl(
        "schedule", "add", "s", "--now", "--url", sink.url, "--expect-body", "done", "--backoff", "1s"
    )
    assert added.code == 0, added.err
    await _next(sink, 1)
    sink.text = "all done"

    async def delivered() -> bool:
        return (await rows(db, "SELECT status FROM executions"))[0]["status"] == "delivered"

    await until(delivered, 60, "the delivery")
    attempts = await rows(db, "SELECT outcome, error, response FROM attempts ORDER BY attempt")
    assert [attempt["outcome"] for attempt in attempts] == ["broken", "delivered"]
    assert "expected" in attempts[0]["error"]
    assert attempts[0]["response"]["body"] == "not ready yet"
    assert attempts[0]["response"]["headers"]["X-Queue"] == "17"
    assert attempts[1]["response"]["body"] == "all done"


async def test_a_worker_without_the_key_leaves_the_execution_to_be_tried_again(
    db: Connection, sink: Sink, fleet: Processes, fleetctl: Call
) -> None:
    fleet.run("ticker")
    fleet.run("dispatcher")
    added = await fleetctl("schedule", "add", "s", "--now", "--url", sink.url, "--secret", NEW, "--backoff", "1s")
    assert added.code == 0, added.err

    async def tried() -> bool:
        return bool(await rows(db, "SELECT FROM attempts"))

    await until(tried, 60, "an attempt")
    [attempt] = await rows(db, "SELECT outcome, error FROM attempts ORDER BY attempt LIMIT 1")
    assert attempt["outcome"] == "broken"
    assert "SECRET_KEY" in attempt["error"]
    assert sink.receipts == []
    fleet.run("dispatcher", SECRET_KEY=KEY)
    assert _verifies(NEW, await _next(sink, 1))


def test_the_readers_of_the_guide_can_make_a_key() -> None:
    from fleet.secrets import MAKE_A_KEY

    made = subprocess.run(MAKE_A_KEY, shell=True, capture_output=True, text=True, check=True).stdout.strip()
    assert SecretBox(made).open(SecretBox(made).seal("x")) == "x"
