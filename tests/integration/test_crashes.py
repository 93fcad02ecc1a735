"""A pass that dies or fails at any step leaves the same rows, and a later pass leaves nothing lying about."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pyarrow as pa
import pytest

from icekeeper.errors import CommitStateUnknown, StorageError
from icekeeper.machine.clock import HOUR_MS
from support.maintained_table import MaintainedTable, files_below, maintained_table
from support.readers import canonical, duckdb_rows
from support.scripted_catalog import counted_steps

ROWS = pa.table({"id": pa.array([1, 2, None], pa.int64()), "name": ["a", "b", None]})
APPENDS = 4
JOB_LEASE_MS = 2 * HOUR_MS


class Killed(BaseException):
    """The process is gone: nothing that catches errors may catch this."""


def _fails(where: str) -> BaseException:
    if where == "after the commit":
        return CommitStateUnknown("the answer got lost")
    return StorageError(f"the store failed: {where}")


def _prepare(folder: Path) -> None:
    with maintained_table(folder) as table:
        made = table.create(ROWS.schema)
        for _ in range(APPENDS):
            made.append(ROWS)
        made.manage_snapshots().create_tag(made.snapshots()[1].snapshot_id, "kept").commit()
        (table.folder / "data" / "orphan.parquet").write_bytes(b"?")
        table.state.require_writable()  # creates it, which takes longer than a pass over it


def _left_over(table: MaintainedTable) -> list[str]:
    """Metadata files newer than the oldest snapshot are never orphans (rule 97)."""
    found = files_below(table.folder.parent.parent) - table.reachable()  # the whole warehouse, the table is all it has
    return [path for path in found if not path.endswith(".metadata.json")]


def _restore(template: Path, folder: Path) -> None:
    """Put a folder back to what the template holds."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder)


def _left_behind(folder: Path) -> list[str]:
    """What a pass leaves: its files by name and every row of the databases, whatever was drawn or timed.

    Not its line in the journal, which no pass reads, and which says how long it took.
    """
    found: list[str] = []
    for path in folder.rglob("*"):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database:
                found += database.iterdump()
        elif path.is_file():
            found.append(str(path))
    told = (text for text in found if ".db-" not in text and not text.startswith(_JOURNAL))
    return sorted(_DRAWN.sub("#", text) for text in told)


_DRAWN = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{9,}")
"""Uuids, snapshot ids and milliseconds."""
_JOURNAL = 'INSERT INTO "passes" '


@pytest.mark.slow
@pytest.mark.parametrize("failure", [Killed, _fails], ids=["killed", "failing"])
def test_every_step_may_be_the_last(tmp_path: Path, failure: Callable[[str], BaseException]) -> None:
    """A crash at any point leaves a readable table with the same rows, and at most unreferenced files (rule 69).

    What has not changed since the step before leaves the same to later passes.  Those that follow a failure in the same
    process do so every fifth time all the same: it may remember something.
    """
    template, folder = tmp_path / "template", tmp_path / "table"
    _prepare(folder)
    folder.rename(template)
    _restore(template, folder)
    with maintained_table(folder) as table, counted_steps(table.catalog, None, failure) as steps:
        expected = table.rows()
        steps.taken = 0
        assert table.maintain().status.value == "succeeded"
    total = steps.taken
    assert 20 < total < 200
    where: set[str | None] = set()
    left: list[str] = []
    for number in range(1, total + 1):
        _restore(template, folder)
        with maintained_table(folder) as table:
            with counted_steps(table.catalog, number, failure) as steps, suppress(Killed, StorageError):
                table.maintain()
            where.add(steps.where)
            context = f"step {number} of {total}: {steps.where}"
            assert table.rows() == expected, context
            table.assert_sound()
            if number % 25 == 0:
                assert canonical(duckdb_rows(table.loaded.metadata_location)) == expected, context
            kept = table.loaded.metadata.refs["kept"].snapshot_id
            assert len(table.rows(kept)) == 2 * ROWS.num_rows, context
            left, before = _left_behind(folder), left
            if left == before and (failure is Killed or number % 5):
                continue
            table.late_ms = JOB_LEASE_MS  # what a killed job recorded is its own until then
            later = table.maintain()
            if later.status.value != "succeeded" or _left_over(table) or number % 10 == 0:
                later = table.maintain()
            assert later.status.value == "succeeded", context
            assert table.rows() == expected, context
            assert _left_over(table) == [], context
            table.assert_sound()
    assert {"before the commit", "after the commit", "before delete", "after write", "load"} <= where
