"""The results of detection: proposals and skips, the report of a scan, and how a scheduled run would begin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.text import masked_sentence

_FILTERS = ("bucket_filter", "namespace_filter", "table_filter")
_LIMITS = ("max_jobs_per_detection", "max_concurrent_jobs", "detection_timeout_s")


@dataclass(frozen=True, slots=True)
class NextRun:
    """How a scheduled run (``icekeeper run`` or the pipeline) would begin now.

    ``settings`` are the deployment's; ``at_work`` is how many tables scheduled runs maintain already.
    """

    settings: ResolvedPolicy
    proposed: Sequence[str]
    at_work: int

    @property
    def begins(self) -> Sequence[str]:
        """The tables that the run would start with, within ``max_concurrent_jobs``."""
        return self.proposed[: max(0, self.settings.policy.max_concurrent_jobs - self.at_work)]

    def to_json(self) -> dict[str, Any]:
        """``next_run`` in ``detect --json``; settings have their sources, as in ``policy show``."""
        documents = self.settings.documents()
        return {
            "begins": list(self.begins),
            "waits": list(self.proposed[len(self.begins) :]),
            "at_work": self.at_work,
            "limits": {key: documents[key] for key in _LIMITS},
            "filters": {key: documents[key] for key in _FILTERS if getattr(self.settings.policy, key)},
        }


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
    """Time since the last pass; without one, the age of the table."""
    schedules: tuple[str, ...] = ()
    """The schedules that the pass runs."""
    only_schedules: bool = False
    """There is no sign of work for the operations that no schedule names."""
    warning: str | None = None
    """A problem that no pass can repair: unreadable files."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A table that is not proposed; ``is_error``: it could not be assessed."""

    table: str
    reason: str
    is_error: bool = False
    is_gone: bool = False
    """The catalog no longer has the table."""
    warning: str | None = None
    """As in :class:`Proposal`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", masked_sentence(self.reason))  # it may quote an error of a library


@dataclass(frozen=True, slots=True)
class FleetProposal:
    """A proposal with the catalog of its table; ``settings`` are those of the request, if there is one."""

    catalog: str
    warehouse: str
    proposal: Proposal
    is_requested: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> TableIdentity:
        """The identity of the table."""
        found = self.proposal
        name = TableName.parse(found.table)
        return TableIdentity(self.catalog, self.warehouse, name, found.uuid, found.location)

    def to_json(self) -> dict[str, Any]:
        """An item of the state machine's map."""
        return {
            "catalog": self.catalog,
            "warehouse": self.warehouse,
            "table": self.proposal.table,
            "uuid": self.proposal.uuid,
            "location": self.proposal.location,
            "reasons": list(self.proposal.reasons),
            "priority": self.proposal.priority,
            "forced": self.is_requested,
            "settings": dict(self.settings),
            "wait": False,
            **({"schedules": list(self.proposal.schedules)} if self.proposal.schedules else {}),
            **({"only_schedules": True} if self.proposal.only_schedules else {}),
        }


@dataclass(frozen=True, slots=True)
class FleetSkip:
    """A table that is not proposed; if ``table`` is empty, a catalog that could not be scanned."""

    catalog: str
    table: str
    reason: str
    is_error: bool = False
    warning: str | None = None
    """As in :class:`Proposal`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", masked_sentence(self.reason))  # as above


@dataclass(frozen=True, slots=True)
class FleetReport:
    """A scan over many catalogs: proposals by urgency, skips by name.

    ``scanned`` counts the assessed tables, ``listed`` those that the filters select.  The next scan continues at
    ``cursor``; ``None``: this scan reached all tables.
    """

    scanned: int
    listed: int
    proposals: tuple[FleetProposal, ...]
    skipped: tuple[FleetSkip, ...]
    cursor: tuple[str, str] | None
    not_reached: int = 0
    """How many tables were not reached within the time budget."""
    beyond_limit: int = 0
    """How many tables need work, but are not proposed because of ``max_jobs_per_detection``."""
    warnings: tuple[str, ...] = ()
    """Sentences about catalogs that list no table or not all, and about refused requests."""
    empty_catalogs: int = 0
    """How many configured catalogs list no table."""

    @property
    def errors(self) -> int:
        return sum(skip.is_error for skip in self.skipped)


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """The scan of one catalog for ``icekeeper detect``: proposals by urgency, skips by name."""

    catalog: str
    scanned: int
    proposals: tuple[Proposal, ...]
    skipped: tuple[Skip, ...]
    beyond_limit: int = 0
    """As in :class:`FleetReport`."""
    note: str | None = None
    """Why no table was scanned, or the warnings of the scan."""
    requested: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Requested table among the proposals → the settings of the request."""
    next_run: NextRun | None = None

    @classmethod
    def of(cls, catalog: str, report: FleetReport) -> CatalogReport:
        """The report of a scan that covered only this catalog.

        Raises:
            StorageError: the catalog could not be listed.
        """
        for skip in report.skipped:
            if not skip.table:
                raise StorageError(f"{catalog}: {skip.reason}")
        return cls(
            catalog,
            report.scanned,
            tuple(found.proposal for found in report.proposals),
            tuple(Skip(skip.table, skip.reason, skip.is_error, warning=skip.warning) for skip in report.skipped),
            beyond_limit=report.beyond_limit,
            requested={found.proposal.table: found.settings for found in report.proposals if found.is_requested},
        )

    def to_json(self) -> dict[str, Any]:
        """The document of ``detect --json``, without ``next_run``."""
        return {
            "catalog": self.catalog,
            "scanned": self.scanned,
            "proposals": [
                {
                    "table": proposal.table,
                    "reasons": list(proposal.reasons),
                    "priority": proposal.priority,
                    **({"schedules": list(proposal.schedules)} if proposal.schedules else {}),
                    **_warning_of(proposal),
                    **self._request_of(proposal.table),
                }
                for proposal in self.proposals
            ],
            **({"beyond_limit": self.beyond_limit} if self.beyond_limit else {}),
            "skipped": [{"table": skip.table, "reason": skip.reason, **_warning_of(skip)} for skip in self.skipped],
            **({} if self.note is None else {"note": self.note}),
        }

    def _request_of(self, table: str) -> dict[str, Any]:
        return {"requested": True, "settings": dict(self.requested[table])} if table in self.requested else {}


def _warning_of(found: Proposal | Skip) -> dict[str, str]:
    return {} if found.warning is None else {"warning": found.warning}
