"""The rooms of the source and their order, which the architecture test enforces."""

from __future__ import annotations

# From the lowest up.  A room, or a module beside the rooms, imports only from entries above it in this list.
ROOMS = (
    "model",
    "operation_facts",
    "text",
    "errors",
    "machine",
    "aws",
    "metadata",
    "pyiceberg_private",
    "state",
    "storage",
    "engines",
    "policy",
    "rows",
    "catalogs",
    "health",
    "report",
    "row_group_copy",
    "commit",
    "pass_context",
    "deletion",
    "operations",
    "verification",
    "repair",
    "erasure",
    "administration",
    "advice",
    "detection",
    "maintenance",
    "runtime",
    "api",
    "cycle",
    "demo",
    "pipeline",
    "cli",
    "__main__",
)
# A room with floors → its floors, from the lowest up.  Modules of one floor do not import each other.
FLOORS: dict[str, tuple[tuple[str, ...], ...]] = {
    "operations.compaction": (("terms",), ("plan", "work"), ("land",), ("run_groups",), ("compact",))
}
_NO_CATALOG = ("icekeeper.catalogs", "icekeeper.commit", "icekeeper.state")
# Room or module → packages that it must not import although the order of rooms allows it.
UNKNOWN_TO: dict[str, tuple[str, ...]] = {
    # Commits and metadata are about entries, not about rows.
    "icekeeper.commit": ("pyarrow", "icekeeper.storage"),
    "icekeeper.metadata": ("pyarrow", "pyiceberg"),
    # Engines run functions, and the work unit runs on machines without access to the catalog.
    "icekeeper.engines": ("pyiceberg", "pyarrow", "icekeeper.catalogs", "icekeeper.operations"),
    "icekeeper.operations.compaction.terms": _NO_CATALOG,
    "icekeeper.operations.compaction.work": _NO_CATALOG,
    "icekeeper.operations.manifests.lanes": _NO_CATALOG,
    "icekeeper.operations.statistics.sketch_task": _NO_CATALOG,
    "icekeeper.rows.read": _NO_CATALOG,
    "icekeeper.verification.read_files": _NO_CATALOG,
    "icekeeper.row_group_copy": (*_NO_CATALOG, "icekeeper.policy"),
}
# Plans and rules: no input, no output, no clock, no random numbers.
_PURE = {
    "advice": "advise read_tables",
    "catalogs": "configured",
    "commit": "attempt",
    "deletion": "neighbours",
    "detection": "assess list_tables looked_at priority proposal signals",
    "erasure": "places row_filter traces",
    "health": "examine",
    "metadata": "document overlap_depth updates writer_marks",
    "maintenance": "saved_plan",
    "": "operation_facts policy text",
    "operations.compaction.plan": (
        "bins candidates plan_clustering large_files output_sizes payback plan_groups predicates preview value_ranges "
        "where"
    ),
    "operations.compaction.terms": "output_partition recipe rewrite_task",
    "operations.compaction.work": "copied_outputs side_by_side",
    "operations.expiry": "ref_costs retention unreferenced",
    "operations.manifests": "layout plan_manifests",
    "operations": "old_partitions overdue_loads",
    "operations.orphans": "orphan_rules",
    "operations.position_deletes": "plan_merges",
    "operations.statistics": "partition_statistics plan_statistics staleness",
    "pipeline": "deployment wave",
    "repair": "damage plan",
    "report": "prices",
    "row_group_copy": "copyable entry_metrics footer footer_decisions lineage new_footer",
    "storage": "part_plan",
    "verification": "checks row_checks",
}
PURE = tuple(f"icekeeper.{room}.{name}".replace("..", ".") for room, names in _PURE.items() for name in names.split())
SIDE_EFFECTS = ("os", "time", "random", "uuid", "secrets", "subprocess", "socket", "tempfile", "shutil", "pathlib")
