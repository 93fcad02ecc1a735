"""What files take once they are rewritten, by what earlier rewrites of the table have shown (rule 236) (pure).

Small files shrink when they are merged: one footer in place of many, longer runs, dictionaries that are written once.
Each merge records in its snapshot how much its decoded files shrank, and what its plan had reckoned with.  Row groups
that are copied keep their size, and so does what a rewrite wrote: it is encoded already as the next one would.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import DataFile, ManifestEntry

__all__ = ["AS_THEY_ARE", "SIZES_KEY", "OutputSizes", "recorded_sizes"]

SIZES_KEY = "icekeeper.output-sizes"
"""Snapshot summary: bytes written per byte read, what the plan had reckoned with, and the mean size of the inputs."""
_RECORD = re.compile(r"([01]\.[0-9]{3}) planned ([01]\.[0-9]{3}) of ([0-9]{1,18})")
# What files that shrank further would become is not believed: bins would be far too large where others do not.
_LEAST_RATIO = 0.25
# Files much larger than those that were merged have less to lose.
_ALIKE = 4


@dataclass(frozen=True, slots=True)
class OutputSizes:
    """How large outputs become; a table that has shown nothing yet keeps its sizes."""

    ratio: float = 1.0
    """Bytes written per byte of a decoded file, at most 1."""
    file_bytes: int = 0
    """The mean size of the files that showed it."""
    shrank: Mapping[int, float] = field(default_factory=dict)
    """Snapshot id → how much smaller its files came out than the plan reckoned with."""

    @classmethod
    def of(cls, metadata: TableMetadata, head: Snapshot) -> OutputSizes:
        """What the snapshots of the branch that ends in ``head`` tell, as far as they are kept.

        v1 tables tell nothing: of their files nobody knows which a rewrite wrote.
        """
        if metadata.format_version < 2 or not any(_text(one) for one in metadata.snapshots.values()):
            return cls()
        found = [(one.snapshot_id, record) for one in metadata.ancestors(head.snapshot_id) if (record := _record(one))]
        if not found:
            return cls()
        ratio, _, file_bytes = found[0][1]
        shrank = {i: shown / planned for i, (shown, planned, _) in found if shown < planned}
        return cls(ratio, file_bytes, shrank)

    def expected(self, file: DataFile, *, is_rewritten: bool, is_copied: bool) -> int:
        """About how many bytes the rows of a file take in an output."""
        size = file.file_size_in_bytes
        if is_rewritten or is_copied or size > _ALIKE * self.file_bytes:
            return size
        return max(1, int(size * self.ratio))

    def is_small(self, entry: ManifestEntry, small: float) -> bool:
        """Whether a live file, of fewer than ``small`` bytes, is to be merged for that.

        Not if a merge wrote it that reckoned with enough bytes, because the next one reckons better and need not repeat
        it; unless what came out is not even half of that, so that merging halves the number of files.
        """
        factor = self.shrank.get(entry.snapshot_id or 0, 1.0) if self.shrank and entry.identity.is_rewritten else 1.0
        size = entry.file.file_size_in_bytes
        return size / factor < small or size < small / 2


AS_THEY_ARE = OutputSizes()
"""Of a table that has shown nothing."""


def recorded_sizes(planned: OutputSizes, groups: Iterable[tuple[int, int, int]]) -> str | None:
    """What to record of decoded groups, each as number of inputs, bytes read and bytes written; ``None``: nothing.

    Where there is no such group, what is known stays known.
    """
    groups = list(groups)
    read, written = sum(size for _, size, _ in groups), sum(size for *_, size in groups)
    if read and written:
        shown, file_bytes = written / read, read // sum(count for count, *_ in groups)
    elif planned.file_bytes:
        shown, file_bytes = planned.ratio, planned.file_bytes
    else:
        return None
    return f"{min(1.0, max(_LEAST_RATIO, shown)):.3f} planned {planned.ratio:.3f} of {file_bytes}"


def _text(snapshot: Snapshot) -> str:
    summary = snapshot.raw.get("summary")
    return str(summary.get(SIZES_KEY, "")) if isinstance(summary, dict) else ""


def _record(snapshot: Snapshot) -> tuple[float, float, int] | None:
    match = _RECORD.fullmatch(_text(snapshot))
    if match is None or not (_LEAST_RATIO <= float(match[1]) <= 1 and _LEAST_RATIO <= float(match[2]) <= 1):
        return None
    return float(match[1]), float(match[2]), int(match[3])
