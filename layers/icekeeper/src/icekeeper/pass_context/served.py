"""The catalogs that a pass may open, and the run in which it looks at all their tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock

from icekeeper.catalogs.catalog import Catalog
from icekeeper.model import CatalogId
from icekeeper.state.claims import TableClaims


class SharedRun:
    """The run to which a pass belongs; its passes look at the other served tables only once
    (rule: look-at-every-served-table)."""

    def __init__(self, name: str) -> None:
        self.name = name
        """A long-lived process uses another name for each of its detections."""
        self.lock = Lock()
        """Held by the pass that looks at the tables; other passes of this process wait."""
        self.claims: tuple[Mapping[CatalogId, int], Sequence[TableClaims]] | None = None
        """When each catalog was looked at, and the claims of all tables after that look; ``None``: not read yet."""
        self.same_buckets: dict[tuple[str, str], bool] = {}
        """Two names of S3 buckets → whether both name the same bucket (rule: second-names-of-buckets)."""


@dataclass(frozen=True, slots=True)
class ServedCatalogs:
    """The pass's own catalog, and the others that share the state."""

    own: Catalog
    other: Callable[[CatalogId], Catalog | None]
    """Opens another served catalog; ``None`` if it is not served."""
    run: SharedRun

    def open(self, recorded: CatalogId) -> Catalog | None:
        """The catalog of that name and warehouse; ``None``: it is no longer served.

        Raises:
            MaintenanceError: it cannot be opened.
        """
        return self.own if recorded == self.own.id else self.other(recorded)
