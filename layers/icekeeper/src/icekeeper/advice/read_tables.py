"""Reads what advice goes by, of one table or of all: documents and manifests, no data file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from icekeeper.advice.advise import advise_all
from icekeeper.advice.summarise import summarise
from icekeeper.advice.summary import Advice, TableSummary
from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.health.examine import health_head
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import ManifestContent, TableName
from icekeeper.policy import Policy, ResolvedPolicy
from icekeeper.storage.storage import Storage

__all__ = ["advise_catalog", "advise_table"]

SettingsOf = Callable[[LoadedTable], ResolvedPolicy]
"""The settings that hold for a table; raises PolicyError."""


def advise_table(catalog: Catalog, table: TableName, settings_of: SettingsOf) -> Sequence[Advice]:
    """What to change about one table.

    Raises:
        PolicyError: unknown table, or settings that are wrong.
        MetadataUnreadable: a manifest list or manifest cannot be read.
        StorageError: the catalog does not answer.
    """
    loaded = catalog.load(table)
    return advise_all([_read(loaded, settings_of(loaded))])[str(loaded.name)]


def advise_catalog(
    catalog: Catalog, settings_of: SettingsOf
) -> tuple[Mapping[str, Sequence[Advice]], Mapping[str, str]]:
    """Table → what to change about it, and table → why it could not be read.

    A table with wrong settings is advised by the default ones; health and passes say what is wrong with them.

    Raises:
        StorageError: the catalog cannot be listed.
    """
    found: list[TableSummary] = []
    unread: dict[str, str] = {}
    for name in catalog.list_tables():
        try:
            loaded = catalog.load(name)
            try:
                settings: ResolvedPolicy | PolicyError = settings_of(loaded)
            except PolicyError as error:
                settings = error
            found.append(_read(loaded, settings))
        except MaintenanceError as error:
            unread[str(name)] = str(error)
    return advise_all(found), unread


def _read(loaded: LoadedTable, settings: ResolvedPolicy | PolicyError) -> TableSummary:
    head = health_head(loaded.metadata, settings)
    reader = TableReader(loaded.metadata, Storage(loaded.io_properties).read)
    manifests = [] if head is None else reader.manifests(head)
    return summarise(
        str(loaded.name),
        loaded.metadata,
        head,
        settings.policy if isinstance(settings, ResolvedPolicy) else Policy(),
        deletes=lambda: reader.live_entries(manifests, ManifestContent.DELETES),
        data=lambda: reader.live_entries(manifests, ManifestContent.DATA),
    )
