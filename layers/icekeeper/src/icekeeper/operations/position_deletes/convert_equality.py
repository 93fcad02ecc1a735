"""Convert equality deletes: find the rows that they delete, and delete these rows by position instead.

A reader compares every row with every key of an equality delete, but only skips positions.  Converting reads the key
columns of the data files to which the keys may apply, and rewrites no row.  In v3, each of these files gets a single
deletion vector with all its deleted positions; in v2, a partition gets a position delete file.

An equality delete is removed only by a commit after which every data file on the branch to which it applies has its
positions.  It stays if a file with an older data sequence number was added after the files were read, because the keys
apply to that file, too (rule: convert-before-dropping-keys).  The snapshot's operation is ``delete``: a concurrent
rewrite by Iceberg-Java does not validate snapshots of operation ``replace`` and would restore the rows.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyroaring import BitMap64

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.conflict_detection import GroupClaim, PlanningState, RebaseResult
from icekeeper.commit.snapshot import DELETE, FileReplacement
from icekeeper.commit.transaction import Committed
from icekeeper.errors import FileUnreadable, MaintenanceError, MetadataUnreadable, PlanStale
from icekeeper.metadata.delete_scope import DeleteIndex, PartitionKey, named_file, partition_key
from icekeeper.metadata.document import TableMetadata, schema_digest
from icekeeper.metadata.table_reader import delete_index
from icekeeper.model import (
    DataFile,
    FileContent,
    FileIdentity,
    FileKey,
    LiveEntry,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    Nothing,
    PartitionValue,
)
from icekeeper.pass_context.commit_rewrite import GroupsRefused, Rewrite, commit_rewrite
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.apply_deletes import deleted_positions, positions_by_keys, vector_positions
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.rows.file_rows import READABLE_FORMATS
from icekeeper.rows.read import unreadable_files
from icekeeper.rows.read_task import NO_COLUMNS, ReadTask, make_read_task
from icekeeper.rows.write_deletes import write_position_deletes, write_vectors
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage

_WHAT = "rewrite_position_deletes: equality deletes"
# Rows of a task; if there are more keys to read, as many rows as keys, up to the maximum.  A bitmap of all its
# positions then takes a few MB, and its keys are looked up within the task's memory.
_TASK_ROWS = 20_000_000
_MOST_TASK_ROWS = 100_000_000
_TASK_FILES = 1_000


@dataclass(frozen=True, slots=True)
class ReachedFile:
    """A live data file, and the deletes that may remove rows of it."""

    entry: ManifestEntry
    manifest_path: str
    spec_id: int
    deletes: tuple[ManifestEntry, ...]
    """In v3 all deletes that apply, which its vector will contain; in v2 the equality deletes."""

    @property
    def file_path(self) -> str:
        return self.entry.file.file_path

    @property
    def file_format(self) -> str:
        return self.entry.file.file_format

    @property
    def partition(self) -> tuple[PartitionValue, ...]:
        return self.entry.file.partition

    @property
    def record_count(self) -> int:
        return self.entry.file.record_count

    @property
    def file_size_in_bytes(self) -> int:
        return self.entry.file.file_size_in_bytes

    @property
    def first_row_id(self) -> int | None:
        return self.entry.file.first_row_id

    @property
    def sequence_number(self) -> int:
        return self.entry.sequence_number or 0

    @property
    def identity(self) -> FileIdentity:
        return self.entry.identity

    @property
    def keys(self) -> tuple[ManifestEntry, ...]:
        """The equality deletes among the deletes."""
        return tuple(delete for delete in self.deletes if delete.file.content is FileContent.EQUALITY_DELETES)

    @property
    def positions(self) -> tuple[ManifestEntry, ...]:
        """The position deletes and vectors among the deletes."""
        return tuple(delete for delete in self.deletes if delete.file.content is not FileContent.EQUALITY_DELETES)


@dataclass(frozen=True, slots=True)
class ConversionGroup:
    """Data files of a partition whose rows a worker looks up."""

    group_id: int
    files: tuple[ReachedFile, ...]

    @property
    def scope(self) -> tuple[int, tuple[PartitionValue, ...]]:
        return self.files[0].spec_id, self.files[0].partition


@dataclass(frozen=True, slots=True)
class ConversionPlan:
    """What to convert, decided at a snapshot."""

    snapshot_id: int
    groups: tuple[ConversionGroup, ...]
    delete_needs: Mapping[FileKey, int]
    """Live equality delete → from how many live data files it may remove rows."""
    planning_manifests: frozenset[str]

    @property
    def paths(self) -> frozenset[str]:
        """The data and delete files that are read."""
        files = [reached for group in self.groups for reached in group.files]
        return frozenset(f.file_path for f in files).union(e.file.file_path for f in files for e in f.deletes)


def plan_conversion(
    metadata: TableMetadata,
    snapshot_id: int,
    manifests: Sequence[ManifestFile],
    index: DeleteIndex,
    data_files: Iterable[LiveEntry],
    unreadable: Container[str] = (),
) -> ConversionPlan | None:
    """The data files whose rows are looked up; ``None``: there are no equality deletes.

    ``index`` has the live deletes, ``unreadable`` the files that passes could not read.  A file that cannot be read, or
    whose format this version does not read, keeps the equality deletes that apply to it.
    """
    needs = {e.file.key: 0 for e in index.entries if e.file.content is FileContent.EQUALITY_DELETES}
    if not needs:
        return None
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(metadata.current_schema)}
    into_vectors = metadata.format_version >= 3
    by_partition: dict[PartitionKey, list[ReachedFile]] = defaultdict(list)
    for manifest, entry in data_files:
        spec_id = manifest.partition_spec_id
        needed = tuple(index.needed_by(entry, spec_id, types))
        keys = [delete for delete in needed if delete.file.content is FileContent.EQUALITY_DELETES]
        for delete in keys:
            needs[delete.file.key] += 1
        if keys and _is_readable((entry, *needed), unreadable):
            found = ReachedFile(entry, manifest.manifest_path, spec_id, needed if into_vectors else tuple(keys))
            by_partition[partition_key(spec_id, entry.file.partition)].append(found)
    portions = [portion for files in by_partition.values() for portion in _portions(files)]
    groups = tuple(ConversionGroup(number, tuple(portion)) for number, portion in enumerate(portions))
    return ConversionPlan(snapshot_id, groups, needs, frozenset(m.manifest_path for m in manifests))


def _is_readable(entries: Iterable[ManifestEntry], unreadable: Container[str]) -> bool:
    return all(
        (entry.file.file_format.upper() in READABLE_FORMATS or entry.file.content_offset is not None)
        and entry.file.key_metadata is None
        and entry.file.file_path not in unreadable
        for entry in entries
    )


def _portions(files: Sequence[ReachedFile]) -> Iterator[list[ReachedFile]]:
    keys = sum({delete.file.key: delete.file.record_count for file in files for delete in file.keys}.values())
    most = min(max(_TASK_ROWS, keys), _MOST_TASK_ROWS)
    portion, rows = list[ReachedFile](), 0
    for file in files:
        if portion and (rows + file.record_count > most or len(portion) >= _TASK_FILES):
            yield portion
            portion, rows = [], 0
        portion.append(file)
        rows += file.record_count
    if portion:
        yield portion


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionTask:
    """Find the deleted positions of ``read.inputs`` and write them."""

    group_id: int
    read: ReadTask
    into_vectors: bool
    partition: tuple[PartitionValue, ...]
    output: PlannedFile
    attempt: int = 0

    @property
    def input_bytes(self) -> int:
        """An upper estimate of the bytes to read."""
        return self.read.input_bytes

    def in_attempt(self, attempt: int) -> ConversionTask:
        return replace(self, attempt=attempt)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversionResult:
    """The entries of the written file, or an error; no entries if no key matched a row."""

    group_id: int
    written: tuple[DataFile, ...] = ()
    error: str | None = None
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Data and delete files that cannot be read, if that is the error: path → a sentence that names it."""


def convert_group(task: ConversionTask) -> ConversionResult:
    """Look up and write the positions of a task; errors that concern only this group are returned."""
    storage, path = Storage(task.read.io_properties), task.output.path(task.attempt)
    error, unreadable = "", dict[str, str]()
    try:
        # A vector that would get no new positions stays unchanged.
        found = positions_by_keys(task.read, storage)
        return ConversionResult(group_id=task.group_id, written=_written(task, found, path, storage))
    except FileUnreadable as failure:
        error, unreadable = str(failure), unreadable_files(task.read, storage)
    except (MaintenanceError, pa.ArrowException, OSError, ValueError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    return ConversionResult(group_id=task.group_id, error=error, unreadable=unreadable)


def _written(task: ConversionTask, found: Mapping[str, BitMap64], path: str, storage: Storage) -> tuple[DataFile, ...]:
    if not found:
        return ()
    try:
        if task.into_vectors:
            return write_vectors(path, found, dict.fromkeys(found, task.partition), storage)
        return (write_position_deletes(path, found, task.partition, storage),)
    except BaseException:
        storage.delete([path])
        raise


@dataclass(slots=True)
class Conversion:
    """The result of a conversion."""

    files_removed: int = 0
    """Equality delete files that the commit removed."""
    files_left: int = 0
    """Equality delete files that some data file still needs."""
    written: tuple[DataFile, ...] = ()
    snapshot_id: int | None = None
    dropped: dict[int, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """A sentence for people; only meaningful if there was something to convert."""
        rows = sum(file.record_count for file in self.written)
        text = f"converted {self.files_removed} equality delete file(s) into {len(self.written)} of {rows} positions"
        if self.files_left:
            text += f"; {self.files_left} stay, because some files to which they apply were not converted"
        return text


def planned_conversion(context: OperationContext, loaded: LoadedTable) -> ConversionPlan | None:
    """The plan for the head of the branch; ``None``: the policy does not request it, or there is nothing to convert.

    Raises:
        MetadataUnreadable: a manifest is missing or damaged.
    """
    head = loaded.metadata.head(context.policy.branch)
    if not context.policy.convert_equality_deletes or head is None:
        return None
    reader = context.reader(loaded)
    manifests = reader.manifests(head)
    if all(m.content is not ManifestContent.DELETES for m in manifests):
        return None
    return plan_conversion(
        loaded.metadata,
        head.snapshot_id,
        manifests,
        delete_index(reader, manifests),
        reader.live_entries(manifests, ManifestContent.DATA),
        context.memory.waiting_unreadable(schema_digest(loaded.metadata)),
    )


def convert(context: OperationContext, loaded: LoadedTable, plan: ConversionPlan) -> Conversion:
    """Look up, write and commit the plan's positions in one snapshot; ``context`` has a running job.

    Raises:
        MaintenanceError: nothing was committed.
    """
    outcome = Conversion()
    done = _looked_up(context, loaded, plan, outcome)
    groups = [group for group in plan.groups if group.group_id in done]

    def replacement_on(
        head: TableMetadata, rebased: RebaseResult
    ) -> tuple[FileReplacement, Collection[str]] | Nothing | GroupsRefused:
        if head.format_version != loaded.metadata.format_version:
            raise PlanStale("the table was upgraded to another format version; plan again")
        kept = [group for group in groups if group.group_id in rebased.kept]
        written = {group.group_id: done[group.group_id].written for group in kept}
        superseded, staged = frozenset[FileKey](), list[str]()
        if head.format_version >= 3:
            vectors = _vectors_on_head(context, loaded, kept, written, rebased)
            if isinstance(vectors, GroupsRefused):
                return vectors
            written, superseded, staged = vectors
        added = [(group, file) for group in kept for file in written[group.group_id]]
        manifests = {live.entry.file.key: live.manifest.manifest_path for live in rebased.newer}
        manifests |= rebased.delete_manifests
        removed = rebased.unneeded_deletes | (superseded & manifests.keys())
        if not added and not removed:
            return Nothing(next(iter(rebased.dropped.values()), "no equality delete can be converted"))
        replacement = FileReplacement(
            removed=removed,
            added=tuple((group.scope[0], file) for group, file in added),
            # Java validates only deletes that are newer than its own starting snapshot.
            data_sequence_number=None,
            staged=staged,
        )
        outcome.files_removed, outcome.written = len(rebased.unneeded_deletes), tuple(file for _, file in added)
        return replacement, {manifests[key] for key in removed}

    planned = PlanningState(
        metadata=loaded.metadata,
        snapshot_id=plan.snapshot_id,
        manifests=plan.planning_manifests,
        delete_needs=plan.delete_needs,
    )
    outputs = {group_id: [file.file_path for file in result.written] for group_id, result in done.items()}
    claims = [_claim(loaded.metadata, group) for group in groups]
    committed, rebased = commit_rewrite(context, Rewrite(loaded, planned, claims, outputs, DELETE), replacement_on)
    outcome.dropped = dict(rebased.dropped)
    if isinstance(committed, Committed):
        outcome.snapshot_id = committed.prepared.snapshot_id
    else:
        outcome.files_removed, outcome.written = 0, ()
    outcome.files_left = len(plan.delete_needs) - outcome.files_removed
    return outcome


def _looked_up(
    context: OperationContext, loaded: LoadedTable, plan: ConversionPlan, outcome: Conversion
) -> dict[int, ConversionResult]:
    """The results of the workers, by group; errors are added to ``outcome``."""
    tasks = [_task(loaded, plan, group) for group in plan.groups]
    context.will_write(task.output.record for task in tasks)
    context.progress(_WHAT, 0, len(tasks))
    try:
        results = context.engine.map(convert_group, tasks, lambda done: context.progress(_WHAT, done, len(tasks)))
    except (MaintenanceError, KeyboardInterrupt):
        context.discard(loaded, [path for task in tasks for path in task.output.paths])
        raise
    for result in results:
        outcome.unreadable |= result.unreadable
        if result.error is not None and not result.unreadable:
            outcome.errors.append(result.error)
    return {result.group_id: result for result in results if result.error is None}


def _task(loaded: LoadedTable, plan: ConversionPlan, group: ConversionGroup) -> ConversionTask:
    into_vectors = loaded.metadata.format_version >= 3
    read = make_read_task(loaded.metadata, group.files, NO_COLUMNS, loaded.io_properties)
    stem = f"{loaded.metadata.data_location}/converted-{plan.snapshot_id}-{group.group_id:05d}-{uuid.uuid4()}"
    return ConversionTask(
        group_id=group.group_id,
        read=read,
        into_vectors=into_vectors,
        partition=group.scope[1],
        output=PlannedFile(stem, "puffin" if into_vectors else "parquet"),
    )


def _vectors_on_head(
    context: OperationContext,
    loaded: LoadedTable,
    groups: Sequence[ConversionGroup],
    written: Mapping[int, tuple[DataFile, ...]],
    rebased: RebaseResult,
) -> tuple[dict[int, tuple[DataFile, ...]], frozenset[FileKey], list[str]] | GroupsRefused:
    """The groups' vectors, extended by all newer deletes of their files; the deletes that these vectors replace; and
    the paths of the files written for this."""
    current = {group.group_id: _current_deletes(group, rebased) for group in groups}
    newest, staged, refused = dict(written), list[str](), dict[int, str]()
    for group in (group for group in groups if group.group_id in rebased.moved_on):
        try:
            newest[group.group_id], path = _with_newer(context, loaded, group, written, current)
        except MaintenanceError as error:
            refused[group.group_id] = f"newer deletes of its files cannot be included: {error}"
        else:
            staged += path
    if refused:
        context.discard(loaded, staged)
        return GroupsRefused(refused)
    superseded = frozenset(
        entry.file.key
        for group in groups
        for file in newest[group.group_id]
        for entry in current[group.group_id].get(file.referenced_data_file or "", ())
        if named_file(entry.file) == file.referenced_data_file
    )
    return newest, superseded, staged


def _current_deletes(group: ConversionGroup, rebased: RebaseResult) -> Mapping[str, tuple[ManifestEntry, ...]]:
    """The vectors and position deletes that apply to each data file of a group on the newest head."""
    moved = rebased.moved_on.get(group.group_id)
    return {reached.file_path: reached.positions for reached in group.files} if moved is None else moved


def _with_newer(
    context: OperationContext,
    loaded: LoadedTable,
    group: ConversionGroup,
    written: Mapping[int, tuple[DataFile, ...]],
    current: Mapping[int, Mapping[str, tuple[ManifestEntry, ...]]],
) -> tuple[tuple[DataFile, ...], list[str]]:
    """The group's vectors, rewritten for files that have newer deletes; and the path of the new file.

    Raises:
        MaintenanceError: a delete cannot be read, or a row that was deleted when it was read is no longer deleted.
    """
    storage, now, merged = context.stores.storage(loaded), current[group.group_id], dict[str, BitMap64]()

    def positions_by(reached: ReachedFile, deletes: tuple[ManifestEntry, ...]) -> BitMap64:
        loaded.allowed.require(entry.file.file_path for entry in deletes)
        task = make_read_task(loaded.metadata, [replace(reached, deletes=deletes)], NO_COLUMNS, loaded.io_properties)
        return deleted_positions(task, storage).get(reached.file_path, BitMap64())

    ours = {file.referenced_data_file: file for file in written[group.group_id]}
    for reached in group.files:
        vector, newest = ours.get(reached.file_path), now[reached.file_path]
        if vector is None or {e.file.key for e in newest} == {e.file.key for e in reached.positions}:
            continue
        deleted = positions_by(reached, newest)
        if back := positions_by(reached, reached.positions) - deleted:
            raise MetadataUnreadable(f"{len(back)} deleted row(s) of {reached.file_path} are no longer deleted")
        offset, size = vector.content_offset or 0, vector.content_size_in_bytes or 0
        own = vector_positions(vector.file_path, offset, size, vector.record_count, storage)
        merged[reached.file_path] = own | deleted
    if not merged:
        return written[group.group_id], []
    planned = PlannedFile(f"{loaded.metadata.data_location}/converted-{uuid.uuid4()}", "puffin")
    context.will_write([planned.record])
    context.leaves_files()  # the replaced vectors
    partitions = dict.fromkeys(merged, group.scope[1])
    rewritten = write_vectors(planned.path(0), merged, partitions, storage)
    kept = (file for file in written[group.group_id] if file.referenced_data_file not in merged)
    return (*kept, *rewritten), [planned.path(0)]


def _claim(metadata: TableMetadata, group: ConversionGroup) -> GroupClaim:
    """The data files must still be live, and the applied deletes must still exist; a vector includes newer deletes."""
    scopes = frozenset({group.scope})
    return GroupClaim(
        group_id=group.group_id,
        output_scopes=scopes,
        input_scopes=scopes,
        inputs={(f.file_path, None): (f.manifest_path, f.identity) for f in group.files},
        # Equality deletes that arrived meanwhile concern the data files, which do not change.
        output_field_ids=frozenset(range(1, int(metadata.document.get("last-column-id") or 0) + 1)),
        deletes=Counter(entry.file.key for reached in group.files for entry in reached.deletes),
        position_deletes=frozenset(entry.file.key for reached in group.files for entry in reached.positions),
        homes=dict.fromkeys((reached.file_path for reached in group.files), group.scope),
    )
