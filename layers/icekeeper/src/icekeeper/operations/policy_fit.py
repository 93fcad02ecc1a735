"""Checks that a policy fits a table: the branches, columns and filters that it names must exist there.

Used before a pass, when a setting is stored with a table, and for its health; only the metadata document is read.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from itertools import combinations

from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata, branch_head
from icekeeper.operations.compaction.plan.where import file_scope
from icekeeper.operations.compaction.terms.recipe import choose_recipe
from icekeeper.operations.expiry.retention import check_retention
from icekeeper.operations.statistics.plan_statistics import statistics_columns
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of


def fitting(metadata: TableMetadata, resolved: ResolvedPolicy) -> ResolvedPolicy:
    """The policy itself, if passes under it and its schedules could begin.

    Raises:
        PolicyError: as :func:`check_fit`.
    """
    if resolved.why_disabled() is None:
        for part in resolved.parts():
            check_fit(metadata, part.policy, part.policy.operations)
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
        with suppress(TableUnsupported):  # the operation reports it
            choose_recipe(metadata, policy)


def check_schedules(metadata: TableMetadata, resolved: ResolvedPolicy) -> None:
    """Check that no two schedules undo each other's work (rule: keep-order-of-other-schedules).

    They do if both order all rows of one scope in different ways.  A schedule that only merges keeps the order of the
    other.  Two different scopes are accepted, because their overlap is unknown.

    Raises:
        PolicyError: two schedules would rewrite the same files at every turn.
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
    """Whether two policies certainly share files: their scopes are equal, or one is the whole table."""
    scopes = [(policy.where, policy.min_partition_age_hours) for policy in (one, other)]
    return scopes[0] == scopes[1] or (None, None) in scopes
