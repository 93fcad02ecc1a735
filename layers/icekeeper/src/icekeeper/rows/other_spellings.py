"""Position deletes that name their data file in another spelling than its manifest does: they are refused (rule 177).

Readers compare the text, as the specification has it, so that such a delete deletes nothing for them.  Its writer meant
rows that are there: merged or dropped as dangling, it would be lost for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from urllib.parse import unquote

from icekeeper.errors import MetadataUnreadable
from icekeeper.storage.paths import LOCAL_SCHEMES, S3_SCHEMES, normalise, split_path

__all__ = ["SpelledFiles", "misspelled", "other_spellings"]


class SpelledFiles:
    """Data files as their manifests spell them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._by_name: defaultdict[str, list[str]] = defaultdict(list)
        for path in paths:
            self._by_name[_name(path)].append(path)

    def refuse(self, delete: str, named: str) -> None:
        """Raise MetadataUnreadable if a path that a delete names is none of the files, but another spelling of one."""
        for path in self._by_name.get(_name(named), ()):
            if path != named and normalise(path) == normalise(named):
                raise misspelled(delete, named, path)


def misspelled(delete: str, named: str, path: str) -> MetadataUnreadable:
    """The error about a delete file that names a data file in another spelling."""
    return MetadataUnreadable(
        f"{delete} deletes rows of {named}, which the manifests spell {path}: readers do not apply it, and whether the "
        "rows are to be deleted is not known; commit the delete anew with the manifests' spelling, or remove it"
    )


def other_spellings(path: str) -> frozenset[str]:
    """The spellings of a path that writers mix, without its own (platform 26) (pure)."""
    parts = split_path(path)
    keys = {parts.key, unquote(parts.key), "/".join(part for part in parts.key.split("/") if part)}
    if parts.scheme in LOCAL_SCHEMES:
        bare = {f"/{key.lstrip('/')}" for key in keys}
        found = {f"{scheme}{key}" for scheme in ("", "file:", "file://") for key in bare}
    else:
        schemes = S3_SCHEMES if parts.scheme in S3_SCHEMES else {parts.scheme}
        found = {f"{scheme}://{parts.authority}/{key}" for scheme in schemes for key in keys}
    return frozenset(found - {path})


def _name(path: str) -> str:
    return path.rpartition("/")[2]
