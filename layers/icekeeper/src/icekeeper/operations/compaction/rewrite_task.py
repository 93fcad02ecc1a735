"""What a worker that rewrites a file group gets and gives back, and the names it will write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from icekeeper.model import DataFile, PartitionValue
from icekeeper.operations.compaction.recipe import ClusterRecipe
from icekeeper.rows.read_task import ReadTask
from icekeeper.storage.paths import ATTEMPTS_PER_RUN, PlannedFile

# What a worker that rewrites a file group gets and gives back: picklable values, no catalog, no policy.

MAX_PARTITIONS = 256
"""At most so many partitions are rows dealt out to, because each takes an open file meanwhile."""


class Layout(StrEnum):
    """How the path of a data file below the table's data folder is made (Java's ``LocationProviders``)."""

    PLAIN = "plain"
    """``<partition path>/<name>``."""
    HASHED = "hashed"
    """Under a hash of the name, so that an object store spreads the requests; below that as for ``PLAIN``."""
    HASHED_FLAT = "hashed-flat"
    """The hash stands before the name, and there is no partition path."""


@dataclass(frozen=True, slots=True)
class OutputNames:
    """Unique names for the files that one task writes; made by :func:`.output_names.output_names`."""

    folder: str
    stem: str
    partition_path: str = ""
    """Such as ``a=1/b=x``; empty when the files' spec has no partitions."""
    layout: Layout = Layout.PLAIN
    context: str = ""
    """Stands between hash and partition path: names the table where several may share the folder."""
    attempts: int = ATTEMPTS_PER_RUN
    """How many attempts at the task may write files."""
    attempt: int = 0
    """The number of the attempt that uses these names."""

    def path(self, number: int = 0) -> str:
        """The path of output file ``number`` of this attempt.

        Raises:
            StorageError: there were more attempts than may write.
        """
        return self.file(number).path(self.attempt)

    def file(self, number: int = 0) -> PlannedFile:
        """Output file ``number`` of the task, whichever attempt writes it."""
        return PlannedFile(self._stem(self._name(number)), "parquet", self.attempts)

    def file_of_any_partition(self, number: int) -> PlannedFile:
        """The same for rows that are dealt out to partitions: only the worker finds out into which folder it goes."""
        if self.layout is Layout.HASHED_FLAT:
            return self.file(number)
        return PlannedFile.anywhere_below(self.folder, self._name(number), "parquet")

    def _name(self, number: int) -> str:
        return f"{self.stem}-{number:05d}"

    def _stem(self, name: str) -> str:
        """The path without attempt and suffix.  The hash leaves the attempt out too, so that all share one folder."""
        if self.layout is not Layout.HASHED_FLAT and self.partition_path:
            name = f"{self.partition_path}/{name}"
        if self.layout is Layout.PLAIN:
            return f"{self.folder}/{name}"
        entropy = _entropy(f"{name}.parquet")
        if self.context:
            return f"{self.folder}/{entropy}/{self.context}/{name}"
        return f"{self.folder}/{entropy}{'-' if self.layout is Layout.HASHED_FLAT else '/'}{name}"


def _entropy(name: str) -> str:
    """The hash of a name as Java and PyIceberg write it, such as ``0101/1100/0011/01011010``."""
    # Imported here: it is half of what a worker would import, and only tables with such paths need it.
    from pyiceberg.table.locations import ObjectStoreLocationProvider

    path = ObjectStoreLocationProvider("", {}).new_data_location(name)
    return path.removeprefix("/data/").removesuffix(f"/{name}")


@dataclass(frozen=True, slots=True)
class Routing:
    """A partition spec that rows are dealt out to, if that makes fewer files than there are inputs."""

    spec_id: int
    spec: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]
    """Every schema of the table, the current one first: they give the types of partition values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """Which inputs may be copied into the outputs, row group by row group, as far as manifests tell."""

    entries: Mapping[int, DataFile]
    """Their manifest entries, by their number among the inputs."""
    sizes: tuple[int, ...]
    """About how many bytes of an output each input takes, those that are decoded too."""
    min_row_group_bytes: int
    """The least average size of the row groups of an input that is copied, and of an output."""
    full_row_group_memory: int
    """Bytes in memory that stand for the former, where row groups take fewer in the file
    (rule: copy-only-unchanged-row-groups)."""
    smallest_output_bytes: int
    """Of several outputs none may be smaller, or it would be rewritten again."""
    largest_output_bytes: int
    pieces: tuple[int, ...] = ()
    """How many row groups each output gets of the only input, where a large file is cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask(ReadTask):
    """Rewrite ``inputs`` into files of one partition spec, named by ``outputs``.

    ``schema`` is the table's current one and, where rows have ids, has the columns of row lineage at its end.
    """

    group_id: int
    partition: tuple[PartitionValue, ...]
    outputs: OutputNames
    table_properties: Mapping[str, str]
    proof: str = "counts"
    """How the group proves that it kept its rows: ``counts`` or ``full`` (policy key ``proof``)."""
    recipe: ClusterRecipe | None = None
    """How rows are to be ordered; ``None``: they keep their order."""
    output_count: int = 1
    """How many files the rows are divided into when they are not sorted."""
    copying: Copying | None = None
    """What may be copied; ``None``: all rows are decoded."""
    routing: Routing | None = None
    """The spec whose partitions rows may be dealt out to; ``None``: every row has the task's partition."""
    most_files: int | None = None
    """How many sorted files may be written at most, whatever their size; ``None``: any number."""
    row_group_memory_bytes: int = 128 * 1024 * 1024
    """Most bytes of memory that the rows of one row group take while it is collected."""
    misread_columns: frozenset[int] = frozenset()
    """Ids of float columns for which footers must have no statistics (:mod:`.writing.float_statistics`)."""

    @property
    def key_memory_bytes(self) -> int:
        """As much as the rows of a row group, of which none is collected meanwhile."""
        return self.row_group_memory_bytes

    def in_attempt(self, attempt: int) -> RewriteTask:
        """The same task with the file names of that attempt."""
        return replace(self, outputs=replace(self.outputs, attempt=attempt))

    @property
    def most_partitions(self) -> int:
        """How many partitions rows may be dealt out to, so that there are fewer files than before."""
        return min(MAX_PARTITIONS, len(self.inputs) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteResult:
    """What became of one task: written files, none when the inputs hold no rows, or an error."""

    group_id: int
    written: tuple[DataFile, ...]
    rows_read: int
    rows_deleted: int = 0
    bytes_copied: int = 0
    """Bytes of row groups that were copied and not decoded."""
    bytes_unread: int = 0
    """Of these, bytes that the store copied itself: nobody verified the checksums of their pages."""
    spec_id: int | None = None
    """The spec of the written files, if rows were dealt out to partitions of another spec than the group's."""
    seconds: float
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """What cannot be read of the inputs and their delete files, if that is the error: path → a sentence with it."""
    too_large: bool = False
    """Whether nothing was written because the rows must be sorted and are more than one worker can hold."""


# Lists the files that a task is going to write, as far as that is known before it runs (pure).
#
# The names are recorded beforehand, so that no orphan pass takes the files for orphans, and what a process leaves that
# dies can be removed without a listing.  How many sorted outputs there will be depends on the sizes that they turn out
# to have, so twice as many names are recorded as should be needed.  Rows that are dealt out to partitions go into
# folders that only the worker finds out: such a name protects its file in any folder, but only an orphan pass can find
# the file.

_SPARE_NAMES = 2


def planned_files(task: RewriteTask) -> Iterator[PlannedFile]:
    """The files that a task may write when one worker does it."""
    if task.recipe is not None:
        size = sum(source.file_size_in_bytes for source in task.inputs)
        yield from planned_sorted_files(task, 0, task.recipe.output_count(size))
        return
    yield from (task.outputs.file(number) for number in range(task.output_count))
    if task.routing is not None:
        yield from (task.outputs.file_of_any_partition(number) for number in range(task.most_partitions))


def planned_sorted_files(task: RewriteTask, first: int, expected: int) -> Iterator[PlannedFile]:
    """The names for about ``expected`` sorted files, numbered from ``first``."""
    return (task.outputs.file(first + number) for number in range(2 * expected + _SPARE_NAMES))
