"""The decisions of `python3 -m fleet` before anything is installed."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fleet import __main__ as bootstrap

SOURCE = Path(bootstrap.__file__)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with lock files, and a .venv as an installer would leave it, without a stamp."""
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "config").mkdir()
    for name in (bootstrap.RUNTIME, bootstrap.DEVELOPMENT):
        (tmp_path / "config" / name).write_text(f"{name} 1\n")
    python = bootstrap.venv_python(tmp_path / ".venv")
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    pip = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages" / "pip"
    pip.mkdir(parents=True)
    (pip / "__main__.py").write_text("")
    return tmp_path


def finish(checkout: Path, testing: bool) -> None:
    bootstrap._write_stamp(checkout, testing, bootstrap.read_stamp(checkout / ".venv"))


def change(checkout: Path, name: str) -> None:
    (checkout / "config" / name).write_text("changed\n")


def test_it_can_be_read_by_pythons_too_old_to_run_fleet() -> None:
    for path in (SOURCE, SOURCE.with_name("__init__.py")):
        ast.parse(path.read_text(), feature_version=(3, 7))


def test_it_imports_nothing_but_the_standard_library() -> None:
    code = "import sys, fleet.__main__; print('\\n'.join(sys.modules))"
    root = str(SOURCE.parent.parent)
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=root, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in done.stdout.split()}
    assert names - sys.stdlib_module_names <= {"fleet", "__main__", "sitecustomize", "usercustomize"}


def test_a_package_without_a_lock_file_beside_it_is_no_checkout(checkout: Path) -> None:
    main_file = checkout / "fleet" / "__main__.py"
    assert bootstrap.find_checkout(main_file) == checkout
    (checkout / "pyproject.toml").unlink()
    assert bootstrap.find_checkout(main_file) is None


def test_a_runtime_install_serves_the_roles_but_not_the_tests(checkout: Path) -> None:
    assert not bootstrap.is_current(checkout, testing=False)
    finish(checkout, testing=False)
    assert bootstrap.is_current(checkout, testing=False)
    assert not bootstrap.is_current(checkout, testing=True)


def test_a_development_install_serves_both(checkout: Path) -> None:
    finish(checkout, testing=True)
    assert bootstrap.is_current(checkout, testing=False)
    assert bootstrap.is_current(checkout, testing=True)


def test_a_changed_lock_asks_for_a_new_install_of_what_it_locks(checkout: Path) -> None:
    finish(checkout, testing=True)
    change(checkout, bootstrap.RUNTIME)
    assert not bootstrap.is_current(checkout, testing=False)
    finish(checkout, testing=False)
    assert bootstrap.is_current(checkout, testing=True)
    change(checkout, bootstrap.DEVELOPMENT)
    assert bootstrap.is_current(checkout, testing=False)
    assert not bootstrap.is_current(checkout, testing=True)


def test_a_hand_made_venv_without_a_stamp_is_brought_up_to_date_not_replaced(checkout: Path) -> None:
    assert not bootstrap.must_recreate(checkout, has_uv=False)


def test_a_venv_without_pip_is_replaced_only_where_there_is_no_uv(checkout: Path) -> None:
    next(checkout.glob(".venv/lib/python*/site-packages/pip/__main__.py")).unlink()
    assert bootstrap.must_recreate(checkout, has_uv=False)
    assert not bootstrap.must_recreate(checkout, has_uv=True)


def test_a_half_finished_install_is_replaced(checkout: Path) -> None:
    bootstrap.stamp_path(checkout / ".venv").write_text("")
    assert not bootstrap.is_current(checkout, testing=False)
    assert bootstrap.must_recreate(checkout, has_uv=True)


def test_a_finished_install_of_an_older_lock_is_brought_up_to_date(checkout: Path) -> None:
    finish(checkout, testing=False)
    change(checkout, bootstrap.RUNTIME)
    assert not bootstrap.must_recreate(checkout, has_uv=False)


def test_a_venv_that_was_moved_or_lost_its_python_is_replaced(checkout: Path) -> None:
    finish(checkout, testing=False)
    stamp = bootstrap.stamp_path(checkout / ".venv")
    stamp.write_text(json.dumps({**json.loads(stamp.read_text()), "root": "/elsewhere"}))
    assert bootstrap.must_recreate(checkout, has_uv=True)
    finish(checkout, testing=False)
    bootstrap.venv_python(checkout / ".venv").unlink()
    assert bootstrap.must_recreate(checkout, has_uv=True)


def test_an_old_python_gets_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    with pytest.raises(SystemExit) as stopped:
        bootstrap.main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err == "fleet: Fleet needs Python 3.11 or newer, this is 3.9; run it with a newer one.\n"


def test_a_python_without_ensurepip_is_told_which_package_to_install(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bootstrap.venv_python(checkout / ".venv").unlink()
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stopped:
        bootstrap.prepare(checkout, testing=False)
    assert stopped.value.code == 1
    assert "install the package python3-venv" in capsys.readouterr().err


def test_the_fleetctl_script_finds_its_python_in_a_folder_with_spaces(tmp_path: Path) -> None:
    root = tmp_path / "a b"
    package = root / "fleet" / "cli"
    package.mkdir(parents=True)
    (root / "fleet" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("import sys\ndef main(): print(sys.argv[1:])\n")
    python = bootstrap.venv_python(root / ".venv")
    python.parent.mkdir(parents=True)
    python.symlink_to(os.path.realpath(sys.executable))
    bootstrap._link_checkout(root)
    done = subprocess.run(
        [root / ".venv" / "bin" / "fleetctl", "up", "x y"],
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "['up', 'x y']\n"
