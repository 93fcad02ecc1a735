"""Equality deletes become deletion vectors or position deletes, and no row is lost or returns
(rule: convert-before-dropping-keys)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.transforms import IdentityTransform

from icekeeper.model import FileContent
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.rows import apply_deletes
from icekeeper.rows.apply_deletes import vector_positions
from support.deletes import commit_deletes, equality_delete, region_rows, rows_of
from support.maintained_table import MaintainedTable, local_path, maintained_table
from support.readers import duckdb_rows
from support.scripted_catalog import once
from support.v3 import assert_row_ids_hold, commit_keys, delete_positions, file_of, lineage, table_of_version

CONVERT: dict[str, Any] = {"convert_equality_deletes": "true"}


@pytest.fixture(params=[2, 3])
def table(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MaintainedTable]:
    """Four files of ten rows in each of us (ids 0.., 100.., 200.., 300..) and eu (50.., …)."""
    with table_of_version(tmp_path, request.param) as made:
        yield made


def delete_by_key(table: MaintainedTable, row_id: int, region: str) -> None:
    content, more = equality_delete(row_id, region)
    if table.metadata.format_version < 3:
        commit_deletes(table, [(content, more)])
        return
    commit_keys(table, [(content, more)])


def converted(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(Operation.REWRITE_POSITION_DELETES, **CONVERT, **more)


def kinds(table: MaintainedTable) -> dict[str, int]:
    return dict(table.live_deletes())


def test_keys_become_positions_in_a_single_delete_snapshot(table: MaintainedTable) -> None:
    is_v3 = table.metadata.format_version == 3
    for row_id, region in ((3, "us"), (103, "us"), (155, "eu"), (999, "us")):
        delete_by_key(table, row_id, region)
    before, ids = region_rows(table), lineage(table) if is_v3 else None
    data = {file.file_path for file in table.data_files() if file.content is FileContent.DATA}
    outcome = converted(table)
    assert outcome.status is Status.SUCCEEDED
    written = "3 of 3 positions" if is_v3 else "2 of 3 positions"
    assert outcome.summary == f"converted 4 equality delete file(s) into {written}"
    assert outcome.metrics["rewrite_position_deletes.equality_files_converted"] == 4
    assert region_rows(table) == before
    assert kinds(table) == {"POSITION_DELETES": 3 if is_v3 else 2}
    assert {file.file_path for file in table.data_files() if file.content is FileContent.DATA} == data
    head = table.metadata.current_snapshot
    assert head is not None
    assert head.summary["operation"] == "delete"
    table.assert_sound()
    if is_v3:
        gone = {3, 103, 155}
        assert lineage(table) == Counter(row for row in (ids or Counter()).elements() if row[0] not in gone)
        assert_row_ids_hold(table)
    assert converted(table).reason == "no position delete files eligible for merging"


@pytest.mark.parametrize("table", [3], indirect=True)
def test_a_vector_absorbs_its_predecessor_and_an_unchanged_vector_is_kept(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete_positions(table, {file_of(table, 0): [1], file_of(table, 50): [2]})
    delete_by_key(table, 3, "us")
    delete_by_key(table, 52, "eu")  # its row is already deleted by position
    before = region_rows(table)
    vectors = {file.referenced_data_file: file for file in table.data_files() if file.content_offset is not None}
    read: list[str] = []

    def noted(path: str, *more: Any) -> Any:
        read.append(path)
        return vector_positions(path, *more)

    monkeypatch.setattr(apply_deletes, "vector_positions", noted)
    assert converted(table).summary == "converted 2 equality delete file(s) into 1 of 2 positions"
    assert len(read) == 2, "a vector was read twice"
    now = {file.referenced_data_file: file for file in table.data_files() if file.content_offset is not None}
    assert now[file_of(table, 50)].key == vectors[file_of(table, 50)].key
    assert now[file_of(table, 0)].record_count == 2
    assert region_rows(table) == before
    table.assert_sound()


def test_keys_are_kept_if_an_older_file_was_added_since_reading(table: MaintainedTable) -> None:
    """Another maintainer merges files and keeps their sequence number, as we do, so the keys apply to the output."""
    if table.metadata.format_version == 3:
        pytest.skip("the other maintainer is this one")
    delete_by_key(table, 3, "us")
    delete_by_key(table, 150, "eu")
    before = region_rows(table)
    other = MaintainedTable(table.catalog.inner, table.folder.parent)

    def compact_us() -> None:
        other.run(Operation.COMPACT, where="region = 'us'", apply_deletes="true", rewrite_all="true")

    table.engine.during = once(compact_us)
    outcome = converted(table)
    assert region_rows(table) == before
    assert kinds(table).get("EQUALITY_DELETES", 0) >= 1
    table.assert_sound()
    table.engine.during = lambda: None
    assert converted(table).status in (Status.SUCCEEDED, Status.SKIPPED)
    assert region_rows(table) == before
    assert "EQUALITY_DELETES" not in kinds(table)
    assert outcome.status is Status.SUCCEEDED


@pytest.mark.parametrize("during", ["append", "key", "position"])
def test_commits_of_writers_during_a_conversion_apply(table: MaintainedTable, during: str) -> None:
    is_v3 = table.metadata.format_version == 3
    delete_by_key(table, 3, "us")
    before = region_rows(table)
    gone: Counter[tuple[int, str]] = Counter()
    added: Counter[tuple[int, str]] = Counter()

    def commit_delete() -> None:
        if during == "append" and not is_v3:
            table.table.append(rows_of(3, 1, "us"))  # newer than the delete
            added[3, "us"] += 1
        elif during == "key":
            delete_by_key(table, 104, "us")
            gone[104, "us"] += 1
        elif is_v3:
            delete_positions(table, {file_of(table, 0): [5]})
            gone[5, "us"] += 1

    table.engine.during = once(commit_delete)
    converted(table)
    assert region_rows(table) == before - gone + added
    table.engine.during = lambda: None
    converted(table)
    assert region_rows(table) == before - gone + added
    assert "EQUALITY_DELETES" not in kinds(table)
    table.assert_sound()


def test_a_global_delete_is_removed_once_every_partition_has_its_positions(tmp_path: Path) -> None:
    """It belongs to an unpartitioned spec and applies to files of two specs."""
    with maintained_table(tmp_path) as table:
        table.create()
        table.append(1, 2, 3, part="a")
        with table.table.update_spec() as spec:
            spec.add_field("part", IdentityTransform(), "part")
        table.append(2, 4, part="b")
        table.append(2, 5, part="c")
        content, more = equality_delete(2, "")
        commit_deletes(table, [(content, {**more, "partition": ()})], spec_id=0)
        table.append(2, part="d")
        before = Counter(row["id"] for row in duckdb_rows(table.metadata_location))
        assert before == Counter([1, 2, 3, 4, 5])
        outcome = converted(table)
        assert outcome.summary == "converted 1 equality delete file(s) into 3 of 3 positions"
        assert Counter(table.readers_agree()) == before
        assert kinds(table) == {"POSITION_DELETES": 3}
        table.assert_sound()


def test_an_unreadable_data_file_keeps_its_keys(table: MaintainedTable) -> None:
    delete_by_key(table, 3, "us")
    delete_by_key(table, 150, "eu")
    before = region_rows(table)
    path = local_path(file_of(table, 0))
    data = path.read_bytes()
    path.write_bytes(b"PAR1")
    outcome = converted(table)
    assert outcome.status is Status.SUCCEEDED
    assert "left 1 file(s) out" in outcome.summary
    path.write_bytes(data)
    assert kinds(table)["EQUALITY_DELETES"] == 1
    assert region_rows(table) == before


def test_compaction_leaves_few_deleted_rows_to_the_conversion(table: MaintainedTable) -> None:
    delete_by_key(table, 3, "us")
    idle: dict[str, Any] = {"min_input_files": "9", "partition_rest_hours": "0"}
    outcome = table.maintain("compact,rewrite_position_deletes", **CONVERT, **idle)
    assert [operation.status for operation in outcome.operations] == [Status.SKIPPED, Status.SUCCEEDED]
    for row_id in range(4, 8):
        delete_by_key(table, row_id, "us")
    table.maintain("compact,rewrite_position_deletes", **CONVERT, **idle)
    before = region_rows(table)
    if table.metadata.format_version == 3:  # a vector states how many rows of its file are deleted
        assert table.run(Operation.COMPACT, **CONVERT, **idle).metrics["compact.rows_deleted"] == 5
    assert region_rows(table) == before


def test_a_single_equality_delete_is_reason_enough_for_a_conversion(table: MaintainedTable) -> None:
    calm = {"min_input_files": "9", "partition_rest_hours": "0", "operations": "rewrite_position_deletes"}
    commit_keys(table, [equality_delete(3, "us")])
    assert table.runtime.detect(calm).proposals == ()
    (proposal,) = table.runtime.detect({**calm, **CONVERT}).proposals
    assert "1 delete file with 1 delete" in " ".join(proposal.reasons)
    table.maintain("rewrite_position_deletes", **CONVERT)
    assert table.runtime.detect({**calm, **CONVERT}).proposals == ()
