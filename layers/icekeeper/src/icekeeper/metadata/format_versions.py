"""The versions of the table format that this version of Icekeeper maintains."""

from __future__ import annotations

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata

__all__ = ["MAINTAINED_FORMAT_VERSIONS", "require_writable"]

MAINTAINED_FORMAT_VERSIONS = frozenset({1, 2, 3})


def require_writable(metadata: TableMetadata) -> None:
    """Raises TableUnsupported for tables whose format this version must not write (rule 46)."""
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )
