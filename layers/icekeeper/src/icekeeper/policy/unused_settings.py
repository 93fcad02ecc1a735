"""Settings that change nothing of a pass, each as a sentence for people (pure)."""

from __future__ import annotations

from collections.abc import Iterator

from icekeeper.operation_facts import Operation
from icekeeper.policy.layers import OVERRIDE_SOURCE
from icekeeper.policy.resolved_policy import ResolvedPolicy
from icekeeper.policy.values import text_of

__all__ = ["unused_settings"]

# Setting → the operation that reads it, which `all` leaves out, and what does not happen without it.
_OF_OPERATIONS_ON_REQUEST = {
    "partition_retention_hours": (Operation.EXPIRE_PARTITIONS, "no partition is dropped"),
    "statistics_columns": (Operation.COMPUTE_STATISTICS, "no statistics are computed"),
}


def unused_settings(resolved: ResolvedPolicy) -> Iterator[str]:
    """A sentence for each setting of the table that does not count, or that no operation of this policy reads.

    None of the latter where the call itself names the operations: whoever does that knows which others it leaves out.
    """
    yield from (one.sentence() for one in resolved.ignored)
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return
    for key, (operation, missing) in _OF_OPERATIONS_ON_REQUEST.items():
        value = getattr(resolved.policy, key)
        if value not in (None, ()) and operation not in resolved.policy.operations:
            yield (
                f"{key} is {text_of(value)} ({resolved.sources[key]}), but {operation.value} is not among the "
                f"operations, so {missing}; ask for it with operations=all,{operation.value}"
            )
