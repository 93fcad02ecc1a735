"""A run whose definition has one map only, of the version before: its events are understood (rule 148)."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.pipeline.events import PlanEvent, ReportRunEvent, parse_event
from icekeeper.pipeline.transitions import states_of_call
from icekeeper.pipeline.wave_document import WaveEvent
from icekeeper.pipeline.whole_pass import WholePassEvent
from support.lambda_functions import sample

ITEM = sample("maintain_small")["item"]
RESULT = {"table": "sales.orders", "status": "succeeded", "summary": "compact: done"}
WAITING = {**RESULT, "status": "waiting", "plan": {"key": "k", "digest": "d"}}
PLACE = {"bucket": "b", "key": "k"}


@pytest.mark.parametrize(
    ("model", "event"),
    [
        (WholePassEvent, {"run_id": "r", "item": ITEM}),
        (PlanEvent, {"run_id": "r", "item": ITEM, "attempt": 1, "waves": True}),
        (WaveEvent, {"run_id": "r", "wave": [{"key": "k", "digest": "d"}]}),
        (ReportRunEvent, {"run_id": "r", "tables": [RESULT], "earlier": [RESULT, WAITING]}),
    ],
)
def test_its_events_are_understood(model: type[Any], event: dict[str, Any]) -> None:
    parsed = parse_event(model, event)
    assert getattr(parsed, "hands_on", False) is False
    assert getattr(parsed, "call", None) is None
    assert getattr(parsed, "in_one_call", ()) == ()


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


def test_one_call_is_one_state_and_that_of_the_version_before_its_own() -> None:
    assert states_of_call("maintain_small", {"hands_on": True}, RESULT) == 1
    assert states_of_call("maintain_small", {}, {"report": RESULT}) == 3
