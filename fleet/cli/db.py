"""fleetctl db: migrate the database and check its schema."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import psycopg

from fleet.cli.session import command, json_option, print_json, settings
from fleet.errors import Unhealthy
from fleet.operations.database import check_schema, open_database
from fleet.settings import redact
from fleet.store import migrate
from fleet.store.connection import reason


@click.group()
def db() -> None:
    """Migrate the database and check its schema."""


@asynccontextmanager
async def _database() -> AsyncIterator[str]:
    """The database's address; what goes wrong in talking to it becomes one sentence without the password."""
    database = await open_database(settings())
    try:
        yield database.dsn
    except psycopg.OperationalError as error:
        raise Unhealthy(f"cannot connect to Postgres: {reason(error)}; check DATABASE_URL") from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise Unhealthy(f"Postgres refused: {reason(error)}; give this user the rights, or use another") from None
    finally:
        await database.close()


@db.command()
@json_option
@command
async def upgrade(as_json: bool) -> None:
    """Bring the database to this version's schema; run it as often as you like."""
    async with _database() as dsn:
        # By the plain driver first: its errors are short, and a database that is well needs no migration.
        before = await asyncio.to_thread(migrate.current, dsn)
        if before != migrate.HEAD:
            await asyncio.to_thread(_upgrade, dsn, before)
        after = await asyncio.to_thread(migrate.current, dsn)
    if as_json:
        print_json({"database": redact(dsn), "before": before, "after": after})
    elif before == after:
        click.echo(f"the schema is at {after} already")
    else:
        click.echo(f"the schema went from {before or 'nothing'} to {after}")


def _upgrade(dsn: str, before: str | None) -> None:
    from alembic.util import CommandError
    from sqlalchemy.exc import DBAPIError

    try:
        migrate.upgrade(dsn)
    except CommandError:
        raise Unhealthy(
            f"the database has the schema version {before}, which this Fleet ({migrate.HEAD}) does not know;"
            " a newer Fleet made it, use that one"
        ) from None
    except DBAPIError as error:
        # Alembic talks through SQLAlchemy, which wraps what the driver said in its own pages of text.
        raise error.orig if error.orig is not None else error from None


@db.command()
@json_option
@command
async def current(as_json: bool) -> None:
    """Print the schema version that the database has, and the one this Fleet needs."""
    async with _database() as dsn:
        found = await asyncio.to_thread(migrate.current, dsn)
    if as_json:
        print_json({"database": redact(dsn), "current": found, "needed": migrate.HEAD})
    else:
        click.echo(found or "none")


@db.command()
@json_option
@command
async def check(as_json: bool) -> None:
    """Check that the schema is the one this Fleet needs; exits 5 when it is not."""
    async with _database() as dsn:
        found = await asyncio.to_thread(migrate.current, dsn)
        if as_json:
            print_json({"ok": found == migrate.HEAD, "current": found, "needed": migrate.HEAD})
        await check_schema(dsn)
    if not as_json:
        click.echo(f"the schema is at {found}, as this Fleet needs it")
