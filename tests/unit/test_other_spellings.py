"""Deletes whose data file is spelled otherwise are told from those whose data file is gone (rule 177)."""

from __future__ import annotations

import pytest

from icekeeper.errors import MetadataUnreadable
from icekeeper.metadata.delete_scope import DeleteIndexBuilder
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestEntry
from icekeeper.operations.compaction.candidates import well_spelled
from icekeeper.rows.apply_deletes import SpelledFiles

PAIRS = [
    ("s3a://b/t/f", "s3://b/t/f"),
    ("s3://b/t/f", "s3n://b/t/f"),
    ("s3://b/t//f", "s3://b/t/f"),
    ("s3://b/t/k=a%20b/f", "s3a://b/t/k=a b/f"),
    ("/w/t/f", "file:///w/t/f"),
    ("file:/w/t/f", "file:///w/t/f"),
    ("file:///w/t/f", "/w/t/f"),
]
OTHERS = ["s3://b/t/g", "s3://c/t/f", "s3://b/u/f", "/w/u/f"]


def vector(of: str) -> ManifestEntry:
    file = DataFile(
        content=FileContent.POSITION_DELETES,
        file_path="s3://b/t/v.puffin",
        file_format="PUFFIN",
        partition=(),
        record_count=1,
        file_size_in_bytes=1,
        referenced_data_file=of,
        content_offset=4,
        content_size_in_bytes=40,
    )
    return ManifestEntry(EntryStatus.ADDED, 1, 1, 1, file)


@pytest.mark.parametrize(("named", "live"), PAIRS)
def test_a_vector_is_not_dangling_where_its_file_is_spelled_otherwise(named: str, live: str) -> None:
    builder, delete = DeleteIndexBuilder(), vector(named)
    builder.add(0, delete, is_unpartitioned=True)
    index, listed = builder.build(), [*map(hash, OTHERS), hash(live)]
    with pytest.raises(MetadataUnreadable, match=f"deletes rows of {named}, which the manifests spell {live}: "):
        well_spelled({delete.file.key: 0}, index, listed)
    for needs, beside in (({delete.file.key: 1}, listed), ({delete.file.key: 0}, listed[:-1])):
        assert well_spelled(needs, index, beside) == needs


@pytest.mark.parametrize(("named", "live"), PAIRS)
def test_a_row_that_names_a_file_in_another_spelling_is_refused(named: str, live: str) -> None:
    with pytest.raises(MetadataUnreadable, match=f"d deletes rows of {named}, which the manifests spell {live}: "):
        SpelledFiles([*OTHERS, live]).refuse("d", named)
    SpelledFiles([*OTHERS, named]).refuse("d", named)
    SpelledFiles(OTHERS).refuse("d", named)
