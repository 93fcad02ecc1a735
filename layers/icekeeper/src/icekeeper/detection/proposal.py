"""What detection reports about tables, and with which of them a scheduled run would begin (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.model import TableName
from icekeeper.policy import ResolvedPolicy
from icekeeper.state.identity import TableIdentity
from icekeeper.text import masked_sentence

# What a scheduled run would make of a scan now: with which tables it begins, under which limits and filters (pure).
#
# The same settings decide in ``icekeeper run`` and in the pipeline.

_FILTERS = ("bucket_filter", "namespace_filter", "table_filter")
_LIMITS = ("max_jobs_per_detection", "max_concurrent_jobs", "detection_timeout_s")


@dataclass(frozen=True, slots=True)
class NextRun:
    """The tables that were proposed, and how many are being maintained by scheduled runs already."""

    settings: ResolvedPolicy
    """The deployment's."""
    proposed: Sequence[str]
    at_work: int

    @property
    def begins(self) -> Sequence[str]:
        """The tables for which there is room now."""
        return self.proposed[: max(0, self.settings.policy.max_concurrent_jobs - self.at_work)]

    def to_json(self) -> dict[str, Any]:
        """``next_run`` in ``detect --json``; settings with their sources, as ``policy show`` gives them."""
        documents = self.settings.documents()
        return {
            "begins": list(self.begins),
            "waits": list(self.proposed[len(self.begins) :]),
            "at_work": self.at_work,
            "limits": {key: documents[key] for key in _LIMITS},
            "filters": {key: documents[key] for key in _FILTERS if getattr(self.settings.policy, key)},
        }


# What detection says about tables: a proposal with its reasons, or why there is none.

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
    """How long the table has been without a pass; without any, how old it is."""
    schedules: tuple[str, ...] = ()
    """The schedules of its policy that the pass carries out."""
    only_schedules: bool = False
    """Whether there is no sign of work for the operations that no schedule names."""
    warning: str | None = None
    """What is wrong with the table that no pass can mend: files that cannot be read."""


@dataclass(frozen=True, slots=True)
class Skip:
    """A table that is not proposed; ``is_error`` when that is because it could not be assessed."""

    table: str
    reason: str
    is_error: bool = False
    is_gone: bool = False
    """The catalog has no such table any more."""
    warning: str | None = None
    """As in :class:`Proposal`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", masked_sentence(self.reason))  # it may quote whatever a library has raised


@dataclass(frozen=True, slots=True)
class FleetProposal:
    """A proposal with the place of its table; ``settings`` are those of the request, if it was asked for."""

    catalog: str
    warehouse: str
    proposal: Proposal
    is_requested: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def identity(self) -> TableIdentity:
        """Which table it is."""
        found = self.proposal
        name = TableName.parse(found.table)
        return TableIdentity(self.catalog, self.warehouse, name, found.uuid, found.location)

    def to_json(self) -> dict[str, Any]:
        """One item of the state machine's map."""
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
    """A table that is not proposed, or with ``table`` empty a whole catalog that could not be scanned."""

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
    """One scan over many catalogs: proposals in the order in which they should be worked on, the rest by name.

    ``scanned`` counts tables assessed, ``listed`` those that the filters let through.  ``cursor`` is where the next
    scan goes on, ``None`` when every table had its turn.
    """

    scanned: int
    listed: int
    proposals: tuple[FleetProposal, ...]
    skipped: tuple[FleetSkip, ...]
    cursor: tuple[str, str] | None
    not_reached: int = 0
    """How many tables were not reached within the time budget."""
    beyond_limit: int = 0
    """How many tables need work, and were not proposed for ``max_jobs_per_detection``."""
    warnings: tuple[str, ...] = ()
    """Sentences: a catalog without tables, or one that leaves some out; a request that is not served."""
    empty_catalogs: int = 0
    """How many configured catalogs list no table."""

    @property
    def errors(self) -> int:
        return sum(skip.is_error for skip in self.skipped)


@dataclass(frozen=True, slots=True)
class CatalogReport:
    """The scan of one catalog, as ``icekeeper detect`` tells it: proposals most urgent first, the rest by name.

    ``scanned`` counts the tables that were assessed.
    """

    catalog: str
    scanned: int
    proposals: tuple[Proposal, ...]
    skipped: tuple[Skip, ...]
    beyond_limit: int = 0
    """How many tables need work beside those proposed, which are as many as one scan proposes."""
    note: str | None = None
    """Why no table was scanned, where none was."""
    requested: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By proposed tables that a person asked for: the settings of the request."""
    next_run: NextRun | None = None
    """What a scheduled run would begin with."""

    @classmethod
    def of(cls, catalog: str, report: FleetReport) -> CatalogReport:
        """What a scan of this one catalog found.

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
        """The document of ``detect --json``, but for ``next_run``."""
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
        """Of a requested table, the settings of its pass."""
        return {"requested": True, "settings": dict(self.requested[table])} if table in self.requested else {}


def _warning_of(found: Proposal | Skip) -> dict[str, str]:
    return {} if found.warning is None else {"warning": found.warning}
