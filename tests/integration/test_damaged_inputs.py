"""Data files that cannot be read, of whatever kind: the others are merged, and the bad ones are named."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

from icekeeper.catalogs.catalog import identity_of
from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import Operation
from icekeeper.report.outcome import PassStatus, Status
from icekeeper.state.store import RETRY_MS
from support.clustered_tables import column
from support.copied import flipped, pages
from support.maintained_table import NAME, MaintainedTable, new_table

TWO_OF_SIX = (1, 4)
FILES, BAD = 12, 3


def damage(path: Path) -> None:
    """Break the first page's header; the footer stays as it is."""
    data = bytearray(path.read_bytes())
    data[4:12] = b"\xff" * 8
    path.write_bytes(bytes(data))


def remove(path: Path) -> None:
    path.unlink()


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def of_another_type(path: Path) -> None:
    """``id`` is text."""
    overwrite(path, pa.table({"id": ["30", "31"], "part": ["p", "p"]}), with_ids=True)


def short_of_a_row(path: Path) -> None:
    overwrite(path, pa.table({"id": [30], "part": ["p"]}), with_ids=True)


def without_ids(path: Path) -> None:
    """Its columns are in another order than the table's, so that their positions tell nothing."""
    overwrite(path, pa.table({"part": ["p", "p"], "id": [30, 31]}), with_ids=False)


def overwrite(path: Path, rows: pa.Table, *, with_ids: bool) -> None:
    """Put other rows where the table has a file."""
    ids = {"id": b"1", "part": b"2"}
    fields = [f.with_metadata({b"PARQUET:field_id": ids[f.name]} if with_ids else {}) for f in rows.schema]
    pq.write_table(rows.cast(pa.schema(fields)), path)


def on_disk(path: str) -> Path:
    return Path(path.removeprefix("file://"))


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


def filled(table: MaintainedTable, files: int) -> list[str]:
    """Paths of that many files of two rows, in the order of their ids; their pages have checksums, as parquet-mr's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "ParquetWriter", partial(pq.ParquetWriter, write_page_checksum=True))
        table.fill(files)
    return [file.file_path for file in sorted(table.data_files(), key=lambda file: column(file)[0])]


def flip_a_bit(path: Path) -> None:
    """The last one of the first page: its values still decode, for all that the codec knows."""
    header, _, end = next(pages(path))
    assert header.crc is not None
    flipped(path, path, end * 8 - 1)


@pytest.mark.parametrize("spoil", [damage, flip_a_bit])
@pytest.mark.parametrize("copied", ["1", "none"], ids=["copied", "decoded"])
def test_a_damaged_file_does_not_stop_the_others(
    table: MaintainedTable, copied: str, spoil: Callable[[Path], None]
) -> None:
    """Four of six files are merged; both damaged ones stay in the table, and the summary names one (rule 186)."""
    files = filled(table, 6)
    damaged = [files[number] for number in TWO_OF_SIX]
    for path in damaged:
        spoil(on_disk(path))
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes=copied)
    assert (outcome.status, outcome.reason) == (Status.SUCCEEDED, None)
    told = f"compacted 4 files into 1 (across 1 bins); left 2 file(s) out: file {damaged[0]} cannot be read: "
    assert outcome.summary.startswith(told)
    assert outcome.metrics["compact.bins_failed"] == 0
    left = {file.file_path: file for file in table.data_files()}
    assert set(damaged) < set(left)
    (merged,) = (file for path, file in left.items() if path not in damaged)
    assert sorted(column(merged)) == [0, 1, 20, 21, 30, 31, 50, 51]
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 7  # nothing of the failed attempts


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (remove, "{path} does not exist"),
        (damage, "file {path} cannot be read: Couldn't deserialize thrift"),
        (cut_off, "file {path} cannot be read: Parquet magic bytes not found"),
        (of_another_type, "file {path} cannot be read: column id is string in a file, which cannot be read as int64"),
        (short_of_a_row, "data file {path} holds 1 rows, its manifest says 2"),
        (without_ids, "file {path} cannot be read: a file has no field ids"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_one_bad_file_never_holds_up_the_others(
    table: MaintainedTable, spoil: Callable[[Path], None], told: str
) -> None:
    """Four passes by the default policy: the first merges eleven of twelve files, the others do nothing (rule 186)."""
    bad = filled(table, FILES)[BAD]
    spoil(on_disk(bad))
    outcome = table.runtime.maintain(NAME, {}, table.engine)
    assert outcome.status is PassStatus.SUCCEEDED
    (compacted,) = (one for one in outcome.operations if one.operation is Operation.COMPACT)
    sentence = told.format(path=bad)
    assert compacted.summary.startswith(f"compacted 11 files into 1 (across 1 bins); left 1 file(s) out: {sentence}")
    after = table.data_files()
    assert len(after) == 2
    (merged,) = (file for file in after if file.file_path != bad)
    assert sorted(column(merged)) == sorted(n for i in range(FILES) if i != BAD for n in (i * 10, i * 10 + 1))
    head = table.metadata_location
    for _ in range(3):
        found = table.runtime.detect()
        assert (found.proposals, [skip.is_error for skip in found.skipped]) == ((), [False])
        (warning,) = (skip.warning for skip in found.skipped)
        assert (warning or "").startswith(
            f"1 file could not be read and is left alone, but for a try a week: {sentence}"
        )
        assert found.to_json()["skipped"][0]["warning"] == warning
        assert table.runtime.health(NAME).warnings == {"unreadable_files": warning}
        again = table.runtime.maintain(NAME, {}, table.engine)
        assert again.status is PassStatus.SUCCEEDED
        assert table.metadata_location == head


def left_out(table: MaintainedTable, **settings: str) -> tuple[int, list[str]]:
    """Of one more pass that may merge two files: how many it merged, and the files that are remembered after it."""
    outcome = table.run(Operation.COMPACT, **settings)
    known = table.state.unreadable_files.of_table(identity_of(table.catalog, table.loaded))
    return int(outcome.metrics.get("compact.files_merged", 0)), list(known)


def test_a_file_without_ids_whose_columns_are_the_tables_is_merged(table: MaintainedTable) -> None:
    """By position, as Iceberg-Java reads it (rule 218)."""
    bad = filled(table, 4)[BAD]
    overwrite(on_disk(bad), pa.table({"id": [30, 31], "part": ["p", "p"]}), with_ids=False)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1")
    assert (outcome.status, outcome.metrics["compact.files_merged"]) == (Status.SUCCEEDED, 4)
    assert "left" not in outcome.summary
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31]


def test_what_cannot_be_read_is_remembered_and_tried_again_weekly(table: MaintainedTable) -> None:
    """The next passes do not touch it, also where others come; the one of a week later finds it restored (rule 216)."""
    bad = filled(table, 4)[BAD]
    content = on_disk(bad).read_bytes()
    on_disk(bad).unlink()
    assert left_out(table) == (3, [bad])
    on_disk(bad).write_bytes(content)
    table.fill(2, start=10)
    table.late_ms = RETRY_MS - HOUR_MS
    assert left_out(table) == (3, [bad])
    assert bad in {file.file_path for file in table.data_files()}
    table.fill(2, start=20)
    table.late_ms = RETRY_MS + HOUR_MS
    assert left_out(table) == (3, [])
    assert bad not in {file.file_path for file in table.data_files()}
    assert table.ids() == [n for i in (0, 1, 2, 3, 10, 11, 20, 21) for n in (i * 10, i * 10 + 1)]
    assert table.runtime.health(NAME).warnings == {}


def test_a_rewrite_of_all_files_tries_at_once(table: MaintainedTable) -> None:
    """For people who have restored a file."""
    bad = filled(table, 4)[BAD]
    content = on_disk(bad).read_bytes()
    on_disk(bad).unlink()
    assert left_out(table) == (3, [bad])
    on_disk(bad).write_bytes(content)
    assert left_out(table) == (0, [bad])
    assert left_out(table, rewrite_all="true") == (2, [])
    assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31]


def test_what_is_bad_still_is_not_tried_in_between(table: MaintainedTable) -> None:
    """Nothing opens it: its reason stays that of the first pass."""
    bad = filled(table, 4)[BAD]
    damage(on_disk(bad))
    assert left_out(table) == (3, [bad])
    table.fill(2, start=10)
    on_disk(bad).unlink()
    outcome = table.run(Operation.COMPACT)
    assert outcome.summary.startswith("compacted 2 files into 1 (across 1 bins); left 1 file(s) alone: ")
    assert "cannot be read: Couldn't deserialize thrift" in outcome.summary
    assert outcome.metrics["compact.files_unsupported"] == 1


@pytest.mark.parametrize("change", ["schema", "mapping", "other"])
def test_a_change_of_what_files_are_read_by_has_them_tried_again(table: MaintainedTable, change: str) -> None:
    """A file without ids is read once the table has a name mapping (rule 216)."""
    bad = filled(table, 4)[BAD]
    without_ids(on_disk(bad))
    assert left_out(table) == (3, [bad])
    table.fill(2, start=10)
    if change == "mapping":
        mapping = [{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["part"]}]
        with table.table.transaction() as transaction:
            transaction.set_properties({"schema.name-mapping.default": json.dumps(mapping)})
        assert left_out(table) == (3, [])
        assert table.ids() == [0, 1, 10, 11, 20, 21, 30, 31, 100, 101, 110, 111]
        return
    if change == "schema":
        with table.table.update_schema() as update:
            update.add_column("more", LongType())
    else:
        with table.table.transaction() as transaction:
            transaction.set_properties({"anything": "else"})
    on_disk(bad).unlink()  # whether it is opened, its reason tells
    assert left_out(table) == (2, [bad])
    (known,) = table.state.unreadable_files.of_table(identity_of(table.catalog, table.loaded)).values()
    assert known.why.endswith("does not exist") is (change == "schema")


def test_what_the_table_has_no_more_is_forgotten(table: MaintainedTable) -> None:
    bad = filled(table, 4)[BAD]
    damage(on_disk(bad))
    assert left_out(table) == (3, [bad])
    table.table.delete("id >= 30")
    assert left_out(table) == (0, [])


def test_a_dry_run_remembers_and_forgets_nothing(table: MaintainedTable) -> None:
    bad = filled(table, 4)[BAD]
    damage(on_disk(bad))
    table.maintain("compact", dry_run=True)
    assert table.state.unreadable_files.of_table(identity_of(table.catalog, table.loaded)) == {}
    left_out(table)
    table.table.delete("id >= 30")
    table.maintain("compact", dry_run=True)
    assert list(table.state.unreadable_files.of_table(identity_of(table.catalog, table.loaded))) == [bad]


def test_what_a_store_refuses_is_not_remembered(table: MaintainedTable) -> None:
    """A local file that must not be opened stands for 403 and throttles: the group fails, as it always did."""
    bad = filled(table, 4)[BAD]
    on_disk(bad).unlink()
    on_disk(bad).mkdir()
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.FAILED
    assert (outcome.reason or "").startswith("1 bin(s) failed: ")
    assert len(table.data_files()) == 4
    assert table.state.unreadable_files.of_table(identity_of(table.catalog, table.loaded)) == {}


def test_wrong_checksums_are_admitted_where_the_policy_says_so(table: MaintainedTable) -> None:
    for path in filled(table, 6):
        flip_a_bit(on_disk(path))
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1", verify_page_checksums="false")
    assert outcome.summary == "compacted 6 files into 1 (across 1 bins)"
    assert outcome.metrics["compact.bytes_unread"] == 0
