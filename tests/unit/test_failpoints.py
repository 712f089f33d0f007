"""Failpoints: every declared place exists once in the code, and what is armed is what happens."""

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import fleet
from fleet import failpoints
from fleet.errors import UsageError

SOURCE = Path(fleet.__file__).parent


def _places() -> list[str]:
    found = []
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("failpoints.hit", "hit"):
                found += [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
    return found


def test_every_declared_place_is_hit_somewhere_and_no_other() -> None:
    assert sorted(_places()) == sorted(failpoints.NAMES)


@pytest.mark.parametrize("text", ["nowhere=die", "loop.before_step=explode", "loop.before_step=die@x", "loop"])
def test_what_cannot_be_armed_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="FLEET_FAILPOINTS"):
        failpoints.parse(text)


def _run(armed: str) -> subprocess.CompletedProcess[str]:
    code = "from fleet.failpoints import hit\nfor i in range(5):\n    print(i, flush=True)\n    hit('loop.after_step')"
    return subprocess.run(
        [sys.executable, "-c", code],
        env={"FLEET_FAILPOINTS": armed, "PYTHONPATH": str(SOURCE.parent)},
        capture_output=True,
        text=True,
    )


def test_an_armed_place_kills_at_the_time_it_was_told() -> None:
    done = _run("loop.after_step=die@3")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2"]


def test_an_armed_place_raises() -> None:
    assert "FailpointError: failpoint loop.after_step" in _run("loop.after_step=raise@2").stderr


def test_nothing_happens_where_nothing_is_armed() -> None:
    assert _run("").stdout.split() == ["0", "1", "2", "3", "4"]
    assert _run("ticker.after_emit=die").stdout.split() == ["0", "1", "2", "3", "4"]
