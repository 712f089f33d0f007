"""fleetctl. Commands are imported when they are called: `fleetctl --help` must answer at once."""

import importlib
import sys
from typing import Any, NoReturn

import click

from fleet import __version__
from fleet.errors import FleetError

# name -> (module, attribute, help). The help is repeated here so that listing imports nothing; a test compares.
COMMANDS = {
    "up": ("fleet.cli.up", "up", "Run everything: Postgres, migrations and every role."),
    "run": ("fleet.cli.run", "run", "Run one role in the foreground."),
    "status": ("fleet.cli.status", "status", "Show whether the fleet is well: backlog, lateness, workers."),
    "ps": ("fleet.cli.status", "ps", "List the workers and what is wrong with their sharding."),
    "schedule": ("fleet.cli.schedule", "schedule", "Add, change and look at schedules."),
    "execution": ("fleet.cli.execution", "execution", "Look at executions, retry and cancel them."),
    "verify": ("fleet.cli.verify", "verify", "Prove that every planned time is accounted for."),
    "db": ("fleet.cli.db", "db", "Migrate the database and check its schema."),
    "config": ("fleet.cli.config", "config", "Show and check the settings."),
}


class LazyGroup(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_) for name, (_, _, help_) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fleetctl")
@click.option("--config", "toml", metavar="FILE", help="Settings file (FLEET_CONFIG).")
@click.option("--database-url", metavar="URL", help="Postgres to use (DATABASE_URL).")
@click.option("--data-dir", metavar="DIR", help="Folder of the embedded Postgres (FLEET_DATA_DIR).")
@click.pass_context
def fleetctl(context: click.Context, /, toml: str | None, **flags: Any) -> None:
    """Fleet: cron that never loses a planned time, and can prove it."""
    context.obj = {"toml": toml, "flags": flags}


def main() -> None:
    """Every mistake ends in one sentence on stderr and the exit code that belongs to it."""
    try:
        sys.exit(fleetctl.main(prog_name="fleetctl", standalone_mode=False) or 0)
    except FleetError as error:
        _fail(str(error), error.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(error.exit_code)
    except click.UsageError as error:
        hint = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        _fail(_sentence(error.format_message()) + hint, error.exit_code)
    except click.ClickException as error:
        _fail(_sentence(error.format_message()), error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        _fail("stopped before it was done", 130)
    except BrokenPipeError:
        # Whoever read our output (head, less) has seen enough.
        sys.stderr.close()
        sys.exit(0)


def _fail(sentence: str, code: int) -> NoReturn:
    click.echo(f"fleetctl: {sentence}", err=True)
    sys.exit(code)


def _sentence(message: str) -> str:
    """click's own messages, written like ours."""
    text = " ".join(message.split()).rstrip(".")
    return text[:1].lower() + text[1:]
