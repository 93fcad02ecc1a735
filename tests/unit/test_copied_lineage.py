"""Rows of copied row groups keep their row ids and last updated sequence numbers
(rule: rows-keep-their-lineage)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import StorageError
from icekeeper.model import DataFile
from icekeeper.row_group_copy import lineage as new_lineage
from icekeeper.row_group_copy import lineage as write_lineage
from icekeeper.row_group_copy import write_copy as write_tail
from icekeeper.row_group_copy.footer import data_pages, read_footer
from icekeeper.row_group_copy.footer_structs import ColumnChunk, FileMetaData, KeyValue, RowGroup, Statistics
from icekeeper.row_group_copy.merge_files import copyable_file
from support.copied import (
    STORAGE,
    Input,
    copied,
    entry_of,
    lineage_file,
    lineage_target,
    merged,
    mixed_rows,
    parquet_file,
    plain_file,
    row_ids,
    with_metadata,
)

# Rows of copied row groups keep their lineage in two additional columns
# (rule: rows-keep-their-lineage).

NAMES = ["_row_id", "_last_updated_sequence_number"]


def made_of(inputs: list[Input], path: Path, **more: Any) -> DataFile:
    made = merged(inputs, path, lineage_target(**more))
    assert isinstance(made, DataFile), str(made)
    return made


def groups_of(path: str | Path) -> list[RowGroup]:
    footer = read_footer(str(path), STORAGE)
    return footer.metadata().row_groups


def bytes_of(path: str | Path, chunk: ColumnChunk) -> bytes:
    piece = data_pages(chunk.meta_data)
    return Path(path).read_bytes()[piece.start : piece.end]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Input]:
    """A file without the columns, a file with all values, and a file with nulls in the second and third row group."""
    ids: list[int | None] = list(range(900, 960))
    changes: list[int | None] = [3 + n % 2 for n in range(60)]
    some = [None if n in (30, 31, 59) else value for n, value in enumerate(ids)]
    others = [None if n >= 50 else value for n, value in enumerate(changes)]
    return [
        plain_file(tmp_path / "a.parquet", 0, 5000, 7),
        lineage_file(tmp_path / "b.parquet", 60, (ids, changes), (8000, 8)),
        lineage_file(tmp_path / "c.parquet", 120, (some, others), (6000, 9)),
        plain_file(tmp_path / "d.parquet", 180, 2**40, 2**33, data_page_version="2.0", use_dictionary=False),
    ]


def test_only_lineage_columns_with_nulls_are_encoded_again(inputs: list[Input], tmp_path: Path) -> None:
    made = made_of(inputs, tmp_path / "copy.parquet")
    before = [(item.entry.file_path, group) for item in inputs for group in groups_of(item.entry.file_path)]
    after = groups_of(made.file_path)
    kept = []
    for (path, old), new in zip(before, after, strict=True):
        pairs = list(zip(old.columns, new.columns, strict=False))
        same = [bytes_of(path, old_chunk) == bytes_of(made.file_path, chunk) for old_chunk, chunk in pairs]
        assert all(same[:11])
        assert len(new.columns) == 13
        kept.append(same[11:])
    assert kept == [[]] * 3 + [[True, True]] * 4 + [[False, False]] * 2 + [[]] * 3


def test_rows_with_and_without_ids_share_no_file(tmp_path: Path) -> None:
    """Such rows get ids from the commit (rule: rows-keep-their-lineage)."""
    path = parquet_file(tmp_path / "in.parquet", mixed_rows(0))
    refused = copyable_file(entry_of(path), lineage_target(), STORAGE, 3)
    assert str(refused) == f"{path} has rows without ids, which will get ids from a commit"
    with pytest.raises(ValueError, match="need the data sequence number of their file"):
        copyable_file(entry_of(path, first_row_id=0), lineage_target(), STORAGE)


def test_a_file_with_only_one_lineage_column_is_refused(tmp_path: Path) -> None:
    whole = lineage_file(tmp_path / "whole.parquet", 0, ([1], [2]))
    table = pq.read_table(whole.entry.file_path)
    for gone in NAMES:
        path = parquet_file(tmp_path / f"without{gone}.parquet", table.drop_columns([gone]))
        refused = copyable_file(entry_of(path, first_row_id=0), lineage_target(), STORAGE, 1)
        assert str(refused) == f"{path} does not have the table's current columns"
    swapped = table.select([*table.schema.names[:-2], *reversed(NAMES)])
    path = parquet_file(tmp_path / "swapped.parquet", swapped)
    refused = copyable_file(entry_of(path, first_row_id=0), lineage_target(), STORAGE, 1)
    assert str(refused) == f"{path} does not have the table's current columns"


def test_the_iceberg_schema_of_a_footer_is_omitted_if_columns_are_added(tmp_path: Path) -> None:
    def annotate(metadata: FileMetaData) -> None:
        metadata.key_value_metadata = [KeyValue(b"iceberg.schema", b"{}")]

    path = with_metadata(parquet_file(tmp_path / "in.parquet", mixed_rows(0)), annotate)
    plain = Input(entry_of(path, first_row_id=0), 1)
    assert pq.read_metadata(made_of([plain], tmp_path / "copy.parquet").file_path).metadata is None
    without_ids = copied([path], tmp_path / "without.parquet")
    assert isinstance(without_ids, DataFile)
    assert pq.read_metadata(without_ids.file_path).metadata == {b"iceberg.schema": b"{}"}


def test_stored_ids_with_poor_statistics_are_decoded(tmp_path: Path) -> None:
    """The statistics lack null counts, or have bounds that no row has."""
    stored = lineage_file(tmp_path / "none.parquet", 0, ([1, None, 3], [4, 5, None]), (50, 9), write_statistics=False)
    made = made_of([stored], tmp_path / "copy.parquet")
    assert row_ids(made.file_path) == [(0, 1, 4), (1, 51, 5), (2, 3, 9)]
    assert pa.types.is_int64(pq.read_schema(made.file_path).field("_row_id").type)

    def cut(metadata: FileMetaData) -> None:
        for chunk in metadata.row_groups[0].columns[-2:]:
            statistics = chunk.meta_data.statistics
            assert statistics is not None
            statistics.max_value, statistics.is_max_value_exact = (99).to_bytes(8, "little"), False

    stored = lineage_file(tmp_path / "in.parquet", 0, ([1, 2, 3], [4, 5, 6]))
    path = with_metadata(Path(stored.entry.file_path), cut)
    made = made_of([Input(entry_of(path, first_row_id=0), 9)], tmp_path / "copy.parquet")
    assert row_ids(made.file_path) == [(0, 1, 4), (1, 2, 5), (2, 3, 6)]
    found = pq.read_metadata(made.file_path).row_group(0).column(11).statistics
    assert (found.min, found.max) == (1, 3)


def test_a_file_with_lineage_by_another_writer_names_several_writers(tmp_path: Path) -> None:
    """Readers work around faults of a writer by its name, which must not apply to pages of others
    (rule: copy-only-checked-footers)."""

    def by_java(metadata: FileMetaData) -> None:
        metadata.created_by = b"parquet-mr version 1.13.1 (build 1)"

    path = with_metadata(parquet_file(tmp_path / "in.parquet", mixed_rows(0)), by_java)
    made = made_of([Input(entry_of(path, first_row_id=0), 9)], tmp_path / "copy.parquet")
    assert "several writers" in pq.read_metadata(made.file_path).created_by
    without_ids = copied([path], tmp_path / "without.parquet")
    assert isinstance(without_ids, DataFile)
    assert pq.read_metadata(without_ids.file_path).created_by.startswith("parquet-mr version 1.13.1")


# The proof detects wrong row ids of a copy, whatever step causes them
# (rule: prove-before-commit, rows-keep-their-lineage).

Patch = pytest.MonkeyPatch


@pytest.fixture
def two_inputs(tmp_path: Path) -> list[Input]:
    """A file without the columns, and a file with nulls in all row groups."""
    values = [None if n % 7 == 0 else 100 + n for n in range(60)]
    return [
        plain_file(tmp_path / "plain.parquet", 0, 5000, 7),
        lineage_file(tmp_path / "stored.parquet", 60, (values, values), (8000, 9)),
    ]


def swapped(patch: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function; the new function gets the original and its arguments."""
    original = getattr(module, name)
    patch.setattr(module, name, lambda *arguments: change(original, *arguments))


def wrongly_inherited(change: Callable[[Any], Any]) -> Callable[[Patch], None]:
    """Values other than the claimed values are encoded."""

    def encoded(original: Any, group: Any, inherited: Any, stored: Any, *more: Any) -> Any:
        chunks, data = original(group, change(inherited), stored, *more)
        facts = replace(chunks.lineage, inherited=inherited if stored is None else None)
        return replace(chunks, lineage=facts), data

    return lambda patch: swapped(patch, write_lineage, "encoded_lineage", encoded)


def wrong_values(patch: Patch) -> None:
    """Arrow encodes other values than it was given, within the same bounds."""

    def encoded(original: Any, table: Any, *more: Any) -> Any:
        turned = table.take([1, 0, *range(2, table.num_rows)]) if table.num_rows > 2 else table
        return original(turned, *more)

    swapped(patch, new_lineage, "_encoded", encoded)


def exchanged(patch: Patch) -> None:
    """The chunks and checksums of two row groups are exchanged, so that only the values differ."""

    def written(original: Any, *arguments: Any) -> Any:
        first, second, *rest = original(*arguments)
        if first is None:
            return (first, second, *rest)
        facts = first.lineage, second.lineage
        return (replace(second, lineage=facts[0]), replace(first, lineage=facts[1]), *rest)

    swapped(patch, write_tail, "write_lineage", written)


def unknown(patch: Patch) -> None:
    """The expected ids of a row group are unknown."""

    def written(original: Any, *arguments: Any) -> Any:
        first, *rest = original(*arguments)
        return (replace(first, lineage=None), *rest)

    swapped(patch, write_tail, "write_lineage", written)


def other_bounds(patch: Patch) -> None:
    """The manifest would state that all row ids are zero."""
    swapped(patch, new_lineage, "stored_bounds", lambda original, group: ((0, 0), (0, 0)))


OTHERS = "row group 0 has other row ids or last changes than its rows had"
FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "row ids from another row on": (wrongly_inherited(lambda inherited: inherited.after(1)), OTHERS),
    "another last change": (wrongly_inherited(lambda inherited: replace(inherited, sequence_number=1)), OTHERS),
    "other values": (wrong_values, OTHERS),
    "columns of another row group": (exchanged, OTHERS),
    "nothing known": (unknown, "row group 0 has row ids that are not expected"),
    "other bounds": (other_bounds, "row group 0 has row ids or last changes outside of the bounds in its footer"),
}


# Stored values are proven by checksums, inherited values by the entry.
_INHERITED_ONLY = ("row ids from another row on", "another last change")
CASES = [(fault, 0) for fault in FAULTS] + [(fault, 1) for fault in FAULTS if fault not in _INHERITED_ONLY]


@pytest.mark.parametrize(("fault", "which"), CASES)
def test_changed_row_ids_are_detected(
    fault: str, which: int, two_inputs: list[Input], tmp_path: Path, monkeypatch: Patch
) -> None:
    """This holds for files without the columns and for files with some null values."""
    spoil, sentence = FAULTS[fault]
    spoil(monkeypatch)
    to = tmp_path / "copy.parquet"
    with pytest.raises(StorageError) as raised:
        merged([two_inputs[which]], to)
    assert str(raised.value) == (f"rows were not kept: {sentence}; {to} was written and is kept for inspection")


def claiming(nulls: int) -> Callable[[FileMetaData], None]:
    def change(metadata: FileMetaData) -> None:
        for group in metadata.row_groups:
            for chunk in group.columns[-2:]:
                found = chunk.meta_data.statistics or Statistics()
                found.null_count = nulls

    return change


def test_nulls_that_a_footer_denies_are_detected(two_inputs: list[Input], tmp_path: Path) -> None:
    """The statistics would allow a copy of the columns; every null would then inherit another id."""
    path = Path(two_inputs[1].entry.file_path)
    false = with_metadata(path, claiming(0))
    claimed = Input(entry_of(false, first_row_id=8000), 9)
    with pytest.raises(StorageError, match="row group 0 has rows without a stored id or last change"):
        merged([claimed], tmp_path / "copy.parquet")


def test_row_ids_are_proven_in_every_batch(two_inputs: list[Input], tmp_path: Path, monkeypatch: Patch) -> None:
    """Batches may end within row groups, and row groups are read alone or together."""
    for batch, together in ((1, 1), (7, 10**6), (10**6, 300)):
        monkeypatch.setattr("icekeeper.row_group_copy.copy_proof._BATCH_ROWS", batch)
        monkeypatch.setattr("icekeeper.row_group_copy.copy_proof._READ_BYTES", together)
        monkeypatch.setattr("icekeeper.row_group_copy.lineage._ROWS", batch)
        made = merged(two_inputs, tmp_path / f"copy-{batch}.parquet")
        assert made is not None
        found = row_ids(str(tmp_path / f"copy-{batch}.parquet"))
        assert found[:60] == [(n, 5000 + n, 7) for n in range(60)]
        assert found[60:64] == [(60, 8000, 9), (61, 101, 101), (62, 102, 102), (63, 103, 103)]


def test_another_column_of_every_input_is_decoded_too(tmp_path: Path) -> None:
    """Lineage columns are smaller than all others, but decoding them does not prove the copied columns."""
    source = plain_file(tmp_path / "in.parquet", 0, 5000, 7, rows=25, use_dictionary=False)
    path = Path(source.entry.file_path)
    data = path.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\xd7\x4a\xd0\x02")  # the magic of Zstandard frames
    path.write_bytes(data)
    with pytest.raises(StorageError, match="rows were not kept: it cannot be read back: "):
        merged([source], tmp_path / "copy.parquet")


def test_row_ids_of_another_number_of_rows_are_refused(
    two_inputs: list[Input], tmp_path: Path, monkeypatch: Patch
) -> None:
    """There are fewer than rows, or more than Arrow writes into a row group."""
    original = write_lineage._stored_values
    monkeypatch.setattr(write_lineage, "_stored_values", lambda file, number: original(file, number).slice(1))
    path = two_inputs[1].entry.file_path
    to = tmp_path / "copy.parquet"
    assert str(merged([two_inputs[1]], to)) == f"{path} has row ids of 24 rows in a row group of 25"
    monkeypatch.undo()

    def in_two(original: Any, table: Any, *more: Any) -> Any:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=10)
        return memoryview(sink.getvalue())

    swapped(monkeypatch, new_lineage, "_encoded", in_two)
    sentence = f"{path} has a row group of 25 rows, more than Arrow can write"
    assert str(merged([two_inputs[1]], to)) == sentence
    assert not to.exists()
