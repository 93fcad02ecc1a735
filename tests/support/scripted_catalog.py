"""Catalogs that call hooks, or fail, at a given step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from icekeeper.catalogs.bucket_maintenance import TableBucketMaintenance
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.model import CatalogId, TableName

# A catalog that calls hooks around its requests, and an engine that calls a hook when its work is done.

Task = TypeVar("Task")
Result = TypeVar("Result")
Hook = Callable[[], object]


def nothing() -> None:
    """The default hook, which does nothing."""


def once(action: Hook) -> Hook:
    """A hook that acts only the first time."""
    left = [action]
    return lambda: left.pop()() if left else None


class ScriptedCatalog:
    """Any catalog with hooks; an error of a hook is an error of the request.

    For a single action at a single moment, use :func:`support.moments.at`.
    """

    def __init__(
        self,
        inner: Catalog,
        *,
        before_load: Hook = nothing,
        before_commit: Hook = nothing,
        after_commit: Hook = nothing,
    ) -> None:
        self.inner = inner
        self.before_load = before_load
        self.before_commit = before_commit
        self.after_commit = after_commit
        self.commit_instead: Callable[[LoadedTable, Sequence[Any], Sequence[Any]], LoadedTable] | None = None
        """Called in place of the inner catalog's commit."""
        self.commits = 0
        """The number of commit requests, whatever their outcome."""

    @property
    def id(self) -> CatalogId:
        return self.inner.id

    @property
    def built_in_maintenance(self) -> TableBucketMaintenance | None:
        return self.inner.built_in_maintenance

    def list_tables(self) -> Iterator[TableName]:
        return self.inner.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        self.before_load()
        return self.inner.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        self.commits += 1
        self.before_commit()
        after = (self.commit_instead or self.inner.commit)(base, requirements, updates)
        self.after_commit()
        return after


class ScriptedEngine(LocalEngine):
    """Runs in this process; calls ``during`` when every group is written, before any commit."""

    def __init__(self) -> None:
        super().__init__(1)
        self.during: Hook = nothing

    def map(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], on_done: Callable[[int], None]
    ) -> list[Result]:
        results = super().map(function, tasks, on_done)
        self.during()
        return results
