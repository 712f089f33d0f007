"""Placeholders: what they give, what they refuse, and that nothing written in one can hurt a dispatcher."""

import json
import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from fleet.delivery.template import (
    BODY_LIMIT,
    check,
    check_url,
    has_template,
    render_body,
    render_header,
    render_url,
    with_stand_ins,
)
from fleet.domain.target import validate_http
from fleet.errors import UsageError

PAYLOAD = {
    "x": 'a"b',
    "n": 7,
    "big": 2**130,
    "yes": True,
    "nothing": None,
    "list": [{"id": "first"}, 2],
    "a b": "odd",
    "keys": "a key called keys",
    "empty": "",
}
VALUES = {
    "scheduled_at": "2026-01-02T03:04:05.000Z",
    "execution_id": "01a1ee69",
    "attempt": 2,
    "schedule": "hello",
    "payload": PAYLOAD,
}


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{{ scheduled_at }}/{{execution_id}}", "2026-01-02T03:04:05.000Z/01a1ee69"),
        ("{{ schedule }} no. {{ attempt }}\n", "hello no. 2\n"),
        ("{{ payload.x }}", 'a"b'),
        ('{"x": {{ payload.x | tojson }}}', '{"x": "a\\"b"}'),
        ("{{ payload.n }} {{ payload.yes }} {{ payload.nothing }}", "7 true null"),
        ("{{ payload.big }}", str(2**130)),
        ("{{ payload.list }}", '[{"id": "first"}, 2]'),
        ("{{ payload.list[0].id }} {{ payload.list.1 }}", "first 2"),
        ("{{ payload['a b'] }} {{ payload[\"n\"] }}", "odd 7"),
        ("{{ payload.keys }}", "a key called keys"),
        ("{{ payload.gone | default('none') }}", "none"),
        ("{{ payload.gone.deeper | default(0) }}", "0"),
        ("{{ payload.nothing | default('none') | upper }}", "NONE"),
        ("{{ payload.x | upper }} {{ schedule|trim }} {{ payload.x | urlencode }}", 'A"B hello a%22b'),
        ("{{ '{{' }} and {{ \"{%\" }} and {# and }}", "{{ and {% and {# and }}"),
        ('{"a": {"b": {{ payload.n }}}}', '{"a": {"b": 7}}'),
    ],
)
def test_a_placeholder_becomes_its_value(text: str, whole: str) -> None:
    check(text, "the body")
    assert render_body(text, VALUES) == whole


def test_a_whole_payload_is_json() -> None:
    assert json.loads(render_body("{{ payload }}", VALUES)) == PAYLOAD


def test_plain_texts_are_recognised_as_such() -> None:
    assert not has_template('{"a": {"b": 1}}')
    assert has_template("{{ payload.x }}")
    assert has_template("{% if x %}")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ab\n  {{ payload.x", "The placeholder at line 2, column 3 of the body is not understood"),
        ("{{ }}", "line 1, column 1 of the body is not understood"),
        ("{{ payload.x + 1 }}", "not understood"),
        ("{{ payload . x }}", "not understood"),
        ("{% for x in payload %}", "There is a statement at line 1, column 1 of the body; only placeholders"),
        ("{{ paylod.x }}", "names no known value; there are scheduled_at, execution_id, attempt, schedule, payload"),
        ("{{ attempt.x }}", "names no known value"),
        ("{{ payload.x | reverse }}", "uses a filter in an unknown way; there are default\\('…'\\), lower, tojson"),
        ("{{ payload.x | default }}", "filter in an unknown way"),
        ("{{ payload.x | upper(3) }}", "filter in an unknown way"),
        ("{{ attempt }}" * 101, "more than 100 placeholders in the body"),
        ("x" * (BODY_LIMIT + 1), "longer than 262144 bytes"),
        ("\ud800 {{ attempt }}", "The body is not valid Unicode"),
    ],
)
def test_a_mistake_is_one_sentence_when_it_is_written(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check(text, "the body")


def test_no_sentence_repeats_the_text_around_a_mistake() -> None:
    with pytest.raises(UsageError) as caught:
        check("Bearer canary-1 {{ canary-2 }}", "the header Authorization")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("path", ["payload.gone", "payload.x.y", "payload.list[2]", "payload.n.0", "payload['²']"])
def test_a_value_that_is_not_there_is_an_error_and_not_an_empty_text(path: str) -> None:
    check(f"{{{{ {path} }}}}", "the body")
    with pytest.raises(UsageError, match="is used in the body, but this execution does not have it"):
        render_body(f"{{{{ {path} | upper }}}}", VALUES)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "get", "items", "pop", "_MISSING"])
@pytest.mark.parametrize("start", ["payload", "payload.x", "payload.list", "payload.n"])
def test_attributes_and_methods_cannot_be_reached(start: str, name: str) -> None:
    with pytest.raises(UsageError, match="does not have it"):
        render_body(f"{{{{ {start}.{name} }}}}", VALUES)


BOMBS = {
    "repeated": '{{ "x" * 10**9 }}',
    "power": "{{ 10**10**10 }}",
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "loops": "{% for i in range(10000) %}{% for j in range(10000) %}{{ payload }}{% endfor %}{% endfor %}",
    "doubling": "{% set n = namespace(v='x') %}{% for i in range(60) %}{% set n.v = n.v ~ n.v %}{% endfor %}{{ n.v }}",
    "replaced": '{{ "xxxxxxxxxx"' + '|replace("x","xxxxxxxxxx")' * 10 + " }}",
    "indented": "{{ payload | tojson(1000000000) }}",
    "formatted": '{{ "%1000000000d" | format(1) }}',
    "escaped": "{{ payload.large" + " | tojson" * 60 + " }}",
    "recursion": "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}",
    "include": "{% include 'payload' %}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "brackets": "{{ payload" + "[" * 100_000 + "]" * 100_000 + " }}",
    "dots": "{{ payload" + ".a" * 100_000 + " }}",
    "minuses": "{{ " + "-" * 100_000 + "1 }}",
    "spaces": "{{ payload" + " " * 200_000 + "}",
    "braces": "{" * 250_000,
    "pairs": "{{ }}" * 50_000,
    "quotes": '{{ "' * 60_000,
    "pipes": "{{ payload " + "| upper " * 30_000,
    "many": "{{ attempt }}" * 20_000,
    "large": "{{ payload.large }}" * 100,
    "larger": "{{ payload.large | tojson | tojson | tojson }}" * 100,
    "shrinking": "{{ payload.blank | upper | trim }}" * 100 + "{{ payload.gone }}",
    "deep": "{{ payload.deep }}",
    "digits": "{{ payload.digits }}",
    "surrogate": "{{ payload.surrogate }}",
    "surrogate in a filter": "{{ payload.surrogate | urlencode }}",
}

# In a process of its own, with so little memory and time that a bomb which goes off is its end and not ours.
DETONATE = """
import json, resource, sys
from fleet.delivery.template import render_body
from fleet.errors import UsageError

bombs = json.load(sys.stdin)
deep = 1
for _ in range(100_000):
    deep = [deep]
payload = {"large": '"' * 200_000, "blank": " " * 200_000, "deep": deep, "digits": 10**9999, "surrogate": "\\ud800"}
resource.setrlimit(resource.RLIMIT_DATA, (256 * 2**20,) * 2)
for name, text in bombs.items():
    used = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        print(name, "gave", len(render_body(text, {"attempt": 1, "payload": payload})))
    except UsageError as error:
        assert len(str(error)) < 300, name
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime - used
    assert spent < 1, f"{name} took {spent} s of CPU"
import os, re
# Not ru_maxrss: it begins with the size of whoever started this process.
print("memory", int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024)
os._exit(0)  # freeing a list nested this deep is not what is tried here
"""


def test_no_template_costs_more_than_a_second_or_100_mb() -> None:
    done = subprocess.run(
        [sys.executable, "-c", DETONATE], input=json.dumps(BOMBS), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    match = re.fullmatch(r"memory (\d+)\n", done.stdout)
    assert match, done.stdout
    assert int(match[1]) < 100


# --- URLs


def test_values_in_a_url_are_percent_encoded() -> None:
    url = "https://example.com/{{ payload['a b'] }}/{{ payload.x }}?at={{ scheduled_at }}&e={{ payload.empty }}"
    assert render_url(url, VALUES) == "https://example.com/odd/a%22b?at=2026-01-02T03%3A04%3A05.000Z&e="


HOSTILE = [
    "../../admin",
    "/admin",
    "//evil.example",
    "@evil.example",
    "?admin=1",
    "#x",
    "a&admin=1",
    "a;b",
    "..\\..",
    "%2e%2e%2f",
    "\r\nHost: evil",
    "\0",
    " ",
    "é日本",
    "..;",
    "http://evil.example/",
]


@pytest.mark.parametrize("value", HOSTILE)
def test_a_value_stays_inside_its_segment_and_its_parameter(value: str) -> None:
    assert_it_stays(value)


@given(st.text(min_size=1, max_size=50, alphabet=st.characters(exclude_categories=["Cs"])))
def test_any_value_stays_inside_its_segment_and_its_parameter(value: str) -> None:
    assert_it_stays(value)


def assert_it_stays(value: str) -> None:
    url = "https://example.com:8443/a/{{ payload.v }}/b?q={{ payload.v }}&r=1"
    if value in (".", ".."):
        with pytest.raises(UsageError, match="between slashes"):
            render_url(url, {"payload": {"v": value}})
        return
    whole = render_url(url, {"payload": {"v": value}})
    parts = urlsplit(whole)
    assert (parts.scheme, parts.netloc, parts.fragment) == ("https", "example.com:8443", "")
    assert [unquote(segment) for segment in parts.path.split("/")] == ["", "a", value, "b"]
    assert [part.partition("=")[0] for part in parts.query.split("&")] == ["q", "r"]
    sent = URL(whole)  # what the HTTP client makes of it
    assert sent.host == "example.com"
    assert unquote(sent.raw_path) == f"/a/{value}/b"
    assert dict(sent.query) == {"q": value, "r": "1"}


@pytest.mark.parametrize("values", [{"a": ".", "b": "."}, {"a": "..", "b": ""}])
def test_two_values_cannot_make_up_a_way_upwards(values: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        render_url("https://example.com/x/{{ payload.a }}{{ payload.b }}/y", {"payload": values})


def test_an_empty_value_cannot_shorten_a_path() -> None:
    with pytest.raises(UsageError, match=re.escape("payload.empty is empty, which would change the path")):
        render_url("https://example.com/users/{{ payload.empty }}", VALUES)


@pytest.mark.parametrize(
    "url",
    [
        "{{ payload.url }}",
        "{{ payload.scheme }}://example.com/",
        "https://{{ payload.host }}/",
        "https://example.com{{ payload.rest }}",
        "https://example.com:{{ payload.port }}/",
        "https://{{ payload.user }}@example.com/",
        "https://{{ 'x' }}{{ payload.host }}/",
        "//{{ payload.host }}/",
    ],
)
def test_the_host_cannot_be_templated(url: str) -> None:
    for use in (check_url, lambda url: render_url(url, VALUES)):
        with pytest.raises(UsageError, match="host and port in the URL must be written out"):
            use(url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("https://example.com/{{ payload.x | urlencode }}", "remove the filter urlencode"),
        ("https://example.com/../{{ payload.x }}", "between slashes"),
        ("https://example.com/%2e%2E/{{ payload.x }}", "between slashes"),
    ],
)
def test_a_url_that_would_surprise_is_refused_when_it_is_written(url: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_url(url)


@pytest.mark.parametrize("value", ["x" * 2048, "é" * 400, "x" * 1_000_000])
def test_a_url_that_grows_too_long_is_refused(value: str) -> None:
    with pytest.raises(UsageError, match="the URL is longer than 2048 bytes"):
        render_url("https://example.com/{{ payload.v }}", {"payload": {"v": value}})


def test_stand_ins_let_the_checks_of_plain_targets_judge_a_template() -> None:
    url = "https://example.com/{{ payload.x }}?at={{ scheduled_at }}"
    assert with_stand_ins(url) == "https://example.com/x?at=x"
    validate_http(with_stand_ins(url), "POST", {"X-Key": with_stand_ins("Bearer {{ payload.x }}")})


# --- Headers and size


def test_a_header_takes_values() -> None:
    assert render_header("X-Run", "{{ schedule }}#{{ attempt }}", VALUES) == "hello#2"


@pytest.mark.parametrize("character", ["\r", "\n", "\0", "\x1b", "\x7f", "a\r\nX-Admin: 1"])
def test_a_header_value_cannot_start_another_header(character: str) -> None:
    with pytest.raises(UsageError, match="line break or control character, which the header X-Run cannot carry"):
        render_header("X-Run", "{{ payload.v }}", {"payload": {"v": character}})


def test_limits_count_bytes_and_are_exact() -> None:
    assert len(render_header("X", "{{ payload }}", {"payload": "x" * 4096})) == 4096
    with pytest.raises(UsageError, match="the header X is longer than 4096 bytes"):
        render_header("X", "{{ payload }}", {"payload": "é" * 2049})
    assert len(render_body("ab{{ payload }}", {"payload": "x" * (BODY_LIMIT - 2)})) == BODY_LIMIT
    with pytest.raises(UsageError, match="the body is longer than 262144 bytes"):
        render_body("abc{{ payload }}", {"payload": "x" * (BODY_LIMIT - 2)})
