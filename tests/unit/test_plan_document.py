"""Plans in the control bucket, also those that other versions wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from icekeeper.errors import PlanStale
from icekeeper.pipeline.plan_document import PlanDocument, read_plan

PLAN: dict[str, Any] = {
    "run_id": "run-1",
    "item": {"catalog": "lake", "warehouse": "", "table": "ns.t", "uuid": "u"},
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


def test_a_plan_that_an_earlier_version_wrote_is_read_without_its_bounds() -> None:
    bounds = {"pinned_snapshots": [1], "staged_loads": ["load"], "orphan_older_than_ms": 3}

    assert read_plan({**PLAN, "bounds": bounds}) == read_plan(PLAN)


@pytest.mark.parametrize(
    ("document", "where"),
    [({**PLAN, "unheard_of": 1}, "unheard_of"), ({**PLAN, "head_id": "x"}, "head_id"), ([], "the plan")],
)
def test_a_plan_that_cannot_be_read_is_made_again(document: Any, where: str) -> None:
    with pytest.raises(PlanStale, match=f"^the plan was written by another version of Icekeeper: {where}: "):
        read_plan(document)
