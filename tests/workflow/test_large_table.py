"""A table of 30,000 files: what states hand to each other stays far below the 256 KB of Step Functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest, encode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from local_stack.stack import LocalStack, not_in_one_call
from support.local_lake import POLICY_FILE, LocalLake
from support.scripted_pipeline import ScriptedPipeline

FILES, PER_MANIFEST = 30_000, 5_000
# A payload that held one byte of each file would already be larger than it may be.
MOST_BYTES = 16 * 1024
ORPHANS = 1_000
SNAPSHOT = 7_000_000_000_000_000_001


@pytest.mark.slow
def test_payloads_stay_small(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Everything is real but what would rewrite: the data files exist in the manifests only."""
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    _grow(lake)
    # Orphans have a test of their own below; here, finding none among so many files would only take time.
    lake.stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_sweep_enabled: false\n")
    script = ScriptedPipeline(lambda key, body: None, "")
    rewriting = {name: script.functions[name] for name in ("compact_small", "rewrite_manifests")}
    scripted_stack.stand_in({**rewriting, "maintain_small": not_in_one_call}, script.jobs)
    execution = scripted_stack.run({}, timeout_s=300)
    scripted_stack.stand_in({}, {})
    plan = scripted_stack.document_of_pass(execution, "plan.json")
    assert plan["compaction"]["summary"] == f"would compact {FILES} files into 1 (across 1 bins)"
    assert plan["compaction"]["metrics"]["compact.bytes_planned"] == FILES * 1_000
    listed = plan["compaction"]["files"]["listing"]
    assert len(scripted_stack.control(listed.split("/", 3)[3])["planned"]) == FILES
    assert len(json.dumps(plan)) < 64 * 1024
    assert execution.child.tasks[1:] == [
        *("Lease", "Plan", "Compact", "ExpireSnapshots", "RewriteManifests"),  # there are no deletes to merge
        *("ReportTable", "Release"),
    ]
    assert execution.largest_payload < MOST_BYTES, execution.largest_payload


def test_many_orphans_are_handed_on_by_reference(
    scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(2)
    orphans = [Path(lake.table.plant(f"data/{'orphan' * 40}-{number}.parquet")) for number in range(ORPHANS)]
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_max_delete_ratio: 1\n")
    execution = scripted_stack.run({"table": "ns.t", "operations": "remove_orphans"})
    assert execution.child.visit("RemoveOrphans").output["outcomes"]["remove_orphans"] == {
        "status": "succeeded",
        "summary": f"removed {ORPHANS} orphan file(s)",
    }
    assert not any(path.exists() for path in orphans)
    assert sum(len(str(path)) for path in orphans) > 256 * 1024
    assert execution.largest_payload < MOST_BYTES, execution.largest_payload


def _grow(lake: LocalLake) -> None:
    """Give ``ns.t`` one snapshot with all the files."""
    metadata, folder = lake.table.metadata, lake.table.metadata.location
    manifests: list[ManifestFile] = []
    for start in range(0, FILES, PER_MANIFEST):
        encoded = encode_manifest(
            metadata,
            spec_id=0,
            content=ManifestContent.DATA,
            entries=[_entry(f"{folder}/data/{number:06}.parquet") for number in range(start, start + PER_MANIFEST)],
            path=f"{folder}/metadata/m{start}.avro",
            snapshot=NewSnapshot(SNAPSHOT, 1),
        )
        lake.table.storage.write(encoded.manifest.manifest_path, encoded.data)
        manifests.append(encoded.manifest)
    path = f"{folder}/metadata/snap-{SNAPSHOT}.avro"
    listed = encode_manifest_list(2, manifests, snapshot_id=SNAPSHOT, parent_snapshot_id=None, sequence_number=1)
    lake.table.storage.write(path, listed)

    def add(document: dict[str, Any]) -> None:
        moment = document["last-updated-ms"]
        summary = {
            "operation": "append",
            "total-data-files": str(FILES),
            "total-delete-files": "0",
            "total-files-size": str(FILES * 1_000),
        }
        document["snapshots"] = [
            {
                "snapshot-id": SNAPSHOT,
                "sequence-number": 1,
                "timestamp-ms": moment,
                "manifest-list": path,
                "summary": summary,
                "schema-id": 0,
            }
        ]
        document |= {"current-snapshot-id": SNAPSHOT, "last-sequence-number": 1}
        document["refs"] = {"main": {"type": "branch", "snapshot-id": SNAPSHOT}}

    lake.table.rewrite_document(add)


def _entry(path: str) -> ManifestEntry:
    file = DataFile(
        content=FileContent.DATA,
        file_path=path,
        file_format="PARQUET",
        partition=(),
        record_count=1,
        file_size_in_bytes=1_000,
    )
    return ManifestEntry(EntryStatus.ADDED, SNAPSHOT, 1, 1, file)
