"""The results of detection: proposals and skips, and the report of a scan, as documents too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from icekeeper.model import CatalogId, TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.text import masked_sentence

REQUESTED = "requested by a person"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A table that needs work; ``priority`` is between 0 and 1, higher for more need."""

    table: str
    reasons: tuple[str, ...]
    priority: float
    uuid: str = ""
    location: str = ""
    waited_ms: int = field(default=0, compare=False)
    """Time since the last pass; without a pass, the age of the table."""
    warning: str | None = None
    """A problem that no pass can repair: damaged or unreadable files."""
    catalog: str = ""
    warehouse: str = ""
    is_requested: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of the request, if there is a request."""

    @classmethod
    def of(cls, identity: TableIdentity, reason: str) -> Proposal:
        """A proposal of the lowest priority."""
        table, (catalog, warehouse) = str(identity.table), identity.catalog
        return cls(table, (reason,), 0.0, identity.uuid, identity.location, catalog=catalog, warehouse=warehouse)

    @property
    def identity(self) -> TableIdentity:
        return TableIdentity(
            CatalogId(self.catalog, self.warehouse), TableName.parse(self.table), self.uuid, self.location
        )

    def to_json(self) -> dict[str, Any]:
        """An item of the state machine's map."""
        return {
            "catalog": self.catalog,
            "warehouse": self.warehouse,
            "table": self.table,
            "uuid": self.uuid,
            "location": self.location,
            "reasons": list(self.reasons),
            "priority": self.priority,
            "forced": self.is_requested,
            "settings": dict(self.settings),
            "wait": False,
        }


@dataclass(frozen=True, slots=True)
class Skip:
    """A table that is not proposed; if ``table`` is empty, a catalog that could not be scanned."""

    table: str
    reason: str
    is_error: bool = False
    """It could not be assessed."""
    warning: str | None = None
    """As in :class:`Proposal`."""
    catalog: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", masked_sentence(self.reason))  # it may quote an error of a library


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A scan over many catalogs: proposals by urgency, skips by name, those with a warning first.

    ``scanned`` counts the assessed tables, ``listed`` those that the filters select.  The next scan continues at
    ``cursor``; ``None``: this scan reached all tables.
    """

    scanned: int
    listed: int
    proposals: tuple[Proposal, ...]
    skipped: tuple[Skip, ...]
    cursor: tuple[str, str] | None
    not_reached: int = 0
    """How many tables were not reached within the time budget."""
    beyond_limit: int = 0
    """How many tables need work, but are not proposed because of ``max_jobs_per_detection``."""
    warnings: tuple[str, ...] = ()
    """Sentences about catalogs that list no table or not all, and about refused requests."""
    empty_catalogs: int = 0
    """How many configured catalogs list no table."""
    note: str | None = None
    """Of a scan of one catalog: its warnings, or why no table was scanned."""

    @property
    def errors(self) -> int:
        return sum(skip.is_error for skip in self.skipped)

    def to_json(self) -> dict[str, Any]:
        """The document ``detection.json`` of a run; each proposal is in an entry with its catalog and request."""
        document = asdict(self)
        del document["note"]
        around = ("catalog", "warehouse", "is_requested", "settings")
        document["proposals"] = [
            {**{key: found.pop(key) for key in around}, "proposal": found} for found in document["proposals"]
        ]
        return document


def detection_json(catalog: str, report: FleetReport) -> dict[str, Any]:
    """The document of ``detect --json`` about a scan of one catalog, without ``next_run``."""
    return {
        "catalog": catalog,
        "scanned": report.scanned,
        "proposals": [
            {
                "table": found.table,
                "reasons": list(found.reasons),
                "priority": found.priority,
                **_warning_of(found),
                **({"requested": True, "settings": dict(found.settings)} if found.is_requested else {}),
            }
            for found in report.proposals
        ],
        **({"beyond_limit": report.beyond_limit} if report.beyond_limit else {}),
        "skipped": [
            {
                "table": skip.table,
                "reason": skip.reason,
                **_warning_of(skip),
                **({"error": True} if skip.is_error else {}),
            }
            for skip in report.skipped
        ],
        **({} if report.note is None else {"note": report.note}),
    }


def _warning_of(found: Proposal | Skip) -> dict[str, str]:
    return {} if found.warning is None else {"warning": found.warning}


def next_run_json(settings: ResolvedPolicy, proposed: Sequence[str], at_work: int) -> dict[str, Any]:
    """How a scheduled run (``icekeeper run`` or the pipeline) would begin now, within ``max_concurrent_jobs``.

    ``settings`` are the deployment's, shown with their sources as in ``policy show``; ``at_work`` is how many tables
    scheduled runs maintain already.
    """
    documents, free = settings.documents(), max(0, settings.policy.max_concurrent_jobs - at_work)
    limits = ("max_jobs_per_detection", "max_concurrent_jobs", "detection_timeout_s")
    filters = ("bucket_filter", "namespace_filter", "table_filter")
    return {
        "begins": list(proposed[:free]),
        "waits": list(proposed[free:]),
        "at_work": at_work,
        "limits": {key: documents[key] for key in limits},
        "filters": {key: documents[key] for key in filters if getattr(settings.policy, key)},
    }
