"""Where settings come from: flag > environment > TOML file > default. Every mistake is reported at once.

An empty environment variable counts as unset. NAME_FILE names a file that holds a secret; NAME itself wins over it.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from fleet.errors import UsageError
from fleet.settings import (
    RULES,
    SECRETS,
    Rule,
    Settings,
    allowed,
    default_of,
    env_name,
    meaning_of,
    shown,
)

__all__ = ["Loaded", "Row", "Settings", "describe", "load", "load_with_origin"]

TOML_PLACES = (Path("config/fleet.toml"), Path("fleet.toml"))
OTHER_NAMES = ("FLEET_CONFIG", "FLEET_PG_BIN", "FLEET_API_URL", "FLEET_API_KEY")

# Kubernetes puts FLEET_SERVICE_HOST, FLEET_API_PORT_8080_TCP and their like into every pod
# beside a Service named fleet or fleet-api; those are nobody's spelling mistakes.
_SERVICE_LINK = re.compile(r"FLEET(_\w+)?_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?)")

FLAGS, ENVIRONMENT, DEFAULT = "flag", "environment", "default"


@dataclass(frozen=True)
class Loaded:
    """Checked settings, and for each where its value came from: flag, environment, the file's path, or default."""

    settings: Settings
    origins: Mapping[str, str]


@dataclass(frozen=True)
class Row:
    """One line of `config show`."""

    name: str
    value: str
    origin: str
    default: str
    meaning: str


@dataclass
class _Found:
    """What the sources hold, before it is checked; later sources overwrite earlier ones."""

    values: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    problems: dict[str, list[str]] = field(default_factory=dict)

    def put(self, name: str, value: Any, origin: str) -> None:
        self.values[name], self.origins[name] = value, origin

    def wrong(self, origin: str, sentence: str) -> None:
        self.problems.setdefault(origin, []).append(sentence)

    def spelled(self, name: str) -> str:
        """The name as it is written where the value came from."""
        match self.origins.get(name, DEFAULT):
            case "flag":
                return "--" + name.replace("_", "-")
            case "environment":
                return env_name(name)
            case _:
                return name


def load(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ, toml: Path | None = None
) -> Settings:
    """The settings of this process, or one UsageError that lists every mistake."""
    return load_with_origin(flags, environ, toml).settings


def load_with_origin(
    flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ, toml: Path | None = None
) -> Loaded:
    """Like load, but remembers where each value came from."""
    found = _Found()
    _read_toml(found, environ, toml)
    _read_environment(found, environ)
    _read_flags(found, flags or {})
    settings = _check(found)
    if settings is None:
        raise UsageError(_report(found.problems))
    return Loaded(settings, {name: found.origins.get(name, DEFAULT) for name in Settings.model_fields})


def describe(loaded: Loaded) -> list[Row]:
    """Every setting for people to read, secrets masked."""
    return [
        Row(
            name=name,
            value=shown(name, getattr(loaded.settings, name)),
            origin=loaded.origins[name],
            default=shown(name, default_of(name)),
            meaning=meaning_of(name),
        )
        for name in Settings.model_fields
    ]


def _read_toml(found: _Found, environ: Mapping[str, str], toml: Path | None) -> None:
    named = toml or (Path(environ["FLEET_CONFIG"]) if environ.get("FLEET_CONFIG") else None)
    path = named or next((place for place in TOML_PLACES if place.is_file()), None)
    if path is None:
        return None
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        return found.wrong(str(path), f"it cannot be read: {error.strerror}; check --config and FLEET_CONFIG")
    except ValueError as error:  # TOML syntax, or not UTF-8
        return found.wrong(str(path), f"it is not valid TOML: {error}")
    for name, value in content.items():
        if name in Settings.model_fields:
            found.put(name, value, str(path))
        else:
            found.wrong(str(path), f"{name} is not a setting{_did_you_mean(name, Settings.model_fields)}")


def _read_environment(found: _Found, environ: Mapping[str, str]) -> None:
    names = {env_name(name): name for name in Settings.model_fields}
    for variable, name in names.items():
        if value := environ.get(variable):
            found.put(name, value, ENVIRONMENT)
        elif name in SECRETS and (file := environ.get(f"{variable}_FILE")):
            _read_secret(found, name, f"{variable}_FILE", Path(file))
    known = {*OTHER_NAMES, *(variable for variable in names if variable.startswith("FLEET_"))}
    for variable in sorted(environ):
        if not variable.startswith("FLEET_") or variable in known or variable.startswith("FLEET_FAILPOINT"):
            continue
        if not _SERVICE_LINK.fullmatch(variable):
            bare = variable.removeprefix("FLEET_")
            hint = f"; did you mean {bare}?" if bare in names else _did_you_mean(variable, known | set(names))
            found.wrong(ENVIRONMENT, f"{variable} is not a setting{hint}")


def _read_secret(found: _Found, name: str, variable: str, file: Path) -> None:
    try:
        value = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        return found.wrong(ENVIRONMENT, f"{variable} names {file}, which cannot be read: {reason}")
    if not value:
        return found.wrong(ENVIRONMENT, f"{variable} names {file}, which is empty; write the secret into it")
    found.put(name, value, ENVIRONMENT)


def _read_flags(found: _Found, flags: Mapping[str, Any]) -> None:
    for name, value in flags.items():
        if name not in Settings.model_fields:
            found.wrong(FLAGS, f"{name} is not a setting{_did_you_mean(name, Settings.model_fields)}")
        elif value is not None:  # click passes None for an option that was not given
            found.put(name, value, FLAGS)


def _check(found: _Found) -> Settings | None:
    """The settings if nothing at all is wrong; otherwise the problems are in `found`."""
    bad: set[str] = set()
    try:
        Settings.model_validate(found.values)
    except ValidationError as error:
        bad = {str(mistake["loc"][0]) for mistake in error.errors(include_input=False, include_url=False)}
    for name in (name for name in Settings.model_fields if name in bad):
        sentence = f"{found.spelled(name)} must be {allowed(name)}, got {_got(name, found.values[name])}"
        found.wrong(found.origins[name], sentence)
    # Rules across settings still speak about the values that are fine, so that one round shows everything.
    settings = Settings.model_validate({name: value for name, value in found.values.items() if name not in bad})
    for rule in RULES:
        if not bad & {rule.first, rule.second} and not rule.holds(settings):
            found.wrong(_blamed(found, rule), _broken(found, rule, settings))
    return None if found.problems else settings


def _broken(found: _Found, rule: Rule, settings: Settings) -> str:
    first, second = (
        f"{found.spelled(name)} ({shown(name, getattr(settings, name))})" for name in (rule.first, rule.second)
    )
    return f"{first} must be {rule.must} {second}, {rule.because}"


def _blamed(found: _Found, rule: Rule) -> str:
    """Of the two sources the one that was given on purpose; the defaults agree with each other."""
    return found.origins.get(rule.first) or found.origins.get(rule.second, DEFAULT)


def _got(name: str, value: Any) -> str:
    if name in SECRETS:
        return shown(name, value) if isinstance(value, str) else "something that is not text"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; `fleetctl config show` lists all of them"


def _report(problems: Mapping[str, list[str]]) -> str:
    """One block per source, as in: config/fleet.toml has 2 problems."""
    titles = {FLAGS: "the command line", ENVIRONMENT: "the environment"}
    lines = []
    for origin, sentences in problems.items():
        count = f"{len(sentences)} problem{'s' if len(sentences) > 1 else ''}"
        lines += [f"{titles.get(origin, origin)} has {count}:", *(f"  {sentence}" for sentence in sentences)]
    return "\n".join(lines)
