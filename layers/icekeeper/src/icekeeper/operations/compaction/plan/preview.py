"""What a dry run reports about a compaction plan: reasons, outputs and cost of groups, and unchanged files (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import Nothing
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason
from icekeeper.operations.compaction.plan.candidates import Tally, known_deleted_rows
from icekeeper.operations.compaction.plan.lacking_settings import FileSample
from icekeeper.operations.compaction.plan.plan_groups import (
    CompactionPlan,
    NothingToCompact,
    counters,
    kept_sentence,
    planned_depth,
)
from icekeeper.operations.compaction.terms.output_names import partition_path
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.policy import Operation, Policy
from icekeeper.policy.values import RewriteReason
from icekeeper.report.outcome import OperationOutcome, skipped, succeeded

MOST_GROUPS = 1000
"""The most groups that are listed individually; all groups count in the totals."""
_SUMMED = ("files", "outputs", "bytes_in", "bytes_out", "delete_files", "requests", "saving_usd", "cost_usd")


def plan_document(plan: CompactionPlan, metadata: TableMetadata) -> dict[str, Any]:
    """The ``plan`` of an operation in ``plan --json``; bytes out, requests and money are estimates."""
    groups = [_group(group, metadata, plan.recipe) for group in plan.groups]
    return {
        "groups": groups[:MOST_GROUPS],
        "totals": {"groups": len(groups), **{key: _sum(groups, key) for key in _SUMMED}},
        **left_document(plan.left),
    }


def assumptions(policy: Policy) -> dict[str, Any]:
    """The assumption behind the money estimates besides the prices (:mod:`icekeeper.report.prices`): the number of
    scans."""
    return {"assumes": {"expected_scans": policy.expected_scans or 1}}


def left_document(left: Mapping[str, Tally]) -> dict[str, Any]:
    """The files that stay unchanged, and why."""
    return {"left": [{"reason": reason, "files": part.files, "bytes": part.bytes} for reason, part in left.items()]}


def _group(group: FileGroup, metadata: TableMetadata, recipe: ClusterRecipe | None) -> dict[str, Any]:
    deletes = {entry.file.key for c in group.files for entry in c.deletes}
    return {
        "reasons": _reasons(group, recipe),
        "partition": partition_path(metadata.specs[group.spec_id], group.partition, metadata.schemas_current_first),
        "spec_id": group.spec_id,
        "files": len(group.files),
        "outputs": expected_outputs(group),
        "bytes_in": group.total_bytes,
        "bytes_out": group.expected_bytes,
        "delete_files": len(deletes),
        "requests": group.worth.requests,
        "saving_usd": round(group.worth.saving, 9),
        "cost_usd": round(group.worth.cost, 9),
    }


def _reasons(group: FileGroup, recipe: ClusterRecipe | None) -> list[str]:
    """The main reason of the rewrite first; then the other reasons that apply to some of its files."""
    also = []
    if any(c.has_debt for c in group.files):
        also.append("deletes")
    if group.route_to is not None or any(c.spec_id != group.spec_id for c in group.files):
        also.append("spec")
    lacks = sorted(reason.value for reason in frozenset[RewriteReason]().union(*(c.lacks for c in group.files)))
    main = [] if group.reason is Reason.SETTINGS else [group.reason.value]
    if recipe is not None and group.reason is Reason.CLUSTERING and len(group.files) > 1:
        # Sorted files are sorted again because they are small, or because a lookup opens too many of them.
        is_small = all(c.file_size_in_bytes < recipe.smallest_bytes for c in group.files)
        if all(c.is_clustered for c in group.files):
            main = [Reason.SMALL.value if is_small else "depth"]
    return list(dict.fromkeys([*main, *lacks, *also]))


def _sum(groups: Sequence[dict[str, Any]], key: str) -> int | float:
    total = sum(group[key] for group in groups)
    return round(total, 9) if isinstance(total, float) else total


def expected_rows(group: FileGroup) -> int:
    """The rows of a group that are not deleted according to manifests."""
    return sum(c.record_count - known_deleted_rows(c, c.deletes) for c in group.files)


def expected_outputs(group: FileGroup) -> int:
    """How many files a group becomes: at most one per row, and none if all rows are deleted."""
    return min(group.output_count, expected_rows(group))


def previewed(
    plan: CompactionPlan | Nothing, metadata: TableMetadata, policy: Policy, sample: FileSample
) -> OperationOutcome:
    """The outcome of a dry run: what a pass would do, and ``plan`` for ``plan --json``."""
    document = _document(plan, metadata, policy, sample)
    if isinstance(plan, Nothing):
        return replace(skipped(Operation.COMPACT, plan.reason), plan=document)
    if plan.groups:
        outputs = sum(map(expected_outputs, plan.groups))
        summary = f"would compact {len(plan.input_files)} files into {outputs} (across {len(plan.groups)} bins)"
    else:
        summary = f"would drop {sum(count == 0 for count in plan.delete_needs.values())} delete file(s)"
    summary += kept_sentence(plan)
    planned = {"compact.bytes_planned": sum(group.total_bytes for group in plan.groups)}
    metrics = {**counters(plan), **planned, **planned_depth(plan)}
    would = succeeded(Operation.COMPACT, summary, metrics=metrics, files_planned=plan.input_files)
    return replace(would, plan=document)


def _document(
    plan: CompactionPlan | Nothing, metadata: TableMetadata, policy: Policy, sample: FileSample
) -> dict[str, Any] | None:
    """``None`` if there is nothing to report."""
    document: dict[str, Any] = {}
    if isinstance(plan, CompactionPlan):
        document = plan_document(plan, metadata) | assumptions(policy)
    if isinstance(plan, NothingToCompact) and plan.left:
        document |= left_document(plan.left)
    lacking = sample.lacking_settings()
    if not (isinstance(plan, CompactionPlan) and plan.groups and plan.recipe):
        lacking = [*lacking, *sample.lacking_order()]
    return (document | ({"settings": lacking} if lacking else {})) or None
