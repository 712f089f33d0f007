"""The options of `schedule add` and `schedule update`, and what they mean for a schedule's definition.

Reading is pure and happens before a database is looked for; only instants wait for its clock.
"""

import functools
import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import click

from fleet.cli.secret_options import SECRETS
from fleet.cli.target_options import NONE, TARGET, Given
from fleet.delivery import template
from fleet.domain.duration import parse_duration
from fleet.domain.instant import parse_instant
from fleet.errors import UsageError

Command = TypeVar("Command", bound=Callable[..., Any])


RULE = (
    click.option("--every", metavar="DURATION", help="Interval, such as 30s, 5m, 6h, 1d."),
    click.option("--cron", metavar="EXPR", help="Cron expression: minute hour day month weekday, or @daily."),
    click.option("--tz", metavar="ZONE", help="Time zone of --cron, such as Europe/Paris; UTC by default."),
    click.option("--at", metavar="TIME", help="Once, at that time."),
    click.option("--now", is_flag=True, help="Once, at once."),
    click.option("--align/--no-align", default=None, help="Count --every from the epoch: 1h means on the hour."),
    click.option("--start", metavar="TIME", help="First planned time."),
    click.option("--end", metavar="TIME", help="Nothing is planned after it; none lifts it."),
    click.option("--max-runs", metavar="N", help="End after so many executions; none lifts it."),
    click.option("--jitter", metavar="J", help="Delay each by up to 5s, or 10% of the interval; 0 for none."),
)
LATENESS = (
    click.option("--misfire-grace", metavar="DURATION", help="Lateness up to which a planned time simply runs."),
    click.option("--catch-up", type=click.Choice(["latest", "all", "none"]), help="What runs of what was missed."),
    click.option("--catch-up-window", metavar="DURATION", help="How far back --catch-up all goes (24h)."),
    click.option("--max-plans-per-tick", type=click.IntRange(1, 10_000), help="Most planned times per pass (100)."),
    click.option("--overlap", type=click.Choice(["skip", "queue", "allow"]), help="While one is unfinished (skip)."),
)
DELIVERY = (
    click.option("--max-attempts", type=int, metavar="N", help="Most tries of one execution (4)."),
    click.option("--backoff", metavar="DURATION", help="Wait before the next try, doubling (60s), or 10s,1m,10m."),
    click.option("--delivery", type=click.Choice(["at-least-once", "at-most-once"]), help="at-least-once by default."),
    click.option("--stale-timeout", metavar="DURATION", help="After this a silent worker's work is taken over."),
)
ABOUT = (
    click.option("--label", "labels", multiple=True, metavar="K=V", help="Repeatable; replaces those it had."),
    click.option("--metadata", metavar="JSON", help="Anything about it, as a JSON object."),
    click.option("--note", help="A word for the next person."),
    click.option("--disabled", is_flag=True, help="Paused from the start."),
)


def definition_options(command: Command) -> Command:
    """Add every option that defines a schedule, in the order the help shows them."""
    options = (*RULE, *LATENESS, *TARGET, *SECRETS, *DELIVERY, *ABOUT)
    return functools.reduce(lambda decorated, option: option(decorated), reversed(options), command)


def read_fields(given: Given) -> dict[str, Any]:
    """The fields of a definition that were given, all but the target, jitter and instants."""
    fields: dict[str, Any] = {}
    for option, (field, read) in READERS.items():
        if given.get(option) not in (None, ()):
            fields[field] = read(given[option])
    return fields


def read_instants(given: Given, now: datetime) -> dict[str, datetime | None]:
    """The fields that are instants; "in 5m" counts from the database's clock, which is what decides what is due."""
    if given.get("now") and given.get("at") is not None:
        raise UsageError("a schedule needs exactly one of --every, --cron, --at and --now")
    instants: dict[str, datetime | None] = {"run_at": now} if given.get("now") else {}
    for option, field in (("at", "run_at"), ("start", "start_at"), ("end", "end_at")):
        text = given.get(option)
        if text is not None:
            instants[field] = None if text == NONE and option != "at" else parse_instant(text, now)
    return instants


def read_jitter(text: str, interval_seconds: int | None) -> int:
    """Milliseconds; a percentage is one of the interval."""
    if not text.endswith("%"):
        return round(parse_duration(text) / timedelta(milliseconds=1))
    if interval_seconds is None:
        raise UsageError(f"--jitter {text} is a part of the interval and belongs to --every; write it like 5s")
    if not re.fullmatch(r"[0-9]{1,2}(\.[0-9]{1,3})?%", text):
        raise UsageError(f"--jitter {text!r} must be a duration like 5s, a percentage from 0% to below 100%, or 0")
    return int(interval_seconds * 10 * float(text[:-1]))


def read_labels(pairs: Sequence[str]) -> dict[str, str]:
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"label {pair!r} is not understood; write it like team=billing")
        labels[key.strip()] = value.strip()
    return labels


def read_json(text: str, option: str) -> Any:
    """JSON that Postgres can keep as it is: no NaN, no NUL, no half of a surrogate pair."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{option} is not valid JSON: {error.msg.lower()} at line {error.lineno} column {error.colno}"
        ) from None
    except UnicodeEncodeError:
        raise UsageError(f"{option} holds half of a surrogate pair, which is no character; correct it") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{option} holds a number too large or nests too deeply; simplify it") from None
    if "\x00" in _texts(value):
        raise UsageError(f"{option} holds a NUL character, which Postgres cannot store; remove it")
    return value


def _texts(value: Any) -> str:
    """All text in a JSON value, run together."""
    if isinstance(value, dict):
        return "".join(key + _texts(item) for key, item in value.items())
    if isinstance(value, list):
        return "".join(map(_texts, value))
    return value if isinstance(value, str) else ""


def _refuse_constant(name: str) -> Any:
    raise UsageError(f"JSON has no {name}; use a number, a text or null")


def read_payload(text: str) -> Any:
    if not text.startswith("@"):
        return _body(read_json(text, "--payload"))
    try:
        with click.open_file(text[1:], encoding="utf-8") as stream:
            content = stream.read()
    except OSError as error:
        raise UsageError(f"--payload {text} cannot be read: {error.strerror}; check the file's name") from None
    except UnicodeDecodeError:
        raise UsageError(f"--payload {text} is not UTF-8 text; convert the file") from None
    return _body(read_json(content, f"--payload {text}"))


def _body(payload: Any) -> Any:
    """Placeholders in the body are those in its JSON text."""
    text = json.dumps(payload, ensure_ascii=False)
    if template.has_template(text):
        template.check(text, "the body")
    return payload


def _metadata(text: str) -> Any:
    value = read_json(text, "--metadata")
    if not isinstance(value, dict):
        raise UsageError('--metadata must be a JSON object such as {"owner": "ada"}')
    return value


def _whole_seconds(option: str) -> Callable[[str], int]:
    def read(text: str) -> int:
        duration = parse_duration(text)
        if duration % timedelta(seconds=1):
            raise UsageError(f"{option} {text} must be whole seconds")
        return duration // timedelta(seconds=1)

    return read


def _seconds(text: str) -> float:
    return parse_duration(text).total_seconds()


def _backoff(text: str) -> list[float]:
    return [_seconds(part) for part in text.split(",")]


def _runs(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", text):
        raise UsageError(f"--max-runs must be a whole number from 1, or none, got {text!r}")
    return int(text)


def _or_none(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """`none` takes back what was said before."""
    return lambda text: None if text == NONE else read(text)


def _as_it_is(value: Any) -> Any:
    return value


READERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "every": ("interval_seconds", _whole_seconds("--every")),
    "cron": ("cron_expression", _as_it_is),
    "tz": ("timezone", _as_it_is),
    "align": ("align", _as_it_is),
    "max_runs": ("max_runs", _or_none(_runs)),
    "misfire_grace": ("misfire_grace_seconds", _or_none(_whole_seconds("--misfire-grace"))),
    "catch_up": ("catch_up", _as_it_is),
    "catch_up_window": ("catch_up_window_seconds", _whole_seconds("--catch-up-window")),
    "max_plans_per_tick": ("max_plans_per_tick", _as_it_is),
    "overlap": ("overlap", _as_it_is),
    "payload": ("payload", read_payload),
    "timeout": ("timeout_seconds", _seconds),
    "max_attempts": ("max_attempts", _as_it_is),
    "backoff": ("backoff_seconds", _backoff),
    "delivery": ("delivery", _as_it_is),
    "stale_timeout": ("lease_seconds", _or_none(_seconds)),
    "labels": ("labels", read_labels),
    "metadata": ("metadata", _metadata),
    "note": ("note", _as_it_is),
}
