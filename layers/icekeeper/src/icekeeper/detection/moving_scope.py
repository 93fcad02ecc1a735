"""When a pass that found nothing to rewrite must look again, because time alone brings files into its scope (pure).

``min_data_age_hours``, ``min_partition_age_hours`` and a filter relative to now leave out files that they take later.
"""

from __future__ import annotations

from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.policy import Policy
from icekeeper.policy.relative_time import parse_relative, parse_time_pattern

_DAY_MS = 24 * HOUR_MS
_LONGEST_MS = {"hour": HOUR_MS, "day": _DAY_MS, "month": 31 * _DAY_MS, "year": 366 * _DAY_MS}


def scope_has_moved(metadata: TableMetadata, head: Snapshot, policy: Policy, *, looked_ms: int, now_ms: int) -> bool:
    """Whether files of the head may have come into the scope since a pass looked (epoch milliseconds).

    By the age of data: once, when the newest file is old enough.
    """
    of_age_ms = head.timestamp_ms + policy.min_data_age_ms
    came_of_age = looked_ms < of_age_ms <= now_ms
    return came_of_age or partitions_came_into_scope(metadata, head, policy, looked_ms=looked_ms, now_ms=now_ms)


def partitions_came_into_scope(
    metadata: TableMetadata, head: Snapshot, policy: Policy, *, looked_ms: int, now_ms: int
) -> bool:
    """The same by the time of partitions alone.

    Once an hour where the table is partitioned by hour, else once a day, until all that is not of the future is in
    scope.
    """
    reach_ms = _reach_ms(metadata, policy, now_ms)
    if reach_ms <= 0 or looked_ms >= head.timestamp_ms + reach_ms:
        return False
    period_ms = HOUR_MS if "hour" in _transforms(metadata) else _DAY_MS
    return now_ms - looked_ms >= period_ms or now_ms >= head.timestamp_ms + reach_ms


def _reach_ms(metadata: TableMetadata, policy: Policy, now_ms: int) -> int:
    """Until how many milliseconds after its commit a file may still become eligible by its partition's age.

    0: files are eligible as soon as they are committed, or never.
    """
    reaches = []
    if policy.min_partition_age_ms is not None:
        pattern = policy.partition_time_pattern
        longest_ms = max((_LONGEST_MS.get(transform, _DAY_MS) for transform in _transforms(metadata)), default=_DAY_MS)
        if pattern is not None:
            longest_ms = max(longest_ms, parse_time_pattern(pattern).longest_ms)
        reaches.append(policy.min_partition_age_ms + longest_ms)
    if policy.where is not None:
        relative = parse_relative(policy.where)
        taken_ms = max((_LONGEST_MS.get(column.transform, 0) for column in relative.columns.values()), default=0)
        for time in relative.times.values():
            reaches.append(now_ms - time.at(now_ms) // 1000 + taken_ms + (_DAY_MS if time.is_date else 0))
    return max(reaches, default=0)


def _transforms(metadata: TableMetadata) -> set[str]:
    return {str(field.get("transform")) for field in metadata.specs[metadata.default_spec_id]["fields"]}
