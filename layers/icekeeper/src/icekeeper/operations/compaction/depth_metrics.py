"""How many files a lookup opens before and after a compaction that clusters rows, as metrics (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from icekeeper.model import DataFile
from icekeeper.operations.compaction.plan import CompactionPlan

__all__ = ["depth_with", "done_depth", "planned_depth"]

_BEFORE, _AFTER = "compact.depth_before", "compact.depth_after"


def planned_depth(plan: CompactionPlan) -> dict[str, float]:
    """The depth now, and the one that the plan would leave; nothing where rows are not clustered."""
    if plan.depth is None or plan.recipe is None or not plan.groups:
        return {}
    recipe = plan.recipe
    groups = [([c.file.file_path for c in g.files], recipe.output_count(g.total_bytes)) for g in plan.groups]
    return {_BEFORE: plan.depth.now(), _AFTER: plan.depth.as_planned(groups)}


def done_depth(plan: CompactionPlan, after: float | None) -> dict[str, float]:
    """The depth before, and as the last commit left it; without a commit it is what it was."""
    if plan.depth is None or not plan.groups:
        return {}
    before = plan.depth.now()
    return {_BEFORE: before, _AFTER: before if after is None else after}


def depth_with(plan: CompactionPlan, outputs: Mapping[int, Sequence[DataFile]]) -> float | None:
    """The depth when these groups (by id) have become these files; ``None`` where rows are not clustered."""
    if plan.depth is None or not plan.groups:
        return None
    groups = [([c.file.file_path for c in g.files], outputs[g.group_id]) for g in plan.groups if g.group_id in outputs]
    return plan.depth.with_outputs(groups)
