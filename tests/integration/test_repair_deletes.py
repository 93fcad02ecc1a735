"""``icekeeper repair`` mends delete files, and independent readers read exactly the rows that it promised."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.metadata.types import encode
from icekeeper.model import DataFile, FileContent
from icekeeper.repair.plan import RepairOptions
from icekeeper.repair.repair import RepairOutcome
from icekeeper.report.activity import silent
from icekeeper.report.outcome import PassStatus
from icekeeper.verification.deep import Extent, verify_deep
from support.deletes import commit_deletes, equality_delete, position_delete
from support.maintained_table import NAME, MaintainedTable, local_path
from support.v3 import (
    assert_row_ids_hold,
    commit_files,
    data_files,
    delete_positions,
    file_of,
    lineage,
    live,
    rows,
    table_of_version,
    vectors,
)

NONE = RepairOptions()
DROP = RepairOptions(drop_missing=True)


@pytest.fixture
def two(tmp_path: Path) -> Iterator[MaintainedTable]:
    with table_of_version(tmp_path, 2) as made:
        yield made


@pytest.fixture
def three(tmp_path: Path) -> Iterator[MaintainedTable]:
    with table_of_version(tmp_path, 3) as made:
        yield made


def planned(table: MaintainedTable, options: RepairOptions = NONE) -> RepairOutcome:
    return table.runtime.plan_repair(NAME, options)


def repaired(table: MaintainedTable, options: RepairOptions = NONE) -> dict[str, object]:
    """Do the plan; the table is sound afterwards, and another repair does nothing."""
    plan = planned(table, options).plan
    assert plan is not None
    done, _ = table.runtime.repair(NAME, options, plan.digest)
    assert planned(table).summary == "nothing to repair"
    table.assert_sound()
    return done.to_json()


def assert_rows(table: MaintainedTable, expected: Counter[int]) -> None:
    """Check that an independent reader reads these rows, also after a whole pass."""
    assert rows(table) == expected
    assert table.maintain().status is PassStatus.SUCCEEDED
    assert rows(table) == expected
    table.assert_sound()


def kinds(document: dict[str, object]) -> list[tuple[str, int | None]]:
    """The kinds of mends and the rows that reappear."""
    mends = document["mends"]
    assert isinstance(mends, list)
    return [(mend["kind"], mend["rows_back"]) for mend in mends]


def snapshot_operation(table: MaintainedTable) -> str:
    head = table.metadata.current_snapshot
    assert head is not None
    return str(head.summary["operation"])


def second_vector(table: MaintainedTable, row: int, positions: list[int]) -> DataFile:
    """A writer adds a vector without the data file's older vector; return the older vector."""
    old = vectors(table)[file_of(table, row)].file
    path = delete_positions(table, {file_of(table, row): positions})
    (new,) = (e.file for _, e in live(table) if e.file.file_path == path)
    commit_files(table, [old], {})
    assert Counter(e.file.referenced_data_file for _, e in live(table))[new.referenced_data_file] == 2
    return old


def test_two_vectors_of_a_data_file_are_united(three: MaintainedTable) -> None:
    delete_positions(three, {file_of(three, 0): [0, 3], file_of(three, 100): [9]})
    before = rows(three)
    delete_positions(three, {file_of(three, 50): [1]})
    second_vector(three, 50, [2])
    path = file_of(three, 50)
    (first, second) = planned(three).to_json()["mends"]
    assert first["detail"].startswith(f"{path} has 2 deletion vectors with ")
    assert "they are united to one with 2: rows that only an older vector deletes, even wrongly" in first["detail"]
    assert "is part of the united vector" in second["detail"]
    document = repaired(three)
    assert kinds(document) == [("united_vectors", 0)] * 2
    assert (document["operation"], snapshot_operation(three)) == ("replace", "replace")
    assert vectors(three).keys() == {file_of(three, first) for first in (0, 50, 100)}
    assert_row_ids_hold(three)
    kept = lineage(three)
    assert_rows(three, before - Counter([51, 52]))
    assert lineage(three) == kept


def test_a_vector_that_cannot_be_read_is_not_united(three: MaintainedTable) -> None:
    delete_positions(three, {file_of(three, 50): [1]})
    old = second_vector(three, 50, [2])
    data = bytearray(local_path(old.file_path).read_bytes())
    data[(old.content_offset or 0) + 20] ^= 1
    local_path(old.file_path).write_bytes(data)
    found = planned(three)
    assert found.plan is not None
    assert found.plan.is_empty
    (left,) = found.plan.unmended
    assert left.kind == "united_vectors"
    assert "the checksum is wrong" in left.sentence


def test_what_a_deep_verify_finds_in_entries_is_corrected_on_request(three: MaintainedTable) -> None:
    """Wrong counts and bounds of a data file, and the number of positions of a vector."""
    path = file_of(three, 0)
    delete_positions(three, {path: [1, 2]})
    before = rows(three)
    file, vector = next(f for f in data_files(three) if f.file_path == path), vectors(three)[path].file
    wrong = replace(file, lower_bounds={1: encode("long", 3)}, null_value_counts={1: 4, 2: 0})
    commit_files(three, [wrong], {file.key: ""})
    commit_files(three, [replace(vector, record_count=3)], {vector.key: ""})
    assert deep_kinds(three) == {(path, "wrong_metrics"), (vector.file_path, "deletion_vector")}
    assert planned(three).summary == "nothing to repair"
    document = repaired(three, RepairOptions(file_metrics=True))
    assert sorted(kinds(document)) == [("file_metrics", 0)] * 2
    assert snapshot_operation(three) == "replace"
    assert deep_kinds(three) == set()
    assert_rows(three, before)


def deep_kinds(table: MaintainedTable) -> set[tuple[str, str]]:
    known = table.verify()
    found = verify_deep(table.loaded, table.storage, LocalEngine(1), Extent(), silent, known)
    return {(problem.path, problem.kind.value) for problem in found.problems}


def test_vectors_of_a_file_that_is_gone_from_the_table_go(three: MaintainedTable) -> None:
    before = rows(three) - Counter(range(50, 60))
    delete_positions(three, {file_of(three, 50): [1]})
    second_vector(three, 50, [2])
    (data,) = (f for f in data_files(three) if f.file_path == file_of(three, 50))
    commit_files(three, [], {data.key: ""})
    document = repaired(three)
    assert kinds(document) == [("dangling_delete", 0)] * 2
    assert snapshot_operation(three) == "replace"
    assert vectors(three) == {}
    assert_rows(three, before)


def test_a_vector_moves_home_without_being_written_again(three: MaintainedTable) -> None:
    path = delete_positions(three, {file_of(three, 0): [1]}, under=("eu",))
    assert three.problems() == Counter({("delete_scope", path): 1})
    before = rows(three)
    assert kinds(repaired(three)) == [("moved_delete", 0)]
    assert snapshot_operation(three) == "replace"
    vector = vectors(three)[file_of(three, 0)].file
    assert (vector.file_path, vector.partition) == (path, ("us",))
    assert_rows(three, before)


def test_a_position_delete_moves_home(two: MaintainedTable) -> None:
    content, more = position_delete(file_of(two, 0), 1, "us")
    commit_deletes(two, [(content, {**more, "partition": ("eu",)})])
    before = rows(two)
    assert kinds(repaired(two)) == [("moved_delete", 0)]
    (delete,) = (f for f in two.data_files() if f.content is FileContent.POSITION_DELETES)
    assert delete.partition == ("us",)
    assert_rows(two, before)


def test_sound_deletes_stay(two: MaintainedTable, tmp_path: Path) -> None:
    """Dangling deletes are no damage: they may stay, and equality deletes are never taken for dead."""
    commit_deletes(two, [position_delete(file_of(two, 0), 1, "us"), position_delete("file:///gone", 1, "us")])
    commit_deletes(two, [equality_delete(12345, "us")])
    before = two.metadata_location
    assert planned(two).summary == "nothing to repair"
    assert two.metadata_location == before


# Delete files that are gone.


def test_a_puffin_file_is_copied_back_if_it_holds_each_vector(three: MaintainedTable) -> None:
    """A file of the same name and size whose vectors belong to other data files is not taken."""
    path = local_path(delete_positions(three, {file_of(three, 0): [1, 2], file_of(three, 100): [5]}))
    before = rows(three)
    backup = path.parent.parent / "backup" / path.name
    backup.parent.mkdir()
    shutil.move(path, backup)
    whole = backup.read_bytes()
    one, other = (file_of(three, row).rpartition("/")[2].encode() for row in (0, 50))
    assert len(one) == len(other)
    backup.write_bytes(whole.replace(one, other))
    for options in (NONE, DROP):
        plan = planned(three, options).plan or pytest.fail("no plan")
        assert plan.is_empty
        assert ["has a vector of another data file at offset 4" in left.sentence for left in plan.unmended] == [True]
    backup.write_bytes(whole)
    document = repaired(three)
    assert kinds(document) == [("missing_file", 0)]
    assert document["snapshot_id"] is None
    assert backup.exists()
    assert_rows(three, before)


def test_a_lost_vector_is_dropped_on_request_alone_and_its_rows_reappear(three: MaintainedTable) -> None:
    before = rows(three)
    path = delete_positions(three, {file_of(three, 0): [1, 2], file_of(three, 100): [5]})
    local_path(path).unlink()
    left = (planned(three).plan or pytest.fail("no plan")).unmended
    assert [(one.path, one.option) for one in left] == [(path, "--drop-missing")] * 2
    assert "2 rows would reappear; restore the object, or drop its entry" in left[0].sentence
    document = repaired(three, DROP)
    assert kinds(document) == [("dropped_file", 2), ("dropped_file", 1)]
    assert (document["operation"], snapshot_operation(three)) == ("overwrite", "overwrite")
    assert_rows(three, before)


def test_how_many_rows_a_lost_delete_hides_is_said_only_if_it_is_known(two: MaintainedTable) -> None:
    before = rows(two)
    commit_deletes(two, [position_delete(file_of(two, 0), 1, "us"), equality_delete(105, "us")])
    lost = [f.file_path for f in two.data_files() if f.content is not FileContent.DATA]
    for path in lost:
        local_path(path).unlink()
    left = (planned(two).plan or pytest.fail("no plan")).unmended
    words = sorted(one.sentence.partition("elsewhere: ")[2].partition(" would")[0] for one in left)
    assert words == ["rows with its 1 key", "up to 1 row"]
    document = repaired(two, DROP)
    assert kinds(document) == [("dropped_file", None)] * 2
    assert snapshot_operation(two) == "overwrite"
    assert_rows(two, before)


def test_a_lost_vector_of_a_file_that_is_gone_hides_no_row(three: MaintainedTable) -> None:
    before = rows(three) - Counter(range(50, 60))
    path = delete_positions(three, {file_of(three, 50): [1]})
    (data,) = (f for f in data_files(three) if f.file_path == file_of(three, 50))
    commit_files(three, [], {data.key: ""})
    local_path(path).unlink()
    document = repaired(three, DROP)
    assert kinds(document) == [("dropped_file", 0)]
    assert snapshot_operation(three) == "replace"
    assert_rows(three, before)
