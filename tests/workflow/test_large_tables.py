"""Tables too large for functions: payloads of 17,000 files, and of many orphans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry, ManifestFile
from local_stack.stack import LocalStack
from support.local_lake import POLICY_FILE, LocalLake
from support.plans import data_file
from support.scripted_pipeline import ScriptedPipeline

# A table of 17,000 files: payloads of states stay far below the 256 KB of Step Functions.

FILES, PER_MANIFEST = 17_000, 4_250
# A payload with one byte for each file would exceed this.
MOST_BYTES = 16 * 1024
ORPHANS = 100
SNAPSHOT = 7_000_000_000_000_000_001


@pytest.mark.slow
def test_payloads_stay_small(scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Functions that would rewrite are stand-ins: the data files exist in the manifests only."""
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    _grow(lake)
    # The test below covers orphans; a search among so many files would only take time here.
    lake.stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_sweep_enabled: false\n")
    script = ScriptedPipeline(lambda key, body: None, "")
    rewriting = {name: script.functions[name] for name in ("commit", "expire")}
    scripted_stack.stand_in(rewriting, script.jobs)
    execution = scripted_stack.run({}, timeout_s=300)
    scripted_stack.stand_in({}, {})
    plan = scripted_stack.document_of_pass(execution, "plan.json")
    assert plan["size_bytes"] == FILES * 1_000
    assert len(json.dumps(plan)) < 4 * 1024
    assert [task for child in execution.children for task in child.tasks] == [
        *("PlanTable", "CompactSmall", "ExpireSnapshots", "RewriteManifests")  # there are no deletes to merge
    ]
    assert execution.largest_payload < MOST_BYTES, execution.largest_payload


def test_many_orphans_are_passed_by_reference(
    scripted_stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path
) -> None:
    lake = LocalLake(scripted_stack, local_catalog, tmp_path)
    lake.table.fill(2)
    orphans = [Path(lake.table.plant(f"data/{'orphan' * 40}-{number}.parquet")) for number in range(ORPHANS)]
    scripted_stack.put_control("config/policy.yaml", f"{POLICY_FILE}    orphan_max_delete_ratio: 1\n")
    execution = scripted_stack.run({"table": "ns.t", "operations": "remove_orphans"})
    found = scripted_stack.document_of_pass(execution, "remove_orphans.json")
    assert (found["status"], found["summary"]) == ("succeeded", f"removed {ORPHANS} orphan file(s)")
    assert not any(path.exists() for path in orphans)
    assert sum(len(str(path)) for path in orphans) > MOST_BYTES
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
            snapshot_id=SNAPSHOT,
            sequence_number=1,
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
    return ManifestEntry(EntryStatus.ADDED, SNAPSHOT, 1, 1, data_file(path, 1_000, records=1))
