"""Drills: the short one belongs to the suite; the long ones have their own command.

A drill's seed is printed; CHAOS_SEED=N replays it.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from chaos import history
from chaos.checker import check
from chaos.drill import run_drill
from chaos.nemesis import KINDS, plan

SHORT = (
    "kill",
    "freeze",
    "postgres-restart",
    "postgres-kill",
    "backend-kill",
    "proxy-cut",
    "proxy-half-open",
    "swallow-answer",
    "target-hang",
    "target-drop",
    "edits",
    "failpoint-die",
)


def _seed(default: int) -> int:
    seed = int(os.environ.get("CHAOS_SEED", default))
    print(f"seed {seed}; CHAOS_SEED={seed} replays it")
    return seed


def _assert_nothing_was_lost(folder: Path) -> dict[str, Any]:
    final: dict[str, Any] = json.loads((folder / "final.json").read_text())
    verdict = check(history.load(folder))
    print(verdict.text())
    assert verdict.ok, f"{verdict.text()}\nthe drill's folder is {folder}"
    assert final["settled"], f"something never finished; the drill's folder is {folder}"
    assert final["verify"]["problems"] == []
    figures: dict[str, Any] = final["figures"]
    return figures


async def test_a_short_drill_loses_doubles_and_forgets_nothing(tmp_path: Path) -> None:
    folder = await run_drill(
        tmp_path / "drill", seed=_seed(3), seconds=45, schedules=20, kinds=SHORT, at_once=2, say=print
    )
    figures = _assert_nothing_was_lost(folder)
    assert figures["executions"] >= 500
    assert len(figures["kinds"]) >= 8


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_three_faults_at_once_lose_double_and_forget_nothing(tmp_path: Path) -> None:
    folder = await run_drill(tmp_path / "drill", seed=_seed(7), seconds=180, schedules=40, at_once=3, say=print)
    figures = _assert_nothing_was_lost(folder)
    assert len(figures["kinds"]) >= 12


def test_a_seed_replays_the_same_plan_and_no_round_has_two_faults_of_one_group() -> None:
    first, again, other = (plan(list(KINDS), seed, 3) for seed in ("1", "1", "2"))
    rounds = [next(first) for _ in range(50)]
    assert rounds == [next(again) for _ in range(50)]
    assert rounds != [next(other) for _ in range(50)]
    assert all(len({KINDS[kind].group for kind in chosen}) == len(chosen) for chosen in rounds)
    assert {kind for chosen in rounds[: len(KINDS)] for kind in chosen} == set(KINDS)
