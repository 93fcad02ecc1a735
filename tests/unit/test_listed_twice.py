"""A file that a snapshot lists twice is left alone by compaction."""

from __future__ import annotations

from icekeeper.operations.compaction.candidates import LiveFile
from icekeeper.operations.compaction.plan import CompactionPlan, plan_compaction
from support.plans import HEAD, HEAD_MS, data_file, live_file, manifest, policy, table


def test_a_file_listed_twice_is_left_alone() -> None:
    """ICEBERG-RULES 15 forbids it, some writers do it, and readers then read it twice: replacing one of the entries
    would add its rows once more."""
    files = [live_file(data_file(f"s3://b/t/data/{n}.parquet", 10)) for n in range(6)]
    twin = LiveFile(manifest("s3://b/t/metadata/other.avro"), files[0].entry)
    metadata = table()
    manifests = [files[0].manifest, twin.manifest]
    plan = plan_compaction(
        metadata, metadata.snapshots[HEAD], manifests, [*files, twin], policy(min_input_files=2), now_ms=HEAD_MS
    )
    assert isinstance(plan, CompactionPlan)
    assert sorted(plan.input_files) == [f"s3://b/t/data/{n}.parquet" for n in range(1, 6)]
