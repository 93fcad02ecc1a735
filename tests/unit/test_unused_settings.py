"""A setting whose operation does not run is told, and nothing else is."""

from __future__ import annotations

from icekeeper.policy.layers import Layer
from icekeeper.policy.resolve import resolve, unused_settings

RETENTION = Layer("table property icekeeper.partition_retention_hours", {"partition_retention_hours": "720"})


def test_a_retention_without_its_operation_is_told() -> None:
    assert list(unused_settings(resolve([RETENTION]))) == [
        "partition_retention_hours is 720 (table property icekeeper.partition_retention_hours), but expire_partitions "
        "is not among the operations, so no partition is dropped; ask for it with operations=all,expire_partitions"
    ]


def test_a_setting_of_the_table_that_does_not_count_is_told() -> None:
    resolved = resolve(
        [Layer("table property icekeeper.operations", {"operations": "all,expire_partitions"}, is_table=True)]
    )
    assert [sentence.partition("; ")[0] for sentence in unused_settings(resolved)] == [
        "table property icekeeper.operations 'all,expire_partitions' does not count: operations is "
        "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests (default), and a table may "
        "only leave some of these out"
    ]


def test_with_its_operation_or_without_the_setting_nothing_is_told() -> None:
    assert list(unused_settings(resolve([]))) == []
    everything = Layer("table property icekeeper.operations", {"operations": "all,expire_partitions"})
    assert list(unused_settings(resolve([RETENTION, everything]))) == []


def test_who_names_the_operations_in_the_call_is_told_nothing() -> None:
    assert list(unused_settings(resolve([RETENTION, Layer("--set", {"operations": "compact"})]))) == []
