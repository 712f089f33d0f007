"""docs/reference/cli.md, made from the commands themselves.

A test compares the file with this function. To write the file anew: python -m fleet.cli.reference
"""

import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from fleet.cli import fleetctl

HEAD = """\
# fleetctl

`python3 -m fleet` in a checkout is the same program. Data goes to stdout, talk to stderr; `--json` prints what scripts
can rely on, with instants in UTC as RFC 3339. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 conflict,
5 unhealthy, 6 timed out. A mistake ends in one sentence that says what was wrong and what to do.

Options of `fleetctl` itself stand before the command: `fleetctl --database-url postgresql://… status`.
"""


def cli_text() -> str:
    """Every command with its help and options, in the order of `fleetctl --help`."""
    return HEAD + "".join(_section(path, command) for path, command in _commands(["fleetctl"], fleetctl))


def _commands(path: list[str], command: click.Command) -> Iterator[tuple[list[str], click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from _commands([*path, name], below)


def _section(path: list[str], command: click.Command) -> str:
    arguments = [parameter for parameter in command.params if isinstance(parameter, click.Argument)]
    usage = " ".join([*path, *(argument.make_metavar(click.Context(command)) for argument in arguments)])
    rows = [row for option in command.params if (row := _row(option, command))]
    table = "\n| option | meaning |\n|---|---|\n" + "".join(rows) if rows else ""
    return f"\n## `{usage}`\n\n{inspect.cleandoc(command.help or '')}\n{table}"


def _row(option: click.Parameter, command: click.Command) -> str | None:
    record = option.get_help_record(click.Context(command)) if isinstance(option, click.Option) else None
    if record is None or "--version" in record[0]:
        return None
    name, meaning = (text.replace("|", "\\|") for text in record)
    return f"| `{name}` | {meaning} |\n"


if __name__ == "__main__":
    Path("docs/reference/cli.md").write_text(cli_text(), encoding="utf-8")
