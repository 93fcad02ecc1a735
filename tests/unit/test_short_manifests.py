"""A manifest that is shorter than its manifest list says is never read as one that names fewer files."""

from __future__ import annotations

import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestFile


@pytest.mark.parametrize(("promised", "is_read"), [(0, True), (3, True), (4, True), (5, False)])
def test_a_short_manifest_is_an_error(promised: int, is_read: bool) -> None:
    """Of inline manifests (v1) no length is known; a list that says too little harms nobody."""
    manifest = ManifestFile(manifest_path="m", manifest_length=promised, partition_spec_id=0, added_snapshot_id=1)
    contents = TableReader(TableMetadata({"format-version": 2, "location": "t"}), lambda path: b"data").contents(
        [manifest]
    )
    if is_read:
        assert list(contents) == [(manifest, b"data")]
    else:
        with pytest.raises(MetadataUnreadable, match="manifest m has 4 bytes, its manifest list says 5"):
            list(contents)
