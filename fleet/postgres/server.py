"""Attach to the embedded Postgres of a folder: the first one in starts it, the last one out stops it."""

import atexit
import contextlib
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from fleet.errors import FleetError, TimedOut
from fleet.postgres import cluster as clusters
from fleet.postgres.account import Account, account_for
from fleet.postgres.binaries import find_binaries, major_version
from fleet.postgres.cluster import Cluster

# Long, because it covers recovery after a crash; a server that cannot start says so at once.
START_SECONDS = 120.0
# What passes by itself: backends of a killed postmaster that are still leaving, a port taken a moment ago, and a
# postmaster whose starter was killed before it had written its pid.
PASSING = ("is still in use", "could not create any TCP/IP sockets", '"postmaster.pid" already exists')


class Server:
    """A running embedded Postgres, kept running for as long as this object is not closed and its process lives."""

    def __init__(self, data_dir: Path, dsn: str, users: int) -> None:
        self.data_dir = data_dir
        self.dsn = dsn
        self._users: int | None = users
        self._pid = os.getpid()
        atexit.register(self.close)

    def close(self) -> None:
        """Let go; whoever was the last stops the server and waits for it. A second call does nothing."""
        users, self._users = self._users, None
        # A forked child shares its parent's lock: it is not the child's to let go.
        if users is None or os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        if not self.data_dir.is_dir():
            os.close(users)
            return
        with _deciding(self.data_dir):
            _let_go(Cluster(self.data_dir), users)


def attach(data_dir: Path, environ: Mapping[str, str] = os.environ) -> Server:
    """Use the server of this folder, made and started first if need be."""
    data_dir = Path(os.path.abspath(data_dir))
    cluster = Cluster(data_dir)
    try:
        data_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _deciding(data_dir):
            users = _lock(data_dir / "users.lock", fcntl.LOCK_SH)
            try:
                dsn = _bring_up(cluster, environ)
            except BaseException:
                _let_go(cluster, users)
                raise
        return Server(data_dir, dsn, users)
    except OSError as error:
        raise FleetError(
            f"The embedded Postgres cannot use the folder {data_dir} ({error.strerror or error}); "
            "choose one you may write to, or set DATABASE_URL."
        ) from error


def is_running(data_dir: Path) -> bool:
    """Whether a postmaster runs on this folder now."""
    return clusters.postmaster(Cluster(Path(os.path.abspath(data_dir)))) is not None


@contextlib.contextmanager
def _deciding(data_dir: Path) -> Iterator[None]:
    """Alone in deciding whether the server starts, is used or stops."""
    lock = _lock(data_dir / "start.lock", fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(lock)


def _lock(path: Path, kind: int) -> int:
    # Python opens files close-on-exec: no postmaster inherits the lock and holds it for ever.
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, kind)
    except BaseException:
        os.close(handle)
        raise
    return handle


def _let_go(cluster: Cluster, users: int) -> None:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    else:
        clusters.stop(cluster)
    finally:
        os.close(users)


def _bring_up(cluster: Cluster, environ: Mapping[str, str]) -> str:
    bin_dir = find_binaries(environ)
    major = major_version(bin_dir)
    clusters.refuse_other_major(cluster, bin_dir, major)
    account = account_for(cluster.folder)
    os.chmod(cluster.folder, 0o700)
    if not (cluster.data / "PG_VERSION").exists():
        clusters.initialise(cluster, bin_dir, major, account, environ)
    dsn = _wait_until_it_accepts(cluster, bin_dir, account, environ)
    if not cluster.dsn.exists() or cluster.dsn.read_text() != dsn + "\n":
        clusters.write_private(cluster.dsn, dsn + "\n")
    return dsn


def _wait_until_it_accepts(cluster: Cluster, bin_dir: Path, account: Account, environ: Mapping[str, str]) -> str:
    """Start a postmaster whenever there is none, until one answers."""
    log_start = _size(cluster.log)
    child: subprocess.Popen[bytes] | None = None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if child is not None and child.poll() is not None:
            _raise_unless_passing(cluster, log_start)
            child, log_start = None, _size(cluster.log)
        found = clusters.postmaster(cluster)
        if found is not None:
            dsn = _dsn(cluster, found[1])
            if _accepts(dsn):
                return dsn
        elif child is None:
            child = clusters.start(cluster, bin_dir, clusters.choose_port(_last_port(cluster)), account, environ)
        time.sleep(0.02)
    raise TimedOut(f"The embedded Postgres in {cluster.folder} did not accept connections; look at {cluster.log}.")


def _dsn(cluster: Cluster, port: int) -> str:
    try:
        password = cluster.password.read_text().strip()
    except FileNotFoundError:
        raise FleetError(
            f"{cluster.password} is gone and the embedded database cannot be opened without it; "
            f"restore the file, or its line from {cluster.dsn}."
        ) from None
    return f"postgresql://{clusters.NAME}:{password}@{clusters.HOST}:{port}/{clusters.NAME}"


def _last_port(cluster: Cluster) -> int | None:
    try:
        return urlsplit(cluster.dsn.read_text().strip()).port
    except (FileNotFoundError, ValueError):
        return None


def _accepts(dsn: str) -> bool:
    import psycopg

    try:
        with psycopg.connect(dsn, connect_timeout=5, autocommit=True) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        if "password authentication failed" in str(error):
            raise FleetError(
                "The embedded Postgres refused the password kept beside its data; restore the file `password`."
            ) from error
        return False
    return True


def _raise_unless_passing(cluster: Cluster, log_start: int) -> None:
    with cluster.log.open("rb") as log:
        log.seek(log_start)
        lines = log.read().decode(errors="replace").splitlines()
    if any(words in line for line in lines for words in PASSING):
        time.sleep(0.2)
        return
    reason = next((line for line in lines if "FATAL" in line or "PANIC" in line), lines[-1] if lines else "no reason")
    raise FleetError(f"The embedded Postgres in {cluster.folder} did not start: {reason} (more in {cluster.log}).")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
