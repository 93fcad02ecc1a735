"""What is in memory while columns are encoded side by side, and while row groups are copied: little beside the rows."""

from __future__ import annotations

import io
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.compute as pc

from icekeeper.operations.compaction.side_by_side import side_by_side_writer
from icekeeper.row_group_copy import write_copy as stream
from icekeeper.row_group_copy.footer import Piece, data_pages, read_footer
from icekeeper.storage.storage import Storage
from support.copied import mixed_rows, parquet_file

COLUMNS, ROWS = 20, 64 * 1024


class Watched:
    """A sink that notes how much memory Arrow has with every write."""

    def __init__(self) -> None:
        self.size = 0
        self.allocated: list[int] = []

    def tell(self) -> int:
        return self.size

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self.allocated.append(pa.total_allocated_bytes())


def test_encoded_columns_take_the_place_of_their_rows() -> None:
    """Doubles at random take as much memory encoded as before: without that their sum would be twice as much."""
    before = pa.total_allocated_bytes()
    rows = [pa.table({f"c{number}": pc.random(ROWS, initializer=number) for number in range(COLUMNS)})]
    size = pa.total_allocated_bytes() - before
    sink = Watched()
    writer = side_by_side_writer(sink, rows[0], {"use_dictionary": False, "compression": "none"}, 2)
    assert writer is not None
    writer.write_row_group(rows)
    assert rows == []
    writer.close()
    pages = sink.allocated[1 : COLUMNS + 1]
    # In a column's small file its buffer may be twice as large as what it holds: two runs are under way, two may wait.
    assert max(pages) - before < 1.4 * size
    assert pages[-1] - before < 0.3 * size


class OneBlock:
    """A stream of bytes whose reader must have let go of a block before it reads the next one."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)
        self._last = bytearray()

    def seek(self, place: int) -> None:
        self._data.seek(place)

    def read_buffer(self, size: int) -> bytearray:
        self._last.clear()  # an error while somebody looks at it
        self._last = bytearray(self._data.read(size))
        return self._last


def test_one_block_of_a_copied_file_is_in_memory_at_a_time(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    footer = read_footer(str(path), Storage({}))
    groups = footer.metadata().row_groups  # type: ignore[union-attr]  # it can be read
    chunks = {data_pages(chunk.meta_data): chunk.meta_data for group in groups for chunk in group.columns}
    whole = Piece(min(chunks).start, max(chunks).end)
    data = path.read_bytes()
    copy = io.BytesIO()
    with mock.patch.object(stream, "BLOCK_BYTES", 100):
        found, _ = stream.copy_ranges(OneBlock(data), copy, [whole], chunks)
        assert found == stream.checksums(OneBlock(data), chunks)
    assert copy.getvalue() == data[whole.start : whole.end]
