"""What many small SQLite databases of one process share, and the power failure that they need not outlive.

A test makes two catalogs in a database of its own.  SQLAlchemy would set up a dialect for each and compile each
statement for it anew, which takes as long as the statements; and SQLite would wait for the disk at each commit.
"""

from __future__ import annotations

import functools
import importlib
import sqlite3
from contextlib import suppress
from typing import Any

import sqlalchemy


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
