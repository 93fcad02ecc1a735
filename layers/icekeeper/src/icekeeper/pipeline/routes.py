"""Where each operation of a pass runs: not at all, in a function, or as a Glue job.  Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from icekeeper.pipeline.events import Route
from icekeeper.pipeline.settings import Thresholds
from icekeeper.policy import Operation

__all__ = ["CLEAN_STAGED", "STEPS", "TableSize", "route"]

CLEAN_STAGED = "clean_staged"
"""The step that is no operation: what failed loads left is cleaned by every pass."""
STEPS: tuple[str, ...] = (*(operation.value for operation in Operation), CLEAN_STAGED)


_HAVE_JOBS = frozenset(
    {
        Operation.COMPACT.value,
        Operation.REWRITE_POSITION_DELETES.value,
        Operation.COMPUTE_STATISTICS.value,
        Operation.REWRITE_MANIFESTS.value,
        Operation.REMOVE_ORPHANS.value,
    }
)


@dataclass(frozen=True, slots=True)
class TableSize:
    """What decides how much work there may be; ``None`` is unknown, and counts as much."""

    data_files: int | None
    delete_files: int | None
    total_bytes: int | None
    bytes_to_compact: int

    @classmethod
    def of(cls, summary: Mapping[str, str], bytes_to_compact: int) -> TableSize:
        """From the head's snapshot summary; counters are optional there."""

        def counter(key: str) -> int | None:
            text = str(summary.get(key))
            return int(text) if text.isascii() and text.isdigit() else None

        return cls(
            data_files=counter("total-data-files"),
            delete_files=counter("total-delete-files"),
            total_bytes=counter("total-files-size"),
            bytes_to_compact=bytes_to_compact,
        )

    @property
    def files(self) -> int | None:
        if self.data_files is None or self.delete_files is None:
            return None
        return self.data_files + self.delete_files


def route(step: str, size: TableSize, limits: Thresholds, outgrown: Collection[str] = ()) -> Route:
    """The route of one step that is to run; ``outgrown`` are those that a function has failed to end.

    Metadata-only work has no job: it always fits into a function.
    """
    if step in outgrown and step in _HAVE_JOBS:
        return "glue"
    if step == Operation.COMPACT:
        return _by_size(size.bytes_to_compact, limits.compaction_bytes)
    if step == Operation.REWRITE_POSITION_DELETES:
        # Its work is bounded by the delete files, of which the summary tells only the number.
        return "function" if size.delete_files == 0 else _by_size(size.total_bytes, 16 * limits.compaction_bytes)
    if step == Operation.COMPUTE_STATISTICS:
        return _by_size(size.total_bytes, limits.compaction_bytes)
    if step == Operation.REWRITE_MANIFESTS:
        return _by_size(size.files, limits.manifest_entries)
    if step == Operation.REMOVE_ORPHANS:
        return _by_size(size.files, limits.orphan_references)
    return "function"


def _by_size(amount: int | None, limit: int) -> Route:
    return "function" if amount is not None and amount <= limit else "glue"
