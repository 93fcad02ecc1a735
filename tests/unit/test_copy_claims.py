"""A Parquet footer that claims what is not so is refused with one sentence, and no file is left (rule 129)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from icekeeper.row_group_copy.copyable import judge_file
from icekeeper.row_group_copy.footer import read_footer
from icekeeper.row_group_copy.footer_structs import FileMetaData, KeyValue, NotCopyable, SortingColumn
from support.copied import STORAGE, copied, mixed_rows, parquet_file, target_of, with_metadata


def meta(metadata: FileMetaData, column: int = 0, group: int = 0) -> Any:
    return metadata.row_groups[group].columns[column].meta_data


def put(path: str, value: Any) -> Callable[[FileMetaData], None]:
    """A change of one attribute of column ``text`` of the first row group, or of what is named."""

    def change(metadata: FileMetaData) -> None:
        group = metadata.row_groups[0]
        places = {"file": metadata, "group": group, "chunk": group.columns[1], "meta": group.columns[1].meta_data}
        place, name = path.split(".")
        setattr(places[place], name, value(getattr(places[place], name)) if callable(value) else value)

    return change


def resized(column: int, group: int, by: int) -> Callable[[FileMetaData], None]:
    """A column chunk that is said to be larger by some bytes; its row group says nothing."""

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


CLAIMS: dict[str, tuple[Callable[[FileMetaData], None], str]] = {
    "fewer rows in all": (put("file.num_rows", 59), "has row groups of 60 rows in all, but claims 59"),
    "rows moved between row groups": (
        moved_row,
        "claims 25 values of column id in a row group of 24 rows",
    ),
    "a row group below no rows": (put("group.num_rows", -25), "claims a row group with less than no rows"),
    "too many values": (put("meta.num_values", 26), "claims 26 values of column text in a row group of 25 rows"),
    "more nulls than values": (
        lambda m: setattr(meta(m, 1).statistics, "null_count", 26),
        "claims 26 nulls among 25 values of column text",
    ),
    "a chunk of no bytes": (put("meta.total_compressed_size", 0), "claims a column chunk of 0 bytes for column text"),
    "a negative chunk": (put("meta.total_compressed_size", -9), "claims a column chunk of -9 bytes for column text"),
    "overlapping chunks": (resized(1, 0, 1), "claims two things at byte "),
    "a chunk over the footer": (
        beyond_the_end,
        "claims column chunks outside of itself",
    ),
    "a chunk that begins in the magic": (
        put("meta.dictionary_page_offset", 2),
        "claims data pages of column text outside of its column chunk",
    ),
    "data before the dictionary": (
        put("meta.data_page_offset", 5),
        "claims data pages of column text outside of its column chunk",
    ),
    "an index page": (put("meta.index_page_offset", 100), "has pages of column text that no reader looks for"),
    "another codec": (put("meta.codec", 1), "has column text compressed otherwise than the table asks for"),
    "another type": (put("meta.type", 2), "has another column chunk where that of column text belongs"),
    "another path": (put("meta.path_in_schema", [b"id"]), "has another column chunk where that of column text belongs"),
    "a chunk in another file": (put("chunk.file_path", b"there.parquet"), "keeps column chunks in other files"),
    "a lost column": (
        lambda m: m.row_groups[1].columns.__delitem__(10),
        "has a row group of 10 columns, the schema has 11",
    ),
    "a wrong ordinal": (put("group.ordinal", 2), "claims that row group 0 is number 2"),
    "row groups in another order": (
        other_order,
        "has its row groups in another order than its rows",
    ),
    "another size of the row group": (
        put("group.total_compressed_size", 7),
        "claims a row group of 7 bytes, its columns",
    ),
    "sorted by a column too many": (
        put("group.sorting_columns", [SortingColumn(column_idx=11)]),
        "claims that rows are sorted by a column that it does not have",
    ),
    "an offset index without length": (
        put("chunk.offset_index_length", None),
        "has an offset index of which it does not say where it begins and ends",
    ),
    "a column index of no bytes": (put("chunk.column_index_length", 0), "claims a column index of 0 bytes"),
    "a Bloom filter without length": (
        put("meta.bloom_filter_offset", 100),
        "has a Bloom filter of which it does not say where it begins and ends",
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
def test_a_footer_that_claims_what_is_not_so_is_refused(claim: str, tmp_path: Path) -> None:
    change, sentence = CLAIMS[claim]
    path = with_metadata(parquet_file(tmp_path / "in.parquet", mixed_rows(0)), change)
    footer = read_footer(str(path), STORAGE)
    assert not isinstance(footer, NotCopyable), str(footer)
    judged = judge_file(footer, target_of())

    assert isinstance(judged, NotCopyable)
    assert str(judged).startswith(f"{path} {sentence}")
    assert "\n" not in str(judged)


def later_data(metadata: FileMetaData) -> None:
    meta(metadata, 1).data_page_offset += 3


def values_elsewhere(metadata: FileMetaData) -> None:
    """A list column may have any number of values above that of its rows."""
    meta(metadata, 3).num_values += 1


ONLY_PAGES_TELL: dict[str, tuple[Callable[[FileMetaData], None], str]] = {
    "a chunk that is too short": (
        resized(1, 0, -1),
        "has a page of column text that does not lie in its column chunk",
    ),
    "data pages that begin later": (
        later_data,
        "claims the first data page of column text elsewhere than it is",
    ),
    "more values in lists": (
        values_elsewhere,
        "claims 44 values of column numbers.list.element, its pages hold 43",
    ),
}


@pytest.mark.parametrize("claim", ONLY_PAGES_TELL)
def test_pages_are_looked_at_while_they_are_copied(claim: str, tmp_path: Path) -> None:
    change, sentence = ONLY_PAGES_TELL[claim]
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
