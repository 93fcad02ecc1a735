"""Forward position deletes that landed on the inputs of finished groups: they become deletes of the outputs.

Without this, every delete on a file under rewrite would drop its group, and a table with a delete every second would
never be compacted.  The forwarded deletes are committed with the outputs, in one snapshot
(rule: forward-newer-position-deletes).  Equality deletes need no forwarding: they apply to the outputs by their
sequence number.

The rows that an input has lost since it was read are those that its deletes name now, without those that the worker
already left out.  If rows kept their order, their positions in the outputs are counted; otherwise the row maps hold
them (:mod:`.row_maps`).  If any count is inconsistent, the group is dropped, as it would be without forwarding.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain

from pyroaring import BitMap64

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.commit.conflict_detection import RebaseResult
from icekeeper.errors import MaintenanceError, MetadataUnreadable, SwitchedOff
from icekeeper.metadata.delete_scope import DeleteIndex, named_file, partition_key
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader, delete_index
from icekeeper.model import DataFile, FileContent, FileKey, ManifestContent, ManifestEntry
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.candidate import Candidate
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.rewrite_task import Forwarded, RewriteResult, RowRun, Section
from icekeeper.operations.compaction.work.proof import checksum_at
from icekeeper.operations.compaction.work.row_maps import mapped_rows
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy.values import Proof
from icekeeper.rows.apply_deletes import SpelledFiles, deleted_positions, position_rows, vector_positions
from icekeeper.rows.arrow_schema import stored_schema, with_variants
from icekeeper.rows.read_task import NO_COLUMNS, InputFile, make_read_task, with_lineage
from icekeeper.rows.write_deletes import write_position_deletes, write_vectors
from icekeeper.storage.paths import PlannedFile
from icekeeper.storage.storage import Storage


def with_newest_deletes(
    context: OperationContext, loaded: LoadedTable, plan: CompactionPlan, groups: Sequence[FileGroup]
) -> list[FileGroup]:
    """The groups with the position deletes that apply to their files now, so that fewer must be forwarded.

    Equality deletes stay as planned.  If the head cannot be read or has no new deletes, the groups stay unchanged.
    """
    try:
        head = context.load()
        snapshot, reader = head.metadata.head(context.policy.branch), context.reader(head)
        manifests = [] if snapshot is None else reader.manifests(snapshot)
        listed = [m for m in manifests if m.content is ManifestContent.DELETES and m.may_have_live_files]
        if all(m.manifest_path in plan.planning_manifests for m in listed):
            return list(groups)
        index = delete_index(reader, listed)
        loaded.allowed.require(entry.file.file_path for entry in index.entries)
    except SwitchedOff:
        raise
    except MaintenanceError:
        return list(groups)
    return [_with_newest(group, index) for group in groups]


def _with_newest(group: FileGroup, index: DeleteIndex) -> FileGroup:
    """The group itself, perhaps packed, if no file has other deletes now."""
    files = tuple(group.files)
    refreshed = tuple(_refreshed(candidate, index) for candidate in files)
    is_changed = any(new is not old for new, old in zip(refreshed, files, strict=True))
    return replace(group, files=refreshed) if is_changed else group


def _refreshed(candidate: Candidate, index: DeleteIndex) -> Candidate:
    key = partition_key(candidate.spec_id, candidate.partition)
    now = tuple(index.positions_of(candidate.file_path, key, candidate.sequence_number))
    if {entry.file.key for entry in now} == {entry.file.key for entry in candidate.position_deletes}:
        return candidate
    others = (entry for entry in candidate.deletes if entry.file.content is not FileContent.POSITION_DELETES)
    return replace(candidate, condition=replace(candidate.condition, deletes=(*now, *others)))


def late_deletes(
    reader: TableReader, snapshot: Snapshot, index: DeleteIndex, needs: Mapping[FileKey, int]
) -> dict[str, str]:
    """Position deletes that were committed after our rewrite had replaced the only file that they name.

    They delete nothing, and the rows that they mean are live in the outputs.  Only a writer that does not check whether
    its data files still exist commits such a delete (Java: ``RowDelta.validateDataFilesExist``).  The rewrite is
    searched in the retained snapshots.

    Returns:
        Data file → the delete file that names it.
    """
    by_path = ((path, entry) for path, entries in index.positions_by_path.items() for entry in entries)
    listed = sorted(chain(index.vectors.items(), by_path), key=lambda item: item[1].sequence_number or 0)
    unneeded = {path: entry for path, entry in listed if needs.get(entry.file.key) == 0}
    newest = max((entry.sequence_number or 0 for entry in unneeded.values()), default=0)
    found: dict[str, str] = {}
    for own in reader.metadata.ancestors(snapshot.snapshot_id) if unneeded else ():
        if RUN_ID_KEY not in own.summary or own.sequence_number >= newest:
            continue
        added = [m for m in reader.manifests(own) if m.added_snapshot_id == own.snapshot_id and m.deleted_files_count]
        for _, entries in reader.entries(m for m in added if m.content is ManifestContent.DATA):
            for path in (entry.file.file_path for entry in entries if not entry.is_live):
                if path in unneeded and (unneeded[path].sequence_number or 0) > own.sequence_number:
                    found[path] = unneeded[path].file.file_path
    return found


class DeleteForwarder:
    """Forwards deletes for the attempts at a commit; reads each file only once, because files never change."""

    def __init__(
        self,
        context: OperationContext,
        loaded: LoadedTable,
        plan: CompactionPlan,
        groups: Sequence[FileGroup],
        results: Mapping[int, RewriteResult],
        replaced: Mapping[str, int],
    ) -> None:
        """``replaced`` are the inputs that earlier commits of the plan have replaced: path → the snapshot."""
        self._context, self._loaded, self._results = context, loaded, results
        self._stem = f"forwarded-{plan.snapshot_id}"
        self._groups = {group.group_id: group for group in groups}
        self._storage: Storage = context.stores.storage(loaded)
        self._inputs = {c.file_path: group.group_id for group in groups for c in group.files}
        self._replaced = replaced
        self._read: dict[FileKey, _Positions] = {}
        self._left_out: dict[int, Mapping[str, BitMap64]] = {}
        self._mapped: dict[int, _Mapped] = {}

    def forward(self, head: TableMetadata, rebased: RebaseResult) -> Forwarded:
        """Write the deletes for the outputs of the kept groups on this head.

        Raises:
            MaintenanceError: the files cannot be written; those already written are deleted.
        """
        deleted: dict[int, dict[str, BitMap64]] = {}
        refused: dict[int, str] = {}
        for group_id, reaching in rebased.moved_on.items():
            try:
                deleted[group_id] = self._lost_rows(group_id, reaching)
            except MaintenanceError as error:
                refused[group_id] = f"cannot forward the deletes of its inputs: {error}"
        if refused:
            return Forwarded(refused=refused)
        files = {
            path: (self._spec_id(group_id), entry, positions)
            for group_id, by_output in deleted.items()
            for entry in self._results[group_id].written
            for path, positions in by_output.items()
            if path == entry.file_path
        }
        return Forwarded(
            added=tuple(self._written(head, files)),
            dangling=self._dangling(head, rebased),
            rows=sum(len(positions) for _, _, positions in files.values()),
        )

    def _spec_id(self, group_id: int) -> int:
        spec_id = self._results[group_id].spec_id
        return self._groups[group_id].spec_id if spec_id is None else spec_id

    def _lost_rows(self, group_id: int, reaching: Mapping[str, Sequence[ManifestEntry]]) -> dict[str, BitMap64]:
        """The positions in each output of rows that were deleted since they were read.

        Raises:
            MaintenanceError: a delete cannot be read or was reverted, or the counts are inconsistent.
        """
        left_out = self._left_out_of(group_id)
        lost: dict[str, BitMap64] = {}
        for candidate in self._files(group_id):
            path = candidate.file_path
            now = self._deleted(path, reaching[path])
            if back := self._deleted(path, candidate.position_deletes) - now:
                raise MetadataUnreadable(f"{len(back)} deleted row(s) of {path} are no longer deleted")
            if new := now - left_out.get(path, BitMap64()):
                lost[path] = new
        result = self._results[group_id]
        if not lost:
            return {}
        if result.has_row_maps:
            found = self._by_row_maps(group_id, lost)
        else:
            counts = [(file.file_path, file.record_count) for file in result.written]
            whole = Section(len(counts), tuple(RowRun(c.file_path, 0, c.record_count) for c in self._files(group_id)))
            found = places_in_outputs(result.sections or (whole,), counts, left_out, lost)
        count, wanted = sum(map(len, found.values())), sum(map(len, lost.values()))
        if count != wanted:
            raise MetadataUnreadable(f"{wanted} row(s) were deleted, but only {count} of them are in the outputs")
        if self._context.policy.proof is Proof.FULL:
            self._prove(group_id, lost, found)
        return found

    def _prove(self, group_id: int, lost: Mapping[str, BitMap64], found: Mapping[str, BitMap64]) -> None:
        """Read the deleted rows in the inputs and in the outputs.

        Raises:
            MaintenanceError: they are not the same rows, or cannot be read.
        """
        metadata, group = self._loaded.metadata, self._groups[group_id]
        stored = with_variants(stored_schema(metadata.current_schema), group.variants)
        schema = with_lineage(stored) if group.has_lineage else stored
        files = self._files(group_id)
        bare = [replace(c, condition=replace(c.condition, deletes=())) for c in files]
        source = make_read_task(metadata, bare, schema, self._loaded.io_properties)
        before = checksum_at(source, self._numbers(group_id, lost), self._storage)
        outputs = self._results[group_id].written
        inputs = (InputFile(file.file_path, file.record_count, file.file_size_in_bytes) for file in outputs)
        output, numbers, first = replace(source, inputs=tuple(inputs)), BitMap64(), 0
        for file in outputs:
            numbers.update(first + position for position in found.get(file.file_path, ()))
            first += file.record_count
        if checksum_at(output, numbers, self._storage) != before:
            raise MetadataUnreadable("the rows found in the outputs differ from the deleted rows of the inputs")

    def _by_row_maps(self, group_id: int, lost: Mapping[str, BitMap64]) -> dict[str, BitMap64]:
        """The positions of lost rows in the outputs; each row is looked up once, even if several attempts need it."""
        numbers, known = self._numbers(group_id, lost), self._mapped.setdefault(group_id, _Mapped())
        if more := numbers - known.numbers:
            for file in self._results[group_id].written:
                positions, rows = mapped_rows(file.file_path, more, self._storage)
                if rows != file.record_count:
                    raise MetadataUnreadable(f"the row map of {file.file_path} has {rows} of {file.record_count} rows")
                known.places[file.file_path] |= positions
            known.numbers |= more
        # If a newer delete was reverted since the last attempt, the counts differ, and the group is dropped.
        return {path: places for path, places in known.places.items() if places}

    def _numbers(self, group_id: int, positions: Mapping[str, BitMap64]) -> BitMap64:
        """The numbers of rows within the group, from their positions in the inputs."""
        numbers, first = BitMap64(), 0
        for candidate in self._files(group_id):
            numbers.update(first + position for position in positions.get(candidate.file_path, ()))
            first += candidate.record_count
        return numbers

    def _files(self, group_id: int) -> Sequence[Candidate]:
        return self._groups[group_id].unpacked.files

    def _left_out_of(self, group_id: int) -> Mapping[str, BitMap64]:
        """The rows of each input that the worker left out because of the deletes that it applied."""
        if group_id not in self._left_out:
            files = self._files(group_id)
            task = make_read_task(self._loaded.metadata, files, NO_COLUMNS, self._loaded.io_properties)
            self._left_out[group_id] = deleted_positions(task, self._storage)
        return self._left_out[group_id]

    def _deleted(self, path: str, deletes: Iterable[ManifestEntry]) -> BitMap64:
        """The rows of an input that these position deletes delete."""
        return BitMap64.union(BitMap64(), *(self._positions_of(entry).by_path.get(path, _NONE) for entry in deletes))

    def _positions_of(self, entry: ManifestEntry) -> _Positions:
        """The positions that a delete file holds for the inputs of all groups.

        Raises:
            MaintenanceError: it cannot be read, or spells the path of an input differently.
        """
        if entry.file.key not in self._read:
            self._read[entry.file.key] = self._positions_in(entry.file)
        return self._read[entry.file.key]

    def _positions_in(self, file: DataFile) -> _Positions:
        self._loaded.allowed.require([file.file_path])
        offset, size, named = file.content_offset, file.content_size_in_bytes, file.referenced_data_file
        if offset is not None and size is not None and named is not None:
            vector = vector_positions(file.file_path, offset, size, file.record_count, self._storage)
            replaced = frozenset(self._replaced.keys() & {named})
            return _Positions({named: vector}, replaced, named not in self._inputs and not replaced)
        only, rows, others = named_file(file), 0, False
        by_path: defaultdict[str, BitMap64] = defaultdict(BitMap64)
        replaced = frozenset()
        spelled = SpelledFiles(self._inputs)
        for count, found in position_rows(file.file_path, file.file_format, self._storage):
            rows += count
            for path, positions in found:
                if path in self._inputs and only in (None, path):
                    by_path[path].update(positions.to_pylist())
                elif path in self._replaced:
                    replaced |= {path}
                elif path not in self._inputs:
                    spelled.refuse(file.file_path, path)
                    others = True
        if rows < file.record_count:
            raise MetadataUnreadable(f"{file.file_path} has {rows} rows, but its manifest says {file.record_count}")
        return _Positions(by_path, replaced, others)

    def _dangling(self, head: TableMetadata, rebased: RebaseResult) -> dict[FileKey, str]:
        """The newer position deletes that name only files that this commit replaces or earlier commits have replaced.

        A delete that arrived after the commit that replaced its file was not forwarded; it stays, so that
        :func:`late_deletes` finds it.
        """
        found: dict[FileKey, str] = {}
        for live in rebased.newer:
            positions, number = self._positions_of(live.entry), live.entry.sequence_number or 0
            commits = (head.snapshots.get(self._replaced[path]) for path in positions.replaced)
            is_forwarded = all(commit is not None and number < commit.sequence_number for commit in commits)
            is_replaced = all(self._inputs[path] in rebased.kept for path in positions.by_path)
            if is_forwarded and is_replaced and not positions.names_others:
                found[live.entry.file.key] = live.manifest.manifest_path
        return found

    def _written(
        self, head: TableMetadata, files: Mapping[str, tuple[int, DataFile, BitMap64]]
    ) -> Iterator[tuple[int, DataFile]]:
        """Write a vector (v3) or a position delete file (v2) for each output, under the output's spec and partition."""
        if not files:
            return
        into_vectors = head.format_version >= 3
        base = f"{head.data_location}/{self._stem}-{uuid.uuid4()}"
        planned = [PlannedFile(base, "puffin")]
        if not into_vectors:
            planned = [PlannedFile(f"{base}-{number:05d}", "parquet") for number in range(len(files))]
        self._loaded.allowed.require([head.data_location])
        self._context.will_write(file.record for file in planned)
        try:
            if into_vectors:
                vectors = {path: positions for path, (_, _, positions) in files.items()}
                partitions = {path: output.partition for path, (_, output, _) in files.items()}
                for entry in write_vectors(planned[0].path(0), vectors, partitions, self._storage):
                    yield files[entry.referenced_data_file or ""][0], entry
                return
            for file, (path, (spec_id, output, positions)) in zip(planned, files.items(), strict=True):
                yield spec_id, write_position_deletes(file.path(0), {path: positions}, output.partition, self._storage)
        except BaseException:
            self._context.discard(self._loaded, [file.path(0) for file in planned])
            raise


@dataclass(frozen=True, slots=True)
class _Positions:
    """The content of a position delete file, as far as it concerns the plan."""

    by_path: Mapping[str, BitMap64]
    """Positions by input."""
    replaced: frozenset[str]
    """The files that it names and that earlier commits of the plan have replaced."""
    names_others: bool
    """Whether it also names files that are neither inputs nor replaced."""


@dataclass(slots=True)
class _Mapped:
    """The rows of a group that have been looked up in its row maps."""

    numbers: BitMap64 = field(default_factory=BitMap64)
    places: defaultdict[str, BitMap64] = field(default_factory=lambda: defaultdict(BitMap64))
    """By output."""


def places_in_outputs(
    sections: Sequence[Section],
    outputs: Sequence[tuple[str, int]],
    left_out: Mapping[str, BitMap64],
    wanted: Mapping[str, BitMap64],
) -> dict[str, BitMap64]:
    """The positions of input rows in the outputs, if rows kept their order within sections (pure).

    ``outputs`` are paths and numbers of rows, ``left_out`` the rows of each input that are in no output, ``wanted`` the
    rows of each input to find, none of them left out.

    Raises:
        MetadataUnreadable: the row counts of a section and of its outputs differ.
    """
    found: defaultdict[str, BitMap64] = defaultdict(BitMap64)
    first = 0
    for section in sections:
        files = outputs[first : first + section.files]
        first += section.files
        ends = list(accumulate(rows for _, rows in files))
        places: list[int] = []
        live = 0
        for path, start, rows in section.runs:
            gone, asked = left_out.get(path, _NONE), wanted.get(path, _NONE)
            before = gone.rank(start - 1) if start else 0
            places += (
                live + position - start - (gone.rank(position) - before)
                for position in _within(asked, start, start + rows)
            )
            live += rows - gone.range_cardinality(start, start + rows)
        if live != (ends[-1] if ends else 0):
            raise MetadataUnreadable(f"{live} rows went into outputs that have {ends[-1] if ends else 0} rows")
        number = 0
        for place in places:  # in ascending order, like the runs
            while place >= ends[number]:
                number += 1
            path, rows = files[number]
            found[path].add(place - (ends[number] - rows))
    return dict(found)


_NONE = BitMap64()


def _within(positions: BitMap64, start: int, stop: int) -> Iterator[int]:
    """The positions of a range, in order."""
    first = positions.rank(start - 1) if start else 0
    last = positions.rank(stop - 1) if stop else 0
    yield from positions[first:last]
