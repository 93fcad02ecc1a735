"""Text that is no UTF-8, which some writers write and Iceberg-Java reads: its bytes go through unchanged (rule 217)."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from pyiceberg.transforms import IdentityTransform

from icekeeper.model import DataFile
from icekeeper.operations.compaction.clustering import exchange
from icekeeper.operations.compaction.rewrite import rewrite_group
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.rows.read_task import InputFile
from support.maintained_table import MaintainedTable, maintained_table
from support.rewrites import struct, task

TEXTS = [b"\xff\xfe\x80p", b"a\x80", b"", "é€".encode(), b"zz\xed\xa0\x80"]
"""A lead byte that is none, a lone continuation, an empty and a sound one, and a surrogate."""
SOUND = (0, 10, 20)
NO_BOUNDS = "write.metadata.metrics.column.part"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with maintained_table(tmp_path) as made:
        made.create()
        yield made


def spoil(table: MaintainedTable, *, bounds: bool = False) -> None:
    """Three files of two rows, and one of texts that are no UTF-8, of which the entry may have the bounds of others."""
    for start in SOUND:
        table.append(start, start + 1)
    with table.table.transaction() as transaction:
        transaction.set_properties({NO_BOUNDS: "truncate(16)" if bounds else "counts"})
    table.append(*range(100, 100 + len(TEXTS)), part="p" * 16)
    with table.table.transaction() as transaction:
        transaction.remove_properties(NO_BOUNDS)
    (file,) = (f for f in table.data_files() if f.record_count == len(TEXTS))
    fields = [("id", pa.int64(), b"1"), ("part", pa.string(), b"2")]
    schema = pa.schema([pa.field(name, kind, metadata={b"PARQUET:field_id": i}) for name, kind, i in fields])
    columns = [pa.array(range(100, 100 + len(TEXTS)), pa.int64()), pa.array(TEXTS, pa.binary()).view(pa.string())]
    path = Path(file.file_path.removeprefix("file://"))
    rows = pa.table(columns, schema=schema)
    length = written_padded(path, rows, 0)
    # To the length that the entry says, or it would not be copied.
    sizes = (written_padded(path, rows, file.file_size_in_bytes - length - less) for less in range(4))
    assert file.file_size_in_bytes in sizes


def written_padded(path: Path, rows: pa.Table, padding: int) -> int:
    """Write a file with so many needless bytes in its footer; its size."""
    with pq.ParquetWriter(path, rows.schema, compression="zstd", store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata({"padding": "x" * padding})
    return path.stat().st_size


def bytes_of(files: list[DataFile]) -> dict[int, bytes]:
    """The text of every row as it is in the files, by id."""
    found: dict[int, bytes] = {}
    for file in files:
        rows = pq.read_table(file.file_path.removeprefix("file://"))
        texts = rows["part"].cast(pa.binary())
        found |= dict(zip(rows["id"].to_pylist(), texts.to_pylist(), strict=True))
    return found


EXPECTED = {n: b"p" for start in SOUND for n in (start, start + 1)} | dict(enumerate(TEXTS, 100))


@pytest.mark.parametrize("proof", ["counts", "full"])
@pytest.mark.parametrize(
    "settings",
    [
        {"min_row_group_copy_bytes": "none"},
        {"strategy": "sort", "sort_order": "part desc"},
        {"strategy": "sort", "sort_order": "truncate(2, part)"},
        {"strategy": "sort", "sort_order": "bucket(4, part)"},
        {"strategy": "zorder", "zorder_columns": "part,id"},
    ],
    ids=["decoded", "sorted", "truncated", "bucketed", "z-ordered"],
)
def test_text_goes_through_byte_for_byte(table: MaintainedTable, settings: dict[str, str], proof: str) -> None:
    """The entry has no bounds of that column, because Iceberg-Java fails to read such ones; those of others stay."""
    spoil(table)
    outcome = table.run(Operation.COMPACT, proof=proof, **settings)
    assert (outcome.status, outcome.metrics["compact.files_merged"]) == (Status.SUCCEEDED, 4)
    (file,) = table.data_files()
    assert bytes_of([file]) == EXPECTED
    assert (file.value_counts or {})[2] == len(EXPECTED)
    assert set(file.lower_bounds or {}) == set(file.upper_bounds or {}) == {1}


def test_text_is_copied_byte_for_byte(table: MaintainedTable) -> None:
    spoil(table, bounds=True)
    outcome = table.run(Operation.COMPACT, proof="full", min_row_group_copy_bytes="1")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.metrics["compact.bytes_copied"] > 0
    (file,) = table.data_files()
    assert pq.ParquetFile(file.file_path.removeprefix("file://")).num_row_groups == 4
    assert bytes_of([file]) == EXPECTED


def test_text_is_sorted_as_bytes_by_all_workers(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "RANGE_BYTES", 1)
    spoil(table)
    outcome = table.run(Operation.COMPACT, strategy="sort", sort_order="part", target_file_size_mb="0.001")
    assert outcome.status is Status.SUCCEEDED
    read = bytes_of(table.data_files())
    assert read == EXPECTED


def test_rows_of_such_texts_stay_in_their_partition(table: MaintainedTable) -> None:
    """A partition is named by its value, and manifests hold that as text: the rows stay in the spec they are in."""
    with table.table.transaction() as transaction:
        transaction.set_properties({NO_BOUNDS: "counts"})
    spoil(table)
    with table.table.update_spec() as update:
        update.add_field("part", IdentityTransform())
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.SUCCEEDED
    assert {file.partition for file in table.data_files()} == {()}
    assert bytes_of(table.data_files()) == EXPECTED


def test_an_avro_file_with_such_text_is_left_out_by_name(tmp_path: Path) -> None:
    """Rather than be read with other text."""
    column = {"name": "part", "type": ["null", "string"], "default": None, "field-id": 2}
    sink = io.BytesIO()
    fastavro.writer(sink, {"type": "record", "name": "r", "fields": [column]}, [{"part": "QQQQ"}], codec="null")
    path = tmp_path / "in.avro"
    path.write_bytes(sink.getvalue().replace(b"QQQQ", TEXTS[0]))
    source = InputFile(str(path), 1, path.stat().st_size, "AVRO")
    result = rewrite_group(task(struct((2, "part", "string")), [source], tmp_path))
    assert (result.written, list(result.unreadable)) == ((), [str(path)])


def test_text_of_orc_files_too(tmp_path: Path) -> None:
    path = tmp_path / "in.orc"
    fields = [pa.field("part", pa.string(), metadata={b"iceberg.id": b"2"})]
    rows = pa.table([pa.array(TEXTS, pa.binary()).view(pa.string())], schema=pa.schema(fields))
    orc.write_table(rows, path)
    source = InputFile(str(path), len(TEXTS), path.stat().st_size, "ORC")
    result = rewrite_group(task(struct((2, "part", "string")), [source], tmp_path))
    (file,) = result.written
    assert pq.read_table(file.file_path)["part"].cast(pa.binary()).to_pylist() == TEXTS
    assert file.lower_bounds == {}
