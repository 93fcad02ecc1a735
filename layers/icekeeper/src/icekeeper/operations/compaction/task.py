"""The work unit: what a worker gets and gives back.  Plain picklable values, no catalog, no policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pyiceberg.table.locations import ObjectStoreLocationProvider

from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.rows.read_task import ReadTask
from icekeeper.storage.attempt_names import ATTEMPTS_PER_RUN, PlannedFile

__all__ = [
    "MAX_PARTITIONS",
    "Layout",
    "OutputNames",
    "RewriteResult",
    "RewriteTask",
    "Routing",
]

MAX_PARTITIONS = 256
"""Partitions that rows are dealt out to at most: so many files are open at once meanwhile."""


class Layout(StrEnum):
    """Where below its folder a file goes (Java's ``LocationProviders``)."""

    PLAIN = "plain"
    """Under its partition's path."""
    HASHED = "hashed"
    """Under a hash of its name, so that an object store spreads the requests; then as for PLAIN."""
    HASHED_FLAT = "hashed-flat"
    """The hash is part of the name, and there is no partition path."""


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Unique names for the files that one task writes; made by :func:`.output_names.output_names`."""

    folder: str
    stem: str
    partition_path: str = ""
    """``a=1/b=x``; empty when the files' spec has no partitions."""
    layout: Layout = Layout.PLAIN
    context: str = ""
    """Between hash and partition path: which table this is, where many may share the folder."""
    attempts: int = ATTEMPTS_PER_RUN
    """At the task, that may write."""
    attempt: int = 0

    def path(self, number: int = 0) -> str:
        """Where this attempt's output ``number`` goes.

        Raises:
            StorageError: this is one attempt too many.
        """
        return self.file(number).path(self.attempt)

    def file(self, number: int = 0) -> PlannedFile:
        """Output ``number`` of the task, whichever attempt writes it."""
        return PlannedFile(self._stem(self._name(number)), "parquet", self.attempts)

    def file_of_any_partition(self, number: int) -> PlannedFile:
        """The same, where rows are dealt out to partitions that only the worker finds out."""
        if self.layout is Layout.HASHED_FLAT:
            return self.file(number)
        return PlannedFile.anywhere_below(self.folder, self._name(number), "parquet")

    def _name(self, number: int) -> str:
        return f"{self.stem}-{number:05d}"

    def _stem(self, name: str) -> str:
        """The hash is that of the name without the attempt, so that all attempts have one folder."""
        if self.layout is not Layout.HASHED_FLAT and self.partition_path:
            name = f"{self.partition_path}/{name}"
        if self.layout is Layout.PLAIN:
            return f"{self.folder}/{name}"
        entropy = _entropy(f"{name}.parquet")
        if self.context:
            return f"{self.folder}/{entropy}/{self.context}/{name}"
        return f"{self.folder}/{entropy}{'-' if self.layout is Layout.HASHED_FLAT else '/'}{name}"


def _entropy(name: str) -> str:
    """``0101/1100/0011/01011010`` of a name; Java and PyIceberg agree."""
    path = ObjectStoreLocationProvider("", {}).new_data_location(name)
    return path.removeprefix("/data/").removesuffix(f"/{name}")


@dataclass(frozen=True, slots=True)
class Routing:
    """A partition spec that rows are dealt out to, if that makes fewer files than there are inputs."""

    spec_id: int
    spec: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]
    """Every schema of the table, the current one first: they name the types of partition values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask(ReadTask):
    """Merge ``inputs`` into files of one partition spec, named by ``outputs``.

    The schema is the table's current one and, where rows have ids, the columns of row lineage.
    """

    group_id: int
    partition: tuple[PartitionValue, ...]
    outputs: OutputNames
    table_properties: Mapping[str, str]
    proof: str = "counts"
    """How the group proves that it kept its rows: ``counts`` or ``full`` (policy key ``proof``)."""
    recipe: ClusterRecipe | None = None
    """How rows are to be ordered; ``None``: as they come."""
    output_count: int = 1
    """Files that rows are divided into as they come."""
    routing: Routing | None = None
    """Where rows may move; ``None``: every row has the task's partition."""
    most_files: int | None = None
    """Sorted outputs at most, whatever their size."""
    misread_columns: frozenset[int] = frozenset()
    """Columns of floats that footers tell nothing of (:mod:`.writing.float_statistics`)."""

    def in_attempt(self, attempt: int) -> RewriteTask:
        """The task as this attempt does it."""
        return replace(self, outputs=replace(self.outputs, attempt=attempt))

    @property
    def most_partitions(self) -> int:
        """Files that rows are dealt out to at most: fewer than there were."""
        return min(MAX_PARTITIONS, len(self.inputs) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What became of one task: written files, none when the inputs hold no rows, or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_deleted: int = 0
    spec_id: int | None = None
    """Of the written files, where rows were dealt out to another spec than the group's."""
    seconds: float
    error: str | None = None
    too_large: bool = False
    """Nothing was written: the rows are to be sorted and are more than one worker can hold."""
