"""Which http targets are accepted, and what the author of a bad one is told."""

import pytest

from fleet.domain.target import HttpTarget, validate_http
from fleet.errors import UsageError

URL = "https://example.com/hook?a=1"


def test_a_sound_target_is_kept_as_written() -> None:
    assert validate_http(URL, "put", {"X-Team": "ops"}) == HttpTarget(URL, "PUT", {"X-Team": "ops"})


@pytest.mark.parametrize("url", ["http://10.0.0.1:8080", "https://[::1]/x", "https://müller.example/ü", "HTTP://a/b"])
def test_unusual_but_sound_urls_are_accepted(url: str) -> None:
    assert validate_http(url, "POST", {}).url == url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://example.com", "http://"),
        ("example.com/hook", "http://"),
        ("", "http://"),
        ("https://", "no host"),
        ("https:///path", "no host"),
        ("https://example.com:99999", "host and port"),
        ("https://[::1", "host and port"),
        ("https://example.com/a b", "space"),
        ("https://example.com/\r\nX: y", "control"),
        ("https://example.com/\x00", "control"),
        ("https://example.com/" + "a" * 2048, "2048"),
    ],
)
def test_a_bad_url_is_refused_with_its_reason(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        validate_http(url, "POST", {})


@pytest.mark.parametrize("url", ["https://me:hunter2@example.com", "ftp://me:hunter2@example.com"])
def test_a_password_in_a_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="Authorization") as refusal:
        validate_http(url, "POST", {})
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("method", ["TRACE", "CONNECT", "", "POST "])
def test_an_unknown_method_is_refused(method: str) -> None:
    with pytest.raises(UsageError, match="method"):
        validate_http(URL, method, {})


@pytest.mark.parametrize("name", ["", "X Y", "X:", "Ü", "X\r\n", "X\0"])
def test_a_header_name_that_is_no_token_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="header name"):
        validate_http(URL, "POST", {name: "v"})


@pytest.mark.parametrize("value", ["a\r\nb", "a\nb", "a\0b", "a\rb"])
def test_a_header_value_that_would_break_the_request_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(UsageError, match="X-Secret") as refusal:
        validate_http(URL, "POST", {"X-Secret": value})
    assert value not in str(refusal.value)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "CONNECTION", "Webhook-Id", "fleet-attempt", "Expect"]
)
def test_a_reserved_header_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="set by Fleet"):
        validate_http(URL, "POST", {name: "v"})


def test_a_header_given_in_two_spellings_is_refused() -> None:
    with pytest.raises(UsageError, match="twice"):
        validate_http(URL, "POST", {"X-A": "1", "x-a": "2"})
