"""The data folder and the postmaster process: make it, find it, start it, stop it. Callers hold start.lock."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import FleetError
from fleet.postgres.account import Account, hand_over

NAME = "fleet"
HOST = "127.0.0.1"
STOP_SECONDS = 60.0
# The shorter of the Linux and macOS limits, less the name Postgres gives its socket.
LONGEST_SOCKET_FOLDER = 103 - len("/.s.PGSQL.65535")

SETTINGS = """
# Set by Fleet when it made this folder; edit freely, it is not written again.
shared_buffers = 128MB
max_connections = 200
max_wal_size = 2GB
fsync = on
synchronous_commit = on
timezone = 'UTC'
log_timezone = 'UTC'
log_min_messages = warning
"""

# Every postmaster this process started: kept so that it is reaped when it ends, whoever ended it.
_children: list[subprocess.Popen[bytes]] = []


@dataclass(frozen=True)
class Cluster:
    """The paths of one embedded server."""

    folder: Path

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def socket(self) -> Path:
        return self.folder / "socket"

    @property
    def log(self) -> Path:
        return self.folder / "postgres.log"

    @property
    def password(self) -> Path:
        return self.folder / "password"

    @property
    def dsn(self) -> Path:
        return self.folder / "dsn"


def write_private(path: Path, text: str) -> None:
    """Replace a file in one step, readable by its owner alone from the first byte on."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def refuse_other_major(cluster: Cluster, bin_dir: Path, major: int) -> None:
    """Postgres cannot read the files of another major version; say so before anything is touched."""
    with contextlib.suppress(FileNotFoundError):
        found = (cluster.data / "PG_VERSION").read_text().strip()
        if found != str(major):
            raise FleetError(
                f"The data in {cluster.data} was made by Postgres {found}, but the programs in {bin_dir} are Postgres "
                f"{major}: set FLEET_PG_BIN to the bin folder of a Postgres {found}, or use another data folder."
            )


def initialise(cluster: Cluster, bin_dir: Path, major: int, account: Account, environ: Mapping[str, str]) -> None:
    """Make the data folder under another name and rename it when it is complete."""
    draft = cluster.folder / "data.new"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    write_private(cluster.password, secrets.token_urlsafe(24))
    hand_over(cluster.folder, account)
    options = ["-U", NAME, f"--pwfile={cluster.password}", "-A", "scram-sha-256", "--no-locale", "-E", "UTF8"]
    _run([bin_dir / "initdb", "-D", draft, *options], account, environ)
    with (draft / "postgresql.conf").open("a") as conf:
        conf.write(SETTINGS + ("io_method = sync\n" if major >= 18 else ""))
    create = f"CREATE DATABASE {NAME};\n".encode()
    _run([bin_dir / "postgres", "--single", "-D", draft, "postgres"], account, environ, create)
    draft.rename(cluster.data)


def postmaster(cluster: Cluster) -> tuple[int, int] | None:
    """The pid and port of the running postmaster; None when postmaster.pid is missing, unfinished or stale."""
    try:
        lines = (cluster.data / "postmaster.pid").read_text().splitlines()
        pid, port = int(lines[0]), int(lines[3])
    except (FileNotFoundError, NotADirectoryError, ValueError, IndexError):
        return None
    return (pid, port) if _is_postmaster(pid, cluster.data) else None


def start(
    cluster: Cluster, bin_dir: Path, port: int, account: Account, environ: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start a postmaster in its own session, so that a Ctrl-C meant for the roles does not reach it first."""
    shutil.rmtree(cluster.socket, ignore_errors=True)
    cluster.socket.mkdir(mode=0o700)
    _disown_stale_pid(cluster.data / "postmaster.pid")
    hand_over(cluster.folder, account)
    options = ["-p", str(port), "-c", f"listen_addresses={HOST}", "-c", f"unix_socket_directories={_sockets(cluster)}"]
    with open(os.open(cluster.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as log:
        child = subprocess.Popen(
            [bin_dir / "postgres", "-D", cluster.data, *options],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=_clean(environ),
            cwd="/",
            start_new_session=True,
            preexec_fn=account.before_exec,
        )
    _children.append(child)
    return child


def stop(cluster: Cluster) -> None:
    """Fast stop (SIGINT); SIGTERM would wait for every open session. One that hangs is stopped as by a crash."""
    for sent in (signal.SIGINT, signal.SIGQUIT):
        found = postmaster(cluster)
        if found is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(found[0], sent)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline:
            if not _is_postmaster(found[0], cluster.data):
                return
            time.sleep(0.02)
    raise FleetError(f"The embedded Postgres in {cluster.folder} does not stop; look at {cluster.log}.")


def choose_port(wanted: int | None) -> int:
    """The wanted port if it is free (the last one: clients that reconnect then find the server), else any free one."""
    for port in (wanted, 0):
        if port is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind((HOST, port))
                return int(probe.getsockname()[1])
    raise FleetError(f"No free TCP port on {HOST} for the embedded Postgres.")


def _is_postmaster(pid: int, data: Path) -> bool:
    """Whether this pid is the postmaster of this folder, not some process that got the number after a crash."""
    for child in list(_children):
        if child.poll() is not None:
            _children.remove(child)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    if sys.platform.startswith("linux"):
        try:  # the postmaster works inside its data folder; a zombie has no folder any more
            return os.path.samefile(f"/proc/{pid}/cwd", data)
        except OSError:
            return False
    ps = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    shown = subprocess.run(ps, capture_output=True, text=True, check=False).stdout
    return "postgres" in shown and str(data) in shown


def _disown_stale_pid(pid_file: Path) -> None:
    """Keep Postgres from taking the unrelated process that now has the old pid for a running server.

    Postgres ignores a pid equal to its parent's (it must be a leftover from before a reboot). So the number becomes
    ours, and the rest of the file stays: it tells Postgres whether backends of a killed postmaster still use the data.
    """
    with contextlib.suppress(FileNotFoundError):
        lines = pid_file.read_text().splitlines(keepends=True)
        if len(lines) < 4:  # the writer died before it finished, or the disk was full
            pid_file.unlink()
            return
        pid_file.write_text("".join([f"{os.getpid()}\n", *lines[1:]]))


def _sockets(cluster: Cluster) -> str:
    folder = str(cluster.socket)
    if len(os.fsencode(folder)) > LONGEST_SOCKET_FOLDER:
        return ""
    return '"' + folder.replace('"', '""') + '"'


def _clean(environ: Mapping[str, str]) -> dict[str, str]:
    """Without the PG* variables, which are meant for somebody's client, and with messages in English."""
    return {name: value for name, value in environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _run(command: list[str | Path], account: Account, environ: Mapping[str, str], stdin: bytes = b"") -> None:
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        env=_clean(environ),
        cwd="/",
        preexec_fn=account.before_exec,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        reason = next((line for line in said if "error" in line or "FATAL" in line), said[0] if said else "no reason")
        raise FleetError(f"{command[0]} could not make the embedded database: {reason}.")
