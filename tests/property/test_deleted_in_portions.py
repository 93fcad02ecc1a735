"""The same rows are deleted for any portion size, and for any distance of the keys from the rows."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.model import FileContent
from icekeeper.rows import apply_deletes as parts
from icekeeper.rows import equality_deletes as equality
from icekeeper.rows.apply_deletes import deleted_positions, live_at
from icekeeper.rows.equality_deletes import EqualityLookup
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadableFile
from icekeeper.storage.storage import Storage
from support.examples import examples
from support.rewrites import input_file, rows, struct, task

TIME = pa.timestamp("ns")
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int64(): st.sampled_from([-(2**63), -1, 0, 1, 2, 5, 2**63 - 1]),
    pa.string(): st.sampled_from(["", "a", "aa", "b", "z", "ü", "\U0001f600", "\uffee"]),
    pa.binary(): st.sampled_from([b"", b"\x00", b"a", b"\x7f", b"\x80", b"\xff"]),
    pa.binary(2): st.sampled_from([b"aa", b"\x80a", b"zz"]),
    pa.date32(): st.dates(datetime.date(1969, 12, 30), datetime.date(1970, 1, 3)),
    TIME: st.integers(-3, 3),
    pa.decimal128(5, 2): st.sampled_from([decimal.Decimal(n) for n in ("-1.00", "0.00", "0.01", "999.99")]),
    pa.float64(): st.sampled_from([float("nan"), 0.0, -0.0, 1.0]),
    pa.bool_(): st.booleans(),
}


@pytest.fixture(autouse=True, scope="module")
def narrowing() -> Iterator[None]:
    """Even few keys are narrowed to those near the rows, and hashed in blocks or not at all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equality, "_FEW", 0)
        patch.setattr(equality, "_BLOCK", 2)
        yield


@pytest.mark.parametrize("kind", list(VALUES), ids=str)
@settings(max_examples=examples(30))
@given(data=st.data())
def test_keys_far_from_the_rows_change_nothing(kind: pa.DataType, data: st.DataObject) -> None:
    """Compared with printed values, which differ for the two zeros but not for NaN."""
    value = st.none() | VALUES[kind]
    keys = data.draw(st.lists(value, min_size=1, max_size=12))
    looked_up = data.draw(st.lists(value, max_size=6))
    lookup = EqualityLookup.build([1], [pa.array(keys, kind)], pa.array([2] * len(keys), pa.int64()))
    found = lookup.deleted_rows([pa.array(looked_up, kind)], 1).to_pylist()
    assert found == [str(value) in {str(key) for key in keys} for value in looked_up]


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1), min_size=1))))
def test_positions_become_a_mask(drawn: tuple[int, set[int]]) -> None:
    length, deleted = drawn
    found = live_at(pa.array(sorted(deleted), pa.int64()), length)
    assert found.to_pylist() == [row not in deleted for row in range(length)]


SCHEMA = struct((1, "id", "long"), (2, "name", "string"))
IDS = st.lists(st.integers(0, 6), max_size=8)


@settings(max_examples=examples(40))
@given(
    files=st.lists(st.tuples(IDS, st.integers(1, 3), st.booleans()), min_size=1, max_size=5),
    deletes=st.lists(st.tuples(IDS, st.integers(1, 4)), min_size=1, max_size=3),
    held=st.sampled_from([1, 100, 10**6]),
)
def test_a_delete_applies_to_older_files_only(
    files: list[tuple[list[int], int, bool]], deletes: list[tuple[list[int], int]], held: int
) -> None:
    """Files of several sequence numbers, some without deletes, are looked up together; ``held`` is in bytes."""
    with TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_HELD_BYTES", held)
        work, expected = made(Path(name), files, deletes)
        tally = Tally()
        found = [i for batch in read_rows(work, Storage({}), tally) for i in batch.column(0).to_pylist()]
    assert found == expected
    total = sum(len(ids) for ids, _, _ in files)
    assert (tally.read, tally.live) == (total, len(expected))


COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "long": st.sampled_from([None, -(2**63), 0, 1, 2, 3, 2**63 - 1]),
    "string": st.sampled_from([None, "", "a", "b", "ü", "\U0001f600"]),
    "decimal(5, 2)": st.sampled_from([None, *(decimal.Decimal(n) for n in ("-1.00", "0.00", "0.01", "999.99"))]),
    "uuid": st.sampled_from([None, b"\x00" * 16, b"\x7f" * 16, b"\x80" * 16, b"\xff" * 16]),
    "double": st.sampled_from([None, 0.0, -0.0, 1.0, float("nan")]),
}


@pytest.mark.parametrize("held", [1, 400, 10**8], ids=["a batch of keys", "some keys", "all keys"])
@settings(max_examples=examples(25))
@given(data=st.data())
def test_keys_in_ranges_delete_the_same_rows(held: int, data: st.DataObject) -> None:
    """By one or two columns, in two delete files; ``held`` is the memory for keys in bytes."""
    kinds = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, max_size=2))
    values = st.lists(st.tuples(*(COLUMNS[kind] for kind in kinds)), max_size=12)
    files, deletes = data.draw(st.tuples(values, values)), data.draw(st.tuples(values, values))
    schema = struct(*((i, f"c{i}", kind) for i, kind in enumerate(kinds, 1)))

    def stored(path: Path, keys: list[tuple[Any, ...]]) -> InputFile:
        return input_file(path, rows(schema, {f"c{i}": [key[i - 1] for key in keys] for i in range(1, 1 + len(kinds))}))

    with TemporaryDirectory() as name:
        inputs = [
            replace(stored(Path(name) / f"in-{n}", keys), sequence_number=n + 1, deletes=(0, 1))
            for n, keys in enumerate(files)
        ]
        delete_files = [
            DeleteFile(
                path=stored(Path(name) / f"delete-{n}", keys).path,
                file_format="PARQUET",
                content=FileContent.EQUALITY_DELETES,
                sequence_number=n + 2,
                record_count=len(keys),
                equality_ids=tuple(range(1, 1 + len(kinds))),
            )
            for n, keys in enumerate(deletes)
        ]
        work = task(schema, inputs, Path(name), deletes=tuple(delete_files), row_group_memory_bytes=held)
        found = {path: list(positions) for path, positions in deleted_positions(work, Storage({})).items()}
    expected = {
        source.path: [
            position
            for position, row in enumerate(keys)
            if any(repr(row) == repr(key) for newer in deletes[n:] for key in newer)
        ]
        for n, (source, keys) in enumerate(zip(inputs, files, strict=True))
    }
    assert {path: positions for path, positions in found.items() if positions} == {
        path: positions for path, positions in expected.items() if positions
    }


def test_an_input_outside_of_a_range_is_not_read_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first range reads all inputs and records their bounds."""
    read: list[str] = []

    def noted(file: ReadableFile, *more: Any, **options: Any) -> Any:
        read.append(Path(file.path).stem)
        return projected_rows(file, *more, **options)

    work, _ = made(tmp_path, [(list(range(100)), 1, True), (list(range(200, 300)), 1, True)], [([5, 250], 2)])
    work = replace(work, row_group_memory_bytes=1)
    monkeypatch.setattr(parts, "projected_rows", noted)
    found = deleted_positions(work, Storage({}))
    assert {Path(path).stem: list(positions) for path, positions in found.items()} == {"in-0": [5], "in-1": [50]}
    assert read == ["in-0", "in-1", "in-1"]


def made(folder: Path, files: Any, deletes: Any) -> tuple[Any, list[int]]:
    """A task, and the ids that remain after its deletes."""
    delete_files = []
    for number, (ids, sequence_number) in enumerate(deletes):
        source = input_file(folder / f"delete-{number}.parquet", ids_only(ids))
        delete_files.append(
            DeleteFile(
                path=source.path,
                file_format="PARQUET",
                content=FileContent.EQUALITY_DELETES,
                sequence_number=sequence_number,
                record_count=len(ids),
                equality_ids=(1,),
            )
        )
    inputs = []
    expected: list[int] = []
    for number, (ids, sequence_number, has_deletes) in enumerate(files):
        source = input_file(
            folder / f"in-{number}.parquet", rows(SCHEMA, {"id": ids, "name": [f"name {i}" for i in ids]})
        )
        # A file without deletes is in another partition: the keys must not match its rows.
        reached = tuple(range(len(deletes))) if has_deletes else ()
        inputs.append(replace(source, sequence_number=sequence_number, deletes=reached))
        gone = {i for keys, newer in deletes if newer > sequence_number for i in keys} if has_deletes else set()
        expected += [i for i in ids if i not in gone]
    return task(SCHEMA, inputs, folder, deletes=tuple(delete_files)), expected


def ids_only(ids: list[int]) -> pa.Table:
    return rows(struct((1, "id", "long")), {"id": ids})


def test_keys_are_hashed_once_for_many_small_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing many keys for each file would cost more than looking up its few rows."""
    calls: list[int] = []
    index_in = pc.index_in

    def counted(column: pa.Array, **options: Any) -> pa.Array:
        calls.append(len(column))
        return index_in(column, **options)

    files = [([number], 1, True) for number in range(20)]
    work, expected = made(tmp_path, files, [(list(range(5, 3005)), 2)])
    monkeypatch.setattr(equality, "_BLOCK", 10_000)
    monkeypatch.setattr(pc, "index_in", counted)
    found = [i for batch in read_rows(work, Storage({}), Tally()) for i in batch.column(0).to_pylist()]
    assert found == expected == list(range(5))
    assert calls == [20]  # all rows at once; keys of one column are sorted
