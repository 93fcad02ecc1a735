"""A manifest entry whose deletion vector cannot lie where it says fails its group, not the operation (rule 11)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from pyroaring import BitMap64

from icekeeper.metadata.puffin import encode_puffin
from icekeeper.model import FileContent
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.rows.read_task import DeleteFile
from support.rewrites import input_file, rows, struct, task

IDS = struct((1, "id", "long"))


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 40), (4, -1), (4, 2**40), (2**62, 40), (2**70, 40), (4, 41), (4, 0), (None, 40)]
)
def test_a_vector_that_cannot_lie_there_fails_its_group(offset: int | None, size: int, tmp_path: Path) -> None:
    source = input_file(tmp_path / "in.parquet", rows(IDS, {"id": [1, 2, 3]}))
    puffin = encode_puffin([(source.path, BitMap64([1]))], {})
    (tmp_path / "deletes.puffin").write_bytes(puffin.data)
    (blob,) = puffin.blobs
    vector = DeleteFile(
        path=str(tmp_path / "deletes.puffin"),
        file_format="PUFFIN",
        content=FileContent.POSITION_DELETES,
        sequence_number=2,
        record_count=1,
        referenced_data_file=source.path,
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )
    work = task(IDS, [replace(source, deletes=(0,))], tmp_path, deletes=(vector,))
    done = rewrite_group(work)
    assert (done.error, done.rows_deleted) == (None, 1)

    lying = replace(vector, content_offset=offset, content_size_in_bytes=size)
    result = rewrite_group(replace(work, deletes=(lying,)))
    assert "deletes.puffin" in str(result.error)
    assert result.written == ()
