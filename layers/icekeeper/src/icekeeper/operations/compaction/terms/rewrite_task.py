"""The task and the result of a worker that rewrites a file group, and the names of the files that it writes.

All values are picklable; a worker has no catalog and no policy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from icekeeper.model import DataFile, FileKey, PartitionValue
from icekeeper.operations.compaction.terms.output_names import OutputNames
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.rows.read_task import ReadTask
from icekeeper.storage.paths import PlannedFile

ROW_MAP = "rows"
"""The ending of a row map, which otherwise has the name of its data file."""
# With 145 MB for the interpreter and 165 with boto3, a worker stays below 512 MB (docs/performance.md).
ROW_GROUP_MEMORY_BYTES = 176 * 1024 * 1024
"""Memory of a worker for the row group that it is writing and its other data (rule: bounded-worker-memory)."""
FULL_ROW_GROUP_BYTES = ROW_GROUP_MEMORY_BYTES // 4
"""Row groups whose rows take this much memory on average count as full.

A quarter, because other data may use half of the bound, and every second row group may be the small last row group of a
file.
"""
MAX_PARTITIONS = 256
"""The most partitions among which a task's rows are divided; each needs an open file."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A partition spec among whose partitions rows are divided, if that makes fewer files than inputs."""

    spec_id: int
    spec: Mapping[str, Any]
    schemas: Sequence[Mapping[str, Any]]
    """All schemas of the table, the current schema first; they have the types of partition values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copying:
    """The inputs whose row groups may be copied into the outputs, according to manifests."""

    entries: Mapping[int, DataFile]
    """Number of an input → its manifest entry."""
    sizes: tuple[int, ...]
    """Estimated bytes of each input in the outputs, including decoded inputs."""
    min_row_group_bytes: int
    """The least average size of the row groups of a copied input, and of an output."""
    full_row_group_memory: int
    """A row group of this size in memory counts as ``min_row_group_bytes``, even if it is smaller in the file."""
    smallest_output_bytes: int
    """The least size if there are several outputs; a smaller output would be rewritten again."""
    largest_output_bytes: int
    pieces: tuple[int, ...] = ()
    """If a large file is cut: the number of its row groups in each output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteTask(ReadTask):
    """Rewrite ``inputs`` into files of a single partition spec, named by ``outputs``.

    ``schema`` is the table's current schema; if rows have ids, the columns of row lineage follow.
    """

    group_id: int
    partition: tuple[PartitionValue, ...]
    outputs: OutputNames
    table_properties: Mapping[str, str]
    proof: str = "counts"
    """``counts`` or ``full`` (policy key ``proof``)."""
    recipe: ClusterRecipe | None = None
    """The order of the rows; ``None``: they keep their order."""
    output_count: int = 1
    """The number of output files if rows are not sorted."""
    copying: Copying | None = None
    """``None``: all rows are decoded."""
    routing: Routing | None = None
    """``None``: all rows stay in the task's partition."""
    most_files: int | None = None
    """The largest number of sorted files, whatever their size; ``None``: any number."""
    row_group_memory_bytes: int = ROW_GROUP_MEMORY_BYTES
    """The largest size in memory of the rows that are collected for a row group."""
    keeps_row_maps: bool = False
    """Whether rows are numbered when they are read, and each written file gets a row map (:mod:`.row_maps`)."""
    misread_columns: frozenset[int] = frozenset()
    """Ids of float columns for which footers must have no statistics (``write_properties.misread_columns``)."""

    @property
    def key_memory_bytes(self) -> int:
        """The memory of a row group, because no row group is collected while delete keys are read."""
        return self.row_group_memory_bytes

    def in_attempt(self, attempt: int) -> RewriteTask:
        """The same task with the file names of that attempt."""
        return replace(self, outputs=replace(self.outputs, attempt=attempt))

    @property
    def most_partitions(self) -> int:
        """The most partitions among which rows may be divided, so that there are fewer files than before."""
        return min(MAX_PARTITIONS, len(self.inputs) - 1)


class RowRun(NamedTuple):
    """Consecutive rows of an input, including deleted rows."""

    path: str
    first_row: int
    rows: int


class Section(NamedTuple):
    """The outputs of some inputs: the live rows of the runs, in this order, fill the files one by one."""

    files: int
    """The number of written files in the section."""
    runs: tuple[RowRun, ...]


@dataclass(slots=True, kw_only=True)
class RewriteResult:
    """The result of a task: written files (empty if the inputs have no live rows) or an error."""

    group_id: int
    written: tuple[DataFile, ...] = ()
    rows_read: int = 0
    rows_deleted: int = 0
    bytes_copied: int = 0
    """Bytes of row groups that were copied and not decoded."""
    bytes_unread: int = 0
    """The part of the copied bytes that the store itself copied, so their page checksums were not verified."""
    bytes_read_again: int = 0
    """Bytes of inputs that were read more than once, because the group was sorted in several exchanges."""
    sections: tuple[Section, ...] = ()
    """The division of the written files; empty: they have the rows of all inputs in their order, or row maps."""
    has_row_maps: bool = False
    """Whether each written file has a row map, because rows may have changed their order (:mod:`.row_maps`)."""
    spec_id: int | None = None
    """The spec of the written files, if it differs from the group's."""
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Inputs and their delete files that cannot be read, if that is the error: path → a sentence that names it."""
    overtaken: str | None = None
    """Why nothing was written, if the inputs differ from the plan."""
    too_large: bool = False
    """Whether nothing was written because the rows must be sorted and do not fit into one worker."""


@dataclass(frozen=True, slots=True)
class Forwarded:
    """The deletes to commit with the outputs of some groups (:mod:`.forward_deletes`)."""

    added: tuple[tuple[int, DataFile], ...] = ()
    """Spec id and entry of each delete file."""
    dangling: Mapping[FileKey, str] = field(default_factory=dict)
    """Newer position deletes that name only replaced files, each with its manifest."""
    refused: Mapping[int, str] = field(default_factory=dict)
    """Groups whose deletes cannot be forwarded, each with the reason; if there are any, nothing else was done."""
    rows: int = 0
    """The rows that the added deletes delete."""

    @property
    def paths(self) -> list[str]:
        return list(dict.fromkeys(file.file_path for _, file in self.added))


NONE_FORWARDED = Forwarded()
"""The value if no other commit has deleted rows of the inputs."""


# The names of outputs are recorded before a task runs.  So orphan removal does not delete the files, and files of a
# dead process can be deleted without a listing.  The number of sorted outputs depends on their actual sizes, so twice
# the expected number of names is recorded.  If rows are divided among partitions, only the worker knows the folders:
# such a name protects its file in any folder, but only orphan removal can find the file.

_SPARE_NAMES = 2


def planned_files(task: RewriteTask) -> Iterator[PlannedFile]:
    """The files that a task may write if one worker runs it."""
    if task.recipe is not None:
        yield from planned_sorted_files(task, 0, task.recipe.output_count(task.file_bytes))
        return
    files = [task.outputs.file(number) for number in range(task.output_count)]
    if task.routing is not None:
        files += (task.outputs.file_of_any_partition(number) for number in range(task.most_partitions))
    yield from _with_row_maps(task, files)


def planned_sorted_files(task: RewriteTask, first: int, expected: int) -> Iterator[PlannedFile]:
    """The names of about ``expected`` sorted files, numbered from ``first``."""
    return _with_row_maps(task, [task.outputs.file(first + number) for number in range(2 * expected + _SPARE_NAMES)])


def row_map_path(data_file: str) -> str:
    """The path of the row map of an output."""
    return f"{data_file.removesuffix('.parquet')}.{ROW_MAP}"


def _with_row_maps(task: RewriteTask, files: Sequence[PlannedFile]) -> Iterator[PlannedFile]:
    yield from files
    if task.keeps_row_maps:
        yield from (replace(file, ending=ROW_MAP) for file in files)
