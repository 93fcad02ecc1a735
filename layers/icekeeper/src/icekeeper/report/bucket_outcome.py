"""What a pass over the orphans of a whole bucket did: per table, outside of all tables, and of foreign tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.report.clock_skew import CLOCK_SKEW
from icekeeper.report.listings import ListingWriter
from icekeeper.report.outcome import OperationOutcome, PassStatus, overall_status

__all__ = ["BucketOutcome", "ForeignTable", "Outside"]


@dataclass(frozen=True, slots=True)
class Outside:
    """Files under no table's location, which are reported and never deleted; ``size`` in bytes."""

    files: int = 0
    size: int = 0
    first: tuple[str, ...] = ()
    """Some of the paths."""


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table that the catalog does not know, found by one of its metadata files."""

    uuid: str | None
    location: str
    metadata_file: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketOutcome:
    """How one pass over a bucket ended; outcomes by the names of tables."""

    catalog: str
    bucket: str
    run_id: str
    dry_run: bool
    tables: Mapping[str, OperationOutcome]
    outside: Outside
    foreign: tuple[ForeignTable, ...]
    warnings: tuple[str, ...] = ()
    """What went wrong beside the tables; it does not change how the pass ended."""

    @property
    def status(self) -> PassStatus:
        """As the status of a pass over one table, with tables in place of operations."""
        return overall_status(self.tables.values())

    @property
    def metrics(self) -> dict[str, int | float]:
        """The sums of all tables' metrics, and the counts of files outside all tables."""
        total: Counter[str] = Counter()
        for outcome in self.tables.values():
            total.update({key: int(value) for key, value in outcome.metrics.items() if key != CLOCK_SKEW})
        total["remove_orphans.files_outside"] = self.outside.files
        total["remove_orphans.bytes_outside"] = self.outside.size
        skews = [outcome.metrics[CLOCK_SKEW] for outcome in self.tables.values() if CLOCK_SKEW in outcome.metrics]
        return {**total, **({CLOCK_SKEW: max(skews, key=abs)} if skews else {})}

    def to_json(self, listing: ListingWriter) -> dict[str, Any]:
        """The document of ``orphans --json``; ``listing`` stores path lists too long for it."""
        return {
            "catalog": self.catalog,
            "bucket": self.bucket,
            "run_id": self.run_id,
            "dry_run": self.dry_run,
            "status": self.status.value,
            "tables": [self._table(name, outcome, listing) for name, outcome in self.tables.items()],
            "outside": {
                "files": self.outside.files,
                "bytes": self.outside.size,
                "first": list(self.outside.first),
            },
            "foreign": [
                {"uuid": found.uuid, "location": found.location, "metadata_file": found.metadata_file}
                for found in self.foreign
            ],
            "metrics": self.metrics,
            **({"warnings": list(self.warnings)} if self.warnings else {}),
        }

    def _table(self, name: str, outcome: OperationOutcome, listing: ListingWriter) -> dict[str, Any]:
        document = outcome.to_json(f"{self.run_id}-{name}", listing)
        return {
            "table": name,
            **{key: document[key] for key in ("status", "reason", "summary")},
            "orphans_removed": len(outcome.files_deleted),
            "bytes": outcome.metrics.get("remove_orphans.orphan_bytes", 0),
            "files": document["files"],
        }
