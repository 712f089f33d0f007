"""Prints what caught the seeded bugs, also where other processes ran the tests."""

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    caught = [value for report in reports for name, value in report.user_properties if name == "caught"]
    if caught:
        terminalreporter.section("seeded bugs")
        for bug, drill, what in sorted(caught):
            terminalreporter.write_line(f"{bug:30} {drill:10} {what or 'NOT CAUGHT'}")
