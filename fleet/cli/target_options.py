"""The options that say what is called and what counts as delivered."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from fleet.delivery.template import check, check_url, with_stand_ins
from fleet.domain.success import success_test
from fleet.domain.target import validate_http
from fleet.errors import UsageError

Given = Mapping[str, Any]

NONE = "none"
SEALED = ("secrets", "secret_headers")
EXPECTATIONS = ("expect_status", "expect_body")

TARGET = (
    click.option("--url", help="Address to call."),
    click.option("--method", help="POST by default."),
    click.option("--header", "headers", multiple=True, metavar="'K: V'", help="Repeatable; replaces those it had."),
    click.option("--payload", metavar="JSON|@FILE", help="Body to send; @- reads standard input."),
    click.option("--expect-status", metavar="CODES", help="What counts as delivered, such as 200-299,304; or none."),
    click.option("--expect-body", metavar="TEXT", help="Text that must stand in the answer; none lifts it."),
    click.option("--timeout", metavar="DURATION", help="Longest a call may take, 1s to 60s (30s)."),
)


def read_target(given: Given, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The target as it is stored; what is not given stays as it was."""
    had = before or {}
    url = given.get("url") or had.get("url")
    if given.get("url") == "" or url is None:
        raise UsageError("a schedule needs something to call: give --url https://example.com/path")
    headers = read_headers(given["headers"]) if given.get("headers") else had.get("headers", {})
    check_templates(url, headers)
    target = validate_http(with_stand_ins(url), given.get("method") or had.get("method", "POST"), headers)
    stored = {"kind": "http", "url": url, "method": target.method, "headers": target.headers}
    expected = {option: _expected(given, had, option) for option in EXPECTATIONS}
    success_test(**expected)
    sealed = {name: had[name] for name in SEALED if name in had}
    return stored | sealed | {option: text for option, text in expected.items() if text is not None}


def check_templates(url: str, headers: Mapping[str, str]) -> None:
    check_url(url)
    for name, value in headers.items():
        check(value, f"the header {name}")


def _expected(given: Given, had: Given, option: str) -> str | None:
    text: str | None = had.get(option) if given.get(option) is None else given[option]
    return None if text == NONE else text


def changes_target(given: Given) -> bool:
    named = any(given.get(option) for option in ("url", "method", "headers"))
    return named or given.get("url") == "" or any(given.get(option) is not None for option in EXPECTATIONS)


def read_headers(lines: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            # The line is not repeated: it may be a secret without its name.
            raise UsageError("a --header has no colon; write it like 'Accept: text/plain'")
        if name.strip() in headers:
            raise UsageError(f"the header {name.strip()} is given twice; give it once")
        headers[name.strip()] = value.strip()
    return headers
