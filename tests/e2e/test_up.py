"""`fleetctl up`, as a person runs it: a real process, its roles, its own Postgres and a server that it calls."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.postgres import is_running
from fleet.roles import ROLES
from support.processes import ROOT
from support.up import PATIENCE, Receiver, Up, alive, environment, running, until

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    one = Receiver()
    yield one
    one.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "data"


def add(up: Up, receiver: Receiver, name: str, *options: str) -> None:
    done = up.fleetctl("schedule", "add", name, "--every", "1s", "--jitter", "0", "--url", receiver.url, *options)
    assert done.returncode == 0, done.stderr


def test_one_command_runs_a_schedule_refuses_a_second_up_and_stops_in_order(data_dir: Path, receiver: Receiver) -> None:
    with running(data_dir, "--scale", "ticker=2") as up:
        told = up.started()
        assert told["data_dir"] == str(data_dir)
        assert (data_dir / "password").read_text().strip() not in told["database"]
        assert [role["name"] for role in told["roles"]].count("ticker.2") == 1

        add(up, receiver, "hello")
        until("the first call", lambda: receiver.received)

        second = up.fleetctl("up")
        assert second.returncode == 4
        assert str(data_dir) in second.stderr
        assert f"pid {up.process.pid}" in second.stderr
        assert len(second.stderr.splitlines()) == 1

        assert up.stop() == 0
        assert not is_running(data_dir)
        assert {event["exit_code"] for event in up.events("role.ended")} == {0}


def test_a_role_that_is_killed_is_started_again_and_the_others_are_left_alone(
    data_dir: Path, receiver: Receiver
) -> None:
    with running(data_dir) as up:
        up.started()
        before = {role: up.pid_of(role) for role in ROLES}
        os.kill(before["ticker"], signal.SIGKILL)
        until("the restart", lambda: up.events("role.restarted"))
        after = {role: up.pid_of(role) for role in ROLES}
        assert {role for role in ROLES if before[role] != after[role]} == {"ticker"}

        add(up, receiver, "hello")
        until("a call by the new ticker", lambda: receiver.received)


def test_postgres_killed_under_it_comes_back_and_schedules_go_on(data_dir: Path, receiver: Receiver) -> None:
    with running(data_dir) as up:
        up.started()
        add(up, receiver, "hello")
        until("the first call", lambda: receiver.received)
        os.kill(int((data_dir / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
        seen = len(receiver.received)
        until("calls after the crash", lambda: len(receiver.received) > seen + 2)
        assert not up.events("role.restarted")


def test_the_roles_of_an_up_that_was_killed_drain_and_stop_postgres(data_dir: Path) -> None:
    with running(data_dir) as up:
        up.started()
        roles = [up.pid_of(role) for role in ROLES]
        up.stop(signal.SIGKILL)
        until("its roles to end", lambda: not any(map(alive, roles)))
        until("postgres to stop", lambda: not is_running(data_dir))


def test_after_kill_9_of_everything_up_goes_on_where_it_was(data_dir: Path, receiver: Receiver) -> None:
    with running(data_dir) as up:
        up.started()
        receiver.status = 503
        add(up, receiver, "retried", "--overlap", "allow", "--backoff", "1s")
        until("an attempt", lambda: receiver.received)
        up.kill_everything()
    receiver.status = 200
    before = {request["webhook-id"] for request in receiver.received}
    with running(data_dir) as up:
        up.started()
        assert [schedule["name"] for schedule in up.ask("schedule", "list")] == ["retried"]

        def delivered() -> set[str]:
            return {row["id"] for row in up.ask("execution", "list", "--status", "delivered")}

        until("the retry of what had failed before", lambda: before & delivered())
        until("new planned times", lambda: delivered() - before)
        verified = up.fleetctl("verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_stop_waits_for_the_request_in_flight(data_dir: Path, receiver: Receiver) -> None:
    with running(data_dir) as up:
        up.started()
        receiver.gate.clear()
        add(up, receiver, "slow", "--max-runs", "1")
        until("the request", lambda: receiver.received)
        up.process.send_signal(signal.SIGTERM)
        until("the dispatcher to drain", lambda: [e for e in up.events("role.draining") if e["role"] == "dispatcher"])
        receiver.gate.set()
        assert up.process.wait(PATIENCE) == 0
        [execution] = up.ask("execution", "list")
        assert (execution["status"], execution["attempt"]) == ("delivered", 1)


def test_a_second_interrupt_does_not_wait(data_dir: Path, receiver: Receiver) -> None:
    with running(data_dir) as up:
        up.started()
        receiver.gate.clear()
        add(up, receiver, "slow")
        until("the request", lambda: receiver.received)
        up.process.send_signal(signal.SIGINT)
        until("the dispatcher to drain", lambda: [e for e in up.events("role.draining") if e["role"] == "dispatcher"])
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(PATIENCE) == 1
        assert "dispatcher.1" in {event["process"] for event in up.events("role.killed")}
        assert not is_running(data_dir)


def test_on_a_database_of_ones_own_it_migrates_and_may_run_twice(data_dir: Path, empty_dsn: str) -> None:
    with running(data_dir, env={"DATABASE_URL": empty_dsn}) as one:
        one.started()
        with running(data_dir, env={"DATABASE_URL": empty_dsn}) as two:
            assert two.started()["data_dir"] is None
            assert two.stop() == 0
        assert one.stop() == 0
    assert not data_dir.exists()


def test_the_procfile_runs_under_honcho(data_dir: Path) -> None:
    honcho = Path(sys.executable).with_name("honcho")
    log = data_dir.with_name("honcho.log")
    path = f"{honcho.parent}{os.pathsep}{os.environ['PATH']}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [honcho, "start", "-c", "dispatcher=2"],
            cwd=ROOT,
            env=environment(data_dir, PATH=path),
            stdout=output,
            stderr=output,
        )
    try:
        started = until("six roles", lambda: log.read_text().count('"role.started"') == len(ROLES) + 1)
        assert started
        assert "dispatcher.2" in log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)
    assert log.read_text().count("stopped (rc=0)") == len(ROLES) + 1
    assert not is_running(data_dir)
