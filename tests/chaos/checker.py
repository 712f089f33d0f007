"""The checker: judges the history of a drill, alone from its folder, and says in words what it found.

    PYTHONPATH=tests python -m chaos.checker FOLDER        exits 1 when a promise was broken

Independent  It shares no code with what it judges but the ledger's oracle, which imports no cron library. Planned
             times, numbers, ids, leases and states are worked out anew from the changes that were recorded.
Twice        Receipts are matched to executions by id, and again blind, by schedule and time only; both must agree.

Each promise of a drill (I1 to I19) is a function named after it. I13 is reported, not judged; I17 and I18 are the same
promises under other faults.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

from chaos import checker_asked as asks
from chaos import checker_fates as fates
from chaos import checker_leases as leases
from chaos import checker_plan as plan
from chaos import checker_receipts as receipts
from chaos.checker_story import Story, tell
from chaos.checker_verdict import Finding, Verdict
from chaos.history import History, load


def check(history: History) -> Verdict:
    story = tell(history.changes, history.receipts)
    findings = list(_findings(story, history))
    again = [finding for finding in findings if finding.invariant == "I10"]
    waits = list(_takeovers(story))
    return Verdict(
        findings=findings,
        by_id=receipts.match_by_id(story),
        by_time=receipts.match_by_time(story, history.receipts),
        executions=len(story.executions),
        receipts=len(history.receipts),
        duplicates_explained=max(0, receipts.duplicates(story) - len(again)),
        recovered=sum(_was_recovered(story, execution_id) for execution_id in story.executions),
        lateness=receipts.i13_lateness(story),
        takeovers=len(waits),
        takeover_max=max(waits, default=None),
    )


def _findings(story: Story, history: History) -> Iterator[Finding]:
    yield from plan.i1_one_tick_and_one_execution(story)
    yield from plan.i2_nothing_outside_the_rule(story)
    yield from plan.i2_versions_begin_where_they_should(story)
    yield from fates.i2_nothing_runs_while_switched_off(story)
    yield from fates.i3_nothing_lost(story, history.final)
    yield from fates.i3_nothing_is_given_up(story)
    yield from fates.i3_nothing_is_stranded(story, history.final)
    yield from fates.i3_cleanup_removes_only_what_is_over(story, history.final)
    yield from fates.i3_gaps_have_their_reason(story, history.final)
    yield from plan.i4_a_tick_ends_where_its_execution_begins(story)
    yield from leases.i5_final_is_final(story)
    yield from receipts.i6_delivered_means_received(story)
    yield from receipts.i7_every_request_was_leased_first(story)
    yield from leases.i7_every_attempt_is_recorded(story)
    yield from leases.i8_nothing_is_written_without_the_lease(story)
    yield from receipts.i8_answers_are_those_of_the_attempt(story)
    yield from leases.i9_leases_never_overlap(story, history.final)
    yield from receipts.i10_duplicates_are_explained(story, history)
    yield from plan.i11_ids_derive(story)
    yield from plan.i12_planned_within_jitter(story)
    yield from leases.i12_never_leased_early(story)
    yield from receipts.i12_never_received_early(story)
    yield from leases.i14_backoff_holds(story)
    yield from leases.i15_overlap_holds(story)
    yield from asks.i16_what_was_answered_is_there(story, history.asked)
    yield from asks.i16_nothing_came_unasked(story, history.asked)
    yield from plan.i19_cleanup_makes_nothing_run_again(story)
    yield from receipts.both_matchings_agree(story, history.receipts)


def _was_recovered(story: Story, execution_id: str) -> bool:
    last = story.executions[execution_id].last
    if last.status != "delivered" or last.attempt < 2:
        return False
    return any("lost" in story.outcomes(execution_id, attempt) for attempt in range(1, last.attempt))


def _takeovers(story: Story) -> Iterator[float]:
    """Seconds from the end of each lease that ran out to the next lease of the same execution."""
    for execution in story.executions.values():
        ran_out = None
        before = execution.states[0]
        for state in execution.states[1:]:
            if before.token and not state.token:
                ended = story.ended_as(execution.id, before.attempt, state.moment)
                ran_out = before.leased_until if ended is not None and ended.outcome == "lost" else None
            elif state.token and not before.token and state.leased_at:
                if ran_out is not None:
                    yield max(0.0, (state.leased_at - ran_out).total_seconds())
                ran_out = None
            before = state


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not (Path(arguments[0]) / "final.json").exists():
        print("usage: python -m chaos.checker FOLDER (the folder of a drill, with its final.json)", file=sys.stderr)
        return 2
    verdict = check(load(Path(arguments[0])))
    print(verdict.text())
    return 0 if verdict.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
