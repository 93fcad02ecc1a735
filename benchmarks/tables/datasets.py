"""The tables of the suite by name; ``scale`` is the share of the full size, in files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from benchmarks.tables.deleted_rows import make_cdc, make_deleted_positions
from benchmarks.tables.event_tables import make_append_only, make_partitioned, make_sorted_runs, make_wide
from benchmarks.tables.fleet import make_fleet
from benchmarks.tables.kept_table import KeptTable, kept_table
from benchmarks.tables.metadata_tables import make_long_history, make_many_manifests, make_orphans

WARM_UP = "warm_up"
"""Four small files: what a contestant does before anything is measured."""


def _deleted(clustered: bool, vectors: bool) -> Callable[[Path, float], None]:
    return lambda folder, scale: make_deleted_positions(
        folder, max(2, round(6 * scale)), 2_200_000, clustered=clustered, vectors=vectors
    )


DATASETS: Mapping[str, Callable[[Path, float], None]] = {
    WARM_UP: lambda folder, scale: make_append_only(folder, 4, 2_000),
    "small_table": lambda folder, scale: make_append_only(folder, max(2, round(60 * scale)), 1_000),
    "append_only": lambda folder, scale: make_append_only(folder, max(4, round(200 * scale)), 50_000),
    "append_only_16mb": lambda folder, scale: make_append_only(folder, max(2, round(20 * scale)), 550_000),
    "append_only_4gb": lambda folder, scale: make_append_only(folder, max(4, round(2_100 * scale)), 50_000),
    "append_only_16mb_4gb": lambda folder, scale: make_append_only(folder, max(2, round(250 * scale)), 550_000),
    "append_only_300kb": lambda folder, scale: make_append_only(folder, max(4, round(600 * scale)), 7_300),
    "tiny_files": lambda folder, scale: make_append_only(folder, max(8, round(2_000 * scale)), 950),
    "wide": lambda folder, scale: make_wide(folder, max(2, round(100 * scale)), 1_000),
    "sorted_runs": lambda folder, scale: make_sorted_runs(folder, max(4, round(20 * scale)), 500_000),
    "many_partitions": lambda folder, scale: make_partitioned(folder, max(10, round(5_000 * scale)), 2, 300),
    "many_groups": lambda folder, scale: make_partitioned(folder, max(2, round(160 * scale)), 16, 50_000),
    "deletes_clustered": _deleted(True, False),
    "deletes_spread": _deleted(False, False),
    "vectors_clustered": _deleted(True, True),
    "vectors_spread": _deleted(False, True),
    "many_manifests": lambda folder, scale: make_many_manifests(folder, max(4, round(1_000 * scale)), 500),
    "million_files": lambda folder, scale: make_many_manifests(folder, max(4, round(2_000 * scale)), 500),
    "long_history": lambda folder, scale: make_long_history(folder, round(2_100 * scale) + 5, 48, 10),
    "fleet": lambda folder, scale: make_fleet(folder, round(10_000 * scale)),
    "orphans": lambda folder, scale: make_orphans(folder, round(1_000_000 * scale)),
    "cdc": lambda folder, scale: make_cdc(
        folder, max(2, round(8 * scale)), 1_000_000, max(2, round(20 * scale)), 10_000
    ),
}


def dataset(work: Path, name: str, scale: float) -> KeptTable:
    """The table, made now unless it is kept from an earlier run."""
    make = DATASETS[name]
    full_name = name if name == WARM_UP else f"{name}_{scale:g}".replace(".", "_")
    return kept_table(work, full_name, lambda folder: make(folder, scale))
