"""Spellings that one store takes for one object and another for two; a reference in one protects the other (rule 85).

SeaweedFS takes a backslash for a slash; macOS takes a letter with an accent for a letter and an accent behind it
(Unicode Standard Annex 15); Hadoop resolves ``.`` and ``..`` before it asks (RFC 3986, 5.2.4).  Only references are
compared so; keys of the state are not.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Sequence

from icekeeper.storage.paths import normalise

__all__ = ["any_spelling", "merged_spelling", "merged_spellings"]


def any_spelling(path: str) -> str:
    """The same text for all spellings of a path: the key by which references are compared with what may be deleted."""
    return merged_spelling(normalise(path))


def merged_spelling(normal: str) -> str:
    """The same text for all such spellings of a normalised path."""
    scheme, separator, rest = normal.partition("://")
    if separator and _may_be_folded(rest):
        host, _, key = rest.partition("/")
        key = posixpath.normpath(f"/{key}".replace("\\", "/")).lstrip("/")
        normal = f"{scheme}://{host}/{key}"
    return normal if normal.isascii() else unicodedata.normalize("NFC", normal)


def merged_spellings(normals: Sequence[str]) -> Sequence[str]:
    """As :func:`merged_spelling` of each; of paths as writers spell them the very same."""
    together = "\n".join(normals)
    if together.isascii() and not _may_be_folded(together):
        return normals
    return [merged_spelling(normal) for normal in normals]


def _may_be_folded(text: str) -> bool:
    return "\\" in text or "/." in text
