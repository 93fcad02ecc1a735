"""Which tables this version of Icekeeper writes to: by the version of their format, by where files would go, and only
where all readers see the same head."""

from __future__ import annotations

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import MAIN, TableMetadata
from icekeeper.metadata.new_file_folders import require_known_folders

__all__ = ["MAINTAINED_FORMAT_VERSIONS", "require_writable"]

MAINTAINED_FORMAT_VERSIONS = frozenset({1, 2, 3})
_LAST_NUMBER = 2**63 - 1


def require_writable(metadata: TableMetadata) -> None:
    """Raises TableUnsupported for tables whose format this version must not write (rule 46), for those whose files
    nobody else would find (rule 182), and for those that readers take for different ones (rule 290)."""
    if metadata.format_version not in MAINTAINED_FORMAT_VERSIONS:
        raise TableUnsupported(
            f"format version {metadata.format_version} is not maintained by this version of Icekeeper; "
            "the table was left alone"
        )
    require_known_folders(metadata.location, metadata.properties)
    _require_one_head(metadata)


def _require_one_head(metadata: TableMetadata) -> None:
    current, main = metadata.document.get("current-snapshot-id"), metadata.refs.get(MAIN)
    if main is not None and main.snapshot_id != current:
        raise TableUnsupported(
            f"current-snapshot-id is {current}, ref 'main' points at {main.snapshot_id}: which of them holds the "
            "table's rows is not known; set main to the right one; the table was left alone"
        )
    if metadata.last_sequence_number >= _LAST_NUMBER:
        raise TableUnsupported(
            f"last-sequence-number is {metadata.last_sequence_number}, after which there is none; the table was left "
            "alone"
        )
