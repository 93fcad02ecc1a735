"""Which entries share a manifest."""

from __future__ import annotations

from typing import Any

from icekeeper.commit.snapshot import portions
from icekeeper.model import EntryStatus, ManifestEntry
from support.plans import data_file, table

FIELDS = [
    {"id": 1, "name": "day", "required": False, "type": "date"},
    {"id": 2, "name": "key", "required": False, "type": "uuid"},
]
PARTS = [
    {"field-id": 1000 + i, "source-id": f["id"], "name": f"p{i}", "transform": "identity"} for i, f in enumerate(FIELDS)
]
MORE: dict[str, Any] = {
    "schemas": [{"type": "struct", "schema-id": 0, "fields": FIELDS}],
    "partition-specs": [{"spec-id": 0, "fields": PARTS}, {"spec-id": 1, "fields": PARTS[:1]}],
    "properties": {"commit.manifest.target-size-bytes": "2000"},
}
LOW, HIGH = bytes(16), b"\xff" * 16


def cut(spec_id: int, *partitions: tuple[Any, ...]) -> list[list[str]]:
    """Files by manifest; an entry takes 1,000 bytes."""
    entries = [
        ManifestEntry(EntryStatus.ADDED, 1, None, None, data_file(str(number), 1, partition))
        for number, partition in enumerate(partitions)
    ]
    return [[entry.file.file_path for entry in part] for part in portions(table(**MORE), spec_id, entries, 1000.0)]


def test_manifests_hold_what_fits_the_target() -> None:
    assert cut(1, (1,), (2,), (None,), (1,), (1,)) == [["0", "1"], ["2", "3"], ["4"]]
    assert cut(1) == []


def test_uuids_of_both_signs_never_share_a_manifest() -> None:
    """No bounds of both would hold in the order of Iceberg-Java and in that of all others."""
    assert cut(0, (1, LOW), (1, HIGH), (2, LOW), (2, HIGH), (3, None)) == [["0", "2"], ["4"], ["1", "3"]]
