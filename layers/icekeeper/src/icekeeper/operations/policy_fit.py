"""Whether a policy fits a table: a branch, filter, order or column that it names must be one of the table's.

Asked before a pass, when a setting is kept with a table, and for its health; nothing is read but the metadata document.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import combinations

from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata, branch_head
from icekeeper.operations.compaction.recipe import choose_recipe
from icekeeper.operations.compaction.where import file_scope
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.statistics.plan_statistics import statistics_columns
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of


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


def check_schedules(metadata: TableMetadata, resolved: ResolvedPolicy) -> None:
    """Check that no two schedules must undo each other's work (rule: keep-order-of-other-schedules).

    They do where both order all rows of a scope, in different ways.  One that only merges leaves what the other has
    ordered; of two different scopes nobody knows how they overlap.

    Raises:
        PolicyError: two of them would rewrite the same files at every turn.
    """
    compacting = [
        (name, one.resolved.policy)
        for name, one in sorted(resolved.schedules.items())
        if one.resolved.runs(Operation.COMPACT) and one.resolved.policy.rewrite_enabled
    ]
    for (name, policy), (other_name, other) in combinations(compacting, 2):
        if policy.names_an_order != other.names_an_order or not _share_files(policy, other):
            continue
        with suppress(TableUnsupported):
            recipe, other_recipe = choose_recipe(metadata, policy), choose_recipe(metadata, other)
            if recipe is not None and other_recipe is not None and recipe.text != other_recipe.text:
                raise PolicyError(
                    f"schedules {name} and {other_name} would rewrite the same files at every turn: {name} has "
                    f"{_order(policy)}, {other_name} has {_order(other)}; set one order and target for both, another "
                    "where for each, or no order for one of them, which then leaves what the other has ordered"
                )


def _order(policy: Policy) -> str:
    keys = ["strategy", "sort_order", "zorder_columns", "target_file_size_mb"]
    values = {key: text_of(getattr(policy, key)) for key in keys if getattr(policy, key)}
    return " ".join(f"{key}={value}" for key, value in values.items())


def _share_files(one: Policy, other: Policy) -> bool:
    """Whether two policies surely take the same files: their scope is one, or that of one is the whole table."""
    scopes = [(policy.where, policy.min_partition_age_hours) for policy in (one, other)]
    return scopes[0] == scopes[1] or (None, None) in scopes
