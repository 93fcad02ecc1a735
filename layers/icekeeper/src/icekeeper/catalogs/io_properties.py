"""Which properties of a catalog are needed to reach its tables' files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["file_io_properties"]

# Properties for signing in to the catalog and not to the store: files and Spark workers never need them.
_CATALOG_ONLY = frozenset({"credential", "token", "type", "uri"})
_CATALOG_ONLY_PREFIXES = ("auth", "header.", "oauth2-", "rest.", "ssl")


def file_io_properties(properties: Mapping[str, Any]) -> dict[str, str]:
    """The FileIO properties among a catalog's, without the secrets that are only the catalog's."""
    return {
        key: value
        for key, value in properties.items()
        if isinstance(value, str) and key not in _CATALOG_ONLY and not key.startswith(_CATALOG_ONLY_PREFIXES)
    }
