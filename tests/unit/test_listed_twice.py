"""A file that a snapshot lists twice is left alone by compaction."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.model import LiveEntry
from icekeeper.operations.compaction.candidates import TableState
from icekeeper.operations.compaction.plan_groups import CompactionPlan, plan_compaction
from support.plans import HEAD, HEAD_MS, MB, data_file, live_file, manifest, policy, table


def test_a_file_listed_twice_is_left_alone() -> None:
    """The specification forbids it, some writers do it, and readers then read it twice: replacing one of the entries
    would add its rows once more (rule 24)."""
    files = [live_file(data_file(f"s3://b/t/data/{n}.parquet", 10)) for n in range(6)]
    twin = LiveEntry(manifest("s3://b/t/metadata/other.avro"), files[0].entry)
    metadata = table()
    manifests = [files[0].manifest, twin.manifest]
    state = TableState(metadata, metadata.snapshots[HEAD], manifests, [*files, twin])
    plan = plan_compaction(state, policy(min_input_files=2), now_ms=HEAD_MS)
    assert isinstance(plan, CompactionPlan)
    assert sorted(plan.input_files) == [f"s3://b/t/data/{n}.parquet" for n in range(1, 6)]


OLD = 7
"""A snapshot that is long gone, so that its files are old."""


@pytest.mark.parametrize(
    "other",
    [
        {"file": data_file("s3://b/t/data/0.parquet", 900 * MB)},
        {"file": data_file("s3://b/t/data/0.parquet", 10, file_format="LANCE")},
        {"file": data_file("s3://b/t/data/0.parquet", 10, records=1)},
        {"snapshot_id": HEAD},
    ],
    ids=["size", "format", "scope", "age"],
)
@pytest.mark.parametrize("first", [True, False])
def test_nothing_about_its_other_entry_matters(other: dict[str, Any], first: bool) -> None:
    """Whatever keeps one entry from being a candidate: replacing the one would take the other along."""
    files = [live_file(data_file(f"s3://b/t/data/{n}.parquet", 10), snapshot_id=OLD) for n in range(4)]
    twin = LiveEntry(files[0].manifest, replace(files[0].entry, **other))
    metadata = table()
    plan = plan_compaction(
        TableState(
            metadata,
            metadata.snapshots[HEAD],
            [files[0].manifest],
            [twin, *files] if first else [*files, twin],
        ),
        policy(min_input_files=2, min_data_age_hours=1),
        now_ms=HEAD_MS,
        in_scope=lambda file, spec_id: file.record_count != 1,
    )
    assert isinstance(plan, CompactionPlan)
    assert sorted(plan.input_files) == [f"s3://b/t/data/{n}.parquet" for n in range(1, 4)]
