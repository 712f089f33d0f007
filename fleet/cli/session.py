"""What commands share: options, the settings, an open connection, and how results are printed."""

import asyncio
import functools
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec
from uuid import UUID

import click

from fleet.config import Settings, load
from fleet.domain.instant import format_instant
from fleet.errors import Conflict, Unhealthy, UsageError
from fleet.operations.database import check_schema, open_database
from fleet.operations.schedules import Window
from fleet.store.connection import Connection, connect, reason

if TYPE_CHECKING:
    from fleet.secrets import SecretBox

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class Session:
    connection: Connection
    settings: Settings

    @property
    def box(self) -> "SecretBox":
        from fleet.secrets import secret_box

        return secret_box(self.settings)

    @property
    def window(self) -> Window:
        return Window(self.settings.lookahead.total_seconds(), self.settings.misfire_grace.total_seconds())


def settings(**flags: Any) -> Settings:
    """The settings of this call: its flags, those of fleetctl itself, the environment, the file."""
    given = click.get_current_context().find_root().obj or {}
    toml = given.get("toml")
    return load(
        {**given.get("flags", {}), **{k: v for k, v in flags.items() if v is not None}}, toml=toml and Path(toml)
    )


@asynccontextmanager
async def session(workspace: str | None = None, statement_timeout: float = 30.0) -> AsyncIterator[Session]:
    """A connection to the fleet's database, schema checked; driver errors become one sentence."""
    import psycopg

    own = settings(workspace=workspace)
    database = await open_database(own)
    try:
        await check_schema(database.dsn)
        async with connect(database.dsn, statement_timeout=statement_timeout) as connection:
            yield Session(connection, own)
    except (psycopg.errors.LockNotAvailable, psycopg.errors.QueryCanceled):
        raise Conflict(
            "the database was busy with the same rows for too long; nothing was changed, try again"
        ) from None
    except psycopg.OperationalError as error:
        raise Unhealthy(
            f"the connection to Postgres broke: {reason(error)}; it may or may not have been done, look first"
        ) from None
    finally:
        await database.close()


def command(function: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Let click call a coroutine."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        _refuse_broken_text(kwargs.values())
        asyncio.run(function(*args, **kwargs))

    return run


def _refuse_broken_text(values: Iterable[Any]) -> None:
    """Bytes that are not UTF-8 come from the shell as half characters, which no database takes."""
    texts = [text for value in values for text in (value if isinstance(value, tuple) else (value,))]
    for text in texts:
        if isinstance(text, str) and any("\ud800" <= character <= "\udfff" for character in text):
            raise UsageError(f"{text!a} is not UTF-8 text; check the terminal's encoding")


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
workspace_option = click.option("--workspace", "-w", metavar="NAME", help="Workspace to act in (FLEET_WORKSPACE).")


def print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=_plain))


async def print_json_pages(pages: AsyncIterator[list[dict[str, Any]]]) -> None:
    """One JSON list, an element a line, printed as the pages come: it may be far longer than memory."""
    opening = "["
    async for page in pages:
        lines = [json.dumps(element, ensure_ascii=False, default=_plain) for element in page]
        click.echo(opening + "\n" + ",\n".join(lines), nl=False)
        opening = ","
    click.echo("[]" if opening == "[" else "\n]")


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return format_instant(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def print_table(columns: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """A table for people; plain text when it goes into a pipe."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.upper(), overflow="fold")
    for line in lines:
        table.add_row(*(shown(cell) for cell in line))
    console = Console(highlight=False)
    # A pipe has no width: nothing may be folded in what a script reads.
    Console(highlight=False, width=None if console.is_terminal else 1000).print(table)


def shown(value: Any) -> str:
    """A cell: instants in UTC, nothing for None. Square brackets are rich's markup and must not act in data."""
    from rich.markup import escape

    if value is None:
        return ""
    return escape(format_instant(value) if isinstance(value, datetime) else str(value))
