"""What many small SQLite databases of one process share, and the power failure that they need not outlive.

A test makes two catalogs in a database of its own.  SQLAlchemy would set up a dialect for each and compile each
statement for it anew, which takes as long as the statements; SQLite would wait for the disk at each commit; and each
state file would go through all versions that there were.
"""

from __future__ import annotations

import functools
import importlib
import sqlite3
from contextlib import closing, suppress
from typing import Any

import sqlalchemy

from icekeeper.state.sqlite.schema import SCHEMA_VERSION, upgrade

__all__ = ["make_state_files_at_once", "share_compiled_sql", "wait_for_no_disk"]


@functools.cache
def share_compiled_sql() -> None:
    """Let all engines of PyIceberg's SQL catalogs over SQLite have one dialect, and so one cache of statements."""
    catalogs: Any = importlib.import_module("pyiceberg.catalog.sql")
    original = catalogs.create_engine
    first = original("sqlite://")
    first.connect().close()  # which makes the dialect complete

    @functools.wraps(original)
    def create_engine(*arguments: Any, **options: Any) -> sqlalchemy.Engine:
        engine: sqlalchemy.Engine = original(*arguments, **options)
        if type(engine.dialect) is type(first.dialect):
            engine.dialect = first.dialect
            engine._compiled_cache = first._compiled_cache
        return engine

    catalogs.create_engine = create_engine


class _Unsynchronised(sqlite3.Connection):
    """One that hands its pages to the operating system only: they survive a process that is killed."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        with suppress(sqlite3.Error):  # of a file that is none: whoever asks for something is told
            self.execute("PRAGMA synchronous = OFF")


@functools.cache
def wait_for_no_disk() -> None:
    """Let no connection to SQLite of this process wait until the disk has what was committed."""
    sqlite3.connect = sqlite3.dbapi2.connect = functools.partial(sqlite3.connect, factory=_Unsynchronised)  # type: ignore[assignment]


@functools.cache
def make_state_files_at_once() -> None:
    """Let a new state file get its tables as they are after all upgrades; one of an earlier version is upgraded."""
    with closing(sqlite3.connect(":memory:")) as connection:
        upgrade(connection, 0)
        made = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid").fetchall()

    def upgrade_at_once(connection: sqlite3.Connection, version: int) -> None:
        if version:
            upgrade(connection, version)
            return
        for (statement,) in made:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    state_file: Any = importlib.import_module("icekeeper.state.sqlite.file")
    state_file.upgrade = upgrade_at_once
