"""The README's two commands in a clone that nobody has prepared, as root and as an ordinary user."""

import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import pytest

from support.processes import ROOT
from support.up import running

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]
INSTALL_SECONDS = 600


def system_python() -> str:
    """A Python as a new machine has it: outside every virtual environment, and within everybody's reach."""
    for candidate in ("/usr/bin/python3", getattr(sys, "_base_executable", sys.executable)):
        code = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))"
        if Path(candidate).exists() and subprocess.run([candidate, "-c", code], capture_output=True).returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 with venv outside a virtual environment")


@pytest.fixture(params=["as_it_is", "unprivileged"])
def become(request: pytest.FixtureRequest) -> list[str]:
    """What to put before a command to run it as whoever runs the tests, or as nobody."""
    if request.param == "as_it_is":
        return []
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is missing (package util-linux)")
    nobody = pwd.getpwnam("nobody")
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups", "--no-new-privs"]


@pytest.fixture
def home(become: list[str]) -> Iterator[Path]:
    # Not tmp_path: its parents are closed to other users.
    folder = Path(mkdtemp(prefix="fleet-clone-"))
    if become:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def clone(become: list[str], home: Path) -> Path:
    subprocess.run(["git", "clone", "--quiet", "--no-local", str(ROOT), str(home / "fleet")], check=True)
    if become:
        nobody = pwd.getpwnam("nobody")
        subprocess.run(["chown", "-R", f"{nobody.pw_uid}:{nobody.pw_gid}", str(home)], check=True)
    return home / "fleet"


def test_both_commands_work(become: list[str], home: Path, clone: Path) -> None:
    python = [*become, system_python()]
    env = {"HOME": str(home), "PYTHONPATH": "", "PATH": "/usr/local/bin:/usr/bin:/bin"}
    with running(home / "data", command=(*python, "-m", "fleet"), env=env, cwd=clone) as up:
        told = up.started()
        assert len(told["roles"]) == 5
        assert up.ask("schedule", "list") == []
        assert up.stop() == 0
    # Of the suite only what shows that the command works: this is the suite already.
    tested = subprocess.run(
        [
            *python,
            "-m",
            "fleet",
            "test",
            "-n0",
            "tests/unit/test_duration.py",
            "tests/integration/test_embedded_postgres.py",
        ],
        cwd=clone,
        env={**up.env, "FLEET_DATA_DIR": ""},
        capture_output=True,
        text=True,
        timeout=INSTALL_SECONDS,
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
    clean = subprocess.run(
        ["git", "-c", "safe.directory=*", "status", "--porcelain"],
        cwd=clone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert clean.stdout == ""
