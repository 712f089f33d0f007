"""A real Postgres for the tests: one server per run, one template, one cloned database per test."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg

from fleet.postgres import attach
from fleet.store import migrate

TEMPLATE = "fleet_template"


class TestServer:
    """The server of this run; processes of pytest-xdist share it."""

    __test__ = False

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._server = attach(folder, os.environ)
        self.dsn = self._server.dsn
        with self._alone():
            if not self._exists(TEMPLATE):
                self._execute(f"CREATE DATABASE {TEMPLATE}_draft")
                migrate.upgrade(self.address(f"{TEMPLATE}_draft"))
                self._execute(f"ALTER DATABASE {TEMPLATE}_draft RENAME TO {TEMPLATE}")

    def address(self, database: str) -> str:
        return urlunsplit(urlsplit(self.dsn)._replace(path=f"/{database}"))

    @contextmanager
    def database(self, template: str = TEMPLATE) -> Iterator[str]:
        """The address of a fresh database, dropped afterwards."""
        name = f"test_{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY wal_log")
        try:
            yield self.address(name)
        finally:
            self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def close(self) -> None:
        self._server.close()

    def _exists(self, name: str) -> bool:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute("SELECT FROM pg_database WHERE datname = %s", (name,)).rowcount == 1

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)  # type: ignore[call-overload]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / "template.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
