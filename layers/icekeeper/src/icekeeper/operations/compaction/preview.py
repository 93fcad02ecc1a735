"""What a dry run says of a compaction plan: reasons, outputs and cost of every group, and what is left alone (pure)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.bins import Reason
from icekeeper.operations.compaction.left_alone import LeftAlone
from icekeeper.operations.compaction.plan import CompactionPlan, FileGroup
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.operations.compaction.writing.output_names import partition_path
from icekeeper.policy import DEFAULT_SOURCE, ResolvedPolicy
from icekeeper.policy.choices import RewriteReason

__all__ = ["MOST_GROUPS", "assumptions", "left_document", "plan_document"]

MOST_GROUPS = 1000
"""So many groups are written out one by one; all of them count in the totals."""
_PRICES = (
    *("price_per_gb_scanned", "price_per_gb_rewritten", "price_per_gb_copied"),
    *("price_per_1000_gets", "price_per_1000_puts"),
)
_SUMMED = ("files", "outputs", "bytes_in", "bytes_out", "delete_files", "requests", "saving_usd", "cost_usd")


def plan_document(plan: CompactionPlan, metadata: TableMetadata) -> dict[str, Any]:
    """``plan`` of an operation in ``plan --json``; bytes out, requests and money are estimates."""
    groups = [_group(group, metadata, plan.recipe) for group in plan.groups]
    return {
        "groups": groups[:MOST_GROUPS],
        "totals": {"groups": len(groups), **{key: _sum(groups, key) for key in _SUMMED}},
        **left_document(plan.left),
    }


def assumptions(resolved: ResolvedPolicy) -> dict[str, Any]:
    """What the estimates of money go by: how many scans, at which prices, and whether anybody has set them.

    The default prices are AWS's, whatever store the table is in.
    """
    scans = resolved.policy.expected_scans
    set_by = [key for key in _PRICES if resolved.sources[key] != DEFAULT_SOURCE]
    return {
        "assumes": {
            "expected_scans": 1 if scans is None else scans,
            "prices": {key: float(getattr(resolved.policy, key)) for key in _PRICES},
            "prices_set": set_by,
        }
    }


def left_document(left: Sequence[LeftAlone]) -> dict[str, Any]:
    """What is left alone, and why."""
    return {"left": [{"reason": part.reason, "files": part.files, "bytes": part.bytes} for part in left]}


def _group(group: FileGroup, metadata: TableMetadata, recipe: ClusterRecipe | None) -> dict[str, Any]:
    worth = group.worth
    deletes = {entry.file.key for c in group.files for entry in c.deletes}
    return {
        "reasons": _reasons(group, recipe),
        "partition": partition_path(metadata.specs[group.spec_id], group.partition, metadata.schemas_current_first),
        "spec_id": group.spec_id,
        "files": len(group.files),
        "outputs": group.output_count,
        "bytes_in": group.total_bytes,
        "bytes_out": group.expected_bytes,
        "delete_files": len(deletes),
        "requests": 0 if worth is None else worth.requests,
        "saving_usd": 0.0 if worth is None else round(worth.saving, 9),
        "cost_usd": 0.0 if worth is None else round(worth.cost, 9),
    }


def _reasons(group: FileGroup, recipe: ClusterRecipe | None) -> list[str]:
    """Why the group is rewritten, the main reason first; then what the rewrite settles on the way."""
    also = []
    if any(c.has_debt for c in group.files):
        also.append("deletes")
    if group.route_to is not None or any(c.spec_id != group.spec_id for c in group.files):
        also.append("spec")
    lacks = sorted(reason.value for reason in frozenset[RewriteReason]().union(*(c.lacks for c in group.files)))
    main = () if group.reason is Reason.SETTINGS else (_main_reason(group, recipe),)
    return list(dict.fromkeys([*main, *lacks, *also]))


def _main_reason(group: FileGroup, recipe: ClusterRecipe | None) -> str:
    """Files that are sorted already are sorted together because they are small, or a lookup opens too many of them."""
    is_anew = len(group.files) > 1 and all(c.is_clustered for c in group.files)
    if recipe is None or group.reason is not Reason.CLUSTERING or not is_anew:
        return group.reason.value
    is_small = all(c.file.file_size_in_bytes < recipe.smallest_bytes for c in group.files)
    return Reason.SMALL.value if is_small else "depth"


def _sum(groups: Sequence[dict[str, Any]], key: str) -> int | float:
    total = sum(group[key] for group in groups)
    return round(total, 9) if isinstance(total, float) else total
