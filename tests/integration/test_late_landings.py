"""Commits of a pass of which nobody hears land when the pass has given them up: between its operations, or after it.

What an unknown commit names stays until it can land no more (rule 65): outputs by the record of their job, manifests by
the grace period of orphans.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.machine.clock import HOUR_MS
from icekeeper.report.outcome import Status
from support.deletes import commit_deletes, create_by_region, position_delete
from support.maintained_table import MaintainedTable, files_below, maintained_table
from support.readers import canonical, duckdb_rows

WITH_GRACE: dict[str, Any] = {"orphan_older_than_hours": "24"}
COMMITS = 3
"""Of a pass over the table: compaction, expiry, manifests."""


class Late:
    """The catalog is busy with the commit of that number, and says nothing; it ends it when it is told to."""

    def __init__(self, table: MaintainedTable, number: int, *, before_the_next: bool) -> None:
        self.number = number
        self.before_the_next = before_the_next
        self.waiting: Callable[[], object] | None = None
        self.landed = False
        self._table = table
        table.catalog.commit_instead = self._commit

    def _commit(self, base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        if self._table.catalog.commits == self.number:
            self.waiting = lambda: self._table.catalog.inner.commit(base, requirements, updates)
            raise CommitStateUnknown("no answer")
        if self.before_the_next:
            self.land()
        return self._table.catalog.inner.commit(base, requirements, updates)

    def land(self) -> None:
        """Now the catalog carries it out, unless what it requires holds no more."""
        waiting, self.waiting = self.waiting, None
        if waiting is not None:
            try:
                waiting()
                self.landed = True
            except CommitConflict:
                self.landed = False


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two partitions of small files, some rows deleted by position."""
    folder = tmp_path_factory.mktemp("late") / "table"
    with maintained_table(folder) as table:
        create_by_region(table, 3)
        for file in table.data_files()[:2]:
            commit_deletes(table, [position_delete(file.file_path, 1, str(file.partition[0]))])
    return folder.rename(folder.with_name("template"))


@contextmanager
def restored(template: Path) -> Iterator[MaintainedTable]:
    """The folder lies where it was made, for its paths are absolute."""
    folder = template.with_name("table")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)
    with maintained_table(folder) as table:
        yield table


@pytest.mark.parametrize("when", ["before the next commit", "after the pass"])
@pytest.mark.parametrize("number", range(1, COMMITS + 1))
def test_what_lands_late_finds_all_that_it_names(template: Path, number: int, when: str) -> None:
    with restored(template) as table:
        rows = table.rows()
        late = Late(table, number, before_the_next=when == "before the next commit")
        table.maintain(**WITH_GRACE)
        assert table.catalog.commits >= number
        late.land()
        assert late.landed is (when == "before the next commit" or number == COMMITS)
        table.catalog.commit_instead = None
        table.assert_sound()
        assert table.rows() == rows
        assert canonical(duckdb_rows(table.metadata_location)) == rows
        table.late_ms = 2 * HOUR_MS
        for _ in range(2):
            last = table.maintain()
        assert last.status.value == Status.SUCCEEDED.value
        assert table.rows() == rows
        table.assert_sound()
        left = files_below(table.folder) - table.reachable()
        assert [path for path in left if not path.endswith(".metadata.json")] == []


def test_an_expiry_that_lands_late_is_finished_by_the_next_one(template: Path) -> None:
    """Its list is there, although nobody knew that it would be needed (rule 79)."""
    with restored(template) as table:
        table.maintain("compact")
        before = table.reachable()
        late = Late(table, 2, before_the_next=False)
        table.maintain("expire_snapshots")
        late.land()
        assert late.landed
        freed = before - table.reachable()
        assert freed & table.files() == freed
        table.catalog.commit_instead = None
        table.maintain("expire_snapshots")
        assert {path for path in freed & table.files() if path.endswith((".parquet", ".avro"))} == set()
