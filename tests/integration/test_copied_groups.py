"""Compaction copies row groups if possible and decodes the rest; readers see no difference."""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.row_group_copy.footer import Footer
from icekeeper.row_group_copy.footer_structs import CannotCopy
from support.deletes import commit_deletes, create_by_region, equality_delete, position_delete, region_rows
from support.maintained_table import ID_AND_PART, MaintainedTable, compacted, maintained_table, new_table
from support.readers import canonical, duckdb_rows

LEAST = "10000"


def texts(first: int, rows: int) -> pa.Table:
    """Rows that do not compress, of about 40 bytes each."""
    ids = list(range(first, first + rows))
    return pa.table({"id": ids, "part": [hashlib.sha256(str(i).encode()).hexdigest() for i in ids]}, ID_AND_PART)


def write(table: MaintainedTable, *rows: int) -> None:
    """Append a file for each number of rows."""
    first = 0
    for count in rows:
        table.table.append(texts(first, count))
        first += count


def compact(table: MaintainedTable, **settings: str) -> OperationOutcome:
    outcome = table.run(Operation.COMPACT, **{"min_row_group_copy_bytes": LEAST, **settings})
    assert outcome.status is Status.SUCCEEDED, outcome
    return outcome


def row_groups(path: str) -> list[int]:
    footer = pq.read_metadata(path.removeprefix("file://"))
    return [footer.row_group(n).num_rows for n in range(footer.num_row_groups)]


def ids_of(path: str) -> list[int]:
    return list(pq.read_table(path.removeprefix("file://"))["id"].to_pylist())


def unpartitioned(path: str) -> dict[str, Any]:
    return {"content": FileContent.POSITION_DELETES, "partition": (), "referenced_data_file": path}


def test_large_row_groups_are_copied_and_small_files_decoded_beside_them(table: MaintainedTable) -> None:
    """Filters and lookups find the copied rows; the entry equals that of decoded rows."""
    write(table, 1000, 20, 2000, 30, 1500)
    before = table.rows()
    sizes = {file.record_count: file.file_size_in_bytes for file in table.data_files()}

    outcome = compact(table)

    (file,) = table.data_files()
    # The two small files are now a single row group, which comes first.
    assert row_groups(file.file_path) == [50, 1000, 2000, 1500]
    copied = outcome.metrics["compact.bytes_copied"]
    assert 0.9 < copied / sum(sizes[n] for n in (1000, 2000, 1500)) < 1
    assert file.record_count == 4550
    assert table.rows() == before
    assert table.readers_agree() == list(range(4550))
    table.assert_sound()

    wanted = texts(2234, 1)["part"][0].as_py()
    found = duckdb.read_parquet(file.file_path.removeprefix("file://"))
    assert found.filter(f"part = '{wanted}'").project("id").fetchall() == [(2234,)]
    assert found.filter("id >= 4530").aggregate("count(*), min(id)").fetchall() == [(20, 4530)]
    assert table.table.scan(row_filter=f"part == '{wanted}'").to_arrow()["id"].to_pylist() == [2234]
    assert table.table.scan(row_filter="id >= 4530").to_arrow().num_rows == 20

    assert compact(table, rewrite_all="true").metrics["compact.bytes_copied"] == 0
    (decoded,) = table.data_files()
    for name in ("record_count", "value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
        assert getattr(file, name) == getattr(decoded, name), name


def want_filters(table: MaintainedTable) -> None:
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.bloom-filter-enabled.column.id": "true"})


def test_a_bloom_filter_that_files_lack_is_written_by_decoding(table: MaintainedTable) -> None:
    write(table, 400, 500)
    want_filters(table)
    before = table.rows()
    assert compact(table).metrics["compact.bytes_copied"] == 0
    (file,) = table.data_files()
    assert row_groups(file.file_path) == [900]
    assert table.rows() == before
    assert pq.read_metadata(file.file_path.removeprefix("file://")).row_group(0).column(0).bloom_filter_length


def test_new_row_groups_on_request_and_sorted_rows_are_decoded(table: MaintainedTable) -> None:
    rows = 0
    for settings in ({"min_row_group_copy_bytes": "none"}, {"rewrite_all": "true"}):
        write(table, 400, 500)
        rows += 900
        assert compact(table, **settings).metrics["compact.bytes_copied"] == 0
        assert [row_groups(file.file_path) for file in table.data_files()] == [[rows]]
    write(table, 400, 500)
    assert compact(table, strategy="sort", sort_order="id desc").metrics["compact.bytes_copied"] == 0
    (file,) = table.data_files()
    assert ids_of(file.file_path) == sorted(table.ids(), reverse=True)


def test_rows_that_move_to_other_partitions_are_decoded(table: MaintainedTable) -> None:
    """Four files of two regions each become a file per region."""
    for number in range(4):
        rows = pa.table({"id": [number, number + 10], "part": ["us", "eu"]}, ID_AND_PART)
        table.table.append(rows)
    with table.table.update_spec() as update:
        update.add_identity("part")
    outcome = compact(table, min_row_group_copy_bytes="1")
    assert outcome.metrics["compact.bytes_copied"] == 0
    assert sorted(file.partition for file in table.data_files()) == [("eu",), ("us",)]
    assert table.readers_agree() == [0, 1, 2, 3, 10, 11, 12, 13]


def test_several_outputs_are_cut_between_files(table: MaintainedTable) -> None:
    write(table, *[800] * 6)
    sizes = [file.file_size_in_bytes for file in table.data_files()]
    target = 2.9 * max(sizes) / 2**20
    before = table.rows()
    compact(table, target_file_size_mb=f"{target:.6f}", min_file_size_ratio="0.9")
    assert [row_groups(file.file_path) for file in table.data_files()] == [[800] * 3] * 2
    assert table.rows() == before


def test_a_file_with_a_damaged_page_header_is_kept_unchanged(table: MaintainedTable) -> None:
    """The footer allows a copy, but the page header is damaged; decoding fails as well."""
    write(table, 1000, 1000)
    victim = table.data_files()[0].file_path.removeprefix("file://")
    data = bytearray(Path(victim).read_bytes())
    data[4:12] = b"\xff" * 8
    Path(victim).write_bytes(bytes(data))
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes=LEAST)
    assert outcome.status is Status.SKIPPED
    assert (outcome.reason or "").startswith(f"left 1 file(s) out: file file://{victim} cannot be read: ")
    assert len(table.data_files()) == 2
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 2


def test_files_under_deletes_are_decoded_and_the_others_copied(local_catalog: SqlCatalog, tmp_path: Path) -> None:
    """Three files in each of two partitions: a position delete and an equality delete remove a row each."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        victim = next(file for file in made.data_files() if file.partition == ("us",))
        commit_deletes(made, [position_delete(victim.file_path, 4, "us"), equality_delete(152, "eu")])
        before = region_rows(made)
        assert len(before) == 58

        outcome = compacted(made, min_row_group_copy_bytes="1")

        assert outcome.status is Status.SUCCEEDED
        assert region_rows(made) == before
        assert sorted(tuple(row_groups(file.file_path)) for file in made.data_files()) == [(9, 10, 10)] * 2
        assert made.live_deletes() == Counter()


def test_row_groups_without_deleted_rows_are_copied_and_the_others_decoded(table: MaintainedTable) -> None:
    """Two files of four row groups each: the second row group of the first file loses a row."""
    with table.table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": "500", "format-version": "2"})
    write(table, 2000, 2000)
    first = next(file for file in table.data_files() if 0 in ids_of(file.file_path))
    commit_deletes(table, [(position_delete(first.file_path, 700, "p")[0], unpartitioned(first.file_path))])
    before = table.readers_agree()
    assert len(before) == 3999

    outcome = compact(table, min_row_group_copy_bytes="1000")

    assert table.readers_agree() == before
    (file,) = table.data_files()
    assert row_groups(file.file_path) == [499, *[500] * 3, *[2000 // 4] * 4]
    assert outcome.metrics["compact.rows_deleted"] == 1
    assert outcome.metrics["compact.bytes_copied"] > 0
    assert table.live_deletes() == Counter()
    table.assert_sound()


def test_a_file_whose_footer_only_arrow_refuses_is_decoded_for_filters(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its columns are readable nevertheless; the worker must not crash."""

    def refuse(footer: Footer) -> None:
        raise CannotCopy("has a footer that Arrow cannot read")

    write(table, 400, 500)
    want_filters(table)
    monkeypatch.setattr(Footer, "seen_by_arrow", refuse)
    assert compact(table).metrics["compact.bytes_copied"] == 0
    assert table.readers_agree() == sorted(table.ids())


def written_at(table: MaintainedTable, rows: int, *, files: int, row_groups_of: int) -> None:
    """Append ``files`` files of ``rows`` rows, in row groups of ``row_groups_of``."""
    limit = {"write.parquet.row-group-limit": str(row_groups_of)}
    table.table.transaction().set_properties(limit).commit_transaction()
    write(table, *[rows] * files)


def test_files_far_above_a_configured_target_are_cut_between_row_groups(table: MaintainedTable) -> None:
    """They are cut once, in order, and without decoding."""
    written_at(table, 6_000, files=3, row_groups_of=500)
    before = table.rows()
    assert {file.file_size_in_bytes > 4 * 52_428 for file in table.data_files()} == {True}
    table.table.transaction().set_properties({"write.target-file-size-bytes": "52428"}).commit_transaction()

    outcome = table.run(Operation.COMPACT)

    assert outcome.status is Status.SUCCEEDED, outcome
    files = table.data_files()
    assert outcome.summary == f"compacted 3 files into {len(files)} (across 3 bins)"
    assert {file.record_count for file in files} == {1_500}
    assert all(52_428 * 3 // 4 <= file.file_size_in_bytes <= 52_428 * 5 // 4 for file in files)
    assert outcome.metrics["compact.bytes_copied"] > 0.95 * sum(file.file_size_in_bytes for file in files)
    assert {tuple(row_groups(file.file_path)) for file in files} == {(500, 500, 500)}
    assert sorted(ids_of(file.file_path)[0] for file in files) == list(range(0, 18_000, 1_500))
    assert all(ids == sorted(ids) for ids in (ids_of(file.file_path) for file in files))
    assert table.rows() == before
    assert len(table.readers_agree()) == 18_000
    table.assert_sound()
    assert table.run(Operation.COMPACT).status is Status.SKIPPED


def test_a_large_file_that_cannot_be_copied_is_decoded_into_several_files(table: MaintainedTable) -> None:
    """Its codec is no longer the table's codec."""
    written_at(table, 6_000, files=1, row_groups_of=500)
    before, target = table.rows(), {"target_file_size_mb": "0.05"}
    table.table.transaction().set_properties({"write.parquet.compression-codec": "gzip"}).commit_transaction()
    outcome = table.run(Operation.COMPACT, **target)
    assert (outcome.status, outcome.metrics["compact.bytes_copied"]) == (Status.SUCCEEDED, 0)
    assert len(table.data_files()) == 4
    assert table.rows() == before
    assert table.run(Operation.COMPACT, **target).status is Status.SKIPPED


# Row groups without keys of equality deletes are copied; other readers see no difference
# (rule: copy-under-keys-only-if-none-match).

GROUPS, ROWS = 4, 500
"""Of each file."""


@pytest.fixture
def table_in_row_groups(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    """Two files of four row groups: ids ascend through all of them, texts are scattered."""
    made = new_table(local_catalog, tmp_path)
    with made.table.transaction() as change:
        change.set_properties({"write.parquet.row-group-limit": str(ROWS), "format-version": "2"})
    for number in range(2):
        append(made, number * GROUPS * ROWS, GROUPS * ROWS)
    return made


def text(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def append(table_in_row_groups: MaintainedTable, first: int, rows: int) -> None:
    ids = list(range(first, first + rows))
    table_in_row_groups.table.append(pa.table({"id": ids, "part": [text(i) for i in ids]}, ID_AND_PART))


def delete(table_in_row_groups: MaintainedTable, column: str, keys: Sequence[Any]) -> None:
    """Add an equality delete file without bounds."""
    field = ID_AND_PART.field(column)
    field_id = table_in_row_groups.table.schema().find_field(column).field_id
    named = pa.field(column, field.type, True, {b"PARQUET:field_id": str(field_id).encode()})
    facts = {"content": FileContent.EQUALITY_DELETES, "partition": (), "equality_ids": (field_id,)}
    commit_deletes(
        table_in_row_groups, [(pa.table({column: pa.array(keys, field.type)}, schema=pa.schema([named])), facts)]
    )


def copied(table_in_row_groups: MaintainedTable) -> tuple[list[int], float]:
    """Run a pass that keeps all rows; return the row groups of the only file and the number of copied bytes."""
    before = canonical(duckdb_rows(table_in_row_groups.metadata_location))
    outcome = table_in_row_groups.run(Operation.COMPACT, min_row_group_copy_bytes="1000")
    assert outcome.status is Status.SUCCEEDED, outcome
    assert canonical(duckdb_rows(table_in_row_groups.metadata_location)) == table_in_row_groups.rows() == before
    assert table_in_row_groups.live_deletes() == Counter()
    table_in_row_groups.assert_sound()
    (file,) = table_in_row_groups.data_files()
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    return [footer.row_group(n).num_rows for n in range(footer.num_row_groups)], outcome.metrics["compact.bytes_copied"]


@pytest.mark.parametrize(
    ("column", "keys", "groups"),
    [
        ("id", range(600, 900), [200, *[ROWS] * 7]),  # bounds exclude all other row groups: no key column is read
        ("part", [text(i) for i in (3, 2700)], [2 * ROWS - 2, *[ROWS] * 6]),  # few keys are looked up
        ("part", ["8 no hash"], [ROWS] * 8),  # a key without rows
        ("part", [text(i) for i in range(100)], [8 * ROWS - 100]),  # many scattered keys: everything is decoded
    ],
    ids=["bounds", "few", "none", "many"],
)
def test_row_groups_without_keys_are_copied(
    table_in_row_groups: MaintainedTable, column: str, keys: Sequence[Any], groups: list[int]
) -> None:
    delete(table_in_row_groups, column, keys)
    found, copied_bytes = copied(table_in_row_groups)
    assert (found, copied_bytes > 0) == (groups, len(groups) > 1)


def test_bounds_of_an_unknown_writer_exclude_no_key(table_in_row_groups: MaintainedTable) -> None:
    """The bounds claim that the second row group holds other ids (rule: footer-bounds-by-known-writers)."""
    path = Path(table_in_row_groups.data_files()[0].file_path.removeprefix("file://"))
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:].replace(b"parquet-cpp-arrow", b"parquet-of-others")
    for least in (500, 2500):  # for either file
        for number in (least, least + ROWS - 1):
            footer = footer.replace(struct.pack("<q", number), struct.pack("<q", number + 100_000))
    path.write_bytes(data[:start] + footer)
    delete(table_in_row_groups, "id", [*range(600, 900), *range(2600, 2900)])
    groups, _ = copied(table_in_row_groups)
    assert sum(groups) == 8 * ROWS - 600


def test_rows_appended_after_the_delete_are_copied(table_in_row_groups: MaintainedTable) -> None:
    """The same ids are appended again: the key is older than their file."""
    delete(table_in_row_groups, "id", range(500, 2000))
    append(table_in_row_groups, 500, ROWS)
    groups, _ = copied(table_in_row_groups)
    assert groups == [*[ROWS] * 6]


def test_null_keys_match_rows_with_nulls(table_in_row_groups: MaintainedTable) -> None:
    table_in_row_groups.table.append(
        pa.table({"id": list(range(9000, 9500)), "part": [None, *["x" * 60] * 499]}, ID_AND_PART)
    )
    delete(table_in_row_groups, "part", [None])
    groups, _ = copied(table_in_row_groups)
    assert groups == [499, *[ROWS] * 8]


def test_row_groups_that_arrow_cannot_describe_are_decoded(
    table_in_row_groups: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(footer: Footer) -> None:
        raise CannotCopy("has a footer that Arrow cannot read")

    delete(table_in_row_groups, "id", range(600, 900))
    monkeypatch.setattr(Footer, "seen_by_arrow", refuse)
    assert copied(table_in_row_groups) == ([8 * ROWS - 300], 0)
