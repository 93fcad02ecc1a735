"""Plans in the control bucket; one that cannot be read is made again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icekeeper.errors import PlanStale
from icekeeper.pipeline.control_bucket import PlanDocument, read_plan

PLAN: dict[str, Any] = {
    "run_id": "run-1",
    "item": {"catalog": "lake", "warehouse": "", "table": "ns.t", "uuid": "u", "location": "s3://lake/t"},
    "attempt": 1,
    "started_ms": 1,
    "planned_ms": 2,
    "metadata_location": "s3://lake/t/metadata/1.metadata.json",
    "head_id": 7,
    "fingerprint": "f",
    "environment": {},
    "routes": {"compact": "function"},
}


def test_a_plan_comes_back_as_it_was_written() -> None:
    plan = read_plan(PLAN)

    assert plan == PlanDocument.model_validate(PLAN)
    assert read_plan(json.loads(json.dumps(plan.model_dump(mode="json")))) == plan


@pytest.mark.parametrize(
    ("document", "where"),
    [({**PLAN, "unheard_of": 1}, "unheard_of"), ({**PLAN, "head_id": "x"}, "head_id"), ([], "the plan")],
)
def test_a_plan_that_cannot_be_read_is_made_again(document: Any, where: str) -> None:
    with pytest.raises(PlanStale, match=f"^the plan was written by another version of Icekeeper: {where}: "):
        read_plan(document)
