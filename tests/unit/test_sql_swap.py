"""A SQL catalog's swap when the database dies in the middle, or does not tell what it changed."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergCatalog

from icekeeper.errors import CommitRefused, CommitStateUnknown
from support.maintained_table import NAME, new_table

UPDATES = [{"action": "set-properties", "updates": {"ours": "yes"}}]


def dies(*_: object) -> None:
    raise sqlite3.OperationalError("connection lost")


@pytest.mark.parametrize("landed", [False, True])
def test_a_connection_that_dies_leaves_the_outcome_unknown_and_the_document_there(
    local_catalog: PyIcebergCatalog, tmp_path: Path, landed: bool
) -> None:
    """Neither statement nor rollback is confirmed, or not even the commit: that is no answer, and so no proof."""
    table = new_table(local_catalog, tmp_path)
    catalog: Any = table.catalog.inner
    base, dialect = catalog.load(NAME), catalog._engine.dialect
    execute: Callable[..., None] = dialect.do_execute

    def execute_all_but_swaps(cursor: Any, statement: str, *more: Any) -> None:
        if statement.startswith("UPDATE"):
            dies()
        execute(cursor, statement, *more)

    commit: Callable[..., None] = dialect.do_commit

    def commit_and_die(connection: Any) -> None:
        commit(connection)
        dies()

    broken = {"do_commit": commit_and_die} if landed else {"do_execute": execute_all_but_swaps}
    with (
        mock.patch.multiple(dialect, do_rollback=dies, **broken),
        pytest.raises(CommitStateUnknown, match="whether it landed is not known"),
    ):
        catalog.commit(base, [], UPDATES)
    assert ("ours" in catalog.load(NAME).metadata.properties) is landed
    assert len(list(tmp_path.rglob("*.metadata.json"))) == 2


def test_a_driver_that_does_not_count_rows_says_nothing_about_a_conflict(
    local_catalog: PyIcebergCatalog, tmp_path: Path
) -> None:
    """Where the database commits each statement by itself, the swap has happened: its document must stay."""
    table = new_table(local_catalog, tmp_path)
    catalog: Any = table.catalog.inner
    engine = catalog._engine
    catalog._engine = engine.execution_options(isolation_level="AUTOCOMMIT")
    base = catalog.load(NAME)
    with mock.patch("sqlalchemy.engine.cursor.CursorResult.rowcount", -1):
        after = catalog.commit(base, [], UPDATES)
    assert after.metadata.properties["ours"] == "yes"
    assert catalog.load(NAME).metadata_location == after.metadata_location

    catalog._engine = engine
    with (
        mock.patch("sqlalchemy.engine.cursor.CursorResult.rowcount", -1),
        pytest.raises(CommitRefused, match="does not say which rows") as raised,
    ):
        catalog.commit(after, [], [{"action": "set-properties", "updates": {"ours": "no"}}])
    assert len(raised.value.left) == 1
    assert catalog.load(NAME).metadata_location == after.metadata_location
