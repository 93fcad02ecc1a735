"""Row ids of a copy that are not those from before are seen, whoever is at fault (rule 32, rule 130)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.errors import StorageError
from icekeeper.row_group_copy import lineage as new_lineage
from icekeeper.row_group_copy import lineage as write_lineage
from icekeeper.row_group_copy import write_copy as write_tail
from icekeeper.row_group_copy.footer_structs import FileMetaData, Statistics
from icekeeper.row_group_copy.lineage import LineageFacts, WrittenLineage
from support.copied import Input, entry_of, lineage_file, merged, plain_file, row_ids, with_metadata

Patch = pytest.MonkeyPatch


@pytest.fixture
def inputs(tmp_path: Path) -> list[Input]:
    """One without the columns, one with nulls in all row groups."""
    values = [None if n % 7 == 0 else 100 + n for n in range(60)]
    return [
        plain_file(tmp_path / "plain.parquet", 0, 5000, 7),
        lineage_file(tmp_path / "stored.parquet", 60, (values, values), (8000, 9)),
    ]


def swapped(patch: Patch, module: Any, name: str, change: Callable[..., Any]) -> None:
    """Replace a function by one that is given the original and its arguments."""
    original = getattr(module, name)
    patch.setattr(module, name, lambda *arguments: change(original, *arguments))


def wrong_start(patch: Patch) -> None:
    """What is inherited is encoded from one row later than is claimed."""

    def encoded(original: Any, group: Any, inherited: Any, stored: Any, *more: Any) -> Any:
        chunks, data = original(group, inherited.after(1), stored, *more)
        facts = replace(chunks.lineage, inherited=inherited if stored is None else None)
        return replace(chunks, lineage=facts), data

    swapped(patch, write_lineage, "encoded_lineage", encoded)


def wrong_change(patch: Patch) -> None:
    """The last change of the rows is another than is claimed."""

    def encoded(original: Any, group: Any, inherited: Any, stored: Any, *more: Any) -> Any:
        chunks, data = original(group, replace(inherited, sequence_number=1), stored, *more)
        facts = replace(chunks.lineage, inherited=inherited if stored is None else None)
        return replace(chunks, lineage=facts), data

    swapped(patch, write_lineage, "encoded_lineage", encoded)


def wrong_values(patch: Patch) -> None:
    """Arrow encodes other values than it was given, within the same bounds."""

    def encoded(original: Any, table: Any, *more: Any) -> Any:
        turned = table.take([1, 0, *range(2, table.num_rows)]) if table.num_rows > 2 else table
        return original(turned, *more)

    swapped(patch, new_lineage, "_encoded", encoded)


def exchanged(patch: Patch) -> None:
    """The chunks of two row groups change places; so do checksums, so that only the values tell."""

    def written(original: Any, *arguments: Any) -> Any:
        first, second, *rest = original(*arguments)
        if first is None:
            return (first, second, *rest)
        facts = first.chunks.lineage, second.chunks.lineage
        return (_with(second, facts[0]), _with(first, facts[1]), *rest)

    swapped(patch, write_tail, "write_lineage", written)


def _with(one: WrittenLineage, facts: LineageFacts) -> WrittenLineage:
    return replace(one, chunks=replace(one.chunks, lineage=facts))


def unknown(patch: Patch) -> None:
    """Nobody says what a row group should hold."""

    def written(original: Any, *arguments: Any) -> Any:
        first, *rest = original(*arguments)
        return (replace(first, chunks=replace(first.chunks, lineage=None)), *rest)

    swapped(patch, write_tail, "write_lineage", written)


def other_bounds(patch: Patch) -> None:
    """The manifest would be told that all row ids are zero."""
    swapped(patch, new_lineage, "stored_bounds", lambda original, group: ((0, 0), (0, 0)))


FAULTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "row ids from another row on": (wrong_start, "row group 0 has other row ids or last changes than its rows had"),
    "another last change": (wrong_change, "row group 0 has other row ids or last changes than its rows had"),
    "other values": (wrong_values, "row group 0 has other row ids or last changes than its rows had"),
    "columns of another row group": (exchanged, "row group 0 has other row ids or last changes than its rows had"),
    "nothing known": (unknown, "row group 0 has row ids of which nothing is known"),
    "other bounds": (other_bounds, "row group 0 has row ids or last changes beyond the bounds that its footer tells"),
}


# What stored values were resolved to is known by checksums only; what is inherited, by what the entry says.
_INHERITED_ONLY = ("row ids from another row on", "another last change")
CASES = [(fault, 0) for fault in FAULTS] + [(fault, 1) for fault in FAULTS if fault not in _INHERITED_ONLY]


@pytest.mark.parametrize(("fault", "which"), CASES)
def test_other_row_ids_than_before_are_seen(
    fault: str, which: int, inputs: list[Input], tmp_path: Path, monkeypatch: Patch
) -> None:
    """Of files without the columns, and of files where some values are null."""
    spoil, sentence = FAULTS[fault]
    spoil(monkeypatch)
    to = tmp_path / "copy.parquet"
    with pytest.raises(StorageError) as raised:
        merged([inputs[which]], to)
    assert str(raised.value) == (f"rows were not kept: {sentence}; {to} was written and is kept for inspection")


def told(nulls: int) -> Callable[[FileMetaData], None]:
    def change(metadata: FileMetaData) -> None:
        for group in metadata.row_groups:
            for chunk in group.columns[-2:]:
                found = chunk.meta_data.statistics or Statistics()
                found.null_count = nulls

    return change


def test_nulls_that_a_footer_denies_are_seen(inputs: list[Input], tmp_path: Path) -> None:
    """By its statistics the columns can be copied as they are; every null would then inherit another id."""
    path = Path(inputs[1].entry.file_path)
    lying = with_metadata(path, told(0))
    claimed = Input(entry_of(lying, first_row_id=8000), 9)
    with pytest.raises(StorageError, match="row group 0 has rows without a stored id or last change"):
        merged([claimed], tmp_path / "copy.parquet")


def test_row_ids_are_proven_in_every_batch(inputs: list[Input], tmp_path: Path, monkeypatch: Patch) -> None:
    """Batches that end within row groups, and row groups that are read one by one or together."""
    for batch, together in ((1, 1), (7, 10**6), (10**6, 300)):
        monkeypatch.setattr("icekeeper.row_group_copy.copy_proof._BATCH_ROWS", batch)
        monkeypatch.setattr("icekeeper.row_group_copy.copy_proof._READ_BYTES", together)
        monkeypatch.setattr("icekeeper.row_group_copy.lineage._ROWS", batch)
        made = merged(inputs, tmp_path / f"copy-{batch}.parquet")
        assert made is not None
        found = row_ids(str(tmp_path / f"copy-{batch}.parquet"))
        assert found[:60] == [(n, 5000 + n, 7) for n in range(60)]
        assert found[60:64] == [(60, 8000, 9), (61, 101, 101), (62, 102, 102), (63, 103, 103)]


def test_of_every_input_another_column_is_decoded_too(tmp_path: Path) -> None:
    """Lineage columns are smaller than all others; that they decode says nothing of what was copied."""
    source = plain_file(tmp_path / "in.parquet", 0, 5000, 7, rows=25, use_dictionary=False)
    path = Path(source.entry.file_path)
    data = path.read_bytes().replace(b"\x28\xb5\x2f\xfd", b"\xd7\x4a\xd0\x02")  # where Zstandard's frames begin
    path.write_bytes(data)
    with pytest.raises(StorageError, match="rows were not kept: it cannot be read back: "):
        merged([source], tmp_path / "copy.parquet")


def test_row_ids_of_another_number_of_rows_are_refused(inputs: list[Input], tmp_path: Path, monkeypatch: Patch) -> None:
    """Fewer than the other columns have, or more than Arrow puts into a row group."""
    original = write_lineage._stored_values
    monkeypatch.setattr(write_lineage, "_stored_values", lambda file, number: original(file, number).slice(1))
    path = inputs[1].entry.file_path
    to = tmp_path / "copy.parquet"
    assert str(merged([inputs[1]], to)) == f"{path} has row ids of 24 rows in a row group of 25"
    monkeypatch.undo()

    def in_two(original: Any, table: Any, *more: Any) -> Any:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=10)
        return memoryview(sink.getvalue())

    swapped(monkeypatch, new_lineage, "_encoded", in_two)
    sentence = f"{path} has a row group of 25 rows, more than Arrow writes into one"
    assert str(merged([inputs[1]], to)) == sentence
    assert not to.exists()
