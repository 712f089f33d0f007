"""The states of an execution, and the diagram that explains them."""

import re

from fleet.domain import execution
from fleet.domain.execution import TRANSITIONS, Status


def test_every_status_says_where_it_may_lead() -> None:
    assert set(TRANSITIONS) == set(Status)


def test_delivered_failed_and_cancelled_are_final_and_nothing_else_is() -> None:
    assert {status for status in Status if status.is_final} == {Status.DELIVERED, Status.FAILED, Status.CANCELLED}


def test_the_diagram_in_the_docstring_is_the_table_in_the_code() -> None:
    arrows = set(re.findall(r"(\w+) -> (\w+)", execution.__doc__ or ""))

    assert arrows == {(start.value, end.value) for start, ends in TRANSITIONS.items() for end in ends}
