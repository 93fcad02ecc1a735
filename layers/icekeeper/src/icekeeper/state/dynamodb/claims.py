"""Claims in the state table: an item per catalog entry, and an item per folder by which entries are found.

The folders of one bucket or host lie in one partition.  So all folders below a folder are one range of sort keys, and
each folder that contains it is one further range.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import partial

from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, Entry, TableClaims, folders_around, store_of
from icekeeper.state.dynamodb.batches import put_all
from icekeeper.state.dynamodb.items import Item, catalog_key, named_key, sort_key, understood
from icekeeper.state.dynamodb.table import DynamoTable

__all__ = ["DynamoClaims"]

_LOOKS = "looks#all"
# Orders before every character of a name, so that a folder comes before whatever else begins with its name.
_END = "\x1f"
# A sort key holds 1,024 bytes; a query uses only this many characters of a folder, and the rest is compared afterwards.
_SEARCHED = 200


class DynamoClaims:
    """A :class:`icekeeper.state.claims.ClaimStore`."""

    def __init__(self, table: DynamoTable) -> None:
        self._table = table

    def record(self, claims: TableClaims, *, replaces: TableClaims | None = None) -> None:
        before = self.of_entry(claims.entry) if replaces is None else replaces
        if before == claims:
            return
        known = set() if before is None else {before.location, *before.folders}
        now = {claims.location, *claims.folders}
        # New folders are written first: a search at this moment finds too many entries, never too few.
        for folder in now if before is None or before.uuid != claims.uuid else now - known:
            self._table.put(_folder_item(folder, claims.entry))
        self._table.put(_entry_item(claims))
        for folder in known - now:
            self._table.delete(*_folder_key(folder, claims.entry))
        if before is None:
            self._know_catalogs([claims])

    def record_first_looks(self, claims: Sequence[TableClaims]) -> None:
        # In this order, as above; a folder that such an entry has left is found in vain.
        folders = (_folder_item(folder, one.entry) for one in claims for folder in {one.location, *one.folders})
        put_all(self._table, folders)
        put_all(self._table, map(_entry_item, claims))
        self._know_catalogs(claims)

    def looks(self) -> Sequence[CatalogLook]:
        return [*map(_look, self._table.query(_LOOKS))]

    def record_look(self, look: CatalogLook) -> None:
        self._table.put(_look_item(look))

    def _know_catalogs(self, claims: Sequence[TableClaims]) -> None:
        for catalog, warehouse in {(one.catalog, one.warehouse) for one in claims}:
            item = _look_item(CatalogLook(catalog=catalog, warehouse=warehouse))
            self._table.change(item["pk"], item["sk"], partial(_unless_found, item))

    def of_entry(self, entry: Entry) -> TableClaims | None:
        item = self._table.get(*_entry_key(entry))
        return None if item is None else _claims(item)

    def touching(self, folder: str) -> Iterator[TableClaims]:
        pk = named_key("claimed", store_of(folder))
        below = folder if folder.endswith("/") else f"{folder}/"
        entries: dict[Entry, None] = {}
        for item in self._table.query(pk, below[:_SEARCHED]):
            if item["folder"].startswith(below):
                entries.setdefault(_entry(item))
        for around in folders_around(folder):
            for item in self._table.query(pk, f"{around}{_END}"[:_SEARCHED]):
                if item["folder"] == around:
                    entries.setdefault(_entry(item))
        for entry in sorted(entries):
            claims = self.of_entry(entry)
            if claims is not None:
                yield claims

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[TableClaims]:
        yield from map(_claims, self._table.query(catalog_key("claims", catalog, warehouse)))

    def forget(self, entry: Entry) -> None:
        claims = self.of_entry(entry)
        self._table.delete(*_entry_key(entry))
        if claims is not None:
            for folder in (claims.location, *claims.folders):
                self._table.delete(*_folder_key(folder, entry))


def _entry_item(claims: TableClaims) -> Item:
    pk, sk = _entry_key(claims.entry)
    return {
        "pk": pk,
        "sk": sk,
        "entry": json.dumps(claims.entry),
        "uuid": claims.uuid,
        "location": claims.location,
        "folders": json.dumps(sorted(claims.folders)),
        "data_roots": json.dumps(sorted(claims.data_roots)),
        "seen_sequence_number": claims.seen_sequence_number,
        "seen_ms": claims.seen_ms,
    }


def _folder_item(folder: str, entry: Entry) -> Item:
    pk, sk = _folder_key(folder, entry)
    return {"pk": pk, "sk": sk, "folder": folder, "entry": json.dumps(entry)}


def _look_item(look: CatalogLook) -> Item:
    return {
        "pk": _LOOKS,
        "sk": sort_key("", json.dumps(look.key)),
        "catalog": look.catalog,
        "warehouse": look.warehouse,
        "look": json.dumps(look.to_json()),
    }


def _unless_found(new: Item, found: Item | None) -> Item | None:
    return new if found is None else None


def _look(item: Item) -> CatalogLook:
    with understood(item):
        return CatalogLook.from_json(item["catalog"], item["warehouse"], json.loads(item["look"]))


def _entry_key(entry: Entry) -> tuple[str, str]:
    catalog, warehouse, table = entry
    return catalog_key("claims", catalog, warehouse), sort_key("", table)


def _folder_key(folder: str, entry: Entry) -> tuple[str, str]:
    return named_key("claimed", store_of(folder)), sort_key("", f"{folder}{_END}{json.dumps(entry)}")


def _entry(item: Item) -> Entry:
    with understood(item):
        catalog, warehouse, table = json.loads(item["entry"])
        return catalog, warehouse, table


def _claims(item: Item) -> TableClaims:
    with understood(item):
        catalog, warehouse, table = _entry(item)
        return TableClaims(
            catalog=catalog,
            warehouse=warehouse,
            table=TableName.recorded(table),
            uuid=item["uuid"],
            location=item["location"],
            folders=frozenset(json.loads(item["folders"])),
            data_roots=frozenset(json.loads(item["data_roots"])),
            seen_sequence_number=item["seen_sequence_number"],
            seen_ms=item["seen_ms"],
        )
