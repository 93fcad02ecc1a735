"""The shape of the house: imports point downwards, rooms know what is their business only, rules are pure."""

from __future__ import annotations

from collections.abc import Collection
from graphlib import CycleError, TopologicalSorter

import pytest

from support.source_tree import (
    MODULES,
    ROOT,
    imported,
    is_within,
    own_imports,
    relative,
    room,
)

# The ground floor first.  A room imports from floors below its own, never from its neighbours.
FLOORS: tuple[frozenset[str], ...] = (
    frozenset({"masking"}),
    frozenset({"activity", "amounts", "clock", "environment", "errors", "model", "operation_facts"}),
    frozenset({"metadata", "policy", "pyiceberg_private", "state", "storage"}),
    frozenset({"catalogs", "engines", "health", "partition_time", "report", "rows", "sweep_rhythm"}),
    frozenset({"commit", "table_policy", "policy_parts", "row_group_copy"}),
    frozenset({"pass_context"}),
    frozenset({"deletion"}),
    frozenset({"operations"}),
    frozenset({"policy_fit"}),
    frozenset({"administration", "advice", "detection", "maintenance", "verification"}),
    frozenset({"runtime"}),
    frozenset({"cycle", "demo", "pipeline"}),
    frozenset({"cli"}),
    frozenset({"__main__"}),
)
# The same inside of rooms, for their inner rooms and their own modules.  No operation knows another one.
INNER_FLOORS: dict[str, tuple[frozenset[str], ...]] = {
    "operations": (
        frozenset(
            {
                "compaction",
                "expiry",
                "manifests",
                "orphans",
                "partitions",
                "position_deletes",
                "staging",
                "statistics",
            }
        ),
    ),
    "operations.compaction": (
        frozenset({"moments"}),
        frozenset({"deleted_rows", "recipe", "row_hash", "where"}),
        frozenset({"scope"}),
        frozenset({"proof", "task", "whole_partitions"}),
        frozenset({"writing"}),
        frozenset({"output_partition"}),
        frozenset({"candidates", "written_settings"}),
        frozenset({"bins", "clustering", "partition_rest"}),
        frozenset({"missing_bins", "payback", "rewrite_history"}),
        frozenset({"budget", "left_alone", "missing"}),
        frozenset({"partition_rows", "plan"}),
        frozenset({"depth_metrics", "expected", "preview", "rewrite", "row_groups", "settings_preview"}),
        frozenset({"commit_results"}),
        frozenset({"dispatch"}),
        frozenset({"compact"}),
    ),
    "state": (
        frozenset({"address", "claims", "identity", "leases", "slack"}),
        frozenset(
            {
                *("detection_mark", "held_lease", "lake_stats", "pending_deletions", "quarantine", "requests"),
                *("schedules", "slots", "staging"),
            }
        ),
        frozenset({"store"}),
        frozenset({"dynamodb", "sqlite", "table_memory"}),
        frozenset({"open"}),
    ),
}
# Room or module → what it must not import although floors would let it.
UNKNOWN_TO: dict[str, tuple[str, ...]] = {
    # Commits and metadata are about entries, not about rows.
    "icekeeper.commit": ("pyarrow", "icekeeper.storage"),
    "icekeeper.metadata": ("pyarrow", "pyiceberg"),
    # Engines run functions, and the work unit runs on machines that never heard of the catalog.
    "icekeeper.engines": ("pyiceberg", "pyarrow", "icekeeper.catalogs", "icekeeper.operations"),
    "icekeeper.operations.manifests.lanes": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.task": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.rows.read": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.writing.write": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.rewrite": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.clustering.work": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.operations.compaction.clustering.sample": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
    "icekeeper.row_group_copy": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.policy", "icekeeper.state"),
    "icekeeper.operations.statistics.task": ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state"),
}
# Plans and rules: no input, no output, no clock, no chance.
PURE = (
    "icekeeper.advice.advise",
    "icekeeper.advice.layout",
    "icekeeper.advice.partitioning",
    "icekeeper.advice.shared_keys",
    "icekeeper.advice.sql",
    "icekeeper.advice.summarise",
    "icekeeper.advice.summary",
    "icekeeper.advice.upkeep",
    "icekeeper.catalogs.addresses",
    "icekeeper.catalogs.kind",
    "icekeeper.catalogs.table_bucket_properties",
    "icekeeper.catalogs.table_bucket_arn",
    "icekeeper.commit.attempt",
    "icekeeper.commit.history",
    "icekeeper.commit.row_ids",
    "icekeeper.operations.expiry.candidates",
    "icekeeper.operations.expiry.retention",
    "icekeeper.operations.expiry.ref_costs",
    "icekeeper.operations.expiry.unreferenced",
    "icekeeper.operations.expiry.unused_metadata",
    "icekeeper.operations.expiry.writer_chains",
    "icekeeper.operations.staging.plan",
    "icekeeper.operations.compaction.writing.planned_names",
    "icekeeper.operations.manifests.cuts",
    "icekeeper.operations.manifests.kind_layout",
    "icekeeper.operations.manifests.missing",
    "icekeeper.operations.manifests.partition_ranges",
    "icekeeper.operations.manifests.plan",
    "icekeeper.deletion.neighbours",
    "icekeeper.deletion.other_heads",
    "icekeeper.deletion.owned_locations",
    "icekeeper.pass_context.allowed_locations",
    "icekeeper.operations.orphans.plan",
    "icekeeper.operations.orphans.candidates",
    "icekeeper.operations.orphans.table_locations",
    "icekeeper.deletion.prefix_mismatch",
    "icekeeper.operations.compaction.bins",
    "icekeeper.operations.compaction.budget",
    "icekeeper.operations.compaction.left_alone",
    "icekeeper.operations.compaction.partition_rest",
    "icekeeper.operations.compaction.payback",
    "icekeeper.operations.compaction.rewrite_history",
    "icekeeper.operations.compaction.candidates",
    "icekeeper.operations.compaction.deleted_rows",
    "icekeeper.operations.compaction.missing",
    "icekeeper.operations.compaction.missing_bins",
    "icekeeper.operations.compaction.moments",
    "icekeeper.operations.compaction.scope",
    "icekeeper.operations.compaction.depth_metrics",
    "icekeeper.operations.compaction.expected",
    "icekeeper.operations.compaction.output_partition",
    "icekeeper.operations.compaction.clustering.depth",
    "icekeeper.operations.compaction.clustering.plan",
    "icekeeper.operations.compaction.clustering.recluster",
    "icekeeper.operations.compaction.clustering.runs",
    "icekeeper.operations.compaction.plan",
    "icekeeper.operations.compaction.preview",
    "icekeeper.operations.compaction.recipe",
    "icekeeper.operations.compaction.row_groups",
    "icekeeper.operations.compaction.whole_partitions",
    "icekeeper.partition_time",
    "icekeeper.operations.partitions.plan",
    "icekeeper.operations.position_deletes.expected",
    "icekeeper.operations.position_deletes.plan",
    "icekeeper.operations.statistics.columns",
    "icekeeper.operations.statistics.partition_statistics",
    "icekeeper.operations.statistics.plan",
    "icekeeper.operations.statistics.staleness",
    "icekeeper.detection.ageing",
    "icekeeper.detection.assess",
    "icekeeper.detection.came_since",
    "icekeeper.detection.filters",
    "icekeeper.detection.layout_signals",
    "icekeeper.detection.moving_scope",
    "icekeeper.detection.next_run",
    "icekeeper.detection.outlook",
    "icekeeper.detection.signals",
    "icekeeper.detection.scan_order",
    "icekeeper.detection.statistics_signals",
    "icekeeper.health.counters",
    "icekeeper.health.examine",
    "icekeeper.health.totals",
    "icekeeper.health.warnings",
    "icekeeper.amounts",
    "icekeeper.metadata.overlap_depth",
    "icekeeper.metadata.table_digest",
    "icekeeper.operation_facts",
    "icekeeper.policy",
    "icekeeper.policy_parts",
    "icekeeper.row_group_copy.bounds_to_hide",
    "icekeeper.row_group_copy.chunk_checks",
    "icekeeper.row_group_copy.entry_metrics",
    "icekeeper.row_group_copy.known_writers",
    "icekeeper.row_group_copy.layout",
    "icekeeper.row_group_copy.new_footer",
    "icekeeper.row_group_copy.new_row_groups",
    "icekeeper.row_group_copy.schema_fit",
    "icekeeper.state.leases",
    "icekeeper.state.slack",
    "icekeeper.sweep_rhythm",
    "icekeeper.verification.document_checks",
    "icekeeper.verification.lineage_checks",
    "icekeeper.verification.manifest_checks",
    "icekeeper.verification.statistics_checks",
)
SIDE_EFFECTS = ("os", "time", "random", "uuid", "secrets", "subprocess", "socket", "tempfile", "shutil", "pathlib")


def forbidden_imports(importer: str, forbidden: Collection[str]) -> set[str]:
    """What a room or module imports of a list."""
    assert importer in MODULES
    return {
        f"{name} imports {target}"
        for name, path in MODULES.items()
        if is_within(name, importer)
        for target in [*own_imports(path), *(module for module, _ in imported(path))]
        if any(is_within(target, package) for package in forbidden)
    }


def test_every_room_has_its_floor() -> None:
    rooms = {room(name) for name in MODULES if name != "icekeeper"}
    placed = [name for floor in FLOORS for name in floor]
    assert sorted(placed) == sorted(rooms)


def test_the_docs_describe_every_room() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    described = {
        named.strip("` /").removesuffix(".py")
        for line in text.splitlines()
        if line.startswith("| `")
        for named in line.split("|")[1].split(",")
    }
    assert {name for floor in FLOORS for name in floor} <= described


def test_imports_point_downwards() -> None:
    level = {name: number for number, floor in enumerate(FLOORS) for name in floor}
    upwards = [
        f"{relative(path)} (floor {level[room(name)]}) imports {target} (floor {level[room(target)]})"
        for name, path in MODULES.items()
        if name != "icekeeper"
        for target in own_imports(path)
        if room(target) != room(name) and level[room(target)] >= level[room(name)]
    ]
    assert upwards == []


def children(house: str) -> dict[str, set[str]]:
    """Rooms and modules directly inside a room, and which of each other they import."""
    prefix = f"icekeeper.{house}."

    def child(module: str) -> str | None:
        return module.removeprefix(prefix).split(".")[0] if module.startswith(prefix) else None

    found: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        importer = child(name)
        if importer is not None:
            found.setdefault(importer, set()).update(
                target for target in map(child, own_imports(path)) if target not in (None, importer)
            )
    return found


def test_every_room_with_rooms_inside_has_floors_of_its_own() -> None:
    houses = {
        name.removeprefix("icekeeper.").rpartition(".")[0]
        for name, path in MODULES.items()
        if path.name == "__init__.py" and name.count(".") >= 2
    }
    assert houses == set(INNER_FLOORS)


@pytest.mark.parametrize("house", sorted(INNER_FLOORS))
def test_imports_inside_a_room_point_downwards(house: str) -> None:
    found = children(house)
    level = {name: number for number, floor in enumerate(INNER_FLOORS[house]) for name in floor}
    assert sorted(level) == sorted(found)
    assert [
        f"{importer} (floor {level[importer]}) imports {target} (floor {level[target]})"
        for importer, targets in found.items()
        for target in targets
        if level[target] >= level[importer]
    ] == []


def test_no_module_imports_itself_in_the_end() -> None:
    graph = {name: {target for target in own_imports(path) if target != name} for name, path in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


@pytest.mark.parametrize("importer", sorted(UNKNOWN_TO))
def test_a_room_knows_nothing_of_what_is_not_its_business(importer: str) -> None:
    assert forbidden_imports(importer, UNKNOWN_TO[importer]) == set()


@pytest.mark.parametrize("importer", PURE)
def test_rules_are_pure(importer: str) -> None:
    assert forbidden_imports(importer, SIDE_EFFECTS) == set()
