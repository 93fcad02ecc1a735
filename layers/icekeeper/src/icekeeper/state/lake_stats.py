"""Lake stats: how every table looked when last seen, maintained or not (rule 118)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icekeeper.state.identity import TableIdentity

__all__ = ["LakeStats", "LakeStatsStore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeStats:
    """One table's health: counters by metric name (``lake_data_files``, …) and warnings by kind, in words."""

    identity: TableIdentity
    observed_ms: int
    snapshot_id: int | None
    counters: Mapping[str, int | float]
    warnings: Mapping[str, str] = field(default_factory=dict)
    """Kind (``delete_debt``, ``manifest_sprawl``, …) → the sentence for people."""
    policy: Mapping[str, object] = field(default_factory=dict)
    """The settings in force that are not the defaults: key → ``{"source": …, "value": …}``, as JSON."""


class LakeStatsStore(Protocol):
    """Each method raises StorageError when the store fails."""

    def record(self, *stats: LakeStats) -> None:
        """Replace the stats of these tables; when that fails, those of some may be replaced."""
        ...

    def of_table(self, identity: TableIdentity) -> LakeStats | None: ...

    def of_catalog(self, catalog: str, warehouse: str) -> Iterator[LakeStats]:
        """The stats of every table of a catalog that was ever seen, ordered by name; read in few requests."""
        ...

    def forget(self, identity: TableIdentity) -> None:
        """Remove the stats of a table that is gone."""
        ...
