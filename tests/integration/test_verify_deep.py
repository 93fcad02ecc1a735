"""``verify --deep`` names each kind of damage in files, with nothing else, and never crashes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import StorageError
from icekeeper.metadata.puffin import DELETION_VECTOR, PuffinBlob, encode_blobs
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, FileContent, ManifestEntry
from icekeeper.report.activity import silent
from icekeeper.storage.storage import Storage
from icekeeper.verification.deep import Extent, verify_deep
from support.command import LOCAL, Command, local_path
from support.deletes import SCHEMA, commit_deletes, create_by_region, equality_delete, position_delete, relist, rows_of
from support.maintained_table import MaintainedTable, maintained_table
from support.v3 import append, commit_files, delete_positions, file_of, table_of_version, vectors


def problems(table: MaintainedTable, engine: Engine | None = None) -> list[tuple[str, str, str]]:
    """Kind, file name and detail of what only reading files shows; everything else must be sound."""
    known = table.verify()
    assert known.ok, known.problems
    found = verify_deep(table.loaded, table.storage, engine or LocalEngine(1), Extent(), silent, known)
    assert not found.unread
    assert all(problem.by_reading for problem in found.problems)
    return [(p.kind.value, p.path, p.detail) for p in found.problems]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A v2 table with a file of ten rows in us (ids 0 to 9) and in eu (50 to 59)."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 1)
        yield made


@pytest.fixture
def three(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A v3 table whose rows all have ids; vectors delete rows of three files, one of them in two commits."""
    with table_of_version(tmp_path, 3) as made:
        delete_positions(made, {file_of(made, 0): [0, 3], file_of(made, 100): [9]})
        delete_positions(made, {file_of(made, 0): [4], file_of(made, 350): range(10)})
        yield made


def change(table: MaintainedTable, path: str, alter: Callable[[DataFile], DataFile]) -> str:
    """Change the entry of a file, in a new manifest; return the path."""

    def changed(entry: ManifestEntry) -> Iterator[ManifestEntry]:
        yield replace(entry, file=alter(entry.file)) if entry.file.file_path == path else entry

    relist(table, changed)
    return path


def stated(**values: Any) -> Callable[[MaintainedTable], str]:
    """The entry of the file in us states these values; mappings are added to its own."""

    def alter(file: DataFile) -> DataFile:
        found: dict[str, Any] = {
            key: {**(getattr(file, key) or {}), **v} if isinstance(v, Mapping) else v for key, v in values.items()
        }
        return replace(file, **found)

    return lambda table: change(table, file_of(table, 0), alter)


def put(path: str, content: pa.Table, **options: Any) -> int:
    """Replace a local file by these rows with field ids from 1 on; return its size."""
    fields = [f.with_metadata({b"PARQUET:field_id": str(i).encode()}) for i, f in enumerate(content.schema, 1)]
    pq.write_table(content.cast(pa.schema(fields)), local_path(path), **options)
    return local_path(path).stat().st_size


def other_values(table: MaintainedTable) -> str:
    """A file is replaced by another file of the same size."""
    path, plain = file_of(table, 0), {"compression": "none", "use_dictionary": False}
    size = put(path, rows_of(0, 10, "us"), **plain)
    change(table, path, lambda file: replace(file, file_size_in_bytes=size, split_offsets=(4,)))
    assert problems(table) == []
    assert put(path, rows_of(20, 10, "us"), **plain) == size
    return path


def rewritten(content: pa.Table, **options: Any) -> Callable[[MaintainedTable], str]:
    """The file in us has these rows, and its entry has the new size and no metrics."""

    def damage(table: MaintainedTable) -> str:
        path = file_of(table, 0)
        size = put(path, content, **options)
        bare: dict[str, Any] = {
            "lower_bounds": None,
            "upper_bounds": None,
            "null_value_counts": None,
            "split_offsets": None,
        }
        return change(table, path, lambda file: replace(file, file_size_in_bytes=size, **bare))

    return damage


def flipped(table: MaintainedTable) -> str:
    """One bit of a page with a checksum is flipped."""
    path = rewritten(rows_of(0, 10, "us"), write_page_checksum=True, compression="none")(table)
    flip(path, pq.read_metadata(local_path(path)).row_group(0).column(0).total_compressed_size - 3)
    return path


def flip(path: str, offset: int) -> None:
    data = bytearray(local_path(path).read_bytes())
    data[offset] ^= 1
    local_path(path).write_bytes(data)


def torn(table: MaintainedTable) -> str:
    """The middle of a file is zeros, as after a torn write."""
    path = file_of(table, 0)
    data = local_path(path).read_bytes()
    local_path(path).write_bytes(data[:8] + bytes(len(data) - 16) + data[-8:])
    return path


def with_deletes(
    *deletes: Callable[[MaintainedTable], tuple[pa.Table, dict[str, Any]]],
) -> Callable[[MaintainedTable], str]:
    def damage(table: MaintainedTable) -> str:
        commit_deletes(table, [delete(table) for delete in deletes])
        (path,) = (f.file_path for f in table.data_files() if f.content is not FileContent.DATA)
        return path

    return damage


def strangers(table: MaintainedTable) -> tuple[pa.Table, dict[str, Any]]:
    """A position delete whose entry names the file in us, with rows that delete from both files."""
    content, more = position_delete(file_of(table, 0), 1, "us", bounds=False)
    both = pa.concat_tables([content, position_delete(file_of(table, 50), 2, "us", bounds=False)[0]])
    return both, {**more, "referenced_data_file": file_of(table, 0)}


def miscounted(table: MaintainedTable) -> tuple[pa.Table, dict[str, Any]]:
    content, more = position_delete(file_of(table, 0), 1, "us")
    return content, {**more, "record_count": 2}


def hidden_key(table: MaintainedTable) -> tuple[pa.Table, dict[str, Any]]:
    """An equality delete whose bounds exclude its key."""
    content, more = equality_delete(3, "us")
    return content, {**more, "lower_bounds": {1: encode("long", 4)}, "upper_bounds": {1: encode("long", 4)}}


def far(kind: str, raw: int) -> Mapping[int, bytes]:
    return {1: encode(kind, raw)}


NINE_AND_ONE = pa.concat_tables([rows_of(0, 9, "us"), rows_of(9, 1, "eu")])
OF_V2: dict[str, tuple[Callable[[MaintainedTable], str], str, str]] = {
    "other values of the same size": (
        other_values,
        "wrong_metrics",
        "its upper bound of column id excludes a value that it holds",
    ),
    "lower bound above a value": (
        stated(lower_bounds=far("long", 1)),
        "wrong_metrics",
        "its lower bound of column id excludes a value that it holds",
    ),
    "upper bound below a value": (
        stated(upper_bounds=far("long", 8)),
        "wrong_metrics",
        "its upper bound of column id excludes a value that it holds",
    ),
    "bound of another type": (
        stated(upper_bounds={1: b"\1"}),
        "wrong_metrics",
        "its upper bound of column id is no value of type long",
    ),
    "bounds of a missing field": (
        stated(upper_bounds={7: b"\1"}),
        "wrong_metrics",
        "its entry has bounds of field(s) [7], which it lacks",
    ),
    "row count": (stated(record_count=11), "wrong_metrics", "its entry says 11 rows, it has 10"),
    "null and value counts": (
        stated(null_value_counts={1: 2}, value_counts={2: 12}),
        "wrong_metrics",
        "its entry counts 2 nulls of column id, it has 0; its entry counts 12 values of column region, it has 10",
    ),
    "split offsets": (
        stated(split_offsets=(10**6,)),
        "wrong_metrics",
        "its entry has split offsets that cannot be those of its row groups",
    ),
    "row in a foreign partition": (
        rewritten(NINE_AND_ONE),
        "wrong_partition",
        "1 of its rows belong to another partition",
    ),
    "null in a foreign partition": (
        rewritten(pa.table({"id": range(10), "region": [None, *["us"] * 9]}, schema=SCHEMA)),
        "wrong_partition",
        "1 of its rows belong to another partition",
    ),
    "flipped bit in a page with a checksum": (flipped, "unreadable_data", "could not verify page integrity"),
    "torn file": (torn, "unreadable_data", "cannot be read"),
    "position delete of two files whose entry names one": (
        with_deletes(strangers),
        "wrong_metrics",
        "its entry names one data file, 1 of its rows delete from others",
    ),
    "path bounds of a position delete": (
        with_deletes(
            lambda table: (position_delete(file_of(table, 0), 1, "us")[0], position_delete("file:///z", 1, "us")[1])
        ),
        "wrong_metrics",
        "its lower bound of column file_path excludes a value that it holds; its entry names one data file, 1 of its",
    ),
    "position delete with another row count": (
        with_deletes(miscounted),
        "wrong_metrics",
        "its entry says 2 rows, it has 1",
    ),
    "bounds of an equality delete": (
        with_deletes(hidden_key),
        "wrong_metrics",
        "its lower bound of column id excludes a value that it holds",
    ),
}
"""Damage → a function that returns the damaged path, the kind of the only problem, and words of its detail."""


@pytest.mark.parametrize(("damage", "kind", "words"), OF_V2.values(), ids=OF_V2)
def test_damage_in_files_is_found_and_nothing_else(
    damage: Callable[[MaintainedTable], str], kind: str, words: str, two: MaintainedTable
) -> None:
    assert problems(two) == []
    path = damage(two)
    (found,) = problems(two)
    assert found[:2] == (kind, path)
    assert words in found[2]


def test_sound_deletes_of_every_kind_are_no_problem(two: MaintainedTable) -> None:
    us = file_of(two, 0)
    commit_deletes(two, [position_delete(us, 9, "us"), position_delete(us, 0, "us", bounds=False)])
    commit_deletes(two, [equality_delete(3, "us")])
    assert problems(two) == []


def test_a_flipped_bit_without_a_checksum_never_crashes(two: MaintainedTable) -> None:
    """It may change a value within its bounds, which nothing shows."""
    path = rewritten(rows_of(0, 10, "us"), compression="zstd")(two)
    whole = local_path(path).read_bytes()
    kinds = set[str]()
    for offset in range(4, len(whole), 7):
        flip(path, offset)
        known = two.verify()
        found = verify_deep(two.loaded, two.storage, LocalEngine(1), Extent(), silent, known)
        assert {problem.path for problem in found.problems} <= {path}
        assert not found.unread
        kinds.update(problem.kind.value for problem in found.problems)
        local_path(path).write_bytes(whole)
    assert "unreadable_data" in kinds


# Deletion vectors and row ids of format v3.


def with_vector(table: MaintainedTable, row: int, positions: list[int], **entry: Any) -> str:
    """The vector of a file is replaced, with these values in its entry."""
    path = delete_positions(table, {file_of(table, row): positions})
    old = vectors(table)[file_of(table, row)].file
    if entry:
        commit_files(table, [replace(old, **entry)], {old.key: ""})
    return path


def refooted(table: MaintainedTable, *, records: int = 2, **properties: str) -> str:
    """The footer of a Puffin file describes its vector, which has two positions, so."""
    path, data_file = with_vector(table, 250, [1, 2]), file_of(table, 250)
    old = vectors(table)[data_file].file
    start = old.content_offset or 0
    vector = local_path(path).read_bytes()[start : start + (old.content_size_in_bytes or 0)]
    about = {"referenced-data-file": data_file, "cardinality": "2"} | {
        key.replace("_", "-"): value for key, value in properties.items()
    }
    data, (blob,) = encode_blobs([(PuffinBlob(DELETION_VECTOR, (), 0, 0, about), vector)], {})
    local_path(path).write_bytes(data)
    new = replace(old, content_offset=blob.offset, file_size_in_bytes=len(data), record_count=records)
    commit_files(table, [new], {old.key: ""})
    return path


def crc(table: MaintainedTable) -> str:
    vector = vectors(table)[file_of(table, 0)].file
    flip(vector.file_path, (vector.content_offset or 0) + 20)
    return vector.file_path


def first_id(table: MaintainedTable, row: int) -> int:
    """The row id of the first row of a file."""
    found = next(f.first_row_id for f in table.data_files() if f.file_path == file_of(table, row))
    assert found is not None
    return found


def with_stored_ids(table: MaintainedTable, ids: list[int], *, of: int | None = None) -> str:
    """Append a file with stored row ids; with ``of``, they count from the first id of that file."""
    path = append(table, 500, len(ids), "us")
    content = pq.read_table(local_path(path), partitioning=None)
    (file,) = (f for f in table.data_files() if f.file_path == path)
    ids = ids if of is None else [first_id(table, of) + number for number in ids]
    named = {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}
    for name, values in (("_row_id", ids), ("_last_updated_sequence_number", [1] * len(ids))):
        field = pa.field(name, pa.int64(), metadata={b"PARQUET:field_id": str(named[name]).encode()})
        content = content.append_column(field, pa.array(values, pa.int64()))
    pq.write_table(content, local_path(path))
    size = local_path(path).stat().st_size
    commit_files(table, [replace(file, file_size_in_bytes=size)], {file.key: ""})
    return path


OF_V3: dict[str, tuple[Callable[[MaintainedTable], str], str, str]] = {
    "position beyond the file": (
        partial(with_vector, row=250, positions=[10]),
        "deletion_vector",
        "it deletes position 10 of ",
    ),
    "cardinality": (
        partial(with_vector, row=250, positions=[1, 2], record_count=3),
        "deletion_vector",
        "its entry says 3 positions, the vector holds 2",
    ),
    "footer of another data file": (
        partial(refooted, referenced_data_file="file:///other"),
        "deletion_vector",
        "the footer of its Puffin file names another data file than ",
    ),
    "footer of another cardinality": (
        partial(refooted, cardinality="3"),
        "deletion_vector",
        "the footer of its Puffin file states another number of positions",
    ),
    "number without end in a footer": (
        partial(refooted, records=3, cardinality="9" * 5000),
        "unreadable_data",
        "it contains 2 positions, but its manifest says 3",
    ),
    "checksum of a vector": (crc, "unreadable_data", "the checksum is wrong"),
    "id twice in a file": (
        partial(with_stored_ids, ids=[0, 1, 1], of=500),
        "row_lineage",
        "1 of its live rows have the row id of another row in it",
    ),
    "ids of another file": (
        partial(with_stored_ids, ids=[5, 6], of=50),
        "row_lineage",
        "2 of its live rows have the row id of a row in another file",
    ),
    "id that is not assigned": (
        partial(with_stored_ids, ids=[2**40]),
        "row_lineage",
        "1 of its rows have a row id that the table has not assigned yet",
    ),
    "negative id": (
        partial(with_stored_ids, ids=[-1]),
        "row_lineage",
        "1 of its rows have a row id that the table has not assigned yet",
    ),
}


@pytest.mark.parametrize(("damage", "kind", "words"), OF_V3.values(), ids=OF_V3)
def test_damage_of_vectors_and_row_ids_is_found_and_nothing_else(
    damage: Callable[[MaintainedTable], str], kind: str, words: str, three: MaintainedTable
) -> None:
    path = damage(three)
    found = problems(three)
    assert {(k, words in detail) for k, _, detail in found} == {(kind, True)}, found
    assert {p for _, p, _ in found} == {path}


def test_an_updated_row_has_the_id_of_the_deleted_row(three: MaintainedTable) -> None:
    """The vectors delete positions 0, 3 and 4 of that file."""
    assert problems(three) == []
    with_stored_ids(three, [0, 3, 4], of=0)
    assert problems(three) == []
    path = with_stored_ids(three, [2, 3], of=0)
    assert problems(three) == [("row_lineage", path, "2 of its live rows have the row id of a row in another file")]


# What is read, where, and what is remembered.


def test_every_engine_finds_the_same(two: MaintainedTable, engine: Engine) -> None:
    path = rewritten(NINE_AND_ONE)(two)
    assert problems(two, engine) == [("wrong_partition", path, "1 of its rows belong to another partition")]


def test_the_command_reads_files_and_remembers_what_it_found(command: Command) -> None:
    """``verify`` alone takes back no finding of ``--deep``; reading the file again does."""
    table = command.table(appends=3)
    assert command("detect").code == 0
    path = sorted(str(file["file_path"]) for file in table.inspect.files().to_pylist())[0]
    whole = local_path(path).read_bytes()
    local_path(path).write_bytes(whole[:4] + bytes(len(whole) - 300) + whole[len(whole) - 296 :])
    assert command("verify", "ns.t").code == 0
    answer = command("verify", "ns.t", "--deep", "--json", *LOCAL)
    assert answer.code == 1
    assert [(problem["kind"], problem["path"]) for problem in answer.json["problems"]] == [("unreadable_data", path)]
    assert answer.json["checked"] == {"snapshots": 3, "manifests": 3, "files": 3, "read_files": 3, "read_rows": 6}
    assert set(answer.json["remedies"]) == {"unreadable_data"}
    for arguments in (("verify", "ns.t"), ("verify", "ns.t", "--deep", "--since", "1s", *LOCAL)):
        sleep(1.1 if "--since" in arguments else 0)
        assert command(*arguments).code == 0
        assert command("list", "--json").json["tables"][0]["state"] == "damaged"
    local_path(path).write_bytes(whole)
    answer = command("verify", "ns.t", "--deep", *LOCAL)
    assert answer.code == 0
    assert answer.out.startswith("ns.t: ok (3 snapshots, 3 manifests, 3 files, 3 read files, 9 read rows)")
    assert command("list", "--json").json["tables"][0]["state"] == "well"


def test_options_of_a_deep_verify_are_checked(command: Command) -> None:
    command.table(appends=1)
    for arguments, words in (
        (("--sample", "10%"), "--sample and --since choose among the files that --deep reads; add --deep"),
        (("--deep", "--sample", "0%"), "--sample takes a share like 10% or 0.5%, at most 100%, not '0%'"),
        (("--deep", "--since", "soon"), "--since takes a time like 90s, 30m, 6h or 7d, at most 366d, not 'soon'"),
    ):
        answer = command("verify", "ns.t", *arguments)
        assert answer.code == 2
        assert words in answer.err


def test_a_sample_reads_about_its_share_and_another_seed_reads_other_files(two: MaintainedTable) -> None:
    (entry, _) = (e for e in two.entries() if e.is_live)
    entries = [replace(entry, file=replace(entry.file, file_path=f"f{number}")) for number in range(1000)]

    def taken(seed: int) -> set[str]:
        extent = Extent(share=0.1, seed=seed)
        return {e.file.file_path for e in entries if extent.takes(e, two.metadata)}

    assert 70 < len(taken(1)) < 130
    assert len(taken(1) & taken(2)) < 40


def test_the_age_of_a_file_is_that_of_the_snapshot_that_added_it(two: MaintainedTable) -> None:
    """Of an expired snapshot, sequence numbers show it."""
    first, second = sorted((e for e in two.entries() if e.is_live), key=lambda e: e.sequence_number or 0)
    snapshots = two.metadata.snapshots
    between = snapshots[second.snapshot_id or 0].timestamp_ms
    extent = Extent(since_ms=between)
    expired = [replace(e, snapshot_id=1) for e in (first, second)]
    assert [extent.takes(e, two.metadata) for e in (first, second, *expired)] == [False, True, False, True]


def test_what_the_store_refuses_is_neither_sound_nor_damaged(
    two: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = file_of(two, 0)
    open_input = Storage.open_input

    def refusing(storage: Storage, path: str, size: int | None = None) -> pa.NativeFile:
        if path == refused:
            raise StorageError(f"{path} cannot be accessed")
        return open_input(storage, path, size)

    monkeypatch.setattr(Storage, "open_input", refusing)
    found = verify_deep(two.loaded, two.storage, LocalEngine(1), Extent(), silent, two.verify())
    assert (found.ok, found.problems, found.unread) == (False, (), {refused: f"{refused} cannot be accessed"})
    assert found.read == {file_of(two, 50)}
