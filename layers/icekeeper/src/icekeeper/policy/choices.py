"""The closed sets of values that policy keys choose from; operations in their canonical order."""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "ALL_OPERATIONS",
    "OPT_IN_OPERATIONS",
    "JobOrder",
    "Operation",
    "OutputSpec",
    "Ownership",
    "Proof",
    "Strategy",
]


class Operation(StrEnum):
    """What a pass can do.  Declaration order is the canonical order in which operations always run."""

    EXPIRE_PARTITIONS = "expire_partitions"
    COMPACT = "compact"
    REWRITE_POSITION_DELETES = "rewrite_position_deletes"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    REMOVE_ORPHANS = "remove_orphans"
    REWRITE_MANIFESTS = "rewrite_manifests"
    COMPUTE_STATISTICS = "compute_statistics"


OPT_IN_OPERATIONS = frozenset({Operation.EXPIRE_PARTITIONS, Operation.COMPUTE_STATISTICS})
"""Never part of ``all``: the first changes rows, the second costs a full read."""

ALL_OPERATIONS: tuple[Operation, ...] = tuple(
    operation for operation in Operation if operation not in OPT_IN_OPERATIONS
)
"""What ``operations=all`` means: in canonical order (rule 58), without the opt-ins."""


class Strategy(StrEnum):
    """How rows are laid out by a rewrite; ``auto`` sorts where the table has a sort order."""

    AUTO = "auto"
    BINPACK = "binpack"
    SORT = "sort"
    ZORDER = "zorder"


class JobOrder(StrEnum):
    """Which file groups are rewritten first, by bytes or by number of files (Java's ``rewrite-job-order``)."""

    NONE = "none"
    BYTES_ASC = "bytes-asc"
    BYTES_DESC = "bytes-desc"
    FILES_ASC = "files-asc"
    FILES_DESC = "files-desc"


class OutputSpec(StrEnum):
    """The partition spec of rewritten files: the table's current one, or that of their inputs."""

    CURRENT = "current"
    KEEP = "keep"


class Proof(StrEnum):
    """How a rewrite proves that it kept every row: by row counts, or by comparing contents."""

    COUNTS = "counts"
    FULL = "full"


class Ownership(StrEnum):
    """Who maintains a table whose bucket has maintenance of its own: whoever has it enabled, or always us."""

    AUTO = "auto"
    ICEKEEPER = "icekeeper"
