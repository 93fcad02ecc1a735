"""Refuses folders for new files that are other folders on other machines (rule 182), or are not known (rule 28) (pure).

A path that is relative belongs to the process that writes, and a local one of a table in a store to its machine: what a
rewrite commits there no other reader finds, and expiry then deletes the files that it replaced.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from icekeeper.errors import TableUnsupported

__all__ = ["DATA_FOLDER_KEYS", "METADATA_FOLDER_KEY", "require_known_folders", "require_known_layout"]

DATA_FOLDER_KEYS = ("write.data.path", "write.object-storage.path", "write.folder-storage.path")
"""The first one that is set is the folder of new data files; the others are its older names."""
METADATA_FOLDER_KEY = "write.metadata.path"
_CUSTOM_PROVIDER = "write.location-provider.impl"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):")


def require_known_folders(location: str, properties: Mapping[str, str]) -> None:
    """Check where the properties of a table at this location send new files.

    Raises:
        TableUnsupported: to a relative path, or to the local disk although the table lies in a store.
    """
    data = next((key for key in DATA_FOLDER_KEYS if properties.get(key)), None)
    for key in (data, METADATA_FOLDER_KEY):
        folder = properties.get(key or "") or location
        is_whole = folder.startswith("/") or _SCHEME.match(folder) is not None
        if folder != location and _is_local(folder) and not (is_whole and _is_local(location)):
            raise TableUnsupported(
                f"table property {key} is '{folder}', which is another folder on every machine; set it to a whole "
                f"address, as the table's location {location} is one; the table was left alone"
            )


def require_known_layout(properties: Mapping[str, str]) -> None:
    """Raises TableUnsupported when a class that only Java can load decides where the table's data files go."""
    provider = properties.get(_CUSTOM_PROVIDER)
    if provider:
        raise TableUnsupported(
            f"table property {_CUSTOM_PROVIDER} names the Java class {provider}, which decides where data files go and "
            "cannot be asked; the table was left alone"
        )


def _is_local(path: str) -> bool:
    """Whether a path has no scheme, or that of local files."""
    found = _SCHEME.match(path)
    return found is None or found[1].lower() == "file"
