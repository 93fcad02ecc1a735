"""How many new manifests a plan lacks that finds nothing, exactly."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from icekeeper.metadata.document import TableMetadata
from icekeeper.model import ManifestFile
from icekeeper.operations.manifests.plan_manifests import NothingToRewrite
from support.growing_table import DAYS, day_manifest, planned
from support.plans import MB, manifest, table

PLAIN = table()


def lacking(metadata: TableMetadata, manifests: Sequence[ManifestFile]) -> int | None:
    found = planned(metadata, manifests, 5)
    assert isinstance(found, NothingToRewrite)
    return found.slack.manifests


def of_sizes(*megabytes: float) -> list[ManifestFile]:
    return [manifest(f"m{number}", length=int(size * MB)) for number, size in enumerate(megabytes)]


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([], 5),
        ([1, 1, 1], 2),
        ([1, 1, 1, 1], 1),
        # Oldest large ones are settled: new ones wait until there are enough.
        ([8, 8, 8, 8, 8], 5),
        ([8, 8, 8, 8, 8, 1], 4),
        ([8, 8, 8, 8, 8, 1, 8, 8], 2),
    ],
)
def test_without_partitions(sizes: list[float], expected: int) -> None:
    assert lacking(PLAIN, of_sizes(*sizes)) == expected


def test_with_partitions_a_new_manifest_may_unsettle_others() -> None:
    # Two that unsettle three full ones, which are five: 3 hold them.
    assert lacking(DAYS, [day_manifest(day, day, day) for day in range(40)]) == 2
    # Half full ones would be half as many, once they are unsettled.
    assert lacking(DAYS, [day_manifest(day, day, day, 4) for day in range(40)]) == 1
    # Of six that meet at their ends, planners open two, and one more that spans all days.
    assert lacking(DAYS, [day_manifest(day, day, day + 1) for day in range(6)]) == 1
