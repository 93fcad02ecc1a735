"""Which tables this version of Icekeeper writes to: by the version of their format and by where files would go."""

from __future__ import annotations

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.new_file_folders import require_known_folders

__all__ = ["MAINTAINED_FORMAT_VERSIONS", "require_writable"]

MAINTAINED_FORMAT_VERSIONS = frozenset({1, 2, 3})


def require_writable(metadata: TableMetadata) -> None:
    """Raises TableUnsupported for tables whose format this version must not write (rule 46), and for those whose files
    nobody else would find (rule 182)."""
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )
    require_known_folders(metadata.location, metadata.properties)
