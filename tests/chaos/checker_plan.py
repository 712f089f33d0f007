"""I1, I2, I4, I11, I19: what was planned and made an execution of is one of each, by the rule, under its id."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime, timedelta

from chaos.checker_rules import Rule, execution_id, text
from chaos.checker_story import Execution, Key, Schedule, Story, Tick
from chaos.checker_verdict import Finding, Kind


def i1_one_tick_and_one_execution(story: Story) -> Iterator[Finding]:
    """A tick may be made again only after it was taken back without having become an execution."""
    for key, ticks in story.ticks.items():
        pending = False
        for tick in ticks:
            if tick.op == "INSERT" and pending:
                yield _about(story, key, "I1", "has a second tick beside the first", "duplicate")
            if tick.op == "INSERT" and _ran_before(story, key, tick):
                yield _about(story, key, "I1", "got a tick again though it had become an execution", "duplicate")
            pending = tick.op != "DELETE"
    for key, executions in story.planned.items():
        if len(executions) > 1:
            yield _about(story, key, "I1", f"became {len(executions)} planned executions", "duplicate")


def _ran_before(story: Story, key: Key, tick: Tick) -> bool:
    return any(execution.states[0].moment.seq < tick.moment.seq for execution in story.planned.get(key, ()))


def i2_nothing_outside_the_rule(story: Story) -> Iterator[Finding]:
    """Ticks and gaps by the version in force when they were written; executions by that of their number."""
    for key, ticks in story.ticks.items():
        for tick in ticks:
            if tick.op == "INSERT":
                yield from _off_rule(story, key, tick.n, tick.moment.seq, "tick")
    for key, executions in story.planned.items():
        for execution in executions:
            yield from _off_rule(story, key, execution.n or 0, None, "execution")
    for (schedule, scope), gaps in story.gaps.items():
        for gap in gaps:
            if gap.op != "DELETE":
                for n, at in {(gap.first_n, gap.first_at), (gap.last_n, gap.last_at)}:
                    yield from _off_rule(story, (schedule, scope, at), n, gap.moment.seq, "gap")


def _off_rule(story: Story, key: Key, n: int, seq: int | None, what: str) -> Iterator[Finding]:
    schedule = story.schedules.get(key[0])
    rule = None if schedule is None else schedule.rules.of(n, seq)
    if rule is None:
        yield _about(story, key, "I2", f"is a {what} of no version of any schedule", "unexpected")
    elif (right := rule.number(key[2])) is None:
        yield _about(story, key, "I2", f"is a {what} that its rule ({rule}) does not plan", "unexpected")
    elif right != n:
        yield _about(story, key, "I2", f"is a {what} with the number {n}; by its rule ({rule}) it has {right}")


def i2_versions_begin_where_they_should(story: Story) -> Iterator[Finding]:
    for schedule in story.schedules.values():
        before: Rule | None = None
        for rule in schedule.rules.versions:
            yield from _wrong_start(schedule, rule)
            if before is None and (rule.after_n != 0 or rule.after_at >= rule.start):
                yield Finding("I2", schedule.name, None, "its numbers do not begin with its first planned time")
            before = rule
        yield from _too_many_runs(story, schedule)


def _wrong_start(schedule: Schedule, rule: Rule) -> Iterator[Finding]:
    stored = datetime.fromisoformat(rule.row["anchor_at"]), datetime.fromisoformat(rule.row["start_at"])
    if stored != (rule.anchor, rule.start):
        sentence = f"version {rule.row['version']} starts at {text(stored[1])}, it was asked to at {text(rule.start)}"
        yield Finding("I2", schedule.name, None, sentence)


def _too_many_runs(story: Story, schedule: Schedule) -> Iterator[Finding]:
    if None in schedule.values("max_runs"):
        return
    ran = sum(len(story.numbered.get((schedule.id, scope), ())) for scope in schedule.row["scopes"])
    if ran > schedule.largest("max_runs"):
        yield Finding("I2", schedule.name, None, f"ran {ran} times, more often than its max_runs allows", "unexpected")


def i4_a_tick_ends_where_its_execution_begins(story: Story) -> Iterator[Finding]:
    """In one transaction: or as a gap, or taken back with the cursor."""
    ends = {(key, tick.moment.xid) for key, ticks in story.ticks.items() for tick in ticks if tick.op == "DELETE"}
    begins = set()
    for key, executions in story.planned.items():
        for execution in executions:
            for state in execution.states:
                if state.op == "INSERT":
                    begins.add((key, state.moment.xid))
    for key, _ in begins - ends:
        yield _about(story, key, "I4", "became an execution in another transaction than the one that ended its tick")
    skipped = _gaps_by_transaction(story)
    for key, ticks in story.ticks.items():
        for tick in ticks:
            if tick.op != "DELETE" or (key, tick.moment.xid) in begins or _taken_back(story, key, tick):
                continue
            if not any(first <= tick.n <= last for first, last in skipped[key[0], key[1], tick.moment.xid]):
                yield _about(story, key, "I4", "lost its tick in a transaction that put nothing in its place")


def _taken_back(story: Story, key: Key, tick: Tick) -> bool:
    schedule = story.schedules.get(key[0])
    return schedule is not None and tick.moment.xid in schedule.began


def _gaps_by_transaction(story: Story) -> dict[tuple[str, str, int], list[tuple[int, int]]]:
    found: dict[tuple[str, str, int], list[tuple[int, int]]] = defaultdict(list)
    for (schedule, scope), gaps in story.gaps.items():
        for gap in gaps:
            found[schedule, scope, gap.moment.xid].append((gap.first_n, gap.last_n))
    return found


def i11_ids_derive(story: Story) -> Iterator[Finding]:
    for key, ticks in story.ticks.items():
        for tick in ticks:
            if tick.op == "INSERT" and tick.id != execution_id(*key):
                yield _about(story, key, "I11", f"has a tick with the id {tick.id}, which does not derive from it")
    for execution in story.executions.values():
        if execution.id != execution_id(*execution.key, execution.run):
            yield _about(story, execution.key, "I11", f"has the id {execution.id}, which does not derive from it")


def i12_planned_within_jitter(story: Story) -> Iterator[Finding]:
    jitter = {
        schedule.id: timedelta(milliseconds=schedule.largest("jitter_ms")) for schedule in story.schedules.values()
    }
    for key, ticks in story.ticks.items():
        for tick in ticks:
            late = tick.execute_at - key[2]
            if tick.op == "INSERT" and late < timedelta(0):
                yield _about(story, key, "I12", f"was to be executed {-late.total_seconds():g} s early", "early")
            elif tick.op == "INSERT" and late > jitter.get(key[0], timedelta(0)):
                yield _about(story, key, "I12", f"was put off by {late.total_seconds():g} s, more than its jitter")
    for execution in story.executions.values():
        began = execution.states[0].moment.at
        if began < execution.execute_at:
            sentence = f"became an execution {(execution.execute_at - began).total_seconds():g} s before it was due"
            yield _about(story, execution.key, "I12", sentence, "early")


def i19_cleanup_makes_nothing_run_again(story: Story) -> Iterator[Finding]:
    for key, executions in story.planned.items():
        removed = [moment.seq for execution in executions for moment in execution.removed]
        if not removed:
            continue
        again = any(state.op == "INSERT" and state.moment.seq > removed[0] for e in executions for state in e.states)
        if again or any(tick.op == "INSERT" and tick.moment.seq > removed[0] for tick in story.ticks.get(key, ())):
            yield _about(story, key, "I19", "was planned or executed again after clean-up had removed it", "duplicate")


def about(story: Story, execution: Execution, invariant: str, sentence: str, kind: Kind = "wrong") -> Finding:
    return _about(story, execution.key, invariant, f"{sentence} ({execution.id})", kind)


def _about(story: Story, key: Key, invariant: str, sentence: str, kind: Kind = "wrong") -> Finding:
    return Finding(invariant, story.name(key[0]), key[2], sentence, kind)
