"""The samples of events/: each is what its function takes, and each function has one."""

from __future__ import annotations

import re

import pytest
from pydantic import BaseModel

from icekeeper.operation_facts import STEPS
from icekeeper.pipeline.events import (
    DetectEvent,
    LeaseEvent,
    MachineInput,
    OperationEvent,
    PlanEvent,
    ReportRunEvent,
    ReportTableEvent,
    parse_event,
)
from icekeeper.pipeline.one_call import RestEvent
from icekeeper.pipeline.wave import WaveEvent
from icekeeper.pipeline.whole_pass import WholePassEvent
from local_stack.template import TEMPLATE, load_template
from support.lambda_functions import FUNCTIONS, sample

EVENTS = TEMPLATE.parent / "events"
MODELS: dict[str, type[BaseModel]] = {
    "detect": DetectEvent,
    "detect_forced": DetectEvent,
    "lease_acquire": LeaseEvent,
    "lease_release": LeaseEvent,
    "plan": PlanEvent,
    "plan_wave": WaveEvent,
    "plan_rest": RestEvent,
    "maintain_small": WholePassEvent,
    "maintain_small_table": WholePassEvent,
    **dict.fromkeys(("expire_partitions", "compact_small", "expire_snapshots", "list_orphans"), OperationEvent),
    **dict.fromkeys(("remove_orphans", "rewrite_manifests", "clean_staged"), OperationEvent),
    "report_table": ReportTableEvent,
    "report_run": ReportRunEvent,
    **dict.fromkeys(("machine_schedule", "machine_forced", "machine_forced_wait"), MachineInput),
}
README = (EVENTS / "README.md").read_text()


@pytest.mark.parametrize("name", MODELS)
def test_each_is_what_it_is_a_sample_of(name: str) -> None:
    event = parse_event(MODELS[name], sample(name))
    assert event.model_dump(mode="json", exclude_unset=True) == sample(name)
    assert f"`{name}.json`" in README


def test_every_sample_is_known_and_every_function_has_one() -> None:
    names = {path.stem for path in EVENTS.glob("*.json")}
    assert names == {*MODELS, "environment"}
    for role in (path.parent.name for path in FUNCTIONS.glob("*/handler.py")):
        assert [name for name in names if name == role or name.startswith(f"{role}_")], role


def test_the_forced_samples_are_inputs_of_detect_too() -> None:
    for name in ("machine_schedule", "machine_forced", "machine_forced_wait"):
        parsed = parse_event(DetectEvent, {"run_id": "r", "input": sample(name)})
        assert parsed.input == parse_event(MachineInput, sample(name))


def test_a_plan_routes_every_step() -> None:
    assert set(sample("compact_small")["plan"]["routes"]) == set(STEPS)


def test_the_environment_is_that_of_the_template() -> None:
    known = load_template()["Globals"]["Function"]["Environment"]["Variables"]
    assert set(sample("environment")["Parameters"]) <= set(known)


def test_the_functions_that_are_documented_exist() -> None:
    named = set(re.findall(r"\b(\w+Function)\b", README))
    resources = load_template()["Resources"]
    functions = {name for name, found in resources.items() if found["Type"] == "AWS::Serverless::Function"}
    assert named == functions
