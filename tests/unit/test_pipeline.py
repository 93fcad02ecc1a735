"""The pipeline's events, documents, routes and limits."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import pytest
from pydantic import BaseModel

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operation_facts import STEPS, Limit, Measure
from icekeeper.pipeline.control_bucket import PlanDocument
from icekeeper.pipeline.deployment import PipelineSettings
from icekeeper.pipeline.events import (
    MAX_PATTERNS,
    DetectEvent,
    MachineInput,
    ReportEvent,
    RunEvent,
    TableEvent,
    parse_event,
)
from icekeeper.pipeline.plan_table import choose_routes, table_size
from icekeeper.pipeline.wave import (
    MOST_WORKERS,
    SMALL_BYTES,
    in_order,
    last_round_s,
    longest_s,
    may_begin,
    tables_at_once,
    usable_s,
    workers_for,
)
from local_stack.template import TEMPLATE, load_template
from support.lambda_functions import sample

# The samples of events/ (integration/test_functions.py sends each to its function), and what an input may name.

EVENTS = TEMPLATE.parent / "events"
MODELS: dict[str, type[BaseModel]] = {
    "detect": DetectEvent,
    "detect_forced": DetectEvent,
    "plan": TableEvent,
    "gather": RunEvent,
    **dict.fromkeys(("expire_partitions", "compact_small", "expire_snapshots", "list_orphans"), TableEvent),
    **dict.fromkeys(("remove_orphans", "rewrite_manifests"), TableEvent),
    "clean_staged": RunEvent,
    "report": ReportEvent,
    **dict.fromkeys(("machine_schedule", "machine_rhythm", "machine_forced", "machine_forced_wait"), MachineInput),
}


def test_each_sample_is_known_documented_and_complete() -> None:
    readme = (EVENTS / "README.md").read_text()
    assert {path.stem for path in EVENTS.glob("*.json")} == {*MODELS, "environment"}
    for name, model in MODELS.items():
        event = parse_event(model, sample(name))
        assert event.model_dump(mode="json", exclude_unset=True) == sample(name)
        assert f"`{name}.json`" in readme
    template = load_template()
    assert set(sample("environment")["Parameters"]) <= set(template["Globals"]["Function"]["Environment"]["Variables"])
    functions = {name for name, item in template["Resources"].items() if item["Type"] == "AWS::Serverless::Function"}
    assert set(re.findall(r"\b(\w+Function)\b", readme)) == functions


PART = {"tables": ["shop.*"]}
WRONG_PARTS: tuple[tuple[dict[str, object], str], ...] = (
    ({"tables": []}, "tables is empty; leave it out to scan the whole fleet"),
    ({"tables": "none"}, "tables is empty; leave it out to scan the whole fleet"),
    (
        {**PART, "table": "shop.orders"},
        "table names one table and tables holds the patterns of a scan; set only one of them",
    ),
    ({**PART, "wait": True}, "wait is for a run over one table; set table"),
    ({**PART, "in_job": True}, "in_job is for a run over one table; set table"),
    ({**PART, "catalog": "lake"}, "catalog is set, but table is not; set both, or neither to scan the fleet"),
    (
        {**PART, "settings": {"table_settings": "all"}},
        "policy key table_settings has no effect on one detection: icekeeper run reads it",
    ),
)


def test_a_part_of_the_fleet_is_a_list_of_patterns_or_text_with_commas() -> None:
    for given in ("*", "*.orders_?", "sh?p?orders", "shop.*", ["a.b", "*x"], "a.b, c.*"):
        expected = tuple(given) if isinstance(given, list) else tuple(str(given).split(", "))
        assert parse_event(MachineInput, {"tables": given}).patterns == expected
    assert len(parse_event(MachineInput, {"tables": ["shop.*"] * MAX_PATTERNS}).patterns) == MAX_PATTERNS == 100
    with pytest.raises(PolicyError, match=r"^malformed event: tables: Value should have at most 100 items"):
        parse_event(MachineInput, {"tables": ["shop.*"] * (MAX_PATTERNS + 1)})
    why = "write a namespace, a dot and a name, with the wildcards * and ?, such as shop.* or *.orders_?"
    names = ("orders", "?orders?", ".orders", "shop.", "shop..*", "")
    no_tables = [({"tables": ["shop.*", name]}, f"'{name}' can match no table: {why}") for name in names]
    for part, sentence in (*no_tables, *WRONG_PARTS):
        with pytest.raises(PolicyError) as refused:
            parse_event(MachineInput, part)
        assert str(refused.value) == f"malformed event: the event: {sentence}"


# Where a step runs: in a function up to the deployment's limits, else as a Glue job, if it has one.

LIMITS = {
    Limit.COMPACTION_BYTES: 100,
    Limit.MANIFEST_ENTRIES: 10,
    Limit.ORPHAN_REFERENCES: 20,
    Limit.STATISTICS_BYTES: 100,
}
HAVE_JOBS = {"compact", "rewrite_position_deletes", "remove_orphans", "rewrite_manifests", "compute_statistics"}
SMALL = {Measure.BYTES_TO_COMPACT: 1, Measure.TOTAL_BYTES: 100, Measure.BYTES_WITH_DELETES: 100, Measure.FILES: 10}


def in_glue(size: Mapping[Measure, int | None], *outgrown: str, due: Collection[str] = STEPS) -> set[str]:
    """The steps that run as jobs; all that are due have a route, in canonical order."""
    routes = choose_routes(due, size, LIMITS, outgrown)
    assert list(routes) == [step for step in STEPS if step in due]
    assert set(routes.values()) <= {"function", "glue"}
    return {name for name, found in routes.items() if found == "glue"}


@pytest.mark.parametrize(
    ("measure", "most", "expected"),
    [
        (Measure.FILES, 10, {"rewrite_manifests"}),
        (Measure.FILES, 20, {"rewrite_manifests", "remove_orphans"}),
        (Measure.TOTAL_BYTES, 100, {"compute_statistics"}),
        (Measure.BYTES_WITH_DELETES, 1600, {"rewrite_position_deletes"}),
        (Measure.BYTES_TO_COMPACT, 100, {"compact", "rewrite_position_deletes"}),  # deletes follow compaction
    ],
)
def test_each_step_goes_by_what_makes_its_work(measure: Measure, most: int, expected: set[str]) -> None:
    assert expected - in_glue({**SMALL, measure: most})
    assert in_glue({**SMALL, measure: most + 1}) == expected


def test_steps_without_a_known_size_or_that_a_function_could_not_finish_go_to_their_jobs() -> None:
    assert in_glue(dict.fromkeys(Measure)) == in_glue(SMALL, *STEPS) == HAVE_JOBS
    # Deletes are merged in the job only where compaction has a job.
    large = {**SMALL, Measure.BYTES_TO_COMPACT: 101}
    assert in_glue(large, due={"rewrite_position_deletes"}) == set()
    assert in_glue(large, due={"compact", "rewrite_position_deletes"}) == {"compact", "rewrite_position_deletes"}
    assert in_glue(large, due={"compact", "expire_snapshots"}) == {"compact"}


def test_by_default_every_compaction_is_sparks() -> None:
    settings = PipelineSettings.read({"ICEKEEPER_CONTROL_BUCKET": "b"})
    assert settings.limits[Limit.COMPACTION_BYTES] == 0
    assert choose_routes({"compact"}, table_size(*history("append:1")), settings.limits) == {"compact": "glue"}


# How many bytes compaction is going to read, by the summaries of the snapshots.


NONE: Mapping[str, str] = {}


def history(
    *commits: str, total: int | None = 1000, counters: Mapping[str, str] = NONE
) -> tuple[TableMetadata, Snapshot]:
    """A table and its head, by commits such as ``append:10`` (operation, and ``added-files-size``)."""
    snapshots = [
        {
            "snapshot-id": number,
            **({} if number == 1 else {"parent-snapshot-id": number - 1}),
            "sequence-number": number,
            "timestamp-ms": number,
            "manifest-list": f"s3://b/t/metadata/{number}.avro",
            "schema-id": 0,
            "summary": {
                "operation": commit.partition(":")[0],
                **({"added-files-size": size, "added-data-files": "1"} if (size := commit.partition(":")[2]) else {}),
                **({} if total is None else {"total-files-size": str(total)}),
                **counters,
            },
        }
        for number, commit in enumerate(commits, start=1)
    ]
    ref = {"snapshot-id": len(commits), "type": "branch"}
    document = {"format-version": 2, "location": "s3://b/t", "snapshots": snapshots, "refs": {"main": ref}}
    metadata = TableMetadata({**document, "current-snapshot-id": len(commits)})
    head = metadata.head("main")
    assert head is not None
    return metadata, head


@pytest.mark.parametrize(
    ("commits", "total", "expected"),
    [
        (["append:10", "append:20"], 1000, 1000),  # no rewrite: it may be all
        (["append:500", "replace:500", "append:10", "overwrite:20"], 1000, 30),
        (["append:500", "replace:500"], 1000, 1),
        (["append:500", "replace:500", "append:2000"], 1000, 1000),  # never more than the table has
        (["append:500", "replace:500", "append:", "append:10"], 1000, 1000),  # a writer without counters
        (["append:500", "replace:500", "append:10", "replace:", "append:7"], 1000, 17),  # manifests were rewritten
        (["append:500", "replace:", "append:10"], 1000, 1000),
        (["append:10", "delete:0"], 1000, 1000),
        # A function would take nothing, also where no compaction is a function's.
        (["append:0"], 0, 1),
        (["append:5", "replace:5", "append:0"], 0, 1),
        (["append:5", "replace:5", "append:7"], None, 7),
    ],
)
def test_compaction_reads_what_came_since_the_last_rewrite(
    commits: list[str], total: int | None, expected: int
) -> None:
    assert table_size(*history(*commits, total=total))[Measure.BYTES_TO_COMPACT] == expected


def test_a_table_without_counters_has_no_known_size_and_deletes_cost_the_whole_table() -> None:
    metadata, head = history("append:", total=None)
    assert table_size(metadata, head) == dict.fromkeys(Measure)
    assert table_size(metadata, None)[Measure.BYTES_TO_COMPACT] is None
    for deletes, expected in (("0", 0), ("1", 1000), (None, 1000)):
        counters = {"total-data-files": "3", **({} if deletes is None else {"total-delete-files": deletes})}
        size = table_size(*history("append:10", counters=counters))
        assert size[Measure.BYTES_WITH_DELETES] == expected
        assert size[Measure.FILES] == (None if deletes is None else 3 + int(deletes))


# How large a wave is, and which tables begin: pure rules.

GB = 1024**3


@dataclass(frozen=True)
class Table:
    name: str
    size_bytes: int


def test_workers_grow_with_the_bytes_up_to_ten() -> None:
    """A driver and at least one worker that works."""
    assert [workers_for(size) for size in (0, 1, 50 * GB, 50 * GB + 1, 10**15)] == [2, 2, 2, 3, MOST_WORKERS]
    shown = [workers_for(size * GB) for size in range(0, 2000, 7)]
    assert shown == sorted(shown)
    assert max(shown) == 10


def test_the_largest_begins_first_and_equal_ones_in_the_order_of_need() -> None:
    tables = [Table("a", 1), Table("b", 9), Table("c", 1), Table("d", 4)]
    assert [table.name for table in in_order(tables)] == ["b", "d", "a", "c"]


@pytest.mark.parametrize(
    ("large", "small", "workers", "at_once"),
    [
        (1, 0, 2, (1, 1)),
        (100, 0, 2, (8, 8)),
        (100, 0, 3, (16, 16)),
        (5, 0, 10, (5, 5)),
        (0, 1000, 2, (32, 0)),
        (100, 1000, 2, (32, 8)),
        (3, 4, 2, (7, 3)),
    ],
)
def test_tables_keep_the_workers_busy_and_the_driver_bounded(
    large: int, small: int, workers: int, at_once: tuple[int, int]
) -> None:
    """All tables at once, and how many of them are large: their manifests are in the driver's memory."""
    sizes = [SMALL_BYTES + 1] * large + [SMALL_BYTES] * small
    assert tables_at_once(sizes, workers) == at_once


def test_no_table_begins_that_would_not_end_in_time() -> None:
    """Of an hour: a large table needs more time than a small one, and more workers need less.  What no run is long
    enough for begins early or never."""
    hour = 3600.0
    assert may_begin(1, 2, elapsed_s=3400, limit_s=hour)
    assert not may_begin(1, 2, elapsed_s=3500, limit_s=hour)
    assert not may_begin(100 * GB, 2, elapsed_s=2700, limit_s=hour)
    assert may_begin(100 * GB, 10, elapsed_s=2700, limit_s=hour)
    assert may_begin(10**15, 2, elapsed_s=900, limit_s=hour)
    assert not may_begin(10**15, 2, elapsed_s=901, limit_s=hour)


def test_a_table_may_take_long_but_leaves_time_to_report_the_others() -> None:
    """A quarter of an hour, or four times what surely suffices."""
    hour = 3600.0

    def longest(size_bytes: int, elapsed_s: float) -> float:
        return longest_s(size_bytes, 2, elapsed_s=elapsed_s, limit_s=hour, is_alone=False)

    assert longest(0, 0) == 900
    assert longest(60 * GB, 0) == pytest.approx(3211, abs=1)
    assert longest(10**15, 0) == 3600
    assert longest(0, 3000) == 600
    assert longest(0, 3590) == 60


def test_a_table_alone_in_its_job_has_nearly_all_of_its_time_and_the_job_ends_before_glue_kills_it() -> None:
    """Of a Glue run of an hour, Spark's start and the end have six minutes."""
    usable = usable_s(3600)
    assert usable == 3240
    longest = longest_s(0, 2, elapsed_s=40, limit_s=usable, is_alone=True)
    assert longest == 3200
    assert last_round_s(longest) == 3040


def test_documents_of_a_later_version_can_be_read() -> None:
    """An unknown field is ignored, a missing field has a default."""
    later = {"routes": {"compact": "glue"}, "of_a_later_version": {"a": 1}}
    assert PlanDocument.model_validate(later) == PlanDocument(routes={"compact": "glue"})
