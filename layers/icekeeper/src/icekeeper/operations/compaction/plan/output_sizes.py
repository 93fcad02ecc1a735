"""Predict the sizes of outputs from earlier rewrites of the table (pure).

Small files shrink when they are merged: fewer footers, longer runs, and each dictionary is written once.  A merge
records in its snapshot how much its decoded files shrank and which ratio its plan had expected.  Copied row groups keep
their size.  So do files that a rewrite wrote, because they already have the same encoding.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.model import ManifestEntry
from icekeeper.operations.compaction.plan.candidate import Candidate

SIZES_KEY = "icekeeper.output-sizes"
"""Key in a snapshot summary: bytes written per byte read, the ratio that the plan expected, the mean input size."""
_RECORD = re.compile(r"([01]\.[0-9]{3}) planned ([01]\.[0-9]{3}) of ([0-9]{1,18})")
# The least ratio that is used: with a smaller ratio, bins would become far too large if other files shrink less.
_LEAST_RATIO = 0.25
# The ratio is not used for files this many times larger than the merged files, because such files shrink less.
_ALIKE = 4


@dataclass(frozen=True, slots=True)
class OutputSizes:
    """Expected sizes of outputs, from earlier rewrites of the table.

    Without earlier rewrites, outputs are expected to be as large as their inputs.
    """

    ratio: float = 1.0
    """Bytes written per byte of a decoded file, at most 1."""
    file_bytes: int = 0
    """The mean size of the files from which the ratio was measured."""
    shrank: Mapping[int, float] = field(default_factory=dict)
    """Snapshot id → actual ratio divided by expected ratio, for snapshots whose files shrank more than expected."""

    @classmethod
    def of(cls, metadata: TableMetadata, head: Snapshot) -> OutputSizes:
        """Read the records of the retained snapshots of the branch that ends in ``head``.

        v1 tables have no records: their files do not show whether a rewrite wrote them.
        """
        if metadata.format_version < 2:
            return cls()
        found = [(own.snapshot_id, record) for own in metadata.ancestors(head.snapshot_id) if (record := _record(own))]
        if not found:
            return cls()
        ratio, _, file_bytes = found[0][1]
        shrank = {i: shown / planned for i, (shown, planned, _) in found if shown < planned}
        return cls(ratio, file_bytes, shrank)

    def is_small(self, entry: ManifestEntry, small: float) -> bool:
        """Whether a live file of fewer than ``small`` bytes is merged because of its size.

        A file that only shrank more than its merge expected is not merged again, because later plans expect better
        sizes.  A file below half of ``small`` is merged again, because merging such files halves their number.
        """
        factor = self.shrank.get(entry.snapshot_id or 0, 1.0) if self.shrank and entry.identity.is_rewritten else 1.0
        size = entry.file.file_size_in_bytes
        return size / factor < small or size < small / 2


UNCHANGED_SIZES = OutputSizes()


def recorded_sizes(planned: OutputSizes, groups: Iterable[tuple[int, int, int]]) -> str | None:
    """The summary record of decoded groups, each given as number of inputs, bytes read and bytes written.

    Without such groups the known ratio is recorded again; ``None``: no ratio is known.
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


def _record(snapshot: Snapshot) -> tuple[float, float, int] | None:
    summary = snapshot.raw.get("summary")
    match = _RECORD.fullmatch(str(summary.get(SIZES_KEY, ""))) if isinstance(summary, dict) else None
    if match is None or not (_LEAST_RATIO <= float(match[1]) <= 1 and _LEAST_RATIO <= float(match[2]) <= 1):
        return None
    return float(match[1]), float(match[2]), int(match[3])


def output_bytes(candidate: Candidate, sizes: OutputSizes) -> int:
    """Estimated bytes of the rows of a file in an output."""
    size = candidate.file_size_in_bytes
    if size > _ALIKE * sizes.file_bytes or candidate.condition.is_likely_copied or candidate.is_rewritten:
        return size
    return max(1, int(size * sizes.ratio))
