"""Requests for a pass outside the schedule: at most one per copy of a table, a new one replaces it (rule 117)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["MaintenanceRequest", "RequestStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceRequest:
    """Somebody wants a pass over a table; ``settings`` hold for that pass only (``operations`` among them)."""

    identity: TableIdentity
    requested_ms: int
    settings: Mapping[str, str] = field(default_factory=dict)


class RequestStore(Protocol):
    """Every method is atomic; each raises StorageError when the store fails."""

    def file(self, request: MaintenanceRequest) -> None:
        """Record a request, replacing the one that is pending for the table."""
        ...

    def pending(self) -> tuple[MaintenanceRequest, ...]:
        """The requests of all catalogs that no pass has claimed, oldest first."""
        ...

    def claim(self, request: MaintenanceRequest) -> bool:
        """Remove this very request; false when it was claimed already, or replaced by a newer one, which stays."""
        ...
