"""fleetctl config: what the settings are, where they came from, and whether they are right."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fleet.config import Loaded


@click.group()
def config() -> None:
    """Show and check the settings."""


@config.command()
@click.option("--origin", is_flag=True, help="Also tell where each value came from.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with everything about each setting.")
def show(origin: bool, as_json: bool) -> None:
    """Print every setting and its value, passwords hidden."""
    from fleet.config import describe

    rows = describe(_load())
    if as_json:
        click.echo(json.dumps([asdict(row) for row in rows], indent=2))
        return
    name_width = max(len(row.name) for row in rows)
    value_width = max(len(row.value) for row in rows)
    for row in rows:
        line = f"{row.name:<{name_width}}  {row.value:<{value_width}}"
        click.echo((f"{line}  {row.origin}" if origin else line).rstrip())


@config.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def check(as_json: bool) -> None:
    """Check the settings without starting anything; exits 2 and lists every mistake if there is one."""
    given = sorted({origin for origin in _load().origins.values() if origin != "default"})
    if as_json:
        click.echo(json.dumps({"valid": True, "given_by": given}))
        return
    click.echo(f"The settings are valid ({', '.join(['defaults', *given])}).")


def _load() -> "Loaded":
    """The settings as any other command would see them, fleetctl's own flags included."""
    from fleet.config import load_with_origin

    given = click.get_current_context().find_root().obj or {}
    return load_with_origin(given.get("flags"), toml=Path(given["toml"]) if given.get("toml") else None)
