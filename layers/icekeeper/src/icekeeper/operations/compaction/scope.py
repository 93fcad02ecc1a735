"""Which data files a rewrite may take at all: by the filter ``where``, and by when their partition ended (pure).

None, where this version cannot write the table's data files.  Filter and time go by the partition that the file is in,
under its own spec, not by the one that its rows may move to.
"""

from __future__ import annotations

from collections.abc import Callable

from icekeeper.errors import TableUnsupported
from icekeeper.metadata.document import TableMetadata, require_known_layout
from icekeeper.model import DataFile, Nothing
from icekeeper.operations.compaction.where import row_filter
from icekeeper.partition_time import partition_times
from icekeeper.policy import Policy
from icekeeper.rows.arrow_schema import stored_schema

__all__ = ["file_scope", "why_not_rewritten"]


def why_not_rewritten(metadata: TableMetadata) -> str | None:
    """Why this version rewrites no data file of a table; ``None``: it does.

    A column has a type that it cannot carry (rule 23), or a class that only Java has places the files (rule 28).
    """
    try:
        stored_schema(metadata.current_schema)
        require_known_layout(metadata.properties)
    except TableUnsupported as unsupported:
        return str(unsupported)
    return None


def file_scope(policy: Policy, metadata: TableMetadata, now_ms: int) -> Callable[[DataFile, int], bool]:
    """A function that tells whether a data file of a spec id may be rewritten at ``now_ms`` (epoch milliseconds).

    ``min_partition_age_hours`` holds back partitions whose time is known; those without one are as without the key:
    tables that are not partitioned by time, null values, text that ``partition_time_pattern`` does not match.

    Raises:
        PolicyError: the filter, or the column that tells the partitions' time, does not fit the table.
    """
    matches = row_filter(policy.where, metadata, now_ms)
    age_ms = policy.min_partition_age_ms
    times = Nothing("") if age_ms is None else partition_times(metadata, policy)
    if age_ms is None or isinstance(times, Nothing):
        return matches
    latest_end_ms = now_ms - age_ms

    def in_scope(file: DataFile, spec_id: int) -> bool:
        end_ms = times.end_ms(spec_id, file.partition)
        return (end_ms is None or end_ms <= latest_end_ms) and matches(file, spec_id)

    return in_scope
