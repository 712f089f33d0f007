"""Every setting: its name, default, bounds and meaning. config/fleet.toml and the docs table are made from this list.

How values are found and mistakes reported is in fleet/config.py.
"""

import base64
import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from fleet.domain.duration import format_duration, parse_duration
from fleet.errors import UsageError

# Never shown whole, and may come from the file that NAME_FILE names.
SECRETS = frozenset({"database_url", "secret_key"})


def _duration(value: object) -> object:
    if not isinstance(value, str):
        return value if isinstance(value, timedelta) else None  # a bare number has no unit: refused
    try:
        return parse_duration(value)
    except UsageError as error:
        raise ValueError(str(error)) from error


def _whole(value: object) -> object:
    """Whole numbers only: pydantic alone would take true for 1 and 1_0 for 10."""
    if isinstance(value, str):
        return int(value) if re.fullmatch(r"-?[0-9]{1,18}", value.strip()) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _word(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _postgres(value: str) -> str:
    if not re.match(r"postgres(ql)?://|\s*\w+\s*=", value):
        raise ValueError("not a Postgres address")
    return value


def _keys(value: str) -> str:
    for key in value.split(","):
        if len(base64.urlsafe_b64decode(key.strip())) != 32:
            raise ValueError("not a key")
    return value


def _host(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9.-]+", value):
        ipaddress.ip_address(value)  # what is left is IPv6, or a mistake such as host:port
    return value


def _networks(value: object) -> object:
    """A list of networks, or text with commas between them. 10.0.0.1/8 is refused: one host or 16 million?"""
    parts = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        return None
    return tuple(ipaddress.ip_network(str(part).strip()) for part in parts)


def _setting(
    default: Any, meaning: str, *, env: str | None = None, allowed: str | None = None, secret: bool = False
) -> Any:
    """One setting; `env` where its environment name is not just the upper-case name."""
    return Field(default, description=meaning, json_schema_extra={"env": env, "allowed": allowed}, repr=not secret)


def _time(default: str, shortest: str, longest: str, meaning: str) -> Any:
    low, high = parse_duration(shortest), parse_duration(longest)
    return Field(parse_duration(default), ge=low, le=high, description=meaning)


def _number(default: int | None, lowest: int, highest: int, meaning: str) -> Any:
    return Field(default, ge=lowest, le=highest, description=meaning)


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Whole = Annotated[int, BeforeValidator(_whole)]
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Settings(BaseModel):
    """What a Fleet process was told, checked. Field names are the environment names in lower case."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    database_url: Annotated[str, AfterValidator(_postgres)] | None = _setting(
        None,
        "Postgres to meet in; unset starts an embedded one in the data folder",
        allowed="a Postgres address such as postgresql://user:password@host:5432/name",
        secret=True,
    )
    secret_key: Annotated[str, AfterValidator(_keys)] | None = _setting(
        None,
        "keys that seal stored secrets, the first seals, all open; the embedded Postgres keeps one beside its data",
        allowed="one or more keys separated by commas, each 32 bytes in URL-safe base64",
        secret=True,
    )
    data_dir: Path = _setting(
        Path(".fleet"), "folder of the embedded Postgres", env="FLEET_DATA_DIR", allowed="a folder's path"
    )
    workspace: Name = _setting(
        "system", "workspace that commands act in", env="FLEET_WORKSPACE", allowed="a name of 1 to 200 characters"
    )
    health_addr: Annotated[Name, AfterValidator(_host)] = _setting(
        "127.0.0.1",
        "address on which a role serves /health and /metrics",
        allowed="a host name or address without a port (PORT sets the port)",
    )
    port: Whole | None = _number(
        None, 0, 65_535, "port for /health and /metrics; 0 takes a free one, unset serves neither"
    )

    shard_id: Whole = _number(0, 0, 65_535, "slice of the schedules this process looks after first")
    shard_count: Whole = _number(1, 1, 65_536, "number of slices the schedules are divided into")
    lookahead: Duration = _time("60s", "1s", "1d", "how far ahead planned times are written as ticks")
    generate_interval: Duration = _time("10s", "100ms", "1h", "how often the tick-generator looks for schedules")
    generate_batch: Whole = _number(1000, 1, 100_000, "most schedules the tick-generator takes in one transaction")
    tick_interval: Duration = _time("100ms", "10ms", "1m", "longest the ticker sleeps between looks for due ticks")
    tick_batch: Whole = _number(1000, 1, 100_000, "most ticks the ticker turns into executions in one transaction")
    db_poll_interval: Duration = _time("500ms", "10ms", "1m", "how often an idle dispatcher looks for executions")
    dispatcher_concurrency: Whole = _number(128, 1, 10_000, "executions one dispatcher delivers at once")
    lease: Duration = _time("15s", "3s", "1h", "how long a worker owns an execution without renewing its lease")
    misfire_grace: Duration = _time("60s", "0s", "30d", "lateness up to which a planned time still simply runs")
    shard_grace: Duration = _time("2s", "0s", "1h", "lateness after which rows of foreign shards are taken too")

    egress_deny_private: bool = _setting(
        False, "whether deliveries to loopback and private addresses are refused; set it when tenants write the URLs"
    )
    egress_allow: Annotated[tuple[Network, ...], BeforeValidator(_networks)] = _setting(
        (),
        "networks that EGRESS_DENY_PRIVATE spares; link-local and cloud metadata addresses are refused in any case",
        allowed="networks separated by commas, such as 10.20.0.0/16,fd12:3456::/32",
    )

    reconcile_enabled: bool = _setting(True, "whether the reconciler repairs what dead processes left behind")
    reconcile_interval: Duration = _time("5s", "100ms", "1h", "longest the reconciler sleeps between repairs")
    reconcile_batch_size: Whole = _number(1000, 1, 100_000, "most executions the reconciler repairs in one transaction")
    cleanup_interval: Duration = _time("5m", "1s", "1d", "how often old rows are removed")
    retention_runs: Whole = _number(100, 0, 1_000_000, "newest executions of each schedule that are always kept")
    retention_age: Duration = _time("30d", "0s", "36500d", "age below which an execution is always kept")

    db_op_timeout: Duration = _time("5s", "100ms", "10m", "longest a database statement may take")
    db_max_open_conns: Whole = _number(8, 1, 1000, "most database connections of one process")
    db_max_idle_conns: Whole = _number(2, 0, 1000, "database connections kept open while idle")
    db_conn_max_lifetime: Duration = _time("30m", "1s", "30d", "age at which a database connection is replaced")
    db_conn_max_idle_time: Duration = _time("5m", "1s", "30d", "idle time after which a connection is closed")
    db_connect_wait: Duration = _time("60s", "0s", "1h", "how long a role waits for Postgres when it starts")
    dispatcher_drain_timeout: Duration = _time(
        "30s", "0s", "1h", "how long a stopping dispatcher lets deliveries finish before it hands them back"
    )

    metrics_enabled: bool = _setting(True, "whether /metrics is served beside /health")
    log_format: Annotated[Literal["auto", "text", "json"], BeforeValidator(_word)] = _setting(
        "auto", "shape of the log; auto is text on a terminal and json otherwise", allowed="auto, text or json"
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_word)] = _setting(
        "info", "least important events that are logged", allowed="debug, info, warning or error"
    )


@dataclass(frozen=True)
class Rule:
    """A rule across settings. `must` reads on from the first name, `because` tells what breaks."""

    first: str
    must: str
    second: str
    because: str
    holds: Callable[[Settings], bool]


RULES = (
    Rule("shard_id", "below", "shard_count", "since shards count from 0", lambda s: s.shard_id < s.shard_count),
    Rule(
        "lookahead",
        "at least",
        "generate_interval",
        "or planned times pass before their ticks are written",
        lambda s: s.lookahead >= s.generate_interval,
    ),
    Rule(
        "db_max_idle_conns",
        "at most",
        "db_max_open_conns",
        "since only open connections can be idle",
        lambda s: s.db_max_idle_conns <= s.db_max_open_conns,
    ),
)


def _extra(name: str, key: str) -> str | None:
    extra = Settings.model_fields[name].json_schema_extra
    found = extra.get(key) if isinstance(extra, dict) else None
    return str(found) if found is not None else None


def env_name(name: str) -> str:
    return _extra(name, "env") or name.upper()


def default_of(name: str) -> Any:
    return Settings.model_fields[name].default


def meaning_of(name: str) -> str:
    return Settings.model_fields[name].description or ""


def allowed(name: str) -> str:
    """What a setting may be, for the sentence that refuses a value."""
    if words := _extra(name, "allowed"):
        return words
    if isinstance(default_of(name), bool):
        return "true or false"
    metadata = Settings.model_fields[name].metadata
    low, high = (next(getattr(m, bound) for m in metadata if hasattr(m, bound)) for bound in ("ge", "le"))
    if isinstance(low, timedelta):
        return f"a duration from {shown(name, low)} to {shown(name, high)}, such as {shown(name, default_of(name))}"
    return f"a whole number from {low} to {high}"


def shown(name: str, value: Any) -> str:
    """A value as a person would write it, without its secrets."""
    if value is None:
        return ""
    if name in SECRETS:
        return redact(str(value)) if name == "database_url" else "***"
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def redact(address: str) -> str:
    """A database address with its passwords replaced; what is not understood is hidden whole."""
    scheme, _, rest = address.partition("://")
    if not re.match(r"\s*[\w+.-]+://", address):
        if not re.match(r"\s*\w+\s*=", address):
            return "***"
        return re.sub(r"(?i)(password\s*=\s*)('(?:\\.|[^'\\])*('|$)|(?:\\.|[^\s\\])*)", r"\1***", address)
    # Up to the last @: a password that was not percent-encoded may hold an @ or a / itself.
    user, at, place = rest.rpartition("@")
    if "?" in user:  # the @ may stand inside an option such as password=, so no part is safe to show
        return f"{scheme}://***"
    if ":" in user:
        user = user.partition(":")[0] + ":***"
    place, question, query = place.partition("?")
    options = [option.partition("=") for option in query.split("&")]
    query = "&".join(f"{k}={'***' if 'password' in unquote(k).lower() else v}" if eq else k for k, eq, v in options)
    return f"{scheme}://{user}{at}{place}{question}{query}"
