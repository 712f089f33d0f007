"""Calls fleetctl: in this process where there are many calls, in one of its own where that is the point."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
from click.testing import CliRunner

from fleet.cli import fleetctl
from fleet.errors import FleetError

TABLES = ("cron_schedules", "schedule_versions", "cron_ticks", "executions", "attempts", "gaps", "workers")
REPOSITORY = Path(__file__).resolve().parents[2]


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Fleetctl:
    def __init__(self, dsn: str, **env: str) -> None:
        self.dsn = dsn
        self._env = {"DATABASE_URL": dsn, **env}

    def __call__(self, *arguments: str, stdin: str | None = None) -> Answer:
        """In this process, with what `main` does about errors."""
        result = CliRunner().invoke(fleetctl, arguments, input=stdin, env=self._env)
        if isinstance(result.exception, FleetError):
            return Answer(result.exception.exit_code, result.stdout, f"{result.stderr}fleetctl: {result.exception}\n")
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    def json(self, *arguments: str) -> Any:
        """What it prints as JSON; it must succeed."""
        answer = self(*arguments, "--json")
        assert answer.code == 0, answer.err
        return answer.json

    def start(self, *arguments: str | bytes) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "fleet", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, **self._env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def process(self, *arguments: str | bytes) -> Answer:
        """In a process of its own, as a person's shell would start it."""
        return ended(self.start(*arguments))


def ended(process: subprocess.Popen[str]) -> Answer:
    out, err = process.communicate(timeout=60)
    return Answer(process.returncode, out, err)


def counts(dsn: str) -> dict[str, int]:
    """How many rows each table has: what must not change when something is refused."""
    with psycopg.connect(dsn) as connection:
        return {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in TABLES}  # type: ignore[call-overload, index]


def finish(sql: psycopg.Connection[Any], execution_id: str, status: str, error: str | None = None) -> None:
    """End an execution as a dispatcher would."""
    sql.execute(
        "UPDATE executions SET status = %s, attempt = 1, error = %s, started_at = now() - interval '2 seconds',"
        " finished_at = now() WHERE id = %s",
        (status, error, execution_id),
    )
