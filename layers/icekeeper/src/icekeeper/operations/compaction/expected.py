"""The files that a compaction is expected to write, for the plans of the operations after it in a dry run (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from icekeeper.metadata.single_value import comparable, decode
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.deleted_rows import known_deleted_rows
from icekeeper.operations.compaction.plan import FileGroup
from icekeeper.operations.compaction.task import RewriteResult

__all__ = ["expected_result"]


def expected_result(group: FileGroup, stem: str, types: Mapping[int, str]) -> RewriteResult:
    """What a worker is expected to make of a group; ``stem`` begins the paths, ``types`` are those of the columns.

    Rows are taken for deleted where manifests tell so, and divided evenly over the outputs.  Every output gets the
    bounds of all inputs; rows that may be dealt out to other partitions stay in the group's.
    """
    inputs = [candidate.file for candidate in group.files]
    rows = sum(c.file.record_count - known_deleted_rows(c.file, c.deletes) for c in group.files)
    size = group.expected_bytes
    count = min(group.output_count, rows)
    written = tuple(
        DataFile(
            content=FileContent.DATA,
            file_path=f"{stem}-{group.group_id:05d}-{number:05d}.parquet",
            file_format="PARQUET",
            partition=group.partition,
            record_count=rows * (number + 1) // count - rows * number // count,
            file_size_in_bytes=max(1, size // count),
            column_sizes=_shared_out([file.column_sizes for file in inputs], count),
            value_counts=_shared_out([file.value_counts for file in inputs], count),
            null_value_counts=_shared_out([file.null_value_counts for file in inputs], count),
            lower_bounds=_bounds([file.lower_bounds for file in inputs], types, is_lower=True),
            upper_bounds=_bounds([file.upper_bounds for file in inputs], types, is_lower=False),
        )
        for number in range(count)
    )
    return RewriteResult(group_id=group.group_id, written=written, rows_read=group.record_count, seconds=0.0)


def _shared_out(counts: Sequence[Mapping[int, int] | None], outputs: int) -> dict[int, int]:
    """The counts of each column, summed over the inputs and divided by the outputs."""
    total: Counter[int] = Counter()
    for of_file in counts:
        total.update(of_file or {})
    return {column: amount // outputs for column, amount in total.items()}


def _bounds(
    found: Sequence[Mapping[int, bytes] | None], types: Mapping[int, str], *, is_lower: bool
) -> dict[int, bytes]:
    """The outermost bound of each column that has one in every input."""
    columns = types.keys() & set[int].intersection(*(set(of_file or ()) for of_file in found))
    outermost = {}
    for column in sorted(columns):
        kind = types[column]
        bounds = [of_file[column] for of_file in found if of_file is not None]
        try:
            pick = min if is_lower else max
            outermost[column] = pick(bounds, key=lambda bound: comparable(kind, decode(kind, bound)))
        except ValueError:  # a bound that is no value of the column's type tells nothing
            continue
    return outermost
