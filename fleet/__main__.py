"""`python3 -m fleet ...` on a machine that has nothing but Python: standard library only, up to the last line.

In a source checkout it makes `.venv`, installs the locked dependencies there and carries on inside it:

    python3 -m fleet up          what `fleetctl up` does
    python3 -m fleet test -k x   the test suite; what follows `test` goes to pytest

An installed package has its dependencies already and goes straight to fleetctl. This file must still be read by
Pythons too old to run Fleet, so that they get a sentence and not a traceback.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

OLDEST_PYTHON = (3, 11)
RUNTIME, DEVELOPMENT = "requirements.txt", "requirements-dev.txt"
# A few that stand for all: enough to tell a prepared virtual environment from an empty one.
RUNTIME_MODULES = ("aiohttp", "alembic", "click", "psycopg", "structlog")
DEVELOPMENT_MODULES = (*RUNTIME_MODULES, "hypothesis", "pytest", "pytest_asyncio")

# 'exec' is a command to sh and a string to Python: no limit on the interpreter's path, and it may hold spaces.
FLEETCTL = """#!/bin/sh
'''exec' "{python}" -P "$0" "$@"
' '''
from fleet.cli import main

main()
"""


def main() -> None:
    if sys.version_info < OLDEST_PYTHON:
        here = "{}.{}".format(*sys.version_info)
        _give_up(f"Fleet needs Python 3.11 or newer, this is {here}; run it with a newer one.", 2)
    arguments = sys.argv[1:]
    root = find_checkout(Path(__file__))
    if root is None:
        _run_fleetctl()
        return
    testing = arguments[:1] == ["test"]
    ready = is_ready_here(root, testing)
    python = sys.executable if ready else prepare(root, testing)
    if testing:
        os.chdir(root)
        os.execv(python, [python, "-m", "pytest", *arguments[1:]])
    if not ready:
        os.execv(python, [python, "-m", "fleet", *arguments])
    _run_fleetctl()


def find_checkout(main_file: Path) -> Path | None:
    """The source checkout this package lies in; None when it is installed somewhere."""
    root = main_file.resolve().parent.parent
    is_checkout = (root / "pyproject.toml").is_file() and (root / "config" / RUNTIME).is_file()
    return root if is_checkout else None


def is_ready_here(root: Path, testing: bool) -> bool:
    """Whether this interpreter is a virtual environment, of the checkout or of the user's, that has what is needed."""
    if sys.prefix == sys.base_prefix:
        return False
    venv = root / ".venv"
    if Path(sys.prefix).resolve() == venv.resolve() and stamp_path(venv).exists():
        return is_current(root, testing)
    return all(importlib.util.find_spec(name) for name in (DEVELOPMENT_MODULES if testing else RUNTIME_MODULES))


def is_current(root: Path, testing: bool) -> bool:
    """Whether the checkout's .venv holds what the lock file says now, for this place and this interpreter."""
    wanted = fingerprint(root)
    found = read_stamp(root / ".venv")
    keys = ["root", "python", DEVELOPMENT if testing else RUNTIME]
    return all(wanted[key] == found.get(key) for key in keys)


def fingerprint(root: Path) -> dict[str, str]:
    """What an installation depends on: a moved checkout, a replaced Python or a changed lock each need a new one."""
    locks = {name: hashlib.sha256((root / "config" / name).read_bytes()).hexdigest() for name in (RUNTIME, DEVELOPMENT)}
    return {"root": str(root), "python": os.path.realpath(venv_python(root / ".venv")), **locks}


def venv_python(venv: Path) -> Path:
    return venv / "bin" / "python"


def stamp_path(venv: Path) -> Path:
    return venv / "fleet-installed.json"


def read_stamp(venv: Path) -> dict[str, str]:
    try:
        stamp = json.loads(stamp_path(venv).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def prepare(root: Path, testing: bool) -> str:
    """Bring the checkout's .venv up to date, one process at a time, and return its Python."""
    if not is_current(root, testing):
        try:
            with _alone(root):
                if not is_current(root, testing):
                    _install(root, testing)
        except OSError as error:
            _give_up(f"cannot prepare {root / '.venv'} ({error.strerror or error}); make the folder writable for you.")
    return str(venv_python(root / ".venv"))


@contextlib.contextmanager
def _alone(root: Path) -> Iterator[None]:
    # The folder itself is locked: a lock file inside .venv would vanish when .venv is made anew.
    handle = os.open(root, os.O_RDONLY)
    # The installer inherits the lock: should this process be killed, the next one waits until the installer is gone.
    os.set_inheritable(handle, True)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _install(root: Path, testing: bool) -> None:
    venv, name = root / ".venv", DEVELOPMENT if testing else RUNTIME
    uv = shutil.which("uv")
    print(f"fleet: installing the dependencies of config/{name} into {venv}, once ...", file=sys.stderr, flush=True)
    before = read_stamp(venv)
    if must_recreate(root, has_uv=uv is not None):
        if uv is None and not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
            _give_up("this Python cannot make virtual environments; install the package python3-venv and run it again.")
        _make_venv(venv, uv)
        before = {}
    stamp_path(venv).write_text("")  # says: begun and not finished
    python, lock = str(venv_python(venv)), str(root / "config" / name)
    if uv:
        installer = [uv, "pip", "install", "--quiet", "--python", python]
    else:
        installer = [python, "-m", "pip", "install", "-qq", "--no-input", "--disable-pip-version-check"]
    _call([*installer, "--no-deps", "--require-hashes", "-r", lock])
    _link_checkout(root)
    _write_stamp(root, testing, before)


def must_recreate(root: Path, has_uv: bool) -> bool:
    """Whether .venv has to go: unusable, left half done by a killed install, or moved here from another place.

    One that somebody made by hand has no stamp and is only brought up to date.
    """
    venv = root / ".venv"
    python = venv_python(venv)
    if not python.exists() or (not _has_pip(venv) and not has_uv):
        return True
    if not stamp_path(venv).exists():
        return False
    stamp = read_stamp(venv)
    return stamp.get("root") != str(root) or stamp.get("python") != os.path.realpath(python)


def _has_pip(venv: Path) -> bool:
    return any(venv.glob("lib/python*/site-packages/pip/__main__.py"))


def _make_venv(venv: Path, uv: str | None) -> None:
    if venv.exists():
        shutil.rmtree(venv)
    venv.mkdir()
    stamp_path(venv).write_text("")
    if uv:
        _call([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, str(venv)])
    else:
        _call([sys.executable, "-m", "venv", str(venv)])


def _link_checkout(root: Path) -> None:
    """Make `import fleet` and `fleetctl` work from this .venv, whatever the current folder is."""
    venv = root / ".venv"
    for packages in venv.glob("lib/python*/site-packages"):
        (packages / "fleet-checkout.pth").write_text(f"{root}\n")
    script = venv / "bin" / "fleetctl"
    script.unlink(missing_ok=True)
    script.write_text(FLEETCTL.format(python=venv_python(venv)))
    script.chmod(0o755)


def _write_stamp(root: Path, testing: bool, before: dict[str, str]) -> None:
    stamp = fingerprint(root)
    if not testing and before.get(DEVELOPMENT) != stamp[DEVELOPMENT]:
        del stamp[DEVELOPMENT]
    path = stamp_path(root / ".venv")
    draft = path.with_suffix(".new")
    draft.write_text(json.dumps(stamp, indent=2) + "\n")
    draft.replace(path)


def _call(command: list[str]) -> None:
    if subprocess.run(command, stdout=sys.stderr, close_fds=False, check=False).returncode != 0:
        _give_up(f"`{' '.join(command[:4])} ...` failed for the reason above; put that right and run the same again.")


def _run_fleetctl() -> None:
    from fleet.cli import main as fleetctl

    fleetctl()


def _give_up(sentence: str, code: int = 1) -> NoReturn:
    print(f"fleet: {sentence}", file=sys.stderr)
    sys.exit(code)


if __name__ == "__main__":
    main()
