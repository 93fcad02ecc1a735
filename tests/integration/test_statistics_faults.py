"""Statistics beside other writers and damaged files, and what verify and orphan removal make of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.report.outcome import Status
from icekeeper.state.store import RETRY_MS
from support.deletes import create_by_region, rows_of
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table
from support.table_statistics import computed, entry, ndv, rows_read, true_ndv
from support.v3 import data_files


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """Partitioned by region, two files of ten rows each in us and in eu: forty ids."""
    with maintained_table(tmp_path) as made:
        create_by_region(made, 2)
        yield made


def test_an_unreadable_file_leaves_the_table_without_wrong_statistics(table: MaintainedTable) -> None:
    """Nor is that an error that comes back with each pass: the next ones do not read it (rule 216)."""
    location, before = table.loaded.metadata_location, table.files()
    lost = local_path(data_files(table)[0].file_path)
    lost.rename(lost.with_suffix(".lost"))
    outcome = computed(table)
    path = data_files(table)[0].file_path
    told = f"{path} does not exist; statistics without its rows would be wrong, so none were computed"
    assert (outcome.status, outcome.reason) == (Status.SKIPPED, told)
    table.engine.during = lambda: pytest.fail("files were read")
    again = computed(table)
    assert (again.status, again.reason) == (Status.SKIPPED, told)
    assert table.loaded.metadata_location == location
    lost.with_suffix(".lost").rename(lost)
    assert table.files() == before
    table.late_ms, table.engine.during = RETRY_MS + 1, lambda: None
    assert computed(table).status is Status.SUCCEEDED
    assert table.runtime.health(NAME).warnings.keys() & {"unreadable_files"} == set()


@pytest.mark.parametrize("damage", ["gone", "cut", "other blobs", "sketch"])
def test_a_damaged_statistics_file_is_made_anew(table: MaintainedTable, damage: str) -> None:
    computed(table)
    path = local_path(entry(table)["statistics-path"])
    data = path.read_bytes()
    changed = {
        "cut": data[:-5],
        "other blobs": data.replace(b'"ndv": "40"', b'"ndv": "41"'),
        "sketch": data[:10] + b"\xff\xff" + data[12:],
    }
    path.unlink() if damage == "gone" else path.write_bytes(changed[damage])
    table.table.append(rows_of(5, 10, "us"))
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 50, 5)
    assert ndv(table) == true_ndv(table) == {1: 45, 2: 2}


def test_an_append_does_not_disturb(table: MaintainedTable) -> None:
    """The statistics are of the snapshot that was read, and stay right."""
    planned = table.loaded.metadata.refs["main"].snapshot_id
    table.engine.during = lambda: table.table.append(rows_of(1000, 10, "us"))
    assert computed(table).status is Status.SUCCEEDED
    metadata = table.loaded.metadata
    assert [e["snapshot-id"] for e in metadata.statistics] == [planned]
    assert metadata.refs["main"].snapshot_id != planned
    table.engine.during = lambda: None
    assert rows_read(computed(table)) == (Status.SUCCEEDED, 10, 1)


def test_a_snapshot_that_expires_meanwhile_gets_none(table: MaintainedTable) -> None:
    before = table.files()

    def overtake() -> None:
        table.engine.during = lambda: None
        table.table.append(rows_of(1000, 10, "us"))
        # Ours would see the pin of the running job.
        table.table.maintenance.expire_snapshots().by_id(planned).commit()

    planned = table.loaded.metadata.refs["main"].snapshot_id
    table.engine.during = overtake
    outcome = computed(table)
    assert (outcome.status, outcome.reason) == (Status.FAILED, f"snapshot {planned} expired meanwhile")
    assert not table.loaded.metadata.statistics
    assert not {path for path in table.files() - before if path.endswith(".stats")}


def test_what_a_lost_commit_staged_goes(table: MaintainedTable) -> None:
    before = table.files()

    def lose(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        with table.table.transaction() as faster:
            faster.set_properties(somebody="was faster")
        raise CommitConflict("somebody was faster")

    table.catalog.commit_instead = lose
    assert computed(table, max_commit_retries="0").status is Status.FAILED
    assert [path for path in table.files() - before if not path.endswith(".metadata.json")] == []


def test_what_a_commit_of_unknown_outcome_staged_stays(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It landed, and nobody said so."""
    inner = table.catalog.inner

    def silent(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        inner.commit(base, requirements, updates)
        raise CommitStateUnknown("no answer")

    monkeypatch.setattr("icekeeper.commit.transaction.backoff_seconds", lambda attempt: 0.0)
    table.catalog.commit_instead = silent
    assert computed(table).status is Status.SUCCEEDED
    assert ndv(table) == {1: 40, 2: 2}
    table.assert_sound()


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        ("file-size-in-bytes", 7, "wrong_size"),
        ("file-footer-size-in-bytes", 7, "unreadable_metadata"),
        ("blob-metadata", [], "statistics"),
        ("blob-metadata", None, "statistics"),
    ],
)
def test_verify_compares_them_with_the_table(table: MaintainedTable, key: str, value: Any, kind: str) -> None:
    computed(table)
    path = local_path(table.loaded.metadata_location)
    document = json.loads(path.read_text())
    document["statistics"][0][key] = value
    path.write_text(json.dumps(document))
    problems = table.runtime.verify(NAME).problems
    assert kind in {problem.kind.value for problem in problems}
    assert {problem.path for problem in problems} == {document["statistics"][0]["statistics-path"]}


def test_verify_misses_lost_files_once(table: MaintainedTable) -> None:
    computed(table)
    metadata = table.loaded.metadata
    lost = [str(e["statistics-path"]) for e in (*metadata.statistics, *metadata.partition_statistics)]
    for path in lost:
        local_path(path).unlink()
    problems = table.runtime.verify(NAME).problems
    assert sorted((p.kind.value, p.path) for p in problems) == sorted(("missing_file", path) for path in lost)


def test_orphan_removal_takes_only_what_was_replaced(table: MaintainedTable) -> None:
    computed(table, statistics_columns="id")
    replaced = local_path(entry(table)["statistics-path"])
    computed(table)
    table.maintain(operations="remove_orphans")
    assert not replaced.exists()
    assert local_path(entry(table)["statistics-path"]).exists()
    table.assert_sound()


def test_a_table_is_not_proposed_for_first_statistics_that_cannot_be_made(table: MaintainedTable) -> None:
    """Whatever is appended: each pass would do nothing (rule 216)."""
    settings = {"operations": "compute_statistics"}
    local_path(data_files(table)[0].file_path).unlink()
    assert [p.reasons for p in table.runtime.detect(settings).proposals] == [("2 columns have no statistics",)]
    assert computed(table).status is Status.SKIPPED
    table.table.append(rows_of(1000, 10, "us"))
    found = table.runtime.detect(settings)
    assert found.proposals == ()
    assert "could not be read" in (found.skipped[0].warning or "")
