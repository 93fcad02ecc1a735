"""Entries of one partition share its place; partitions that Python takes for equal have places of their own."""

from __future__ import annotations

from icekeeper.metadata.manifest_write import NewSnapshot, encode_manifest
from icekeeper.model import EntryStatus, ManifestContent, ManifestEntry
from icekeeper.operations.manifests.lanes import ManifestsOfTable, SplitTask, split_entries
from support.plans import data_file, table

SPEC = {"spec-id": 0, "fields": [{"field-id": 1000, "source-id": 1, "name": "x", "transform": "identity"}]}
FIELD = {"id": 1, "name": "x", "required": False, "type": "double"}


def test_zero_and_minus_zero_are_two_places() -> None:
    schema = {"type": "struct", "schema-id": 0, "fields": [FIELD]}
    metadata = table(2, schemas=[schema], **{"partition-specs": [SPEC]})
    values = (0.0, -0.0, 0.0, None)
    stored = encode_manifest(
        metadata,
        spec_id=0,
        content=ManifestContent.DATA,
        entries=[
            ManifestEntry(EntryStatus.EXISTING, 7, 1, 1, data_file(f"{number}", 1, (value,)))
            for number, value in enumerate(values)
        ],
        path="m.avro",
        snapshot=NewSnapshot(77, 9),
    )
    task = SplitTask(ManifestsOfTable(metadata.document, 0, ManifestContent.DATA, {}), (stored.manifest,), (), 0)
    ((_, part),) = split_entries(task, lambda path: stored.data)
    places = [place for place, _ in part.entries()]
    order = sorted(range(len(values)), key=lambda number: (places[number], number))
    assert [values[number] for number in order] == [None, -0.0, 0.0, 0.0]
    assert order == [3, 1, 0, 2]
    assert places[0] is places[2]
