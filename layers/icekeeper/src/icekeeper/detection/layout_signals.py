"""Signals that files are not clustered as the policy asks, or that partitions are past their retention (pure).

Only manifests say which files those are, so both are guesses that a pass confirms.  Each is silent after a pass under
the same policy has looked: until as much has been added again, or until the next partition may have ended.
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.commit.snapshot import RECIPE_KEY
from icekeeper.detection.signals import Signal
from icekeeper.errors import TableUnsupported
from icekeeper.health.counters import summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.policy import Policy, Strategy
from icekeeper.policy.values import text_of
from icekeeper.text import counted

__all__ = ["clustering_signals", "partition_signals", "wanted_clustering"]

_PARTITION_WEIGHT = 0.1


def wanted_clustering(metadata: TableMetadata, policy: Policy) -> str | None:
    """The recipe by which compaction would cluster the table, as written in snapshot summaries; ``None``: not at all.

    Raises:
        PolicyError: the policy names an order or columns that the table does not have.
    """
    orders = policy.sort_order is not None or metadata.default_sort_order_fields
    if policy.strategy is Strategy.BINPACK or (policy.strategy is Strategy.AUTO and not orders):
        return None  # without a look at the schema, which of wide tables takes longer than all the rest
    try:
        recipe = choose_recipe(metadata, policy)
    except TableUnsupported:  # compaction says so, when there is another reason for a pass
        return None
    return None if recipe is None else recipe.text


def clustering_signals(
    metadata: TableMetadata, head: Snapshot, policy: Policy, recipe: str, seen_idle_at: int | None
) -> Iterable[Signal]:
    """A signal when enough files were added since the last snapshot that a rewrite clustered by this recipe.

    ``seen_idle_at`` is a snapshot over which a pass under this policy found nothing to do.  Rewrites of others that
    moved files without clustering them count like new files.
    """
    files = size = 0
    for snapshot in metadata.ancestors(head.snapshot_id):
        counters = summary_counters(snapshot)
        if snapshot.snapshot_id == seen_idle_at or counters.get(RECIPE_KEY) == recipe:
            break
        files += summary_counter(counters, "added-data-files") or 0
        size += summary_counter(counters, "added-files-size") or 0
    total = summary_counter(summary_counters(head), "total-data-files")
    if total is not None:
        files = min(files, total)
    # What compaction's clustering plan asks for: enough files, or enough bytes for one output.
    if files >= policy.min_input_files or (files and size >= policy.target_file_size_bytes):
        weight = files / policy.min_input_files * (files / total if total else 1.0)
        yield Signal(f"{counted(files, 'data file')} came since files were last clustered", weight)


def partition_signals(
    metadata: TableMetadata, policy: Policy, *, now_ms: int, last_looked_ms: int | None
) -> Iterable[Signal]:
    """A signal when partitions may have passed their retention since a pass under this policy (``last_looked_ms``).

    Partitions end by the hour where the table is partitioned so, else by the day at most.
    """
    if policy.partition_retention_hours is None:
        return
    transforms = {str(field.get("transform")) for field in metadata.specs[metadata.default_spec_id]["fields"]}
    if transforms <= {"void"}:
        return
    period_ms = HOUR_MS if "hour" in transforms else 24 * HOUR_MS
    if last_looked_ms is None or now_ms - last_looked_ms >= period_ms:
        hours = text_of(policy.partition_retention_hours)
        yield Signal(f"partitions may be past partition_retention_hours {hours}", _PARTITION_WEIGHT)
