"""A catalog that commits only while its run holds the table's lease: a job that outlives it never commits (rule 70)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from icekeeper.catalogs.catalog import BuiltInMaintenance, Catalog, LoadedTable
from icekeeper.clock import Clock
from icekeeper.model import TableName
from icekeeper.state.leases import Lease, LeaseStore

__all__ = ["LeasedCatalog"]


class LeasedCatalog:
    """Passes every call on to a catalog; renews the lease before a commit and fails if another run has taken it."""

    def __init__(self, catalog: Catalog, leases: LeaseStore, lease: Lease, ttl_ms: int, clock: Clock) -> None:
        self._catalog = catalog
        self._leases = leases
        self._lease = lease
        self._ttl_ms = ttl_ms
        self._clock = clock

    @property
    def name(self) -> str:
        return self._catalog.name

    @property
    def warehouse(self) -> str:
        return self._catalog.warehouse

    @property
    def built_in_maintenance(self) -> BuiltInMaintenance | None:
        return self._catalog.built_in_maintenance

    def list_tables(self) -> Iterator[TableName]:
        """See :class:`icekeeper.catalogs.catalog.Catalog`."""
        return self._catalog.list_tables()

    def load(self, table: TableName) -> LoadedTable:
        """See :class:`icekeeper.catalogs.catalog.Catalog`."""
        return self._catalog.load(table)

    def commit(
        self, base: LoadedTable, requirements: Sequence[Mapping[str, Any]], updates: Sequence[Mapping[str, Any]]
    ) -> LoadedTable:
        """See :class:`icekeeper.catalogs.catalog.Catalog`.

        Raises:
            LeaseLost: another run maintains the table by now; nothing was sent.
            StorageError: the lease cannot be renewed; nothing was sent.
        """
        self._lease = self._leases.renew(self._lease, now_ms=self._clock(), ttl_ms=self._ttl_ms)
        return self._catalog.commit(base, requirements, updates)
