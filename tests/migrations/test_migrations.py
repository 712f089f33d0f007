"""Migrations: up from nothing, down to nothing, and equal to the tables as declared."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, pool

from fleet.domain.execution import AttemptOutcome, Status
from fleet.store import migrate
from fleet.store.schema import metadata

LEFT_BEHIND = """
SELECT relname AS name FROM pg_class WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
"""
CHECKS = """
SELECT pg_get_constraintdef(c.oid) FROM pg_constraint c
 WHERE c.conrelid = %(table)s::regclass AND c.contype = 'c' AND pg_get_constraintdef(c.oid) LIKE %(like)s
"""
INDEXES = """
SELECT indexname, regexp_replace(indexdef, '^.* USING ', '') FROM pg_indexes
 WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY indexname
"""
SPEC_REASONS = {
    "paused",
    "overlap",
    "catch_up",
    "window",
    "freeze",
    "edited",
    "deleted",
    "cancelled",
    "dependency",
    "ended",
}


def test_up_from_empty_and_down_to_nothing(empty_dsn: str) -> None:
    assert migrate.current(empty_dsn) is None
    migrate.upgrade(empty_dsn)
    assert migrate.current(empty_dsn) == migrate.HEAD
    migrate.downgrade(empty_dsn, "base")
    assert migrate.current(empty_dsn) is None
    with psycopg.connect(empty_dsn) as connection:
        left = {row[0] for row in connection.execute(LEFT_BEHIND)}
    assert {name for name in left if not name.strip("_").startswith("alembic_version")} == set()
    migrate.upgrade(empty_dsn)


def test_upgrading_twice_changes_nothing(dsn: str) -> None:
    migrate.upgrade(dsn)
    assert migrate.current(dsn) == migrate.HEAD


def test_two_upgrades_at_once_both_succeed(empty_dsn: str) -> None:
    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(migrate.upgrade, empty_dsn) for _ in range(2)]:
            done.result(timeout=60)
    assert migrate.current(empty_dsn) == migrate.HEAD


def test_head_is_the_newest_migration() -> None:
    config = Config()
    config.set_main_option("script_location", str(migrate.script_location()))
    assert ScriptDirectory.from_config(config).get_current_head() == migrate.HEAD


def test_the_migrated_database_is_the_declared_one(dsn: str) -> None:
    engine = create_engine(migrate.engine_url(dsn), poolclass=pool.NullPool)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, metadata) == []


def test_the_declared_tables_make_the_same_indexes(dsn: str, empty_dsn: str) -> None:
    """compare_metadata does not look at the predicates of partial indexes."""
    engine = create_engine(migrate.engine_url(empty_dsn), poolclass=pool.NullPool)
    metadata.create_all(engine)
    assert _all(empty_dsn, INDEXES) == _all(dsn, INDEXES)


@pytest.mark.parametrize(
    ("table", "column", "values"),
    [
        ("executions", "status", set(Status)),
        ("attempts", "outcome", set(AttemptOutcome)),
        ("gaps", "reason", SPEC_REASONS),
    ],
)
def test_the_database_allows_exactly_the_words_we_know(dsn: str, table: str, column: str, values: set[str]) -> None:
    [(constraint,)] = _all(dsn, CHECKS, {"table": table, "like": f"CHECK (({column} = ANY%"})
    assert set(re.findall(r"'(\w+)'", constraint)) == values


def _all(dsn: str, sql: Any, parameters: dict[str, str] | None = None) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(sql, parameters).fetchall()
