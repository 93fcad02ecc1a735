"""Scope of a rewrite: its files (``where``), its branch, and its groups per commit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.table import StaticTable

from icekeeper.errors import PolicyError
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, equality_delete, rows_of
from support.deletes import region_rows as rows
from support.maintained_table import MaintainedTable, compacted, local_path, maintained_table, outcome_of


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Three files of ten rows per region: ids from 0, 100 and 200 in us, from 50, 150 and 250 in eu."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 3)
        yield made


def first_ids(table: MaintainedTable, paths: tuple[str, ...]) -> set[int]:
    """The lowest id of each of these files."""
    found = set()
    for task in StaticTable.from_metadata(table.loaded.metadata_location).scan().plan_files():
        if task.file.file_path in paths:
            found.add(int.from_bytes(task.file.lower_bounds[1], "little"))
    return found


MATCHING = {
    "region = 'us'": {0, 100, 200},
    "region in ('eu', 'mars')": {50, 150, 250},
    "id >= 150": {150, 200, 250},
    "id < 101 and region = 'us'": {0, 100},
    "not (id < 101) and region = 'us'": {100, 200},
    "region = 'eu' or id = 209": {50, 150, 200, 250},
    "region is null": set(),
}


def test_only_files_that_may_hold_matching_rows_are_rewritten(table: MaintainedTable) -> None:
    for where, expected in MATCHING.items():
        settings = {"operations": "compact", "where": where, "rewrite_all": "true"}
        planned = table.runtime.maintain(table.loaded.name, settings, table.engine, dry_run=True)
        assert first_ids(table, outcome_of(planned, Operation.COMPACT).files_planned) == expected, where


def test_files_out_of_scope_still_need_their_deletes(table: MaintainedTable) -> None:
    """The delete file of row 253 in eu must stay, although no file of eu is rewritten."""
    commit_deletes(table, [equality_delete(103, "us"), equality_delete(253, "eu")])
    before = rows(table)
    outcome = compacted(table, where="region = 'us'")
    assert outcome.metrics["compact.delete_files_removed"] == 1
    assert rows(table) == before


def test_a_branch_is_maintained_and_main_is_not(table: MaintainedTable) -> None:
    """Both keep their rows; main keeps its files and its current snapshot."""
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    table.table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()
    table.table.append(rows_of(300, 10, "us"), branch="audit")
    before = rows(table)
    audit = table.table.scan().use_ref("audit").to_arrow().sort_by([("id", "ascending"), ("region", "ascending")])
    outcome = compacted(table, branch="audit")
    assert outcome.summary == "compacted 7 files into 2 (across 2 bins)"
    after = table.loaded.metadata
    assert after.current_snapshot is not None
    assert after.current_snapshot.snapshot_id == head.snapshot_id
    assert [after.refs[name].snapshot_id for name in ("main", "audit")] == [head.snapshot_id, outcome.snapshot_ids[0]]
    assert rows(table) == before
    read = table.table.scan().use_ref("audit").to_arrow().sort_by([("id", "ascending"), ("region", "ascending")])
    assert read == audit
    assert compacted(table, branch="audit").status is Status.SKIPPED


def test_an_unknown_branch_or_a_tag_is_a_wrong_call(table: MaintainedTable) -> None:
    head = table.loaded.metadata.current_snapshot
    assert head is not None
    table.table.manage_snapshots().create_tag(head.snapshot_id, "v1").commit()
    for name, kind in (("nope", "not a branch of this table"), ("v1", "a tag")):
        with pytest.raises(PolicyError, match=f"branch names '{name}', which is {kind}; branches are: main"):
            table.maintain(branch=name)


def test_a_failed_group_does_not_fail_the_others(table: MaintainedTable) -> None:
    """The first of two commits lands; the second group has an unreadable input and is reported."""
    plan = table.runtime.maintain(table.loaded.name, {"operations": "compact"}, table.engine, dry_run=True)
    assert plan.operations[0].status is Status.SKIPPED  # the default minimum is five files
    paths = outcome_of(
        table.runtime.maintain(
            table.loaded.name, {"operations": "compact", "min_input_files": "2"}, table.engine, dry_run=True
        ),
        Operation.COMPACT,
    ).files_planned
    local_path(paths[-1]).rename(table.folder / "away")
    local_path(paths[-1]).mkdir()
    outcome = compacted(table, partial_progress="1")
    assert outcome.status is Status.FAILED
    assert outcome.summary == "compacted 3 files into 1 (across 1 bins)"
    assert len(outcome.snapshot_ids) == 1
    assert outcome.metrics["compact.bins_failed"] == 1
    local_path(paths[-1]).rmdir()
    (table.folder / "away").rename(local_path(paths[-1]))
    assert compacted(table, partial_progress="1").summary == "compacted 3 files into 1 (across 1 bins)"
    assert len(rows(table)) == 60


def test_delete_files_are_removed_by_the_last_commit_that_applies_them(table: MaintainedTable) -> None:
    """Each delete file is removed with the last group that it applies to."""
    commit_deletes(table, [equality_delete(103, "us"), equality_delete(253, "eu")])
    before = rows(table)
    outcome = compacted(table, partial_progress="1", target_file_size_mb="0.0001", rewrite_all="true")
    assert outcome.metrics["compact.commits"] == 6
    assert outcome.metrics["compact.delete_files_removed"] == 2
    assert outcome.metrics["compact.rows_deleted"] == 2
    assert rows(table) == before
