"""Placeholders in a target's URL, header values and body: `{{ payload.customer | default("none") }}`.

There are values and a few filters, and nothing to compute with. That is on purpose: general template engines let a
few characters ask for gigabytes (a string doubled forty times) or overflow their parser's stack, which no instruction
limit stops, and a dispatcher must not die of somebody's schedule.

Promise  Rendering takes time and memory in proportion to the template, its values and its limit. Values are looked up
         in dictionaries and lists only, never as attributes. No message repeats a value or the text around a
         placeholder: both may hold secrets.
In URLs  Every value is percent-encoded whole, so it stays inside its segment or parameter. Host and port take none.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, unquote

from fleet.domain.target import URL_LENGTH
from fleet.errors import UsageError

NAMES = ("scheduled_at", "execution_id", "attempt", "schedule", "payload")
HEADER_LIMIT = 4 * 1024
BODY_LIMIT = 256 * 1024
PLACEHOLDERS = 100  # in one text: together with the limits it bounds the work of filters that make a value shorter

_TEXT = r"(?:\"[^\"\\\n]{0,200}\"|'[^'\\\n]{0,200}')"
_PATH = rf"[A-Za-z_]\w{{0,63}}(?:\.\w{{1,64}}|\[(?:\d{{1,6}}|{_TEXT})\]){{0,16}}"
_FILTER = rf"\|\s{{0,20}}[a-z]{{1,20}}(?:\((?:{_TEXT}|-?\d{{1,18}})\))?\s{{0,20}}"
_VALUE = rf"(?P<text>{_TEXT})\s{{0,20}}|(?P<path>{_PATH})\s{{0,20}}(?P<filters>(?:{_FILTER}){{0,3}})"
_PLACEHOLDER = re.compile(rf"\{{\{{\s{{0,20}}(?:{_VALUE})\}}\}}", re.ASCII)
_OPENING = re.compile(r"\{[{%]")
_PART = re.compile(rf"\w+|{_TEXT}", re.ASCII)
_ONE_FILTER = re.compile(rf"\|\s*([a-z]+)(?:\(({_TEXT}|-?\d+)\))?", re.ASCII)
_HOST_ENDS = re.compile(r"[A-Za-z]+://[^/?#]+[/?#]")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_NOT_IN_A_HEADER = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

_MISSING = object()
_EXAMPLE = "such as {{ payload.name }} or {{ payload.name | default('none') }}"


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Where a value goes: the way to it through the payload, and what is done to it."""

    path: tuple[str, ...]
    filters: tuple[tuple[str, str | int | None], ...]


Piece = str | Placeholder


def has_template(text: str) -> bool:
    """A cheap test, so that plain targets cost nothing."""
    return "{{" in text or "{%" in text


def check(text: str, where: str) -> None:
    """Raise UsageError when the text, found in e.g. "the body" or "the header X-Key", could never be rendered."""
    _compiled(text, where)


def check_url(url: str) -> None:
    pieces = _compiled(url, "the URL")
    placeholders = [piece for piece in pieces if isinstance(piece, Placeholder)]
    if not placeholders:
        return
    if not (isinstance(pieces[0], str) and _HOST_ENDS.match(pieces[0])):
        raise UsageError("The host and port in the URL must be written out; placeholders may come after them.")
    if any(name == "urlencode" for placeholder in placeholders for name, _ in placeholder.filters):
        raise UsageError("Values in the URL are percent-encoded by themselves; remove the filter urlencode.")
    _check_segments(with_stand_ins(url))


def with_stand_ins(text: str) -> str:
    """The text with an x for every value, for the checks that are made of plain targets."""
    return "".join(piece if isinstance(piece, str) else "x" for piece in _compiled(text, "the text"))


def render_url(url: str, values: Mapping[str, object]) -> str:
    check_url(url)
    done, in_path = [], True
    for piece in _compiled(url, "the URL"):
        if isinstance(piece, str):
            in_path = in_path and not re.search("[?#]", piece)
            done.append(piece)
            continue
        text = _text_of(piece, "the URL", values)
        if in_path and not text:
            raise UsageError(f"{_shown(piece)} is empty, which would change the path of the URL; give it a value.")
        done.append(quote(text[: URL_LENGTH + 1], safe=""))  # one more than fits is enough to be refused
    whole = "".join(done)
    if len(whole) > URL_LENGTH:
        raise _too_long("the URL", URL_LENGTH)
    _check_segments(whole)
    return whole


def render_header(name: str, value: str, values: Mapping[str, object]) -> str:
    whole = _joined(value, f"the header {name}", HEADER_LIMIT, values)
    if _NOT_IN_A_HEADER.search(whole):
        raise UsageError(f"A value has a line break or control character, which the header {name} cannot carry.")
    return whole


def render_body(body: str, values: Mapping[str, object]) -> str:
    return _joined(body, "the body", BODY_LIMIT, values)


def _check_segments(url: str) -> None:
    path = re.split("[?#]", url, maxsplit=1)[0]
    if any(unquote(segment) in (".", "..") for segment in path.split("/")):
        raise UsageError("A templated URL must not have '.' or '..' between slashes, which would change its path.")


def _joined(text: str, where: str, limit: int, values: Mapping[str, object]) -> str:
    done, size = [], 0
    for piece in _compiled(text, where):
        done.append(piece if isinstance(piece, str) else _text_of(piece, where, values))
        size += len(done[-1].encode())
        if size > limit:
            raise _too_long(where, limit)
    return "".join(done)


def _too_long(where: str, limit: int) -> UsageError:
    return UsageError(f"With its values, {where} is longer than {limit} bytes; shorten them.")


def _text_of(piece: Placeholder, where: str, values: Mapping[str, object]) -> str:
    value = _look_up(piece.path, values)
    try:
        for name, argument in piece.filters:
            value = FILTERS[name](value, argument)
        text = "" if value is _MISSING else _as_text(value)
        text.encode()
    except (TypeError, ValueError, RecursionError):
        # Lone surrogates, integers of thousands of digits, a thousand lists in each other.
        raise UsageError(f"{_shown(piece)} cannot be written as text in {where}; change it.") from None
    if value is _MISSING:
        raise UsageError(
            f"{_shown(piece)} is used in {where}, but this execution does not have it; "
            "put it into the payload or give a default."
        )
    return text


def _look_up(path: tuple[str, ...], values: Mapping[str, object]) -> object:
    value: object = values
    for part in path:
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isascii() and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return _MISSING
    return value


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _on_text(change: Callable[[str], str]) -> Callable[[object, str | int | None], object]:
    return lambda value, _: value if value is _MISSING else change(_as_text(value))


def _default(value: object, argument: str | int | None) -> object:
    return argument if value is _MISSING or value is None else value


FILTERS: Mapping[str, Callable[[object, str | int | None], object]] = {
    "default": _default,
    "lower": _on_text(str.lower),
    "tojson": lambda value, _: value if value is _MISSING else _as_json(value),
    "trim": _on_text(str.strip),
    "upper": _on_text(str.upper),
    "urlencode": _on_text(lambda text: quote(text, safe="")),
}


@lru_cache(maxsize=128)
def _compiled(text: str, where: str) -> tuple[Piece, ...]:
    if len(text) > BODY_LIMIT:
        raise _too_long(where, BODY_LIMIT)
    if not text.isprintable() and _SURROGATE.search(text):
        raise UsageError(f"{where[0].upper()}{where[1:]} is not valid Unicode; write it in UTF-8.")
    pieces: list[Piece] = []
    end = count = 0
    while found := _OPENING.search(text, end):
        pieces.append(text[end : found.start()])
        place = _position(text, found.start(), where)
        match = _PLACEHOLDER.match(text, found.start())
        if match is None:
            raise _not_understood(found.group(), place)
        pieces.append(match["text"][1:-1] if match["text"] else _placeholder(match, place))
        end = match.end()
        count += 1
        if count > PLACEHOLDERS:
            raise UsageError(f"There are more than {PLACEHOLDERS} placeholders in {where}; use fewer.")
    return _merged([*pieces, text[end:]])


def _merged(pieces: list[Piece]) -> tuple[Piece, ...]:
    """Text beside text becomes one piece, so that the first piece is all that comes before the first value."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        elif piece != "":
            merged.append(piece)
    return tuple(merged)


def _position(text: str, at: int, where: str) -> str:
    line = text.count("\n", 0, at) + 1
    return f"at line {line}, column {at - text.rfind(chr(10), 0, at)} of {where}"


def _not_understood(opening: str, place: str) -> UsageError:
    if opening == "{%":
        return UsageError(f"There is a statement {place}; only placeholders are supported, {_EXAMPLE}.")
    return UsageError(f"The placeholder {place} is not understood; write one {_EXAMPLE}.")


def _placeholder(match: re.Match[str], place: str) -> Placeholder:
    path = tuple(_unquoted(part) for part in _PART.findall(match["path"]))
    filters = tuple(
        (name, _argument(argument) if argument else None) for name, argument in _ONE_FILTER.findall(match["filters"])
    )
    if path[0] not in NAMES or (len(path) > 1 and path[0] != "payload"):
        raise UsageError(f"The placeholder {place} names no known value; there are {', '.join(NAMES)} and payload.….")
    for name, argument in filters:
        if name not in FILTERS or (argument is not None) != (name == "default"):
            known = ", ".join("default('…')" if name == "default" else name for name in FILTERS)
            raise UsageError(f"The placeholder {place} uses a filter in an unknown way; there are {known}.")
    return Placeholder(path, filters)


def _unquoted(part: str) -> str:
    return part[1:-1] if part[0] in "\"'" else part


def _argument(text: str) -> str | int:
    return _unquoted(text) if text[0] in "\"'" else int(text)


def _shown(piece: Placeholder) -> str:
    return ".".join(piece.path)
