"""The pipeline's events, documents, routes and limits."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from icekeeper.errors import PlanStale
from icekeeper.operation_facts import STEP_FACTS, STEPS, Limit
from icekeeper.pipeline.control_bucket import PlanDocument, read_plan
from icekeeper.pipeline.deployment import PipelineSettings
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
from icekeeper.pipeline.plan_table import route, table_size
from icekeeper.pipeline.wave import (
    MOST_WORKERS,
    WaveEvent,
    break_even_mb,
    cost_in_function,
    cost_in_wave,
    function_bears_mb,
    in_order,
    longest_s,
    may_begin,
    tables_at_once,
    workers_for,
)
from icekeeper.pipeline.whole_pass import WholePassEvent
from local_stack.template import TEMPLATE, load_template
from support.lambda_functions import FUNCTIONS, sample

# What a compaction costs in a function and in a wave, and the default that follows.

DOCUMENT = load_template()
PARAMETERS = DOCUMENT["Parameters"]
SIZES = (200, 512, 1024, 2048, 4096)


def test_the_default_is_where_both_cost_the_same() -> None:
    """In a wave of as many tables as one run proposes; and no more than a function surely ends."""
    full = break_even_mb(PARAMETERS["MaxTablesPerRun"]["Default"])
    assert full is not None
    default = PARAMETERS["SmallCompactionMb"]["Default"]
    assert default == min(full, function_bears_mb())
    settings = PipelineSettings.read({"ICEKEEPER_CONTROL_BUCKET": "b"})
    assert settings.limits[Limit.COMPACTION_BYTES] == default * 1024 * 1024


def test_both_sides_of_the_break_even_differ() -> None:
    full = break_even_mb(100)
    assert full is not None
    assert cost_in_wave(full - 256, 100) > cost_in_function(full - 256)
    assert cost_in_wave(full, 100) <= cost_in_function(full)


def test_a_wave_of_more_tables_is_cheaper_for_each() -> None:
    for mb in SIZES:
        costs = [cost_in_wave(mb, tables) for tables in (1, 2, 5, 10, 20, 50, 100)]
        assert all(fewer >= more for fewer, more in pairwise(costs)), mb


def test_alone_nothing_is_cheaper_in_glue_than_in_a_function_that_bears_it() -> None:
    assert all(cost_in_wave(mb, 1) > cost_in_function(mb) for mb in range(256, function_bears_mb(), 256))


def test_the_model_knows_the_function_that_is_deployed() -> None:
    function = DOCUMENT["Resources"]["CompactSmallFunction"]["Properties"]
    assert (function["Timeout"], function["EphemeralStorage"]) == (900, {"Size": 10240})
    assert PARAMETERS["CompactSmallMemoryMb"]["Default"] == 3008
    assert function_bears_mb() * 2 * 3 <= 10240


@pytest.mark.parametrize(("mb", "usd"), [(200, 0.00029), (4096, 0.0035)])
def test_a_function_is_paid_by_its_memory_and_time(mb: int, usd: float) -> None:
    """2.9375 GB, 2 s and a second for each 60 MB."""
    assert cost_in_function(mb) == pytest.approx(usd, rel=0.02)
    assert cost_in_function(mb) == pytest.approx((2 + mb / 60) * 2.9375 * 0.0000166667, rel=0.1)


def test_the_documentation_tells_what_the_model_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    for mb in SIZES:
        costs = [cost_in_function(mb), *(cost_in_wave(mb, tables) for tables in (1, 10, 100))]
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {mb:,} MB |"))
        told = [float(cell) for cell in line.split("|")[2:-1]]
        assert told == pytest.approx([cost * 1000 for cost in costs], rel=0.05)


# The samples of events/: each is what its function takes, and each function has one.

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


# Plans in the control bucket; one that cannot be read is made again.

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


# Where a step runs: in a function up to the deployment's limits, else as a Glue job, if it has one.

LIMITS = {Limit.COMPACTION_BYTES: 100, Limit.MANIFEST_ENTRIES: 10, Limit.ORPHAN_REFERENCES: 20}
HAVE_JOBS = {"compact", "rewrite_position_deletes", "remove_orphans", "rewrite_manifests", "compute_statistics"}


def in_glue(bytes_to_compact: int = 0, *outgrown: str, **counters: int) -> set[str]:
    """The steps that run as jobs; ``files=2`` is ``total-data-files`` of the head's summary."""
    keys = {"files": "total-data-files", "deletes": "total-delete-files", "size": "total-files-size"}
    summary = {keys[name]: str(count) for name, count in counters.items()}
    size = table_size(summary, bytes_to_compact)
    routes = {step.name: route(step, size, LIMITS, outgrown) for step in STEP_FACTS}
    assert set(routes.values()) <= {"function", "glue"}
    return {name for name, found in routes.items() if found == "glue"}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"files": 8, "deletes": 2, "size": 100}, set()),
        ({"files": 9, "deletes": 2, "size": 100}, {"rewrite_manifests"}),
        ({"files": 19, "deletes": 2, "size": 100}, {"rewrite_manifests", "remove_orphans"}),
        ({"files": 8, "deletes": 2, "size": 101}, {"compute_statistics"}),
        ({"files": 8, "deletes": 2, "size": 1600}, {"compute_statistics"}),
        ({"files": 8, "deletes": 2, "size": 1601}, {"compute_statistics", "rewrite_position_deletes"}),
        ({"files": 8, "deletes": 0, "size": 1601}, {"compute_statistics"}),
    ],
)
def test_each_goes_by_what_makes_its_work(size: dict[str, int], expected: set[str]) -> None:
    assert in_glue(**size) == expected


def test_compaction_goes_by_what_its_plan_rewrites() -> None:
    assert in_glue(100, files=1, deletes=0, size=10**9) == {"compute_statistics"}
    assert in_glue(101, files=1, deletes=0, size=1) == {"compact"}


def test_what_is_unknown_counts_as_much() -> None:
    assert in_glue() == HAVE_JOBS - {"compact"}
    assert in_glue(deletes=0) == HAVE_JOBS - {"compact", "rewrite_position_deletes"}


def test_what_a_function_did_not_come_to_an_end_of_is_a_jobs_if_it_has_one() -> None:
    every = ("expire_partitions", "expire_snapshots", "clean_staged", *HAVE_JOBS)
    assert in_glue(0, *every, files=1, deletes=0, size=1) == HAVE_JOBS


# How large a wave is, and which tables begin: pure rules (rule: wave-tables-are-independent).

GB = 1024**3


@dataclass(frozen=True)
class Table:
    name: str
    size_bytes: int


def test_workers_grow_with_the_bytes_up_to_ten() -> None:
    """A driver and at least one worker that works."""
    assert [workers_for(size) for size in (0, 1, 50 * GB, 50 * GB + 1, 10**15)] == [2, 2, 2, 3, MOST_WORKERS]
    told = [workers_for(size * GB) for size in range(0, 2000, 7)]
    assert told == sorted(told)
    assert max(told) == 10


def test_the_largest_begins_first_and_equal_ones_in_the_order_of_need() -> None:
    tables = [Table("a", 1), Table("b", 9), Table("c", 1), Table("d", 4)]
    assert [table.name for table in in_order(tables)] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("tables", "workers", "at_once"), [(1, 2, 1), (100, 2, 8), (100, 3, 16), (100, 10, 16), (5, 10, 5)]
)
def test_tables_keep_the_workers_busy_and_the_driver_bounded(tables: int, workers: int, at_once: int) -> None:
    assert tables_at_once(tables, workers) == at_once


def test_no_table_begins_that_would_not_end_in_time() -> None:
    """Of an hour; a large one needs more time than a small one, and more workers need less."""
    hour = 3600.0
    assert may_begin(1, 2, elapsed_s=3400, limit_s=hour)
    assert not may_begin(1, 2, elapsed_s=3500, limit_s=hour)
    assert not may_begin(100 * GB, 2, elapsed_s=2700, limit_s=hour)
    assert may_begin(100 * GB, 10, elapsed_s=2700, limit_s=hour)


def test_a_table_may_take_long_but_not_the_time_in_which_the_others_are_told_of() -> None:
    """A quarter of an hour, or four times what surely suffices (rule: cut-off-endless-tables); three minutes stay at
    the end."""
    hour = 3600.0
    assert longest_s(0, 2, elapsed_s=0, limit_s=hour) == 900
    assert longest_s(60 * GB, 2, elapsed_s=0, limit_s=hour) == pytest.approx(3211, abs=1)
    assert longest_s(10**15, 2, elapsed_s=0, limit_s=hour) == 3420
    assert longest_s(0, 2, elapsed_s=3000, limit_s=hour) == 420
    assert longest_s(0, 2, elapsed_s=3590, limit_s=hour) == 60


def test_what_no_run_is_long_enough_for_begins_early_or_never() -> None:
    assert may_begin(10**15, 2, elapsed_s=900, limit_s=3600)
    assert not may_begin(10**15, 2, elapsed_s=901, limit_s=3600)


def test_the_steps_of_a_wave_follow_each_other_in_a_pass() -> None:
    """A pass waits for a wave once: between its steps there is none that the wave does not do
    (rule: canonical-operation-order)."""
    numbers = [number for number, step in enumerate(STEP_FACTS) if step.in_waves]
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    jobs = {step.job.script for step in STEP_FACTS if step.in_waves and step.job is not None}
    assert jobs == {"compact_data_files"}
