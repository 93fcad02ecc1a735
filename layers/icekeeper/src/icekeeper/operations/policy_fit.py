"""Check that a policy fits a table: the branches and columns that it names must exist, and its filters must fit them.

Used before a pass, when a setting is stored in a table, and for the table's health; reads only the metadata document.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata, branch_head
from icekeeper.operations.compaction.plan.where import file_scope
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.statistics.plan_statistics import statistics_columns
from icekeeper.policy import Operation, Policy, ResolvedPolicy


def fitting(metadata: TableMetadata, resolved: ResolvedPolicy) -> ResolvedPolicy:
    """Return the policy if a pass under it can begin.

    Raises:
        PolicyError: as :func:`check_fit`.
    """
    if resolved.why_disabled() is None:
        check_fit(metadata, resolved.policy, resolved.policy.operations)
    return resolved


def check_fit(metadata: TableMetadata, policy: Policy, operations: Collection[Operation]) -> None:
    """Check the policy's branch, filter, and settings of these operations.

    Raises:
        PolicyError: it names something that the table does not have, or that cannot be used in this way.
    """
    branch_head(metadata, policy.branch)
    file_scope(policy, metadata, now_ms=0)  # whether a filter fits does not depend on the time
    if Operation.EXPIRE_SNAPSHOTS in operations:
        check_retention(metadata, policy)
    if Operation.COMPUTE_STATISTICS in operations:
        statistics_columns(metadata, policy.statistics_columns)
    if Operation.COMPACT in operations:
        with suppress(TableUnsupported):  # the operation reports the error
            choose_recipe(metadata, policy)
