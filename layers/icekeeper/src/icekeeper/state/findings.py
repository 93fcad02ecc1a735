"""The conclusions of scans, what passes and ``verify`` found wrong with files, and facts from manifests of a table."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.item_layout import KEPT_MS, catalog_key, json_text, now_prefix, sort_key, table_key
from icekeeper.state.items import Item, Records, understood

RETRY_MS = 7 * 24 * HOUR_MS
"""After this time an unreadable file is read again, because it may have been restored."""


UNREADABLE = "unreadable_file"
"""The kind of a file that a pass could not read as rows; the other kinds are those of ``verify``."""
MOST_PROBLEMS = 1_000
"""The most files with problems of a ``verify`` that are recorded; each scan reads them."""
GONE = "does not exist"
"""The words of a store about a missing file (:func:`icekeeper.storage.failures.describe_failure`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileFinding:
    """What is wrong with a file: a pass could not read its rows, or ``verify`` found damage; a failing store is not
    recorded here."""

    path: str
    why: str
    """A sentence that names the file."""
    schema_digest: str = ""
    """Digest of the schema and name mapping (:func:`icekeeper.metadata.document.schema_digest`) of a pass that could
    not read the file; empty: no pass has tried."""
    tried_ms: int
    kind: str = UNREADABLE
    """:data:`UNREADABLE`, or a kind of problem of ``verify``."""
    from_content: bool = True
    """Whether reading the file's content has shown it, so that only reading it again takes it back."""

    def waits(self, schema_digest: str, now_ms: int) -> bool:
        """Whether the file must not be read again yet: for a week, unless schema or name mapping changed."""
        return self.schema_digest == schema_digest and 0 <= now_ms - self.tried_ms < RETRY_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The last ``verify`` of a table: when it ended, and how many problems it found, recorded or not."""

    at_ms: int
    problems: int


class FindingStore(Records):
    """Findings by table copy and path, and its last ``verify``; passes skip the files that they could not read for a
    week (rule: leave-out-unreadable-files)."""

    def record(self, identity: TableIdentity, files: Iterable[FileFinding]) -> None:
        """Add files, whose paths must differ, replacing records of the same paths."""
        self.table.put_all(
            {
                "pk": table_key(identity),
                "sk": sort_key(findings_prefix(identity), file.path),
                "path": file.path,
                "problem": file.kind,
                "why": file.why,
                "schema_digest": file.schema_digest,
                "tried_ms": file.tried_ms,
                "from_content": file.from_content,
                "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=file.tried_ms),
            }
            for file in files
        )

    def of_table(self, identity: TableIdentity) -> Mapping[str, FileFinding]:
        """The findings of one copy of a table by path, ordered by path."""
        return findings_of(self.table.query(table_key(identity), findings_prefix(identity)))

    def forget(self, identity: TableIdentity, paths: Iterable[str]) -> None:
        """Remove the records of these paths that exist."""
        self.table.delete_all(table_key(identity), (sort_key(findings_prefix(identity), path) for path in paths))

    def record_verified(self, identity: TableIdentity, verified: Verified) -> None:
        """Replace the record of the table's last ``verify``."""
        self.table.put(
            {
                "pk": table_key(identity),
                "sk": verified_key(identity),
                "at_ms": verified.at_ms,
                "problems": verified.problems,
                "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=verified.at_ms),
            }
        )


def findings_prefix(identity: TableIdentity) -> str:
    """The prefix of the sort keys of findings, in the partition of the table."""
    return f"{now_prefix('finding', identity)}#"


def verified_key(identity: TableIdentity) -> str:
    """The sort key of the record of the last ``verify``, in the partition of the table."""
    return now_prefix("verified", identity)


def findings_of(items: Iterable[Item]) -> dict[str, FileFinding]:
    """The findings of these items, by path."""
    return {
        item["path"]: FileFinding(
            path=item["path"],
            why=item["why"],
            schema_digest=item["schema_digest"],
            tried_ms=item["tried_ms"],
            kind=item["problem"],
            from_content=item["from_content"],
        )
        for item in items
    }


def verified_of(item: Item) -> Verified:
    """The record that an item holds."""
    return Verified(at_ms=item["at_ms"], problems=item["problems"])


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedExpiry:
    """An expiry that a missing or damaged manifest list or manifest stopped; a failing store is not recorded here."""

    why: str
    """A sentence that names the file, and what a person can do."""
    needed_by: tuple[int, ...]
    """Snapshots that need the file, at most :data:`MOST_NEEDING`."""
    history: str
    """Digest of these snapshots and the refs on them (:func:`icekeeper.metadata.document.history_digest`)."""
    tried_ms: int

    def waits(self, history: str, now_ms: int) -> bool:
        """Whether expiry must not be tried again yet: for a week, unless one of the snapshots or refs is gone
        (rule: leave-out-unreadable-files)."""
        return self.history == history and 0 <= now_ms - self.tried_ms < RETRY_MS


MOST_NEEDING = 100


class RefusedExpiryStore(Records):
    """The last refused expiry of each table copy, until an expiry succeeds."""

    def record(self, identity: TableIdentity, refused: RefusedExpiry) -> None:
        """Replace the record of the table."""
        self.table.put(
            {
                "pk": table_key(identity),
                "sk": refused_expiry_key(identity),
                "why": refused.why,
                "needed_by": json.dumps(refused.needed_by),
                "history": refused.history,
                "tried_ms": refused.tried_ms,
                "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=refused.tried_ms),
            }
        )

    def of_table(self, identity: TableIdentity) -> RefusedExpiry | None:
        """The record of one copy of a table; ``None``: its last expiry was not refused."""
        item = self.table.get(table_key(identity), refused_expiry_key(identity))
        return None if item is None else refused_expiry(item)

    def forget(self, identity: TableIdentity) -> None:
        """Remove the record, if there is one."""
        self.table.delete(table_key(identity), refused_expiry_key(identity))


def refused_expiry_key(identity: TableIdentity) -> str:
    """The sort key of the record in the partition of the table."""
    return now_prefix("refused-expiry", identity)


def refused_expiry(item: Item) -> RefusedExpiry:
    """The record that an item holds."""
    with understood(item):
        return RefusedExpiry(
            why=item["why"],
            needed_by=tuple(json.loads(item["needed_by"])),
            history=item["history"],
            tried_ms=item["tried_ms"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a scan concluded about a table."""

    reasons: tuple[str, ...] = ()
    """Why the table needs work; empty: it needs no work."""
    priority: float = 0.0
    left_alone: str = ""
    """Why the table is not proposed."""
    is_unread: bool = False
    """Whether the table could not be read."""
    sweep_due_ms: int = 0
    """When a sweep for orphans is due, in epoch milliseconds; 0: passes sweep no orphans here."""

    @classmethod
    def parse(cls, text: str) -> Verdict:
        """Read the verdict from its JSON text in the lake stats."""
        found = json.loads(text)
        return cls(**{**found, "reasons": tuple(found["reasons"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogScan:
    """The last scan of a catalog, which ended at ``scanned_ms``, and its numbers of tables."""

    catalog: CatalogId
    scanned_ms: int
    listed: int
    """The tables that the filters select."""
    scanned: int
    """The tables that the scan reached."""


class ScanStore(Records):
    """The last scan of each catalog, all in one partition."""

    def record(self, scan: CatalogScan) -> None:
        """Replace the record of the catalog."""
        self.table.put(
            {
                "pk": _SCANS,
                "sk": _scan_key(scan.catalog),
                "catalog": scan.catalog.name,
                "warehouse": scan.catalog.warehouse,
                "observed_ms": scan.scanned_ms,
                "listed": scan.listed,
                "scanned": scan.scanned,
                "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=scan.scanned_ms),
            }
        )

    def of_catalog(self, catalog: CatalogId) -> CatalogScan | None:
        """The last scan of a catalog; ``None``: no scan is recorded."""
        item = self.table.get(_SCANS, _scan_key(catalog))
        return None if item is None else _scan(item)

    def all(self) -> tuple[CatalogScan, ...]:
        """The last scans of all catalogs, ordered by name."""
        return tuple(_scan(item) for item in self.table.query(_SCANS))


_SCANS = "scans#all"


def _scan_key(catalog: CatalogId) -> str:
    return sort_key("", "\x1f".join(catalog))


def _scan(item: Item) -> CatalogScan:
    return CatalogScan(
        catalog=CatalogId(item["catalog"], item["warehouse"]),
        scanned_ms=item["observed_ms"],
        listed=item["listed"],
        scanned=item["scanned"],
    )


class Part(StrEnum):
    """A part of a table's layout, with an age of its own."""

    FILES = "files"
    """Sizes and partitions, also after a pass (:meth:`icekeeper.health.layout.LayoutTally.facts`)."""
    HOLDERS = "holders"
    """The bytes that each ref and snapshot alone holds, and advice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLayout:
    """One part of the facts in the manifests of a table at ``observed_ms``, ready for JSON."""

    identity: TableIdentity
    observed_ms: int
    part: Part
    facts: Mapping[str, Any]


class LayoutStore(Records):
    """The layouts of tables; those of a catalog are in one partition, as the lake stats are."""

    def record(self, *layouts: TableLayout) -> None:
        """Replace these parts, which must differ."""
        self.table.put_all(self._item(layout) for layout in layouts)

    def _item(self, layout: TableLayout) -> Item:
        identity = layout.identity
        return {
            "pk": catalog_key("layout", identity.catalog),
            "sk": sort_key("", f"{identity.table.key}\x1f{identity.uuid}\x1f{layout.part.value}"),
            "table_name": identity.table.key,
            "uuid": identity.uuid,
            "location": identity.location,
            "observed_ms": layout.observed_ms,
            "part": layout.part.value,
            "facts": json_text(layout.facts),
            "expires_s": self.table.expires_s(KEPT_MS, at_least_ms=layout.observed_ms),
        }

    def of_catalog(self, catalog: CatalogId) -> Iterator[TableLayout]:
        """The layouts of all tables of a catalog, ordered by name."""
        for item in self.table.query(catalog_key("layout", catalog)):
            with understood(item):
                table = TableName.recorded(item["table_name"])
                yield TableLayout(
                    identity=TableIdentity(catalog, table, item["uuid"], item["location"]),
                    observed_ms=item["observed_ms"],
                    part=Part(item["part"]),
                    facts=json.loads(item["facts"]),
                )
