"""Row ids of a commit: which manifest starts where (pure).

Specification, "First Row ID Assignment"; Java's ``ManifestListWriter.V3Writer`` (rule 19).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from icekeeper.model import ManifestContent, ManifestFile

__all__ = ["assign_row_ids"]


def assign_row_ids(manifests: Sequence[ManifestFile], next_row_id: int) -> tuple[list[ManifestFile], int]:
    """The manifests of a v3 snapshot, each data manifest with its first row id, and the first id that is still free.

    A manifest that has one keeps it.  The others, those from before an upgrade to v3 among them, get the next free
    ids, enough for every live row: which of their entries have ids of their own the manifest list does not tell.
    Counts must be known.
    """
    assigned = []
    for manifest in manifests:
        if manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
            manifest = replace(manifest, first_row_id=next_row_id)
            next_row_id += (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
        assigned.append(manifest)
    return assigned, next_row_id
