"""What drifts silently: the Procfile, the help texts, the commands in the README and the generated reference."""

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from fleet import __version__
from fleet.cli import COMMANDS, fleetctl
from fleet.cli.reference import cli_text
from fleet.roles import ROLES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HEAVY = ("alembic", "aiohttp", "honcho", "psycopg", "pydantic", "rich", "sqlalchemy", "structlog", "uvloop")
WORDS = {"fleetctl": ["fleetctl"], "python3": ["python3", "-m", "fleet"]}


def test_the_procfile_has_one_line_per_role_and_no_shell_in_between() -> None:
    lines = (ROOT / "Procfile").read_text().splitlines()
    assert lines == [f"{role}: exec python3 -m fleet run {role}" for role in ROLES]


def test_the_compose_file_runs_every_role() -> None:
    text = (ROOT / "docker" / "compose.yaml").read_text()
    assert re.findall(r'command: \["run", "([a-z-]+)"\]', text) == list(ROLES)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_in_the_list_of_commands_is_the_commands_own(name: str) -> None:
    command = fleetctl.get_command(click.Context(fleetctl), name)
    assert command is not None
    assert command.get_short_help_str(limit=200) == COMMANDS[name][2]


def test_help_imports_nothing_heavy() -> None:
    code = f"""
import sys
from fleet.cli import fleetctl
fleetctl.main(["--help"], standalone_mode=False)
print("heavy:", [name for name in {HEAVY!r} if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"


def test_the_reference_of_fleetctl_is_what_the_commands_say() -> None:
    written = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert written == cli_text(), "write it anew: python -m fleet.cli.reference"


def commands_in(page: Path) -> Iterator[list[str]]:
    """The fleetctl lines of a page's code blocks, without prompt, comment or what they are piped into."""
    for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
                words = words[1:]
            for start in WORDS.values():
                if words[: len(start)] == start:
                    end = min((words.index(mark) for mark in ("|", ">", "&") if mark in words), default=len(words))
                    yield words[len(start) : end]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_shown_to_people_exists_with_its_options(page: Path) -> None:
    for words in commands_in(page):
        if words[:1] == ["test"]:
            continue
        command: click.Command = fleetctl
        context = click.Context(fleetctl)
        while isinstance(command, click.Group):
            context = command.make_context(command.name, [*words], parent=context if context.parent else None)
            rest = [*context._protected_args, *context.args]
            below = command.get_command(context, rest[0]) if rest else None
            assert below is not None, f"{page.name}: there is no `fleetctl {shlex.join(words)}`"
            command, words = below, rest[1:]
        command.make_context(command.name, [*words], parent=context)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "python3 -m fleet up" in text
    assert "python3 -m fleet test" in text


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & stat.S_IXUSR
    assert '"$python" -m fleet test' in script.read_text()
    subprocess.run(["bash", "-n", script], check=True)


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_file_names_the_machine_it_was_written_on() -> None:
    found = []
    for folder, names, files in os.walk(ROOT):
        names[:] = [name for name in names if not name.startswith(".") or name == ".ci"]
        for path in (Path(folder) / file for file in files):
            if path.suffix in {".md", ".py", ".toml", ".txt", ".yaml", ".service", ""} and path != Path(__file__):
                text = path.read_text(errors="ignore")
                found += [f"{path}: {word}" for word in ("/" + "work/", "py" + "pi.org") if word in text]
    assert found == []


def _all_commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _all_commands(found, f"{path} {name}")
    else:
        yield path, command


def test_every_command_can_answer_in_json() -> None:
    silent = [
        path
        for path, command in _all_commands(fleetctl, "fleetctl")
        if not any("--json" in parameter.opts for parameter in command.params)
    ]
    assert silent == []
