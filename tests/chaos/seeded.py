"""Seeded bugs: mistakes that people make, kept as patches, and the drills that show each of them to the checker.

A bug is applied to a copy of the tree; the drill runs in that copy, and the checker judges from here.

    PYTHONPATH=tests python -m chaos.seeded DRILL FOLDER SECONDS

runs one of DRILLS, on the tree that this file belongs to; it waits at most so long for everything to end.
"""

import asyncio
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.drill import Focus, run_drill
from chaos.seeded_faults import Ask, FreezeAll, FreezeBusiest, Restart, Swallow, Wait
from support.processes import ROOT

BUGS_FOLDER = Path(__file__).with_name("bugs")
COPIED = ("fleet", "alembic", "config", "tests/chaos", "tests/support")
SEED = 11
SECONDS = {"races": 14.0}
USUAL_SECONDS = 8.0
PATCH_SECONDS, DRILL_SECONDS = 30, 200

# Grace and retention as short as the drills.
SETTINGS = {"MISFIRE_GRACE": "4s", "RETENTION_AGE": "2s", "RETENTION_RUNS": "3", "CLEANUP_INTERVAL": "1s"}
# What a bug has stranded is stranded; where there is none, everything comes to its end, however slow the machine is.
LITTLE_PATIENCE, PATIENCE = 12.0, 60.0

EVERY_SECOND: dict[str, Any] = {"interval_seconds": 1, "overlap": "allow", "jitter_ms": 0}
CRON: dict[str, Any] = {"cron_expression": "* * * * * *", "overlap": "allow", "jitter_ms": 0}
STUBBORN = {"backoff_seconds": [4.5, 4.5], "max_attempts": 2, "timeout_seconds": 1.5}
FRAGILE = {"max_attempts": 2, "timeout_seconds": 3.0}

DRILLS: dict[str, Focus] = {
    "ordinary": Focus(
        (
            ("jitter", "", {**EVERY_SECOND, "jitter_ms": 400}),
            ("skip", "?slow=1", {**EVERY_SECOND, "overlap": "skip"}),
            ("queue", "?slow=1", {**EVERY_SECOND, "overlap": "queue"}),
            ("retry", "?fail=0.4", EVERY_SECOND),
            ("max-runs", "", {**EVERY_SECOND, "max_runs": 5}),
            ("stubborn", "?fail=0.6&hang=0.4", {**EVERY_SECOND, **STUBBORN}),
            ("stubborn", "?fail=0.6&hang=0.4", {**EVERY_SECOND, **STUBBORN}),
        ),
        faults=(),
    ),
    # A dispatcher stands still with requests in flight until another has its work; then it goes on.
    "stalled": Focus(
        (("hang", "?hang=0.7", {**EVERY_SECOND, **FRAGILE}),) * 10,
        faults=(Wait(2.0), FreezeBusiest(4.2)),
    ),
    # Every dispatcher dies with requests in flight. Those that follow leave a shard without a worker, and one believes
    # it is two hours ago.
    "killed": Focus(
        (
            ("work", "?hang=0.3&slow=0.7", {**EVERY_SECOND, **FRAGILE}),
            ("most-once", "?hang=0.3&slow=0.7", {**EVERY_SECOND, **FRAGILE, "delivery": "at-most-once"}),
        )
        * 4,
        faults=(
            Restart("reconciler", {"SHARD_ID": "0", "SHARD_COUNT": "2"}),
            Wait(2.5),
            Restart("dispatcher", {"SHARD_ID": "0", "SHARD_COUNT": "2"}, clocks=(-7200, 7200)),
        ),
    ),
    "frozen": Focus(
        (
            ("skip", "", {**EVERY_SECOND, "overlap": "skip"}),
            ("none", "", {**EVERY_SECOND, "misfire_grace_seconds": 1, "catch_up": "none"}),
            ("pages", "", {**EVERY_SECOND, "max_plans_per_tick": 1}),
        )
        * 2,
        faults=(Wait(1.0), FreezeAll(("tick-generator", "ticker"), 3.5)),
    ),
    # Answers are lost between what should be one step.
    "answers": Focus(
        (("cron", "", CRON),) * 6,
        faults=(
            Swallow(b"AS plan (id, n, skipped", 2),
            Swallow(b"DELETE FROM cron_ticks", 2),
        ),
    ),
    # Generators meet on the same schedules, between reading them and writing their ticks.
    "races": Focus(
        (("cron", "", CRON),) * 6,
        faults=(Restart("tick-generator", {"FLEET_FAILPOINTS": "generator.after_take=stall:1"}),),
    ),
    "edits": Focus(
        (("allow", "", EVERY_SECOND),) * 3,
        faults=(Wait(1.0), Ask("pause", 0), Ask("pause", 1), Wait(1.7), Ask("resume", 1)),
    ),
}


@dataclass(frozen=True, slots=True)
class Bug:
    """`caught_by`: what the checker must find, at least one of these."""

    drill: str
    caught_by: tuple[str, ...]


BUGS: dict[str, Bug] = {
    "at-most-once-sent-again": Bug("killed", ("I10",)),
    "cleanup-removes-unfinished": Bug("ordinary", ("I3",)),
    "cursor-apart-from-ticks": Bug("answers", ("I3",)),
    "delivered-before-the-answer": Bug("ordinary", ("I6",)),
    "emitted-early": Bug("ordinary", ("I12",)),
    "finish-without-fence": Bug("stalled", ("I6", "I8")),
    "foreign-shards-never-taken": Bug("killed", ("I3",)),
    "generate-without-key-or-lock": Bug("races", ("I1",)),
    "heartbeat-without-fence": Bug("stalled", ("I8",)),
    "id-per-attempt": Bug("ordinary", ("I7", "I11")),
    "jitter-before-grid": Bug("ordinary", ("I2",)),
    "lease-by-client-clock": Bug("killed", ("I9",)),
    "lease-without-row-lock": Bug("ordinary", ("I8",)),
    "lost-means-failed": Bug("killed", ("I3",)),
    "max-runs-without-pending": Bug("ordinary", ("I2",)),
    "missed-without-a-gap": Bug("frozen", ("I3", "I4")),
    "overlap-read-then-write": Bug("frozen", ("I15",)),
    "page-loses-the-rest": Bug("frozen", ("I3",)),
    "pause-keeps-ticks": Bug("edits", ("I2",)),
    "queue-without-order": Bug("ordinary", ("I15",)),
    "reconcile-by-age": Bug("ordinary", ("I9",)),
    "reconcile-by-registration": Bug("killed", ("I3",)),
    "reconcile-own-shard": Bug("killed", ("I3",)),
    "resume-without-phase": Bug("edits", ("I2",)),
    "retry-without-backoff": Bug("ordinary", ("I14",)),
    "slot-not-unique": Bug("ordinary", ("I15",)),
    "tick-deleted-first": Bug("answers", ("I3", "I4")),
}


def copy_tree(to: Path) -> None:
    """What a drill runs on."""
    for part in COPIED:
        shutil.copytree(ROOT / part, to / part, ignore=shutil.ignore_patterns("__pycache__", "bugs"))


def apply(patch: Path, tree: Path) -> None:
    """Plant a bug; a patch that no longer fits must be written anew for what the code has become."""
    done = subprocess.run(
        ["git", "apply", "-C1", str(patch)],
        cwd=tree,
        # The copy may lie inside someone's repository: git would pass over files it does not track.
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATCH_SECONDS,
    )
    if done.returncode != 0:
        raise AssertionError(f"{patch.name} does not apply to this tree any more; renew it:\n{done.stderr}")


def run_in(tree: Path, drill: str, history: Path, patience: float) -> None:
    """Run one of the drills with everything taken from that tree."""
    done = subprocess.run(
        [sys.executable, "-m", "chaos.seeded", drill, str(history), str(patience)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": f"{tree / 'tests'}{os.pathsep}{tree}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DRILL_SECONDS,
    )
    if done.returncode != 0:
        raise AssertionError(f"the drill {drill!r} did not come to its end:\n{done.stderr[-4000:]}")


async def main(drill: str, history: str, patience: str) -> None:
    focus = DRILLS[drill]
    await run_drill(
        Path(history),
        seed=SEED,
        seconds=SECONDS.get(drill, USUAL_SECONDS),
        schedules=len(focus.schedules),
        focus=Focus(focus.schedules, focus.faults, SETTINGS, float(patience)),
        say=lambda text: print(text, file=sys.stderr),
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
