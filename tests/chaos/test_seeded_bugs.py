"""The instrument on trial: every seeded bug is caught by a short drill, and the tree without it passes the same drill.

What caught what is printed as a table at the end.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from chaos import history, seeded
from chaos.checker import check
from chaos.checker_verdict import Verdict
from chaos.rig import compile_shim
from chaos.seeded import BUGS, BUGS_FOLDER, DRILLS


def test_every_bug_has_its_patch_and_is_told_of() -> None:
    assert {patch.stem for patch in BUGS_FOLDER.glob("*.patch")} == set(BUGS)
    assert len(BUGS) >= 15
    told = (BUGS_FOLDER / "README.md").read_text()
    assert [bug for bug in BUGS if f"`{bug}`" not in told] == []


def test_every_patch_applies_to_this_tree(tmp_path: Path) -> None:
    """Part of the ordinary suite, so that a patch is renewed with the change that it no longer fits."""
    seeded.copy_tree(tmp_path / "clean")
    for bug in BUGS:
        shutil.copytree(tmp_path / "clean", tmp_path / bug)
        seeded.apply(BUGS_FOLDER / f"{bug}.patch", tmp_path / bug)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("drill", DRILLS)
def test_without_a_bug_every_promise_holds(drill: str, tmp_path: Path) -> None:
    verdict, settled = _drill(drill, None, tmp_path)

    assert verdict.ok, verdict.text()
    assert settled


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(bug: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    if bug == "lease-by-client-clock" and compile_shim(tmp_path) is None:
        pytest.skip("clocks cannot be shifted here: no C compiler, or not Linux")
    verdict, _ = _drill(BUGS[bug].drill, BUGS_FOLDER / f"{bug}.patch", tmp_path)
    caught_by = verdict.by_invariant()
    record_property("caught", (bug, BUGS[bug].drill, ", ".join(f"{what} ({n})" for what, n in caught_by.items())))

    assert caught_by, "the checker found nothing wrong"
    assert set(BUGS[bug].caught_by) & caught_by.keys(), verdict.text()


def _drill(drill: str, patch: Path | None, folder: Path) -> tuple[Verdict, bool]:
    """What the checker says of a drill on a copy of this tree, and whether everything came to its end."""
    seeded.copy_tree(folder / "tree")
    if patch is not None:
        seeded.apply(patch, folder / "tree")
    patience = seeded.PATIENCE if patch is None else seeded.LITTLE_PATIENCE
    seeded.run_in(folder / "tree", drill, folder / "history", patience)
    told = history.load(folder / "history")
    return check(told), told.final.settled
