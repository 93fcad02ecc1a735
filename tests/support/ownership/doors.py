"""How a pass comes to a table: a catalog under one of its names, with something that happens in the middle."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any
from unittest import mock

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import TableName
from icekeeper.storage.storage import Storage

DOORS = 3
"""Each catalog is known under so many names."""


class Moment(StrEnum):
    """Where a pass can be interrupted."""

    LOAD = "load"
    WORK = "work"
    BEFORE_COMMIT = "before commit"
    AFTER_COMMIT = "after commit"
    LIST = "list"
    DELETE = "delete"


class Interruption:
    """Lets something happen once, at the n-th time (0 is the first) that a pass comes to a moment."""

    def __init__(self, moment: Moment, nth: int, happens: Callable[[], object]) -> None:
        self.has_happened = False
        self._moment, self._left, self._happens = moment, nth, happens
        self._lock = threading.Lock()

    def at(self, moment: Moment) -> None:
        with self._lock:
            if moment is not self._moment or self.has_happened:
                return
            self._left -= 1
            if self._left >= 0:
                return
            self.has_happened = True
        self._happens()

    @contextmanager
    def watching_storage(self) -> Iterator[None]:
        """Listings and deletions of whoever works here."""

        def watched(name: str, moment: Moment) -> Any:
            original = getattr(Storage, name)

            def call(storage: Storage, *args: Any, **kwargs: Any) -> Any:
                self.at(moment)
                return original(storage, *args, **kwargs)

            return mock.patch.object(Storage, name, call)

        with watched("list", Moment.LIST), watched("delete", Moment.DELETE):
            yield


class Door:
    """A catalog under another name and with another spelling of its warehouse, as another configuration would say."""

    built_in_maintenance = None

    def __init__(self, inner: Catalog, number: int, at: Callable[[Moment], object] = lambda moment: None) -> None:
        self._inner, self._at = inner, at
        warehouse = inner.warehouse
        self.name = (inner.name, inner.name.upper(), f"alias-of-{inner.name}")[number % DOORS]
        self.warehouse = (warehouse, f"{warehouse}/", warehouse.removeprefix("file://"))[number % DOORS]

    def list_tables(self) -> Iterator[TableName]:
        return self._inner.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        self._at(Moment.LOAD)
        return self._inner.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self._at(Moment.BEFORE_COMMIT)
        after = self._inner.commit(base, requirements, updates)
        self._at(Moment.AFTER_COMMIT)
        return after


def door_named(catalogs: Sequence[Catalog], name: str, warehouse: str) -> Door | None:
    """The door, one way to reach a catalog, that has this catalog name and warehouse; ``None`` if there is none."""
    doors = (Door(catalog, number) for catalog in catalogs for number in range(DOORS))
    return next((door for door in doors if (door.name, door.warehouse) == (name, warehouse)), None)


class InterruptedEngine(LocalEngine):
    """Works in this process; then comes the moment before anything is committed."""

    def __init__(self, at: Callable[[Moment], object] = lambda moment: None) -> None:
        super().__init__(1)
        self._at = at

    def map(self, function: Callable[[Any], Any], tasks: Sequence[Any], on_done: Callable[[int], None]) -> list[Any]:
        results = super().map(function, tasks, on_done)
        self._at(Moment.WORK)
        return results
