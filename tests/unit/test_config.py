"""Settings: flag > environment > TOML > default, every mistake at once, no password shown."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from fleet.cli.config import config
from fleet.config import Settings, describe, load, load_with_origin
from fleet.errors import UsageError


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write(path: str, text: str) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def problems(**sources: object) -> str:
    with pytest.raises(UsageError) as caught:
        load(**{"environ": {}, **sources})  # type: ignore[arg-type]
    return str(caught.value)


def test_without_anything_the_defaults_hold() -> None:
    settings = load(environ={})
    assert settings == Settings()
    assert (settings.database_url, settings.lookahead, settings.port) == (None, timedelta(seconds=60), None)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default() -> None:
    write("fleet.toml", 'tick_batch = 1\nlease = "21s"\nshard_count = 4\n')
    environ = {"LEASE": "22s", "SHARD_COUNT": "5"}
    loaded = load_with_origin({"shard_count": 6, "shard_id": None}, environ)
    assert (loaded.settings.tick_batch, loaded.settings.lease, loaded.settings.shard_count) == (
        1,
        timedelta(seconds=22),
        6,
    )
    names = ("tick_batch", "lease", "shard_count", "shard_id")
    assert [loaded.origins[name] for name in names] == ["fleet.toml", "environment", "flag", "default"]


def test_the_file_is_the_named_one_before_those_in_their_usual_places() -> None:
    write("fleet.toml", "tick_batch = 1")
    assert load(environ={}).tick_batch == 1
    write("config/fleet.toml", "tick_batch = 2")
    assert load(environ={}).tick_batch == 2
    write("other.toml", "tick_batch = 3")
    assert load(environ={"FLEET_CONFIG": "other.toml"}).tick_batch == 3
    assert load(environ={"FLEET_CONFIG": "missing.toml"}, toml=Path("other.toml")).tick_batch == 3


def test_a_named_file_that_is_missing_or_broken_is_a_mistake() -> None:
    assert "missing.toml has 1 problem:\n  it cannot be read" in problems(environ={"FLEET_CONFIG": "missing.toml"})
    assert "it is not valid TOML" in problems(toml=write("bad.toml", "a = = 1"))


def test_all_mistakes_of_all_sources_are_reported_at_once() -> None:
    write("config/fleet.toml", 'tick_batch = 0\nlook_ahead = "60s"\ngenerate_batch = true\n')
    text = problems(flags={"log_level": "loud"}, environ={"LEASE": "2s", "SHARD_ID": "3", "FLEET_DATADIR": "x"})
    assert text == (
        "config/fleet.toml has 3 problems:\n"
        "  look_ahead is not a setting; did you mean lookahead?\n"
        "  generate_batch must be a whole number from 1 to 100000, got true\n"
        "  tick_batch must be a whole number from 1 to 100000, got 0\n"
        "the environment has 3 problems:\n"
        "  FLEET_DATADIR is not a setting; did you mean FLEET_DATA_DIR?\n"
        '  LEASE must be a duration from 3s to 1h, such as 15s, got "2s"\n'
        "  SHARD_ID (3) must be below shard_count (1), since shards count from 0\n"
        "the command line has 1 problem:\n"
        '  --log-level must be debug, info, warning or error, got "loud"'
    )


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({"LOOKAHEAD": "5s"}, "LOOKAHEAD (5s) must be at least generate_interval (10s)"),
        ({"DB_MAX_OPEN_CONNS": "1"}, "db_max_idle_conns (2) must be at most DB_MAX_OPEN_CONNS (1)"),
        ({"SHARD_ID": "2", "SHARD_COUNT": "2"}, "SHARD_ID (2) must be below SHARD_COUNT (2)"),
        ({"HEALTH_ADDR": "0.0.0.0:80"}, "HEALTH_ADDR must be a host name or address without a port"),
        ({"METRICS_ENABLED": "maybe"}, 'METRICS_ENABLED must be true or false, got "maybe"'),
        ({"PORT": "70000"}, "PORT must be a whole number from 0 to 65535"),
        ({"TICK_BATCH": "\u0663"}, "TICK_BATCH must be a whole number"),
        ({"LEASE": "15"}, "LEASE must be a duration"),
        ({"EGRESS_ALLOW": "10.0.0.1/8"}, "EGRESS_ALLOW must be networks separated by commas, such as 10.20.0.0/16"),
        ({"EGRESS_ALLOW": "10.0.0.0/8,db.local"}, 'got "10.0.0.0/8,db.local"'),
        ({"FLEET_LEASE": "15s"}, "FLEET_LEASE is not a setting; did you mean LEASE?"),
    ],
)
def test_a_mistake_is_named_with_what_is_allowed(environ: dict[str, str], sentence: str) -> None:
    assert sentence in problems(environ=environ)


def test_networks_are_a_list_in_the_file_and_text_with_commas_elsewhere() -> None:
    write("fleet.toml", 'egress_allow = ["10.20.0.0/16", "::1"]')
    from_file = load_with_origin(environ={})
    assert from_file.settings.egress_allow == load(environ={"EGRESS_ALLOW": "10.20.0.0/16, ::1/128"}).egress_allow
    assert [row.value for row in describe(from_file) if row.name == "egress_allow"] == ["10.20.0.0/16,::1/128"]


def test_names_that_are_not_fleets_settings_are_left_alone() -> None:
    load(
        environ={
            "LEESE": "x",
            "FLEET_FAILPOINT_X": "1",
            "FLEET_PG_BIN": "/x",
            "FLEET_API_URL": "u",
            "FLEET_API_KEY": "k",
        }
    )


def test_what_kubernetes_adds_for_a_service_named_fleet_is_no_mistake() -> None:
    load(environ={"FLEET_SERVICE_HOST": "10.0.0.1", "FLEET_API_PORT": "tcp://x", "FLEET_API_PORT_8080_TCP_ADDR": "x"})


def test_an_empty_variable_counts_as_unset() -> None:
    assert load(environ={"DATABASE_URL": "", "LEASE": ""}) == Settings()


def test_a_secret_may_come_from_a_file_and_the_variable_itself_wins() -> None:
    write("secret", "postgresql://h/a\n")
    assert load(environ={"DATABASE_URL_FILE": "secret"}).database_url == "postgresql://h/a"
    environ = {"DATABASE_URL_FILE": "secret", "DATABASE_URL": "postgresql://h/b"}
    assert load(environ=environ).database_url == "postgresql://h/b"
    assert "DATABASE_URL_FILE names nowhere, which cannot be read" in problems(environ={"DATABASE_URL_FILE": "nowhere"})


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://u:hunter2@h:5432/db",
        "postgresql://u:hunter2/@hunter2@h1,h2/db",
        "postgresql://h/db?user=u&password=hunter2&sslmode=require",
        "postgresql://h/db?pass%77ord=hunter2",
        "postgresql://h/db?password=hunter2@hunter2",
        "host=h password=hunter2 user=u",
        "host=h password=hunter2://hunter2 user=u",
        r"host=h password='hunter2 \' hunter2' user=u",
    ],
)
def test_the_password_of_the_database_is_used_but_never_shown(address: str) -> None:
    loaded = load_with_origin(environ={"DATABASE_URL": address})
    assert loaded.settings.database_url == address
    assert "hunter2" not in str(describe(loaded)) + repr(loaded)
    assert "***" in describe(loaded)[0].value


@pytest.mark.parametrize("address", ["mysql://u:hunter2@h/db", "u:hunter2@h/db", "hunter2"])
def test_an_address_that_is_refused_does_not_show_its_password_either(address: str) -> None:
    assert "hunter2" not in problems(environ={"DATABASE_URL": address})
    assert "hunter2" not in problems(toml=write("list.toml", f'database_url = ["{address}"]'))


def test_config_show_prints_each_setting_and_its_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASE", "20s")
    shown = CliRunner().invoke(config, ["show", "--origin"])
    assert shown.exit_code == 0
    assert ["lease", "20s", "environment"] in [line.split() for line in shown.output.splitlines()]
    rows = json.loads(CliRunner().invoke(config, ["show", "--json"]).output)
    assert [row["name"] for row in rows] == list(Settings.model_fields)


def test_config_check_prints_one_line_or_fails_with_every_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = CliRunner().invoke(config, ["check"])
    assert (fine.exit_code, len(fine.output.splitlines())) == (0, 1)
    monkeypatch.setenv("LEASE", "1s")
    monkeypatch.setenv("TICK_BATCH", "0")
    failed = CliRunner().invoke(config, ["check"])
    assert isinstance(failed.exception, UsageError)
    assert failed.exception.exit_code == 2
    assert "LEASE" in str(failed.exception)
    assert "TICK_BATCH" in str(failed.exception)
