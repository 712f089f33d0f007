"""The wheel alone, in an empty folder: migrations and defaults are inside it."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.processes import ROOT
from support.up import running

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.fixture
def fleetctl(tmp_path: Path) -> str:
    """fleetctl of a virtual environment that has the wheel and what it needs, and knows nothing of the checkout."""
    venv, wheels = tmp_path / "venv", tmp_path / "wheels"
    subprocess.run([getattr(sys, "_base_executable", sys.executable), "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", wheels, ROOT], check=True)
    [wheel] = wheels.glob("*.whl")
    requirements = ROOT / "config" / "requirements.txt"
    subprocess.run([*pip, "install", "--no-deps", "--require-hashes", "-r", requirements], check=True)
    subprocess.run([*pip, "install", "--no-deps", wheel], check=True)
    return str(venv / "bin" / "fleetctl")


def test_fleetctl_up_works_in_an_empty_folder(fleetctl: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    with running(empty / ".fleet", command=(fleetctl,), env={"PYTHONPATH": ""}, cwd=empty) as up:
        told = up.started()
        assert told["data_dir"] == str(empty / ".fleet")
        checked = up.fleetctl("db", "check")
        assert checked.returncode == 0, checked.stderr
        assert up.ask("schedule", "list") == []
        assert up.stop() == 0
    assert [path.name for path in empty.iterdir() if path.name != ".fleet" and path.suffix != ".log"] == []
