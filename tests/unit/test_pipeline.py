"""The pipeline's events, routes, table sizes and waves."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain, product

import pytest
from pydantic import BaseModel

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operation_facts import FUNCTIONS, STEP_FACTS, STEPS, Limit, Measure, Stage
from icekeeper.pipeline.control_bucket import PlanDocument
from icekeeper.pipeline.deployment import PipelineSettings
from icekeeper.pipeline.events import (
    MAX_PATTERNS,
    DetectEvent,
    MachineInput,
    ReportEvent,
    Route,
    RunEvent,
    TableEvent,
    parse_event,
)
from icekeeper.pipeline.gather import steps_in
from icekeeper.pipeline.plan_table import choose_routes, table_size
from icekeeper.pipeline.wave import (
    SMALL_BYTES,
    cores_of,
    driver_need,
    in_order,
    last_round_s,
    longest_s,
    may_begin,
    memory_for_tables,
    run_size,
    tables_at_once,
    usable_s,
    workers_for,
)
from local_stack.template import TEMPLATE, load_template
from support.lambda_functions import sample

# The samples of events/ (integration/test_functions.py sends each to its function), and the patterns of an input.

EVENTS = TEMPLATE.parent / "events"
MODELS: dict[str, type[BaseModel]] = {
    "detect": DetectEvent,
    "detect_forced": DetectEvent,
    "plan": TableEvent,
    "gather": RunEvent,
    **dict.fromkeys(("expire_partitions", "compact", "expire_snapshots", "list_orphans"), TableEvent),
    **dict.fromkeys(("remove_orphans", "rewrite_manifests"), TableEvent),
    "clean_staged": RunEvent,
    "report": ReportEvent,
    **dict.fromkeys(("machine_schedule", "machine_rhythm", "machine_forced", "machine_forced_wait"), MachineInput),
}


def test_each_sample_event_is_parsed_and_documented() -> None:
    readme = (EVENTS / "README.md").read_text()
    assert {path.stem for path in EVENTS.glob("*.json")} == {*MODELS, "environment"}
    for name, model in MODELS.items():
        shown = sample(name)
        step = shown.pop("step", None)
        assert parse_event(model, shown).model_dump(mode="json", exclude_unset=True) == shown
        function = "" if step is None else f" {FUNCTIONS[step].title()}Function |"
        assert f"| `{name}.json` |{function}" in readme
    template = load_template()
    assert set(sample("environment")["Parameters"]) <= set(template["Globals"]["Function"]["Environment"]["Variables"])


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


def test_tables_are_a_list_of_patterns_or_comma_separated_text() -> None:
    for patterns in ("*", "*.orders_?", "sh?p?orders", "shop.*", ["a.b", "*x"], "a.b, c.*"):
        expected = tuple(patterns) if isinstance(patterns, list) else tuple(str(patterns).split(", "))
        assert parse_event(MachineInput, {"tables": patterns}).patterns == expected
    assert len(parse_event(MachineInput, {"tables": ["shop.*"] * MAX_PATTERNS}).patterns) == MAX_PATTERNS == 100
    with pytest.raises(PolicyError, match=r"^malformed event: tables: Value should have at most 100 items"):
        parse_event(MachineInput, {"tables": ["shop.*"] * (MAX_PATTERNS + 1)})
    why = "write a namespace, a dot and a name, with the wildcards * and ?, such as shop.* or *.orders_?"
    names = ("orders", "?orders?", ".orders", "shop.", "shop..*", "")
    no_tables = [({"tables": ["shop.*", name]}, f"'{name}' can match no table: {why}") for name in names]
    for event, sentence in (*no_tables, *WRONG_PARTS):
        with pytest.raises(PolicyError) as refused:
            parse_event(MachineInput, event)
        assert str(refused.value) == f"malformed event: the event: {sentence}"


# A step runs in a function up to the deployment's limits, and above them as a Glue job, if it has one.

LIMITS = {
    Limit.COMPACTION_BYTES: 100,
    Limit.MANIFEST_ENTRIES: 10,
    Limit.ORPHAN_REFERENCES: 20,
    Limit.STATISTICS_BYTES: 100,
    Limit.LISTED_MANIFESTS: 30,
}
HAVE_JOBS = set(STEPS) - {"expire_partitions", "clean_staged"}
SMALL = {
    Measure.BYTES_TO_COMPACT: 1,
    Measure.TOTAL_BYTES: 100,
    Measure.BYTES_WITH_DELETES: 100,
    Measure.FILES: 10,
    Measure.LISTED_MANIFESTS: 0,
}


def in_glue(size: Mapping[Measure, int | None], *outgrown: str, due: Collection[str] = STEPS) -> set[str]:
    """The steps that run as Glue jobs; all due steps have a route, in canonical order."""
    routes = choose_routes(due, size, LIMITS, outgrown)
    assert list(routes) == [step for step in STEPS if step in due]
    assert set(routes.values()) <= {"function", "glue"}
    return {name for name, found in routes.items() if found == "glue"}


@pytest.mark.parametrize(
    ("measure", "most", "expected"),
    [
        # Distinct values are counted after the manifests are merged, in the same job.
        (Measure.FILES, 10, {"rewrite_manifests", "compute_statistics"}),
        (Measure.FILES, 20, {"rewrite_manifests", "compute_statistics", "remove_orphans"}),
        (Measure.LISTED_MANIFESTS, 30, {"expire_snapshots"}),
        (Measure.TOTAL_BYTES, 100, {"compute_statistics"}),
        (Measure.BYTES_WITH_DELETES, 1600, {"rewrite_position_deletes"}),
        (Measure.BYTES_TO_COMPACT, 100, {"compact", "rewrite_position_deletes"}),  # deletes follow compaction
    ],
)
def test_each_step_is_routed_by_the_measure_of_its_work(measure: Measure, most: int, expected: set[str]) -> None:
    assert expected - in_glue({**SMALL, measure: most})
    assert in_glue({**SMALL, measure: most + 1}) == expected


def test_steps_of_unknown_size_and_steps_a_function_could_not_finish_run_as_jobs() -> None:
    assert in_glue(dict.fromkeys(Measure)) == in_glue(SMALL, *STEPS) == HAVE_JOBS
    # Position deletes run in a job only if compaction does.
    large = {**SMALL, Measure.BYTES_TO_COMPACT: 101}
    assert in_glue(large, due={"rewrite_position_deletes"}) == set()
    assert in_glue(large, due={"compact", "rewrite_position_deletes"}) == {"compact", "rewrite_position_deletes"}
    assert in_glue(large, due={"compact", "expire_snapshots"}) == {"compact"}


def in_stages(routes: Mapping[str, Route]) -> list[str]:
    """The steps of a plan as its stages run them; every stage can run its steps."""
    by_stage = {stage: steps_in(stage, routes) for stage in Stage}
    for stage, steps in by_stage.items():
        for facts in (facts for facts in STEP_FACTS if facts.name in steps):
            of_job = [] if facts.job is None else [facts.job.stage]
            assert stage in (of_job if routes[facts.name] == "glue" else (facts.stage, facts.later_stage))
    return list(chain(*by_stage.values()))


def test_every_table_passes_its_steps_in_canonical_order() -> None:
    """For all sets of due steps, each of them small or unfinished by a function, and for all sizes and limits."""
    ways = [("none", "small", *(["outgrown"] if step in HAVE_JOBS else [])) for step in STEPS]
    for way in product(*ways):
        due = [step for step, which in zip(STEPS, way, strict=True) if which != "none"]
        outgrown = [step for step, which in zip(STEPS, way, strict=True) if which == "outgrown"]
        assert in_stages(choose_routes(due, SMALL, LIMITS, outgrown)) == due
    for limits in LIMITS, dict.fromkeys(Limit, 0):
        for amounts in product((0, 10**9, None), repeat=len(Measure)):
            assert in_stages(choose_routes(STEPS, dict(zip(Measure, amounts, strict=True)), limits)) == list(STEPS)
    # A plan that somebody changed runs no step before an earlier one.
    changed: dict[str, Route] = {
        "compact": "glue",
        "rewrite_position_deletes": "function",
        "expire_snapshots": "function",
    }
    assert in_stages(changed) == ["compact", "expire_snapshots"]


def test_a_step_moves_only_into_a_job_with_the_rights_of_its_function() -> None:
    for facts in STEP_FACTS:
        others = [other for other in STEP_FACTS if facts.job and other.job and other.job.script == facts.job.script]
        assert {(other.commits, other.deletes_files) for other in others} <= {(facts.commits, facts.deletes_files)}


def test_by_default_every_compaction_runs_in_glue() -> None:
    settings = PipelineSettings.read({"ICEKEEPER_CONTROL_BUCKET": "b"})
    assert settings.limits[Limit.COMPACTION_BYTES] == 0
    assert choose_routes({"compact"}, table_size(*history("append:1")), settings.limits) == {"compact": "glue"}


# The bytes that compaction reads, estimated from the snapshot summaries.


NONE: Mapping[str, str] = {}


def history(
    *commits: str, total: int | None = 1000, counters: Mapping[str, str] = NONE
) -> tuple[TableMetadata, Snapshot]:
    """A table and its head, from commits such as ``append:10`` (operation and ``added-files-size``)."""
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
        (["append:10", "append:20"], 1000, 1000),  # without a rewrite: the whole table
        (["append:500", "replace:500", "append:10", "overwrite:20"], 1000, 30),
        (["append:500", "replace:500"], 1000, 1),
        (["append:500", "replace:500", "append:2000"], 1000, 1000),  # at most the size of the table
        (["append:500", "replace:500", "append:", "append:10"], 1000, 1000),  # a writer without counters
        (["append:500", "replace:500", "append:10", "replace:", "append:7"], 1000, 17),  # a rewrite of manifests
        (["append:500", "replace:", "append:10"], 1000, 1000),
        (["append:10", "delete:0"], 1000, 1000),
        # At least 1, so that a limit of 0 sends every compaction to Glue.
        (["append:0"], 0, 1),
        (["append:5", "replace:5", "append:0"], 0, 1),
        (["append:5", "replace:5", "append:7"], None, 7),
    ],
)
def test_bytes_to_compact_are_those_added_since_the_last_rewrite(
    commits: list[str], total: int | None, expected: int
) -> None:
    assert table_size(*history(*commits, total=total))[Measure.BYTES_TO_COMPACT] == expected


def test_a_table_without_counters_has_an_unknown_size_and_deletes_count_the_whole_table() -> None:
    metadata, head = history("append:", total=None)
    assert table_size(metadata, head) == dict.fromkeys(Measure)
    assert table_size(metadata, None)[Measure.BYTES_TO_COMPACT] is None
    for deletes, expected in (("0", 0), ("1", 1000), (None, 1000)):
        counters = {"total-data-files": "3", **({} if deletes is None else {"total-delete-files": deletes})}
        size = table_size(*history("append:10", counters=counters))
        assert size[Measure.BYTES_WITH_DELETES] == expected
        assert size[Measure.FILES] == (None if deletes is None else 3 + int(deletes))


# The size of a wave and the order of its tables.

GB = 1024**3


@dataclass(frozen=True)
class Table:
    name: str
    size_bytes: int


def test_workers_grow_with_the_bytes_and_shrink_with_their_cores() -> None:
    """The minimum is a driver and one worker."""
    sizes = (0, 1, 50 * GB, 50 * GB + 1, 10**15)
    assert [workers_for(size, "G.1X", 10) for size in sizes] == [2, 2, 2, 3, 10]
    assert [workers_for(401 * GB, kind, 149) for kind in ("G.1X", "G.2X", "G.4X", "G.8X")] == [10, 6, 4, 3]
    counts = [workers_for(size * GB, "G.1X", 10) for size in range(0, 2000, 7)]
    assert counts == sorted(counts)
    assert max(counts) == 10


@pytest.mark.parametrize(
    ("sorted_gb", "worker_type", "most", "size"),
    [
        (0, "G.1X", 10, (2, "G.1X")),
        (6, "G.1X", 10, (2, "G.1X")),
        (7, "G.1X", 10, (3, "G.1X")),
        (25, "G.1X", 10, (6, "G.1X")),
        (55, "G.1X", 10, (10, "G.1X")),
        (56, "G.1X", 10, (7, "G.2X")),
        (100, "G.1X", 10, (10, "G.2X")),
        (100, "G.2X", 11, (11, "G.2X")),
        (100, "G.4X", 10, (5, "G.4X")),
    ],
)
def test_a_group_to_be_sorted_fits_on_seventy_percent_of_the_workers_disks(
    sorted_gb: int, worker_type: str, most: int, size: tuple[int, str]
) -> None:
    """Five bytes on disk for a byte of the group.  If it fits on no allowed number of workers, the run has the most."""
    assert run_size(sorted_gb * GB, sorted_gb * GB, worker_type, most) == size
    need, room = 5 * sorted_gb, 0.7 * (size[0] - 1) * {"G.1X": 44, "G.2X": 78, "G.4X": 230}[size[1]]
    assert need <= room or (sorted_gb, most) == (100, 10)


def test_many_bytes_take_as_many_workers_as_without_a_sort() -> None:
    assert run_size(401 * GB, GB, "G.1X", 10) == (10, "G.1X")


def test_the_largest_table_begins_first_and_tables_of_equal_size_keep_their_order() -> None:
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
    """``at_once`` counts all tables and large tables, whose manifests the driver holds in memory."""
    sizes = [SMALL_BYTES + 1] * large + [SMALL_BYTES] * small
    assert tables_at_once(sizes, cores_of(workers, "G.1X")) == at_once


def test_the_drivers_memory_holds_many_small_tables_or_a_few_large_tables() -> None:
    """A driver of type G.1X has 16 GB, of which Java takes most."""
    room = memory_for_tables(16 * GB)
    assert [room // driver_need(size) for size in (0, 8 * 1024**2, 82 * 1024**2, 10 * GB)] == [64, 39, 8, 4]


def test_a_table_begins_only_if_it_can_end_in_time() -> None:
    """In a run of an hour, a large table needs more time and more workers need less.  A table too large for any run
    begins only early."""
    hour = 3600.0
    assert may_begin(1, 4, elapsed_s=3400, limit_s=hour)
    assert not may_begin(1, 4, elapsed_s=3500, limit_s=hour)
    assert not may_begin(100 * GB, 4, elapsed_s=2700, limit_s=hour)
    assert may_begin(100 * GB, 36, elapsed_s=2700, limit_s=hour)
    assert may_begin(10**15, 4, elapsed_s=900, limit_s=hour)
    assert not may_begin(10**15, 4, elapsed_s=901, limit_s=hour)


def test_a_table_gets_a_multiple_of_its_estimate_within_the_run() -> None:
    """A quarter of an hour, or four times a generous estimate."""
    hour = 3600.0

    def longest(size_bytes: int, elapsed_s: float) -> float:
        return longest_s(size_bytes, 4, elapsed_s=elapsed_s, limit_s=hour, is_alone=False)

    assert longest(0, 0) == 900
    assert longest(60 * GB, 0) == pytest.approx(3211, abs=1)
    assert longest(10**15, 0) == 3600
    assert longest(0, 3000) == 600
    assert longest(0, 3590) == 60


def test_a_table_alone_in_its_job_gets_nearly_all_of_its_time() -> None:
    """A Glue run of an hour reserves six minutes for Spark's start and the end, so that Glue does not kill it."""
    usable = usable_s(3600)
    assert usable == 3240
    longest = longest_s(0, 4, elapsed_s=40, limit_s=usable, is_alone=True)
    assert longest == 3200
    assert last_round_s(longest) == 3040


def test_a_document_of_a_later_version_is_read() -> None:
    """Unknown fields are ignored; missing fields have defaults."""
    later = {"routes": {"compact": "glue"}, "of_a_later_version": {"a": 1}}
    assert PlanDocument.model_validate(later) == PlanDocument(routes={"compact": "glue"})
