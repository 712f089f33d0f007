"""What fleetctl schedule refuses: in one sentence, with the right exit code, and nothing changed."""

from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

from support.fleetctl import Fleetctl, counts, ended

URL = ("--url", "http://127.0.0.1:9/")
COMMANDS = ("show", "update", "pause", "resume", "trigger", "cancel", "retry", "delete", "next", "history", "stats")


@pytest.fixture
def fleetctl(dsn: str) -> Fleetctl:
    return Fleetctl(dsn)


REFUSED = {
    "an impossible cron": (["x", "--cron", "0 0 30 2 *", *URL], 2, "0 0 30 2 *"),
    "a bad zone": (["x", "--cron", "0 0 * * *", "--tz", "Mars/Olympus", *URL], 2, "Mars/Olympus"),
    "a URL without host": (["x", "--every", "30s", "--url", "http:///path"], 2, "host"),
    "a negative interval": (["x", "--every", "-30s", *URL], 2, "negative"),
    "a duplicate name": (["taken", "--every", "30s", *URL], 4, "exists already"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_in_one_sentence_and_changes_nothing(fleetctl: Fleetctl, case: str) -> None:
    arguments, code, words = REFUSED[case]
    fleetctl.json("schedule", "add", "taken", "--every", "1h", *URL)
    before = counts(fleetctl.dsn)
    answer = fleetctl.process("schedule", "add", *arguments)
    assert (answer.code, answer.out) == (code, "")
    assert answer.err.startswith("fleetctl: ")
    assert answer.err.count("\n") == 1
    assert words in answer.err
    assert counts(fleetctl.dsn) == before


def test_a_payload_over_256_kib_is_refused(fleetctl: Fleetctl, tmp_path: Path) -> None:
    file = tmp_path / "payload.json"
    file.write_text(f'"{"x" * (256 * 1024 - 2)}"')
    fleetctl.json("schedule", "add", "largest", "--every", "30s", *URL, "--payload", f"@{file}")
    before = counts(fleetctl.dsn)
    file.write_text(f'"{"x" * (256 * 1024 - 1)}"')
    answer = fleetctl.process("schedule", "add", "x", "--every", "30s", *URL, "--payload", f"@{file}")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "262145 bytes" in answer.err
    assert counts(fleetctl.dsn) == before


@pytest.mark.parametrize(("replaced", "words"), [("database", "does not exist"), ("password", "password")])
def test_a_database_that_is_not_there_or_refuses_us_is_said_without_the_password(
    fleetctl: Fleetctl, replaced: str, words: str
) -> None:
    before = counts(fleetctl.dsn)
    parts = urlsplit(fleetctl.dsn)
    if replaced == "database":
        elsewhere = parts._replace(path="/nowhere")
    else:
        elsewhere = parts._replace(netloc=parts.netloc.replace(f":{parts.password}@", ":wr0ng@"))
    answer = Fleetctl(urlunsplit(elsewhere)).process("schedule", "add", "x", "--every", "30s", *URL)
    assert (answer.code, answer.out, answer.err.count("\n")) == (5, "", 1)
    assert words in answer.err
    assert "DATABASE_URL" in answer.err
    assert "wr0ng" not in answer.err
    assert str(parts.password) not in answer.err
    assert counts(fleetctl.dsn) == before


def test_a_database_without_schema_is_told_how_to_get_it(empty_dsn: str) -> None:
    answer = Fleetctl(empty_dsn)("schedule", "list")
    assert answer.code == 5
    assert "fleetctl db upgrade" in answer.err


def test_of_two_that_add_the_same_name_at_once_one_is_refused(fleetctl: Fleetctl) -> None:
    arguments = ("schedule", "add", "same", "--every", "1h", *URL)
    answers = [ended(process) for process in [fleetctl.start(*arguments), fleetctl.start(*arguments)]]
    assert sorted(answer.code for answer in answers) == [0, 4]
    assert counts(fleetctl.dsn)["cron_schedules"] == 1


@pytest.mark.parametrize("name", ["", "x" * 201, " blank", "tab\tinside", "line\nbreak", "\u202eevil"])
def test_a_name_that_would_confuse_is_refused(fleetctl: Fleetctl, name: str) -> None:
    answer = fleetctl("schedule", "add", name, "--every", "1h", *URL)
    assert answer.code == 2
    assert "name" in answer.err
    assert answer.err.count("\n") == 1
    assert counts(fleetctl.dsn)["cron_schedules"] == 0


@pytest.mark.parametrize(
    "name", ["täglich 🚀", "x" * 200, "[bold]not markup[/bold]", "'; DROP TABLE gaps; --", "100%s"]
)
def test_a_strange_name_is_kept_as_it_is(fleetctl: Fleetctl, name: str) -> None:
    assert fleetctl.json("schedule", "add", name, "--every", "1h", *URL)["name"] == name
    assert fleetctl.json("schedule", "show", name)["name"] == name
    assert name in fleetctl("schedule", "list").out
    assert [found["name"] for found in fleetctl.json("schedule", "list", "--search", name[:100])] == [name]


def test_arguments_that_are_not_utf8_are_refused(fleetctl: Fleetctl) -> None:
    answer = fleetctl.process("schedule", "show", b"caf\xe9")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "UTF-8" in answer.err


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--every", "1h", "--cron", "@daily"),
        ("--every", "0"),
        ("--every", "36500d"),
        ("--every", "30d", "--jitter", "25d"),
        ("--every", "30s", "--jitter", "30s"),
        ("--cron", "@daily", "--jitter", "10%"),
        ("--cron", "@daily", "--align"),
        ("--at", "2020-01-01T00:00:00Z"),
        ("--at", "9999-12-31T00:00:00Z"),
        ("--every", "1h", "--start", "0001-01-01T00:00:00Z"),
        ("--every", "1h", "--end", "1h ago"),
        ("--every", "1h", "--max-runs", "0"),
        ("--every", "1h", "--misfire-grace", "36500d"),
        ("--every", "1h", "--catch-up-window", "0"),
        ("--every", "1h", "--catch-up", "sometimes"),
        ("--every", "1h", "--catch-up", "all", "--overlap", "skip"),
        ("--every", "1h", "--max-plans-per-tick", "0"),
        ("--every", "1h", "--timeout", "2m"),
        ("--every", "1h", "--max-attempts", "0"),
        ("--every", "1h", "--backoff", "2d"),
        ("--every", "1h", "--stale-timeout", "1s"),
        ("--every", "1h", "--delivery", "exactly-once"),
        ("--every", "1h", "--header", "Host: x"),
        ("--every", "1h", "--method", "BREW"),
        ("--every", "1h", "--payload", "{"),
        ("--every", "1h", "--workspace", ""),
    ],
    ids=" ".join,
)
def test_an_option_out_of_bounds_is_refused(fleetctl: Fleetctl, options: tuple[str, ...]) -> None:
    answer = fleetctl("schedule", "add", "x", *URL, *options)
    assert (answer.code, answer.out) == (2, "")
    assert counts(fleetctl.dsn)["cron_schedules"] == 0


@pytest.mark.parametrize("command", COMMANDS)
def test_a_schedule_that_does_not_exist_is_said_by_every_command(fleetctl: Fleetctl, command: str) -> None:
    answer = fleetctl("schedule", command, "nobody", *(["--note", "x"] if command == "update" else []))
    assert answer.code == 3
    assert answer.err == (
        "fleetctl: schedule 'nobody' does not exist in workspace 'system'; see `fleetctl schedule list`\n"
    )
