"""Whether a policy fits a table: a branch, filter, order or column that it names must be one of the table's.

Asked before a pass, when a setting is kept with a table, and for its health; nothing is read but the metadata document.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.operations.compaction.scope import file_scope
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.statistics.columns import statistics_columns
from icekeeper.pass_context.branch import branch_head
from icekeeper.policy import Operation, Policy, ResolvedPolicy

__all__ = ["check_fit", "fitting"]


def fitting(metadata: TableMetadata, resolved: ResolvedPolicy) -> ResolvedPolicy:
    """The policy itself, if passes under it and under each of its schedules could begin.

    Raises:
        PolicyError: as :func:`check_fit`.
    """
    if resolved.why_disabled() is None:
        for part in resolved.parts():
            check_fit(metadata, part.policy, part.policy.operations)
    return resolved


def check_fit(metadata: TableMetadata, policy: Policy, operations: Collection[Operation]) -> None:
    """Check what the policy says of the branch, of the rows in scope, and of these operations.

    Raises:
        PolicyError: it names something that the table does not have, or that cannot be used so.
    """
    branch_head(metadata, policy.branch)
    file_scope(policy, metadata, now_ms=0)  # a filter fits at every moment, or at none
    if Operation.EXPIRE_SNAPSHOTS in operations:
        check_retention(metadata, policy)
    if Operation.COMPUTE_STATISTICS in operations:
        statistics_columns(metadata, policy.statistics_columns)
    if Operation.COMPACT in operations:
        with suppress(TableUnsupported):  # that is for the operation to report
            choose_recipe(metadata, policy)
