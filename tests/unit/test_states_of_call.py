"""The states that each call of a run enters, and what of a map is a result."""

from __future__ import annotations

import pytest

from icekeeper.pipeline.deployment import states_of_call
from icekeeper.pipeline.events import ReportRunEvent, parse_event

RESULT = {"table": "sales.orders", "status": "succeeded", "summary": "compact: done"}
WAITING = {**RESULT, "status": "waiting", "plan": {"key": "k", "digest": "d"}}
PLACE = {"bucket": "b", "key": "k"}


def test_what_waits_is_no_result_in_either_map() -> None:
    event = {"run_id": "r", "tables": [WAITING], "in_one_call": [RESULT, WAITING, None]}
    parsed = parse_event(ReportRunEvent, event)
    assert (len(parsed.tables), [one.status for one in parsed.in_one_call]) == (0, ["succeeded"])


@pytest.mark.parametrize(
    ("proposed", "in_one_call", "states"),
    [(0, 0, 3), (2, 0, 5), (2, 2, 4), (2, 1, 7)],
)
def test_the_states_around_tables_are_counted_where_they_are_assigned(
    proposed: int, in_one_call: int, states: int
) -> None:
    counts = {"proposals": proposed, "in_one_call": in_one_call, "rest": proposed - in_one_call}
    answer = {name: {**PLACE, "count": count} for name, count in counts.items()}
    assert states_of_call("detect", {}, answer) == states


@pytest.mark.parametrize(("left", "rest", "states"), [(1, 1, 4), (1, 3, 1)])
def test_the_second_map_is_counted_once(left: int, rest: int, states: int) -> None:
    event = {"run_id": "r", "left": [{}] * left}
    assert states_of_call("plan", event, {**PLACE, "count": rest}) == states


def test_a_call_that_hands_on_is_one_state_and_another_three() -> None:
    assert states_of_call("maintain_small", {"hands_on": True}, RESULT) == 1
    assert states_of_call("maintain_small", {}, {"report": RESULT}) == 3
