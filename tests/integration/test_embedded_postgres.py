"""The embedded Postgres as people use it: real servers, real processes, killed the hard way."""

import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest

from fleet.errors import FleetError
from fleet.postgres import Server, attach, find_binaries, is_running
from fleet.postgres.binaries import major_version

# Attaches, says so, and stays until its input ends (or it is killed).
USER = """
import sys
from pathlib import Path
from fleet.postgres import attach
server = attach(Path(sys.argv[1]))
print(server.dsn, flush=True)
sys.stdin.read()
"""


class User:
    """Another process that uses the server."""

    def __init__(self, data_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(data_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def dsn(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def leave(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    """A folder for one server, which is not left running whatever the test did."""
    folder = tmp_path / "pg"
    yield folder
    if is_running(folder):
        os.kill(postmaster_pid(folder), signal.SIGKILL)


def postmaster_pid(data_dir: Path) -> int:
    return int((data_dir / "data" / "postmaster.pid").read_text().splitlines()[0])


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "what the test waits for did not happen within 60 s"
        time.sleep(0.01)


def kill_postmaster(data_dir: Path) -> None:
    os.kill(postmaster_pid(data_dir), signal.SIGKILL)
    wait_until(lambda: not is_running(data_dir))


def fill(server: Server) -> None:
    with psycopg.connect(server.dsn) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        connection.execute("INSERT INTO kept SELECT generate_series(1, 1000)")


def rows(server: Server) -> int:
    with psycopg.connect(server.dsn) as connection:
        found = connection.execute("SELECT count(*) FROM kept").fetchone()
    assert found is not None
    return int(found[0])


def setting(server: Server, name: str) -> str:
    with psycopg.connect(server.dsn) as connection:
        found = connection.execute("SELECT current_setting(%s)", [name]).fetchone()
    assert found is not None
    return str(found[0])


def test_it_starts_in_an_empty_place_and_stops_with_its_only_user(data_dir: Path) -> None:
    server = attach(data_dir)
    assert is_running(data_dir)
    assert server.dsn.startswith("postgresql://fleet:")
    assert setting(server, "fsync") == "on"
    assert setting(server, "TimeZone") == "UTC"
    assert setting(server, "max_connections") == "200"
    server.close()
    assert not is_running(data_dir)
    server.close()


def test_nobody_else_can_read_the_password(data_dir: Path) -> None:
    server = attach(data_dir)
    try:
        assert (data_dir / "dsn").read_text().strip() == server.dsn
        for name in ("dsn", "password", "postgres.log"):
            assert stat.S_IMODE((data_dir / name).stat().st_mode) == 0o600, name
        assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(server.dsn.replace("fleet:", "fleet:x"))
    finally:
        server.close()


def test_rows_and_port_are_kept_over_a_restart(data_dir: Path) -> None:
    first = attach(data_dir)
    fill(first)
    first.close()
    second = attach(data_dir)
    assert rows(second) == 1000
    assert second.dsn == first.dsn
    second.close()


def test_two_processes_share_one_server_and_the_last_one_out_stops_it(data_dir: Path) -> None:
    server = attach(data_dir)
    other = User(data_dir)
    assert other.dsn() == server.dsn
    server.close()
    assert is_running(data_dir)
    other.leave()
    assert not is_running(data_dir)


def test_the_process_that_started_it_may_die_before_the_others(data_dir: Path) -> None:
    starter = User(data_dir)
    dsn = starter.dsn()
    server = attach(data_dir)
    starter.kill()
    fill(server)
    assert server.dsn == dsn
    server.close()
    assert not is_running(data_dir)


def test_a_server_whose_users_were_all_killed_is_found_and_stopped_by_the_next(data_dir: Path) -> None:
    user = User(data_dir)
    dsn = user.dsn()
    user.kill()
    assert is_running(data_dir)
    server = attach(data_dir)
    assert server.dsn == dsn
    server.close()
    assert not is_running(data_dir)


def test_two_attaches_at_once_bring_up_one_server(data_dir: Path) -> None:
    users = [User(data_dir), User(data_dir), User(data_dir)]
    assert len({user.dsn() for user in users}) == 1
    for user in users:
        user.leave()
    assert not is_running(data_dir)
    assert (data_dir / "postgres.log").read_text().count("ready to accept connections") == 1


def test_attaching_while_the_last_one_leaves_always_gives_a_server_that_answers(data_dir: Path) -> None:
    failures: list[Exception] = []

    def come_and_go() -> None:
        try:
            for _ in range(8):
                server = attach(data_dir)
                setting(server, "port")
                server.close()
        except (FleetError, psycopg.Error) as error:
            failures.append(error)

    threads = [threading.Thread(target=come_and_go) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not is_running(data_dir)


def test_rows_survive_kill_9_of_the_postmaster_with_sessions_open(data_dir: Path) -> None:
    server = attach(data_dir)
    fill(server)
    session = psycopg.connect(server.dsn)
    kill_postmaster(data_dir)
    again = attach(data_dir)
    assert rows(again) == 1000
    assert again.dsn == server.dsn
    session.close()
    server.close()
    assert is_running(data_dir)
    again.close()
    assert not is_running(data_dir)


def test_a_stale_pid_that_now_belongs_to_another_process_does_not_hinder_the_start(data_dir: Path) -> None:
    server = attach(data_dir)
    fill(server)
    kill_postmaster(data_dir)
    server.close()
    stranger = subprocess.Popen(["sleep", "600"])
    try:
        pid_file = data_dir / "data" / "postmaster.pid"
        left = pid_file.read_text().splitlines(keepends=True)
        pid_file.write_text("".join([f"{stranger.pid}\n", *left[1:]]))
        assert not is_running(data_dir)
        again = attach(data_dir)
        assert rows(again) == 1000
        again.close()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_pid_file_cut_short_by_a_crash_does_not_hinder_the_start(data_dir: Path) -> None:
    attach(data_dir).close()
    (data_dir / "data" / "postmaster.pid").write_text("")
    server = attach(data_dir)
    assert is_running(data_dir)
    server.close()


def test_an_initdb_that_was_killed_is_done_again(data_dir: Path) -> None:
    (data_dir / "data.new" / "base").mkdir(parents=True)
    server = attach(data_dir)
    assert setting(server, "server_encoding") == "UTF8"
    server.close()
    assert not (data_dir / "data.new").exists()


def test_data_of_another_major_version_is_refused_and_left_alone(data_dir: Path) -> None:
    data = data_dir / "data"
    data.mkdir(parents=True)
    (data / "PG_VERSION").write_text("9\n")
    ours = major_version(find_binaries(os.environ))
    with pytest.raises(FleetError, match=rf"made by Postgres 9, but .* are Postgres {ours}"):
        attach(data_dir)
    assert [path.name for path in data.iterdir()] == ["PG_VERSION"]
    assert not is_running(data_dir)


def test_a_socket_path_that_is_too_long_leaves_tcp_alone(tmp_path: Path) -> None:
    server = attach(tmp_path / ("long" * 30))
    assert setting(server, "unix_socket_directories") == ""
    server.close()


def test_a_folder_name_with_spaces_quotes_and_commas_works(tmp_path: Path) -> None:
    server = attach(tmp_path / 'a, "b" c')
    port = setting(server, "port")
    sockets = [path.name for path in (server.data_dir / "socket").iterdir()]
    # Where the test folder itself is too deep for a socket, there is none.
    assert f".s.PGSQL.{port}" in sockets or setting(server, "unix_socket_directories") == ""
    server.close()


def test_a_folder_that_cannot_be_used_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FleetError, match=r"cannot use the folder .*file/pg .*; choose one you may write to"):
        attach(tmp_path / "file" / "pg")


def test_a_server_that_cannot_start_says_why(data_dir: Path) -> None:
    attach(data_dir).close()
    with (data_dir / "data" / "postgresql.conf").open("a") as conf:
        conf.write("no_such_setting = 1\n")
    with pytest.raises(FleetError, match=r"did not start: .*postgres.log"):
        attach(data_dir)


def test_pg_variables_of_the_user_do_not_reach_the_server(data_dir: Path) -> None:
    hostile = {"PGDATA": "/nowhere", "PGPORT": "1", "PGUSER": "somebody", "PGOPTIONS": "-c x=y", "PGTZ": "Asia/Tokyo"}
    server = attach(data_dir, {**os.environ, **hostile})
    assert setting(server, "TimeZone") == "UTC"
    server.close()


def test_a_wrong_fleet_pg_bin_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match=r"FLEET_PG_BIN is .*; point it at"):
        find_binaries({"FLEET_PG_BIN": str(tmp_path)})


def test_fleet_pg_bin_comes_first(tmp_path: Path) -> None:
    for name in ("initdb", "postgres"):
        (tmp_path / name).write_text("")
    assert find_binaries({"FLEET_PG_BIN": str(tmp_path)}) == tmp_path
