"""The values that policy keys choose from; those of ``operations`` stand in ``operation_facts.py``."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["JobOrder", "OutputSpec", "Ownership", "Proof", "RewriteReason", "Strategy"]


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


class RewriteReason(StrEnum):
    """What about how a file was written is reason enough to rewrite it, whatever its size."""

    CODEC = "codec"
    """Another compression codec than the table's properties ask for, or another format than Parquet."""
    BLOOM = "bloom"
    """No Bloom filter on a column that has one by the table's properties."""
    SPEC = "spec"
    """An older partition spec, where all rows of the file belong to one partition of the current spec."""


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
