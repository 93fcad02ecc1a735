"""What an expiry of some snapshots frees, by names below the location of the table."""

from __future__ import annotations

from typing import Any

from icekeeper.operations.expiry.unreferenced import Unreferenced, unreferenced_files
from support.listed_manifests import LOCATION, ListedManifests


def freed(table: ListedManifests, *expired: int) -> set[str]:
    """Names of what goes, below the location."""
    return names(found(table, *expired))


def found(table: ListedManifests, *expired: int, **more: Any) -> Unreferenced:
    return unreferenced_files(table.reader, set(expired), [LOCATION], **more)


def names(freed_now: Unreferenced) -> set[str]:
    return {path.removeprefix(f"{LOCATION}/") for path in freed_now.candidates}
