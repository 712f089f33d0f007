"""fleetctl up: the whole product in one command."""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from fleet import log
from fleet.cli import session
from fleet.errors import Conflict, FleetError, UsageError
from fleet.operations.database import Database, prepare_database
from fleet.roles import ROLES
from fleet.settings import Settings, redact

# As `honcho start` deals them out: a hundred per role, one per process.
FIRST_PORT, PORTS_PER_ROLE = 5000, 100
# On top of the dispatcher's drain: handing back what did not finish takes a moment.
DRAIN_MARGIN = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One process to run, such as dispatcher.2 of the role dispatcher."""

    name: str
    role: str
    port: int


@click.command()
@click.option("--scale", metavar="ROLE=N,…", default="", help="How many of a role to run: dispatcher=3,ticker=2.")
@click.option("--data-dir", metavar="DIR", help="Folder of the embedded Postgres (FLEET_DATA_DIR).")
@session.json_option
def up(scale: str, data_dir: str | None, as_json: bool) -> None:
    """Run everything: Postgres, migrations and every role."""
    counts = parse_scale(scale)
    settings = session.settings(data_dir=data_dir)
    log.setup(settings.log_format, settings.log_level)
    # Until the supervisor takes over: an exit that still lets go of the embedded Postgres.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with _alone(settings):
        database = asyncio.run(prepare_database(settings, _say_waiting))
        try:
            code = _supervise(settings, database, counts, as_json)
        finally:
            asyncio.run(database.close())
    sys.exit(code)


def parse_scale(text: str) -> dict[str, int]:
    """How many processes of each role: one unless told otherwise."""
    counts = dict.fromkeys(ROLES, 1)
    for part in filter(None, (part.strip() for part in text.split(","))):
        role, _, number = (word.strip() for word in part.partition("="))
        if role not in ROLES or not number.isascii() or not number.isdigit() or int(number) > PORTS_PER_ROLE:
            raise UsageError(
                f"--scale takes ROLE=N with N from 0 to {PORTS_PER_ROLE} and ROLE one of {', '.join(ROLES)}; "
                f"got {part!r}."
            )
        counts[role] = int(number)
    return counts


def _say_waiting(why: str) -> None:
    log.get().warning("database.waiting", reason=why)


@contextlib.contextmanager
def _alone(settings: Settings) -> Iterator[None]:
    """One `up` per data folder: two would run every role twice by mistake. On a shared database that is the purpose."""
    if settings.database_url is not None:
        yield
        return
    folder = settings.data_dir.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "up.lock").open("a+")
    except OSError as error:
        raise FleetError(
            f"the data folder {folder} cannot be used ({error.strerror}); choose another with --data-dir"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise Conflict(
                f"another `fleetctl up` (pid {lock.read().strip() or 'unknown'}) already runs on {folder}; "
                "stop it first, or choose another folder with --data-dir"
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _supervise(settings: Settings, database: Database, counts: Mapping[str, int], as_json: bool) -> int:
    from honcho.printer import Printer

    from fleet.roles.supervisor import Supervisor

    as_text = settings.log_format == "text" or (settings.log_format == "auto" and sys.stderr.isatty())
    # A line of JSON stays one: it names its role and worker itself.
    printer = Printer(sys.stderr, prefix=as_text, colour=not os.environ.get("NO_COLOR"))
    supervisor = Supervisor(printer, settings.dispatcher_drain_timeout.total_seconds() + DRAIN_MARGIN)
    shared = {**_environment(database), "LOG_FORMAT": "text" if as_text else "json"}
    processes = plan(counts, settings)
    for process in processes:
        supervisor.add_role(process.name, _command(process.role), {**shared, "PORT": str(process.port)})
    _announce(settings, database, processes, as_json)
    supervisor.loop()
    return int(supervisor.returncode)


def plan(counts: Mapping[str, int], settings: Settings) -> list[Process]:
    """Every process and its port; a port somebody else has is replaced by a free one."""
    first = FIRST_PORT if settings.port is None else settings.port
    processes = []
    with contextlib.ExitStack() as taken:  # each stays taken until all are chosen, so that no two get the same
        for place, role in enumerate(ROLES):
            for n in range(counts[role]):
                wanted = first and first + place * PORTS_PER_ROLE + n
                port = taken.enter_context(_take_port(settings.health_addr, wanted)).getsockname()[1]
                processes.append(Process(f"{role}.{n + 1}", role, port))
    return processes


def _take_port(host: str, wanted: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for port in (wanted, 0):
        with contextlib.suppress(OSError, OverflowError):
            return socket.create_server((host, port), family=family)
    raise UsageError(f"HEALTH_ADDR is {host}, which is no address of this machine; set it to one, such as 127.0.0.1.")


def _command(role: str) -> list[str]:
    # Nothing in the current folder may pass for a module of ours, unless that folder is where we come from.
    source = Path(__file__).resolve().parents[2]
    return [sys.executable, *([] if source == Path.cwd().resolve() else ["-P"]), "-m", "fleet", "run", role]


def _environment(database: Database) -> dict[str, str]:
    """What roles need to come to the same settings as this process. They find the embedded password themselves."""
    given = click.get_current_context().find_root().obj
    environment = dict(os.environ)
    if given["toml"]:
        environment["FLEET_CONFIG"] = str(Path(given["toml"]).absolute())
    if database.data_dir is not None:
        environment["FLEET_DATA_DIR"] = str(database.data_dir)
    elif given["flags"].get("database_url"):
        environment["DATABASE_URL"] = given["flags"]["database_url"]
    return environment


def _announce(settings: Settings, database: Database, processes: list[Process], as_json: bool) -> None:
    host = f"[{settings.health_addr}]" if ":" in settings.health_addr else settings.health_addr
    health = {process.name: f"http://{host}:{process.port}/health" for process in processes}
    if as_json:
        roles = [{"name": name, "health": url} for name, url in health.items()]
        folder = database.data_dir and str(database.data_dir)
        click.echo(json.dumps({"data_dir": folder, "database": redact(database.dsn), "roles": roles}))
        return
    width = max(map(len, health), default=0)
    lines = [f"data       {database.data_dir}"] if database.data_dir else []
    lines += [f"database   {redact(database.dsn)}"]
    lines += [f"role       {name:<{width}}  {url}" for name, url in health.items()]
    program = "python3 -m fleet" if sys.argv[0].endswith("__main__.py") else "fleetctl"
    lines += [f"try        {program} schedule add hello --every 10s --url http://127.0.0.1:8000/", "stop       Ctrl-C"]
    click.echo("\n".join(lines), err=True)
