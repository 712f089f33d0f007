"""fleetctl db: bring the schema up, say which one is there, refuse the wrong one."""

from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from fleet.store import migrate
from support.fleetctl import Fleetctl


def test_upgrade_makes_the_schema_and_may_be_repeated(empty_dsn: str) -> None:
    fleetctl = Fleetctl(empty_dsn)
    assert fleetctl("db", "current").out == "none\n"
    first = fleetctl.json("db", "upgrade")
    assert (first["before"], first["after"]) == (None, migrate.HEAD)
    assert fleetctl("db", "upgrade").out == f"the schema is at {migrate.HEAD} already\n"
    assert fleetctl("db", "current").out == f"{migrate.HEAD}\n"
    assert fleetctl("db", "check").code == 0


def test_check_refuses_a_database_without_a_schema(empty_dsn: str) -> None:
    answer = Fleetctl(empty_dsn)("db", "check", "--json")
    assert answer.code == 5
    assert answer.json == {"ok": False, "current": None, "needed": migrate.HEAD}
    assert answer.err == (
        f"fleetctl: the database has no Fleet schema, this Fleet needs {migrate.HEAD}; run `fleetctl db upgrade`\n"
    )


def test_a_schema_of_a_newer_fleet_is_left_alone(dsn: str) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    fleetctl = Fleetctl(dsn)
    assert fleetctl.json("db", "current")["current"] == "9999"
    assert fleetctl("db", "check").code == 5
    answer = fleetctl("db", "upgrade")
    assert answer.code == 5
    assert "a newer Fleet made it" in answer.err


@pytest.mark.parametrize("command", ["upgrade", "current", "check"])
def test_a_database_that_does_not_exist_is_one_sentence(dsn: str, command: str) -> None:
    missing = urlunsplit(urlsplit(dsn)._replace(path="/nothing_here"))
    answer = Fleetctl(missing).process("db", command)
    assert answer.code == 5
    assert answer.out == ""
    assert len(answer.err.splitlines()) == 1
    assert '"nothing_here" does not exist' in answer.err


@pytest.mark.parametrize("command", ["upgrade", "current", "check"])
def test_a_wrong_password_is_one_sentence_that_does_not_repeat_it(dsn: str, command: str) -> None:
    parts = urlsplit(dsn)
    wrong = urlunsplit(parts._replace(netloc=f"{parts.username}:s3cret-word@{parts.hostname}:{parts.port}"))
    answer = Fleetctl(wrong).process("db", command)
    assert answer.code == 5
    assert len(answer.err.splitlines()) == 1
    assert "password authentication failed" in answer.err
    assert "s3cret-word" not in answer.out + answer.err


def test_nothing_listening_there_is_one_sentence() -> None:
    answer = Fleetctl("postgresql://fleet:s3cret-word@127.0.0.1:1/fleet").process("db", "upgrade")
    assert answer.code == 5
    assert len(answer.err.splitlines()) == 1
    assert "cannot connect to Postgres" in answer.err
    assert "s3cret-word" not in answer.err


def test_a_user_without_rights_is_told_so(empty_dsn: str) -> None:
    parts = urlsplit(empty_dsn)
    role = parts.path.removeprefix("/") + "_weak"
    with psycopg.connect(empty_dsn, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'weak'")  # type: ignore[call-overload]
        connection.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    weak = urlunsplit(parts._replace(netloc=f"{role}:weak@{parts.hostname}:{parts.port}"))
    answer = Fleetctl(weak)("db", "upgrade")
    assert answer.code == 5
    assert "permission denied" in answer.err


def test_an_address_of_words_works_too(empty_dsn: str) -> None:
    parts = urlsplit(empty_dsn)
    words = (
        f"host={parts.hostname} port={parts.port} user={parts.username} password={parts.password}"
        f" dbname={parts.path.removeprefix('/')}"
    )
    fleetctl = Fleetctl(words)
    assert fleetctl.json("db", "upgrade")["after"] == migrate.HEAD
    assert parts.password not in fleetctl("db", "current", "--json").out
