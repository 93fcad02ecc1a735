"""A manifest list is rebuilt only where that is proven: it then has every entry of the lost list, and no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.manifest_read import decode_manifest_list
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile, Nothing
from icekeeper.repair.lists import ReadManifest, of_file, proven_by_child, proven_by_parent, rebuilt_list
from support.examples import examples
from support.tables import new_document, snapshot

ADDED, EXISTING, DELETED = EntryStatus.ADDED, EntryStatus.EXISTING, EntryStatus.DELETED


@dataclass(frozen=True)
class Stored:
    """A manifest: how its list describes it, and its entries as in the file, with nulls where they inherit."""

    manifest: ManifestFile
    raw: tuple[ManifestEntry, ...]

    def read(self, manifest: ManifestFile | None = None) -> tuple[ManifestEntry, ...]:
        """The entries as readers see them, under this or another description."""
        listed, found = manifest or self.manifest, []
        row_id = listed.first_row_id
        for entry in self.raw:
            file = entry.file
            if file.content is FileContent.DATA and file.first_row_id is None and entry.is_live and row_id is not None:
                file, row_id = replace(file, first_row_id=row_id), row_id + file.record_count
            number = listed.sequence_number if entry.sequence_number is None else entry.sequence_number
            found.append(replace(entry, sequence_number=number, file=file))
        return tuple(found)


@dataclass(frozen=True)
class State:
    """A snapshot and the manifests of its list."""

    snapshot: Snapshot
    stored: tuple[Stored, ...]

    @property
    def listed(self) -> list[ManifestFile]:
        return [stored.manifest for stored in self.stored]

    @property
    def readable(self) -> list[ReadManifest]:
        return [ReadManifest(stored.manifest, stored.read()) for stored in self.stored]

    @property
    def live(self) -> dict[Any, tuple[int, ManifestEntry]]:
        return rows_of(self.listed, self.stored)

    def added(self) -> list[ReadManifest]:
        """The manifests that the snapshot's own commit added."""
        ours = self.snapshot.snapshot_id
        return [found for found in self.readable if found.manifest.added_snapshot_id == ours]


def rows_of(listed: Sequence[ManifestFile], stored: Sequence[Stored]) -> dict[Any, tuple[int, ManifestEntry]]:
    """What a reader of a list finds: each live entry with its spec; the status does not count."""
    files = {each.manifest.manifest_path: each for each in stored}
    found = [
        (entry.file.key, (manifest.partition_spec_id, replace(entry, status=EXISTING)))
        for manifest in listed
        for entry in files[manifest.manifest_path].read(manifest)
        if entry.is_live
    ]
    assert len(found) == len(dict(found))
    return dict(found)


@dataclass
class Writer:
    """Commits as Iceberg-Java does."""

    version: int
    next_row_id: int = 0
    names: int = 0
    files: int = 0
    states: list[State] = field(default_factory=list)

    def file(self, rows: int, content: FileContent = FileContent.DATA) -> DataFile:
        self.files += 1
        path = f"s3://b/t/data/{self.files}.parquet"
        return DataFile(
            content=content,
            file_path=path,
            file_format="PARQUET",
            partition=(),
            record_count=rows,
            file_size_in_bytes=100 + self.files,
        )

    def commit(
        self,
        operation: str,
        parent: State | None,
        new: Sequence[DataFile],
        gone: Sequence[int] = (),
        *,
        snapshot_id: int,
        keep: bool = True,
    ) -> State:
        """``gone``: a filter of data files to delete, as engines apply it to the head of each attempt; with ``merge``,
        the data manifests become one."""
        before = () if parent is None else parent.stored
        data = [s for s in before if s.manifest.content is ManifestContent.DATA]
        live = [(s, e) for s in data for e in s.read() if e.is_live]
        dropped = {e.file.key for _, e in live if e.file.file_size_in_bytes % 4 in gone}
        merged = {s.manifest.manifest_path for s in data} if operation == "merge" and len(data) > 1 else set[str]()
        rewritten = {s.manifest.manifest_path for s, e in live if e.file.key in dropped} | merged
        sequence, old = len(self.states) + 1, None if parent is None else parent.snapshot.sequence_number
        number = old if operation == "replace" else None
        added = [ManifestEntry(ADDED, snapshot_id, number, None, file) for file in new]
        lanes: list[list[ManifestEntry]] = [added] if added else []
        for stored in data:
            if stored.manifest.manifest_path in rewritten:
                entries = [
                    replace(e, status=DELETED, snapshot_id=snapshot_id)
                    if e.file.key in dropped
                    else replace(e, status=EXISTING)
                    for e in stored.read()
                    if e.is_live
                ]
                if merged and lanes:
                    lanes[0] += entries
                else:
                    lanes.append(entries)
        written = [self.manifest(lane, snapshot_id, sequence) for lane in lanes]
        kept = [s for s in before if s.manifest.manifest_path not in rewritten and s.manifest.may_have_live_files]
        next_row_id, stored_now = self.next_row_id, list[Stored]()
        for each in (*written, *kept):
            manifest = each.manifest
            if self.version > 2 and manifest.content is ManifestContent.DATA and manifest.first_row_id is None:
                rows = (manifest.added_rows_count or 0) + (manifest.existing_rows_count or 0)
                each, next_row_id = Stored(replace(manifest, first_row_id=next_row_id), each.raw), next_row_id + rows
            stored_now.append(each)
        deleted = [e.file for _, e in live if e.file.key in dropped]
        raw = snapshot(
            snapshot_id,
            format_version=self.version,
            sequence_number=sequence,
            parent_id=None if parent is None else parent.snapshot.snapshot_id,
            first_row_id=self.next_row_id,
            added_rows=next_row_id - self.next_row_id,
            summary=summary(operation, new, deleted, stored_now),
        )
        state = State(Snapshot(raw), tuple(stored_now))
        if keep:
            self.next_row_id = next_row_id
            self.states.append(state)
        return state

    def manifest(self, entries: Sequence[ManifestEntry], snapshot_id: int, sequence: int) -> Stored:
        self.names += 1
        path = f"s3://b/t/metadata/{self.names}-m.avro"
        content = ManifestContent(int(entries[0].file.content is not FileContent.DATA))
        described = ManifestFile(
            manifest_path=path, manifest_length=9, partition_spec_id=0, content=content, added_snapshot_id=None
        )
        own = Snapshot(snapshot(snapshot_id, format_version=2, sequence_number=sequence))
        return Stored(of_file(METADATA, described, own, with_numbers(entries, sequence)).manifest, tuple(entries))


METADATA = TableMetadata(new_document("s3://b/t", 2))


def with_numbers(entries: Sequence[ManifestEntry], sequence: int) -> list[ManifestEntry]:
    return [replace(e, sequence_number=sequence) if e.sequence_number is None else e for e in entries]


def summary(
    operation: str, new: Sequence[DataFile], deleted: Sequence[DataFile], stored: Sequence[Stored]
) -> Mapping[str, str]:
    data = [file for file in new if file.content is FileContent.DATA]
    live = [(s.manifest.content, e.file) for s in stored for e in s.raw if e.is_live]
    of_data = [file for content, file in live if content is ManifestContent.DATA]
    counts = {
        "added-data-files": len(data),
        "added-records": sum(file.record_count for file in data),
        "added-delete-files": len(new) - len(data),
        "deleted-data-files": len(deleted),
        "deleted-records": sum(file.record_count for file in deleted),
    }
    stated = {key: str(count) for key, count in counts.items() if count}
    totals = (len(of_data), sum(file.record_count for file in of_data), len(live) - len(of_data))
    names = ("total-data-files", "total-records", "total-delete-files")
    what = {"merge": "append", "row_delta": "overwrite"}.get(operation, operation)
    return {"operation": what, **stated, **dict(zip(names, map(str, totals), strict=True))}


OPERATIONS = ("append", "append", "merge", "delete", "replace", "row_delta")


@st.composite
def commits(draw: st.DrawFn, writer: Writer, operation: str) -> tuple[list[DataFile], list[int]]:
    """The new files and the deleted ones of a commit."""
    if operation == "row_delta":
        return [writer.file(draw(st.integers(1, 3)), FileContent.POSITION_DELETES)], []
    gone = draw(st.lists(st.integers(0, 3), min_size=1, max_size=2)) if operation in ("delete", "replace") else []
    if operation == "delete":
        return [], gone
    most = 1 if operation == "replace" else 3
    return [writer.file(draw(st.integers(1, 5))) for _ in range(draw(st.integers(1, most)))], gone


@dataclass(frozen=True)
class Lost:
    """A history whose snapshot ``lost`` has no list any more, and the manifests that are found with its id."""

    writer: Writer
    parent: State
    lost: State
    child: State
    orphans: tuple[Stored, ...]
    operation: str


@st.composite
def histories(draw: st.DrawFn) -> Lost:
    writer = Writer(draw(st.sampled_from([2, 3])))
    writer.commit("append", None, [writer.file(2), writer.file(3)], snapshot_id=1)
    for number in range(draw(st.integers(0, 3))):
        operation = draw(st.sampled_from(OPERATIONS))
        writer.commit(operation, writer.states[-1], *draw(commits(writer, operation)), snapshot_id=2 + number)
    parent, operation = writer.states[-1], draw(st.sampled_from(OPERATIONS))
    new, gone = draw(commits(writer, operation))
    orphans: list[Stored] = []
    for _ in range(draw(st.integers(0, 2))):  # attempts of the same commit, on this head or older ones
        base = draw(st.sampled_from(writer.states))
        failed = writer.commit(operation, base, new, gone, snapshot_id=50, keep=False)
        orphans += [s for s in failed.stored if s.manifest.added_snapshot_id == 50]
    lost = writer.commit(operation, parent, new, gone, snapshot_id=50)
    following = draw(st.sampled_from(OPERATIONS))
    child = writer.commit(following, lost, *draw(commits(writer, following)), snapshot_id=60)
    return Lost(writer, parent, lost, child, tuple(orphans), operation)


def found(lost: State, stored: Sequence[Stored]) -> list[ReadManifest]:
    """Manifests with entries of the snapshot, as a search of the store reads them."""
    ours, manifests = lost.snapshot.snapshot_id, []
    for each in stored:
        bare = replace(
            each.manifest, sequence_number=lost.snapshot.sequence_number, first_row_id=None, added_snapshot_id=None
        )
        entries = each.read(bare)
        if any(entry.snapshot_id == ours and entry.status is not EXISTING for entry in entries):
            manifests.append(of_file(METADATA, bare, lost.snapshot, entries))
    return manifests


@given(histories(), st.data())
@settings(max_examples=examples(100))
def test_a_list_that_is_proven_by_its_parent_has_the_entries_of_the_lost_list(case: Lost, data: st.DataObject) -> None:
    own = [s for s in case.lost.stored if s.manifest.added_snapshot_id == 50]
    seen = data.draw(st.permutations([*own, *case.orphans]))
    seen = seen[: data.draw(st.integers(0, len(seen)))]
    proven = proven_by_parent(case.lost.snapshot, case.parent.readable, found(case.lost, seen))
    if not isinstance(proven, Nothing):
        assert rows_of(proven, [*case.parent.stored, *seen]) == case.lost.live


@given(histories())
@settings(max_examples=examples(100))
def test_a_lost_list_is_proven_by_its_parent_where_nothing_else_is_in_the_way(case: Lost) -> None:
    own = [s for s in case.lost.stored if s.manifest.added_snapshot_id == 50]
    proven = proven_by_parent(case.lost.snapshot, case.parent.readable, found(case.lost, own))
    of_data = [s for s in own if s.manifest.content is ManifestContent.DATA and s.manifest.may_have_live_files]
    if case.operation == "replace":
        assert isinstance(proven, Nothing)
        assert proven.reason.endswith("adds a file with an older sequence number")
    elif case.writer.version > 2 and len(of_data) > 1:
        assert isinstance(proven, Nothing)
        assert proven.reason.startswith("it is unknown which row ids")
    else:
        assert not isinstance(proven, Nothing), proven


@given(histories(), st.booleans())
@settings(max_examples=examples(100))
def test_a_list_that_is_proven_by_a_child_has_the_entries_of_the_lost_list(case: Lost, states_totals: bool) -> None:
    lost = case.lost.snapshot
    if not states_totals:
        lost = Snapshot({**lost.raw, "summary": {"operation": "append"}})
    proven = proven_by_child(lost, case.child.snapshot, case.child.listed, case.child.added())
    is_append = all(entry.status is ADDED for manifest in case.child.added() for entry in manifest.entries)
    if case.child.snapshot.operation == "append" and is_append:
        assert not isinstance(proven, Nothing), proven
        assert rows_of(proven, case.lost.stored) == case.lost.live
    else:
        assert isinstance(proven, Nothing)


@given(histories(), st.sampled_from(["total-data-files", "total-records", "added-records", "deleted-data-files"]))
@settings(max_examples=examples(100))
def test_a_summary_that_contradicts_proves_nothing(case: Lost, key: str) -> None:
    own = [s for s in case.lost.stored if s.manifest.added_snapshot_id == 50]
    stated = {**case.lost.snapshot.summary, key: "77"}
    wrong = Snapshot({**case.lost.snapshot.raw, "summary": stated})
    assert isinstance(proven_by_parent(wrong, case.parent.readable, found(case.lost, own)), Nothing)


@given(histories())
@settings(max_examples=examples(50))
def test_a_rebuilt_list_is_read_as_it_was_proven(case: Lost) -> None:
    metadata = TableMetadata(new_document("s3://b/t", case.writer.version))
    data = rebuilt_list(metadata, case.lost.snapshot, case.lost.listed)
    assert decode_manifest_list(data, "s3://b/t/metadata/snap-50.avro") == case.lost.listed
