"""Files of other schemas, settings and writers are not copied, and one sentence says why."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import judge_file
from icekeeper.row_group_copy.footer import parquet_schema, read_footer
from icekeeper.row_group_copy.footer_decisions import check_writer, common_writer
from icekeeper.row_group_copy.footer_structs import CannotCopy, NotCopyable
from support.copied import MIXED, STORAGE, copied, entry_of, mixed_rows, parquet_file, target_of
from support.rewrites import rows, struct


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (b"", "does not end as a Parquet file"),
        (b"PARE", "has an encrypted footer"),
        (b"\xff\xff\xff\x7fPAR1", "claims a footer of 2147483647 bytes, more than the file has"),
        (b"\x10\x00\x00\x00PAR1", "is damaged: "),
        (b"\x00" * 9_000_000 + (9_000_000).to_bytes(4, "little") + b"PAR1", "has a footer of 9000000 bytes"),
        (b"\x00\x01\x00\x00\x00PAR1", "has fields that this version of Icekeeper does not know"),
        (b"\x9c" * 5000 + (5000).to_bytes(4, "little") + b"PAR1", "is damaged: Maximum recursion depth exceeded"),
    ],
    ids=["nothing", "encrypted", "too long", "data", "huge", "empty", "deep"],
)
def test_what_is_no_footer_is_refused(end: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1" + b"data of a file" * 9 + end)
    footer = read_footer(str(path), STORAGE)
    refused = footer if isinstance(footer, NotCopyable) else judge_file(footer, target_of())
    assert str(refused).startswith(f"{path} {sentence}")


def test_short_and_missing_files(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1")
    assert str(read_footer(str(path), STORAGE)) == f"{path} is too short for a Parquet file"
    assert str(read_footer(str(path), STORAGE, 5)) == f"{path} has 4 bytes, its manifest entry says 5"
    with pytest.raises(StorageError, match="does not exist"):
        read_footer(str(tmp_path / "missing.parquet"), STORAGE)


def test_an_entry_that_disagrees_with_its_file(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    to = tmp_path / "copy.parquet"
    assert str(copied([entry_of(path, record_count=61)], to)) == f"{path} has 60 rows, its manifest entry says 61"
    assert str(copied([entry_of(path, key_metadata=b"k")], to)) == f"{path} is encrypted"


def test_row_groups_below_the_threshold_on_average_are_refused(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    footer = pq.read_metadata(path)
    sizes = [sum(c["total_compressed_size"] for c in footer.row_group(n).to_dict()["columns"]) for n in range(3)]
    average = sum(sizes) // 3
    assert min(sizes) < average
    refused = copied([path], tmp_path / "copy.parquet", target_of(least=average + 1))
    assert str(refused) == f"{path} has row groups of {average} bytes on average, below {average + 1}"
    assert not isinstance(copied([path], tmp_path / "copy.parquet", target_of(least=average)), NotCopyable)


FIELDS = list(MIXED["fields"])
OTHER_SCHEMAS = {
    "has column 'id' otherwise than the table's current schema: another nullability": [
        {**FIELDS[0], "required": True},
        *FIELDS[1:],
    ],
    "has column 'id' otherwise than the table's current schema: another field id": [
        {**FIELDS[0], "id": 99},
        *FIELDS[1:],
    ],
    "has column 'id' otherwise than the table's current schema: another type": [
        {**FIELDS[0], "type": "int"},
        *FIELDS[1:],
    ],
    "has column 'text' otherwise than the table's current schema: another annotation": [
        FIELDS[0],
        {**FIELDS[1], "type": "binary"},
        *FIELDS[2:],
    ],
    "has column 'id' otherwise than the table's current schema: another name": [FIELDS[1], FIELDS[0], *FIELDS[2:]],
    "does not have the table's current columns": FIELDS[1:],
}


@pytest.mark.parametrize("sentence", OTHER_SCHEMAS)
def test_another_schema_is_refused(sentence: str, tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    wanted = target_of({**MIXED, "fields": OTHER_SCHEMAS[sentence]})
    assert str(copied([path], tmp_path / "copy.parquet", wanted)) == f"{path} {sentence}"


def test_files_may_require_what_the_table_does_not_if_all_of_an_output_do(tmp_path: Path) -> None:
    """Spark requires what cannot be null in a query; the levels in pages depend on it."""
    wanted = struct((1, "id", "long"), (2, "point", struct((3, "x", "int"))))
    needed = struct((1, "id", "long", {"required": True}), (2, "point", struct((3, "x", "int", {"required": True}))))
    values: dict[str, list[Any]] = {"id": [1, 2], "point": [{"x": 1}, None]}
    strict = parquet_file(tmp_path / "strict.parquet", rows(needed, values))
    loose = parquet_file(tmp_path / "loose.parquet", rows(wanted, values))
    made = copied([strict, strict], tmp_path / "copy.parquet", target_of(wanted))
    assert isinstance(made, DataFile), str(made)
    read = pq.read_table(made.file_path)
    assert read.equals(pa.concat_tables([pq.read_table(strict)] * 2))
    assert not read.schema.field("id").nullable

    refused = copied([loose, strict], tmp_path / "both.parquet", target_of(wanted))
    assert str(refused) == f"{strict} requires values in other columns than {loose}"
    refused = copied([loose], tmp_path / "both.parquet", target_of(needed))
    assert str(refused).endswith("has column 'id' otherwise than the table's current schema: another nullability")


def test_a_file_without_field_ids_is_refused(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", pa.table({"id": [1]}))
    refused = copied([path], tmp_path / "copy.parquet", target_of(struct((1, "id", "long"))))
    assert str(refused).endswith("has column 'id' otherwise than the table's current schema: another field id")


def test_encrypted_columns_are_refused(tmp_path: Path) -> None:
    """The footer is plain, so the file looks like any other at first."""
    path = tmp_path / "in.parquet"
    configuration = pe.EncryptionConfiguration(
        footer_key="foot", column_keys={"col": ["id"]}, plaintext_footer=True, double_wrapping=False
    )
    factory = pe.CryptoFactory(lambda _: _Kms())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    table = pa.table({"id": pa.array([1], pa.int64())}).cast(
        pa.schema([pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})])
    )
    pq.write_table(table, path, encryption_properties=properties)
    footer = read_footer(str(path), STORAGE)
    assert not isinstance(footer, NotCopyable), str(footer)
    assert isinstance(judge_file(footer, target_of(struct((1, "id", "long")))), NotCopyable)


class _Kms(pe.KmsClient):  # type: ignore[misc]  # PyArrow has no annotations
    def __init__(self) -> None:
        pe.KmsClient.__init__(self)

    def wrap_key(self, key_bytes: bytes, master_key_identifier: str) -> bytes:
        return b"wrapped"

    def unwrap_key(self, wrapped_key: bytes, master_key_identifier: str) -> bytes:
        return b"0123456789012345"


@pytest.mark.parametrize(
    ("name", "is_right"),
    [
        ("parquet-mr version 1.9.0 (build x)", False),
        ("parquet-mr version 1.10.0", True),
        ("parquet-mr version 1.16.0 (build abc)", True),
        ("parquet-cpp version 1.5.1-SNAPSHOT", False),
        ("parquet-cpp-arrow version 2.0.0", False),
        ("parquet-cpp-arrow version 26.0.1", True),
        ("DuckDB version v1.5.5 (build d8cdaa33fd)", True),
        ("parquet-rs version 58.0.0", True),
        ("Polars", False),
    ],
)
def test_writers_that_readers_work_around_are_refused(name: str, is_right: bool) -> None:
    if is_right:
        check_writer(name.encode())
    else:
        with pytest.raises(CannotCopy, match="was written by"):
            check_writer(name.encode())


def test_row_groups_of_several_writers_get_a_name_that_no_reader_works_around() -> None:
    assert common_writer({b"a version 1.0.0"}) == b"a version 1.0.0"
    check_writer(common_writer({b"a version 1.0.0", b"b version 1.0.0"}))


def test_the_parquet_schema_is_that_of_files_we_write() -> None:
    paths = [b".".join(column.path).decode() for column in parquet_schema(MIXED).columns]
    assert paths == [column.leaf.parquet_path for column in parquet_schema(MIXED).columns]
    assert parquet_schema(MIXED).columns[6].path == [b"point", b"x.y"]


@pytest.mark.parametrize("name", [b"a" + b" " * 1_000_000, b"a version 1." + b"9" * 1_000_000])
def test_a_writers_name_of_a_megabyte_is_refused_at_once(name: bytes) -> None:
    """Whoever may write the table chooses it; blanks took minutes, and so many digits are no number to Python."""
    begun_s = time.process_time()
    if name.endswith(b" "):
        with pytest.raises(CannotCopy, match="names no version"):
            check_writer(name)
    else:
        check_writer(name)  # of a writer without faults that readers know
    assert time.process_time() - begun_s < 1
