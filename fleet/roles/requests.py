"""From a stored target to the request of one attempt: placeholders filled in, sealed values opened, signed."""

from collections.abc import Callable
from typing import Any

import orjson

from fleet.delivery import template
from fleet.delivery.http import Request
from fleet.domain.instant import format_instant
from fleet.domain.success import success_test
from fleet.store.executions import Leased

BODILESS = ("GET", "HEAD")


def request_of(execution: Leased, unseal: Callable[[str], str]) -> Request:
    """Raises what is wrong with the target as a FleetError, or as a ValueError, KeyError or TypeError."""
    target = orjson.loads(execution.target)
    body = "" if target["method"] in BODILESS else execution.payload or ""
    headers = target["headers"] | {name: unseal(sealed) for name, sealed in target.get("secret_headers", {}).items()}
    url = target["url"]
    if template.has_template(url + body + "".join(headers.values())):
        values = _values(execution)
        url = template.render_url(url, values)
        headers = {name: template.render_header(name, value, values) for name, value in headers.items()}
        body = template.render_body(body, values)
    return Request(
        execution_id=str(execution.id),
        schedule=execution.schedule,
        scheduled_at=execution.scheduled_at,
        attempt=execution.attempt,
        url=url,
        method=target["method"],
        headers=headers,
        body=body.encode(),
        timeout=execution.timeout,
        fence=execution.fence,
        secrets=tuple(unseal(sealed) for sealed in target.get("secrets", ())),
        success=success_test(target.get("expect_status"), target.get("expect_body")),
    )


def _values(execution: Leased) -> dict[str, Any]:
    return {
        "scheduled_at": format_instant(execution.scheduled_at),
        "execution_id": str(execution.id),
        "attempt": execution.attempt,
        "schedule": execution.schedule,
        "payload": None if execution.payload is None else orjson.loads(execution.payload),
    }
