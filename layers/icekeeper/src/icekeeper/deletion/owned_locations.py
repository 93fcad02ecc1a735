"""The locations whose files a table may delete (rule 84) (pure)."""

from __future__ import annotations

from icekeeper.metadata.document import TableMetadata
from icekeeper.storage.paths import is_under, leads_out

__all__ = ["owned_locations"]


def owned_locations(metadata: TableMetadata) -> tuple[str, ...]:
    """Where this table's files live; nothing outside is ever deleted.  Nested locations are listed once.

    A folder below one of them that is a symbolic link to somewhere else is not owned: who else uses it is not known.
    """
    locations: list[str] = []
    for location in sorted(set(metadata.locations), key=len):
        if not any(is_under(location, other) or leads_out(location, other) for other in locations):
            locations.append(location)
    return tuple(locations)
