"""What `fleetctl up` decides before it starts anything."""

import socket

import pytest

from fleet.cli.up import parse_scale, plan
from fleet.errors import UsageError
from fleet.roles import ROLES
from fleet.roles.supervisor import LONGEST_PAUSE, WELL_AFTER, Backoff
from fleet.settings import Settings

ONE_EACH = dict.fromkeys(ROLES, 1)


def test_every_role_runs_once_unless_told_otherwise() -> None:
    assert parse_scale("") == ONE_EACH
    assert parse_scale("dispatcher=3, ticker=2") == {**ONE_EACH, "dispatcher": 3, "ticker": 2}
    assert parse_scale("cleanup=0")["cleanup"] == 0


@pytest.mark.parametrize(
    "text", ["dispatcher", "dispatcher=", "dispatcher=-1", "api=1", "=2", "ticker=x", "ticker=101"]
)
def test_a_scale_that_makes_no_sense_is_refused_with_what_it_may_be(text: str) -> None:
    with pytest.raises(UsageError, match=r"--scale takes ROLE=N .* tick-generator, .*; got '"):
        parse_scale(text)


def test_a_port_somebody_else_has_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        taken = busy.getsockname()[1]
        processes = plan({**ONE_EACH, "dispatcher": 3}, Settings(port=taken))
    ports = [process.port for process in processes]
    assert taken not in ports
    assert len(set(ports)) == len(ROLES) + 2
    assert [process.name for process in processes if process.role == "dispatcher"] == [
        "dispatcher.1",
        "dispatcher.2",
        "dispatcher.3",
    ]


def test_an_address_that_is_not_ours_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match=r"HEALTH_ADDR is 192\.0\.2\.1"):
        plan(ONE_EACH, Settings(health_addr="192.0.2.1"))


def test_the_pause_before_a_restart_doubles_to_its_limit_and_starts_over_after_a_good_minute() -> None:
    backoff = Backoff()
    assert [backoff.after(lived=0) for _ in range(7)] == [1, 2, 4, 8, 16, 30, LONGEST_PAUSE]
    assert backoff.after(lived=WELL_AFTER) == 1
    assert backoff.after(lived=0) == 2
