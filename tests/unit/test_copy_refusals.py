"""Files that are not copied, each with a sentence that states the reason
(rule: copy-only-checked-footers, store-copies-the-judged-object)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.row_group_copy.copyable import judge_file
from icekeeper.row_group_copy.footer import (
    Piece,
    claimed_pages,
    data_pages,
    ends_are_certain,
    offset_index,
    parquet_schema,
    read_footer,
)
from icekeeper.row_group_copy.footer_decisions import check_writer, common_writer
from icekeeper.row_group_copy.footer_structs import (
    CannotCopy,
    ColumnChunk,
    ColumnMetaData,
    FileMetaData,
    KeyValue,
    NotCopyable,
    OffsetIndex,
    PageLocation,
    RowGroup,
    SortingColumn,
    write_struct,
)
from icekeeper.row_group_copy.write_copy import read_pieces
from support.copied import MIXED, STORAGE, copied, entry_of, mixed_rows, parquet_file, target_of, with_metadata
from support.rewrites import rows, struct

# Files of other schemas, settings and writers are not copied, and a sentence states the reason.


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
def test_an_invalid_footer_is_refused(end: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1" + b"data of a file" * 9 + end)
    with pytest.raises(CannotCopy, match=f"^{re.escape(sentence)}"):
        judge_file(read_footer(str(path), STORAGE), target_of())


def test_short_and_missing_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(CannotCopy, match=r"^is too short for a Parquet file$"):
        read_footer(str(path), STORAGE)
    with pytest.raises(CannotCopy, match=r"^has 4 bytes, but its manifest entry says 5$"):
        read_footer(str(path), STORAGE, 5)
    with pytest.raises(StorageError, match="does not exist"):
        read_footer(str(tmp_path / "missing.parquet"), STORAGE)


def test_an_entry_that_disagrees_with_its_file_is_refused(tmp_path: Path) -> None:
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
FIRST, SECOND, *REST = FIELDS
ANOTHER = "has a column '{}' that differs from the table's current schema: another {}".format
OTHER_SCHEMAS = {
    ANOTHER("id", "nullability"): [{**FIRST, "required": True}, SECOND, *REST],
    ANOTHER("id", "field id"): [{**FIRST, "id": 99}, SECOND, *REST],
    ANOTHER("id", "type"): [{**FIRST, "type": "int"}, SECOND, *REST],
    ANOTHER("text", "annotation"): [FIRST, {**SECOND, "type": "binary"}, *REST],
    ANOTHER("id", "name"): [SECOND, FIRST, *REST],
    "does not have the table's current columns": [SECOND, *REST],
}


@pytest.mark.parametrize("sentence", OTHER_SCHEMAS)
def test_another_schema_is_refused(sentence: str, tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    wanted = target_of({**MIXED, "fields": OTHER_SCHEMAS[sentence]})
    assert str(copied([path], tmp_path / "copy.parquet", wanted)) == f"{path} {sentence}"


def test_files_may_require_optional_columns_if_all_files_of_an_output_do(tmp_path: Path) -> None:
    """Spark makes columns required that cannot be null in a query; levels in pages depend on that."""
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
    assert str(refused) == f"{strict} has other required columns than {loose}"
    refused = copied([loose], tmp_path / "both.parquet", target_of(needed))
    assert str(refused).endswith("has a column 'id' that differs from the table's current schema: another nullability")


def test_encrypted_columns_are_refused(tmp_path: Path) -> None:
    """The footer is not encrypted, so the file looks like any other at first."""
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
    with pytest.raises(CannotCopy):
        judge_file(footer, target_of(struct((1, "id", "long"))))


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


def test_copies_of_several_writers_get_a_name_without_known_faults() -> None:
    assert common_writer({b"a version 1.0.0"}) == b"a version 1.0.0"
    check_writer(common_writer({b"a version 1.0.0", b"b version 1.0.0"}))


def test_the_parquet_schema_equals_that_of_files_we_write() -> None:
    paths = [b".".join(column.path).decode() for column in parquet_schema(MIXED).columns]
    assert paths == [column.leaf.parquet_path for column in parquet_schema(MIXED).columns]
    assert parquet_schema(MIXED).columns[6].path == [b"point", b"x.y"]


@pytest.mark.parametrize("name", [b"a" + b" " * 1_000_000, b"a version 1." + b"9" * 1_000_000])
def test_a_writers_name_of_a_megabyte_is_refused_at_once(name: bytes) -> None:
    """The writer chooses its name; blanks took minutes to parse, and Python refuses so many digits."""
    begun_s = time.process_time()
    if name.endswith(b" "):
        with pytest.raises(CannotCopy, match="names no version"):
            check_writer(name)
    else:
        check_writer(name)  # a writer without known faults
    assert time.process_time() - begun_s < 1


# An offset index counts only if its pages follow each other and fill their column chunk
# (rule: store-copies-the-judged-object).

INDEX = Piece(900, 930)
TRUE = ((120, 30, 0), (150, 20, 10), (170, 30, 20))


def pages_of(*places: tuple[int, int, int]) -> list[Piece]:
    """The pages of a chunk from 100 to 200 with a dictionary before 120, by an offset index with these places."""
    meta = ColumnMetaData(dictionary_page_offset=100, data_page_offset=120, total_compressed_size=100)
    chunk = ColumnChunk(meta_data=meta, offset_index_offset=INDEX.start, offset_index_length=INDEX.size)
    index = write_struct(OffsetIndex(page_locations=[PageLocation(*place) for place in places]))
    return claimed_pages([RowGroup(columns=[chunk])], {INDEX: index})[data_pages(meta)]


@pytest.mark.parametrize(
    "change",
    [
        lambda first, middle, last: (),
        lambda first, middle, last: (middle, last),
        lambda first, middle, last: (first, middle),
        lambda first, middle, last: (first, last),
        lambda first, middle, last: (first, middle, (160, 40, 20)),
        lambda first, middle, last: (first, (150, 0, 10), (150, 20, 10), last),
        lambda first, middle, last: (first, (150, 60, 10), (210, -10, 20)),
    ],
    ids=["none", "no first page", "no last page", "a gap", "overlapping", "an empty page", "there and back"],
)
def test_pages_that_do_not_fill_their_chunk_are_refused(
    change: Callable[..., tuple[tuple[int, int, int], ...]],
) -> None:
    assert pages_of(*TRUE) == [Piece(120, 150), Piece(150, 170), Piece(170, 200)]
    with pytest.raises(CannotCopy, match="has an offset index whose pages do not fill their column chunk"):
        pages_of(*change(*TRUE))


# A Parquet footer with false claims is refused with a sentence, and leaves no output file
# (rule: copy-only-checked-footers).


def meta(metadata: FileMetaData, column: int = 0, group: int = 0) -> Any:
    return metadata.row_groups[group].columns[column].meta_data


def put(path: str, value: Any) -> Callable[[FileMetaData], None]:
    """A change of one attribute of column ``text`` of the first row group, or of the named structure."""

    def change(metadata: FileMetaData) -> None:
        group = metadata.row_groups[0]
        places = {"file": metadata, "group": group, "chunk": group.columns[1], "meta": group.columns[1].meta_data}
        place, name = path.split(".")
        setattr(places[place], name, value(getattr(places[place], name)) if callable(value) else value)

    return change


def resized(column: int, group: int, by: int) -> Callable[[FileMetaData], None]:
    """A change of the size of a column chunk, but not of its row group."""

    def change(metadata: FileMetaData) -> None:
        meta(metadata, column, group).total_compressed_size += by
        metadata.row_groups[group].total_compressed_size = None

    return change


def beyond_the_end(metadata: FileMetaData) -> None:
    last = meta(metadata, 10, 2)
    last.data_page_offset += 10**6
    last.dictionary_page_offset = None


def moved_row(metadata: FileMetaData) -> None:
    metadata.row_groups[0].num_rows -= 1
    metadata.row_groups[1].num_rows += 1


def other_order(metadata: FileMetaData) -> None:
    metadata.row_groups.reverse()
    for number, group in enumerate(metadata.row_groups):
        group.ordinal = number


OF_TEXT = "of column text"
CLAIMS: dict[str, tuple[Callable[[FileMetaData], None], str]] = {
    "fewer rows in all": (put("file.num_rows", 59), "has row groups of 60 rows in all, but claims 59"),
    "rows moved between row groups": (moved_row, "claims 25 values of column id in a row group of 24 rows"),
    "a row group below no rows": (put("group.num_rows", -25), "claims a row group with less than no rows"),
    "too many values": (put("meta.num_values", 26), f"claims 26 values {OF_TEXT} in a row group of 25 rows"),
    "more nulls than values": (
        lambda m: setattr(meta(m, 1).statistics, "null_count", 26),
        f"claims 26 nulls among 25 values {OF_TEXT}",
    ),
    "a chunk of no bytes": (put("meta.total_compressed_size", 0), "claims a column chunk of 0 bytes for column text"),
    "a negative chunk": (put("meta.total_compressed_size", -9), "claims a column chunk of -9 bytes for column text"),
    "overlapping chunks": (resized(1, 0, 1), "claims two things at byte "),
    "a chunk over the footer": (beyond_the_end, "claims column chunks outside the file"),
    "a chunk in the magic": (put("meta.dictionary_page_offset", 2), f"claims data pages {OF_TEXT} outside of its "),
    "data before the dictionary": (put("meta.data_page_offset", 5), f"claims data pages {OF_TEXT} outside of its "),
    "an index page": (put("meta.index_page_offset", 100), f"has pages {OF_TEXT} that no reader reads"),
    "another codec": (put("meta.codec", 1), "has column text compressed with another codec than the table's"),
    "another type": (put("meta.type", 2), "has another column chunk in the place of column text"),
    "another path": (put("meta.path_in_schema", [b"id"]), "has another column chunk in the place of column text"),
    "a chunk in another file": (put("chunk.file_path", b"there.parquet"), "keeps column chunks in other files"),
    "a lost column": (
        lambda m: m.row_groups[1].columns.__delitem__(10),
        "has a row group of 10 columns, the schema has 11",
    ),
    "a wrong ordinal": (put("group.ordinal", 2), "claims that row group 0 is number 2"),
    "row groups in another order": (other_order, "has its row groups in another order than its rows"),
    "another size of the row group": (put("group.total_compressed_size", 7), "claims a row group of 7 bytes, its "),
    "sorted by a column too many": (
        put("group.sorting_columns", [SortingColumn(column_idx=11)]),
        "claims that rows are sorted by a column that it does not have",
    ),
    "an offset index without length": (
        put("chunk.offset_index_length", None),
        "has an offset index without an offset or a length",
    ),
    "a column index of no bytes": (put("chunk.column_index_length", 0), "claims a column index of 0 bytes"),
    "a Bloom filter without length": (
        put("meta.bloom_filter_offset", 100),
        "has a Bloom filter without an offset or a length",
    ),
    "no column orders": (
        put("file.column_orders", None),
        "orders its bounds otherwise than by the type of each column",
    ),
    "no writer": (put("file.created_by", None), "does not name its writer"),
    "an old writer": (
        put("file.created_by", b"parquet-mr version 1.7.0 (build 1)"),
        "was written by 'parquet-mr version 1.7.0 (build 1)', a version with faults",
    ),
    "Spark's old calendar": (
        put("file.key_value_metadata", [KeyValue(b"org.apache.spark.legacyDateTime", b"")]),
        "has values in another calendar (org.apache.spark.legacyDateTime)",
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_footer_with_a_false_claim_is_refused(claim: str, tmp_path: Path) -> None:
    change, sentence = CLAIMS[claim]
    path = with_metadata(parquet_file(tmp_path / "in.parquet", mixed_rows(0)), change)
    footer = read_footer(str(path), STORAGE)
    with pytest.raises(CannotCopy) as refused:
        judge_file(footer, target_of())
    assert str(refused.value).startswith(sentence)
    assert "\n" not in str(refused.value)


def later_data(metadata: FileMetaData) -> None:
    meta(metadata, 1).data_page_offset += 3


def values_elsewhere(metadata: FileMetaData) -> None:
    """A list column may have any number of values from its number of rows on."""
    meta(metadata, 3).num_values += 1


SEEN_IN_PAGES: dict[str, tuple[Callable[[FileMetaData], None], str]] = {
    "a chunk that is too short": (resized(1, 0, -1), "has a page of column text outside of its column chunk"),
    "data pages that begin later": (later_data, "claims a wrong place for the first data page of column text"),
    "more values in lists": (values_elsewhere, "claims 44 values of column numbers.list.element, its pages have 43"),
}


@pytest.mark.parametrize("claim", SEEN_IN_PAGES)
def test_pages_are_checked_while_they_are_copied(claim: str, tmp_path: Path) -> None:
    change, sentence = SEEN_IN_PAGES[claim]
    good = parquet_file(tmp_path / "good.parquet", mixed_rows(0))
    path = with_metadata(parquet_file(tmp_path / "in.parquet", mixed_rows(0)), change)
    refused = copied([good, path], tmp_path / "copy.parquet")

    assert str(refused) == f"{path} {sentence}"
    assert not (tmp_path / "copy.parquet").exists()


def test_an_offset_index_of_other_pages_is_refused(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))

    def exchange(metadata: FileMetaData) -> None:
        first, second = (group.columns[1] for group in metadata.row_groups[:2])
        for name in ("offset_index_offset", "offset_index_length"):
            mine, theirs = getattr(first, name), getattr(second, name)
            setattr(first, name, theirs)
            setattr(second, name, mine)

    refused = copied([with_metadata(path, exchange)], tmp_path / "copy.parquet")
    assert str(refused) == f"{path} has an offset index that names other pages than there are"


# The ends of unread column chunks must be certain (rule: store-copies-the-judged-object).

COLUMN = 3


def shorter(metadata: FileMetaData) -> None:
    """A chunk claims fewer bytes than its pages have, as parquet-cpp before 1.3.0 wrote (PARQUET-816)."""
    metadata.row_groups[0].columns[COLUMN].meta_data.total_compressed_size -= 20


def certain(path: Path) -> bool:
    footer = read_footer(str(path), STORAGE)
    return ends_are_certain(footer.metadata().row_groups, footer.start)


def test_the_end_of_a_chunk_is_certain_only_where_something_begins(tmp_path: Path) -> None:
    for indexed in (True, False):
        path = parquet_file(tmp_path / "a", mixed_rows(0), write_page_index=indexed)
        assert certain(path)
    assert not certain(with_metadata(path, shorter))


def test_the_pages_of_an_offset_index_must_fill_the_chunk(tmp_path: Path) -> None:
    path = parquet_file(tmp_path / "a", mixed_rows(0))
    for change in (None, shorter):
        footer = read_footer(str(path if change is None else with_metadata(path, change)), STORAGE)
        groups = footer.metadata().row_groups
        assert ends_are_certain(groups, footer.start)
        places = [offset_index(chunk) for group in groups for chunk in group.columns]
        with STORAGE.open_input(str(path)) as stream:
            indexes = read_pieces(stream, [piece for piece in places if piece is not None])
        if change is None:
            pages = claimed_pages(groups, indexes)
            assert pages.keys() == {data_pages(chunk.meta_data) for group in groups for chunk in group.columns}
            assert all(found[-1].end == chunk.end for chunk, found in pages.items())
            continue
        with pytest.raises(CannotCopy, match="has an offset index whose pages do not fill their column chunk"):
            claimed_pages(groups, indexes)
