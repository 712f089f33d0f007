"""The checker itself on trial: it must pass a history in which all is well, and catch every single thing put wrong."""

import itertools
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from chaos import checker
from chaos.book import Book
from chaos.builder import instant
from chaos.checker_rules import execution_id
from chaos.clean import DAY, HOUR, clean
from chaos.history import load
from chaos.wrongs import OTHER_ID, WRONG
from fleet.domain import identity


def test_a_history_in_which_all_is_well_passes() -> None:
    verdict = checker.check(clean())

    assert verdict.ok, verdict.text()
    assert verdict.text().startswith("Every promise held.")


def test_the_figures_of_a_history_are_told() -> None:
    verdict = checker.check(clean())

    assert (verdict.lost, verdict.unexpected, verdict.duplicates_unexplained) == (0, 0, 0)
    assert (verdict.stale_writes, verdict.early) == (0, 0)
    assert verdict.duplicates_explained == 6
    assert verdict.recovered == 2
    assert verdict.takeovers == 2
    assert verdict.takeover_max == pytest.approx(1.0)
    assert verdict.lateness["p50"] == pytest.approx(0.03)
    assert verdict.lateness["max"] == pytest.approx(17.1)


def test_a_history_is_the_same_after_it_was_written_and_read(tmp_path: Path) -> None:
    history = clean()
    history.save(tmp_path)
    again = load(tmp_path)

    assert list(again.changes) == list(history.changes)
    assert (again.asked, again.receipts, again.faults) == (history.asked, history.receipts, history.faults)
    assert again.final == history.final
    assert checker.main([str(tmp_path)]) == 0


def test_a_line_cut_off_by_the_death_of_its_writer_is_no_receipt(tmp_path: Path) -> None:
    clean().save(tmp_path)
    with (tmp_path / "receipts.jsonl").open("a") as file:
        file.write('{"at": "2026-')

    assert checker.main([str(tmp_path)]) == 0


def test_the_command_says_what_is_wrong_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book = Book(clean())
    book.drop("executions", "plain", n=2)
    book.history().save(tmp_path)

    assert checker.main([str(tmp_path)]) == 1
    assert "I3 plain 2026-03-27T03:00:00Z: of the numbers 2 to 2, 1 became neither" in capsys.readouterr().out
    assert checker.main([str(tmp_path / "nowhere")]) == 2


def test_the_checkers_ids_are_the_fleets() -> None:
    schedule = UUID("6f1c9d5e-8d0b-4f54-9c55-2f0f3c1f7a11")
    for scope, run in itertools.product(("", "north"), ("", "retry-1")):
        assert execution_id(str(schedule), scope, instant(12.345), run) == str(
            identity.execution_id(schedule, scope, instant(12.345), run)
        )


@pytest.mark.parametrize("what", WRONG)
def test_every_single_wrong_is_caught_under_its_promise(what: str) -> None:
    invariant, *steps = WRONG[what]
    book = Book(clean())
    for put_wrong in steps:
        put_wrong(book)

    verdict = checker.check(book.history())

    assert invariant in verdict.by_invariant(), verdict.text()
    assert not verdict.ok


def test_what_was_lost_shows_by_id_and_blind() -> None:
    book = Book(clean())
    book.unreceive("cron")

    verdict = checker.check(book.history())

    assert verdict.lost == verdict.by_id.lost == verdict.by_time.lost == 4
    assert "matching" not in verdict.by_invariant()


def test_receipts_that_fit_by_time_but_not_by_id_are_told() -> None:
    book = Book(clean())
    book.receipt("cron", execution=OTHER_ID)

    assert {"I6", "I7", "matching"} <= checker.check(book.history()).by_invariant().keys()


def test_a_settled_history_has_no_lateness_for_an_excuse() -> None:
    book = Book(clean())
    book.drop("executions", "cron", n=4)
    at = instant(3 * DAY + 0.5 * HOUR + 30)
    book.changes = [change for change in book.changes if change.at <= at]
    book.final = replace(book.final, database_now=at, ended_at=at)
    assert "I3" not in checker.check(book.history()).by_invariant()

    book.final = replace(book.final, settled=True)
    assert "I3" in checker.check(book.history()).by_invariant()
