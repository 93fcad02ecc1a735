"""Other engines that write to the table of a :class:`support.model.world.World`, and its expected rows.

The effect of their commits on rows follows from the files of the rows when the commit lands, as the naive reader sees
them.  A commit of a maintainer keeps all rows.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from icekeeper.commit.attempt import assign_row_ids
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.manifest_write import encode_manifest, encode_manifest_list
from icekeeper.metadata.puffin import encode_puffin
from icekeeper.metadata.table_reader import TableReader
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import DataFile, EntryStatus, FileContent, ManifestContent, ManifestEntry, ManifestFile
from support.model.reader import CHANGED, DATA, EQUALITY, ID, PATH, POSITION, ROW_ID, File, NaiveReader, Row, local
from support.model.world import World
from support.tables import new_document

KEY, PART, VALUE = 2, 3, 4
MAIN = "main"
WRITER = "writer"
_ARROW = {"long": pa.int64(), "int": pa.int32(), "string": pa.string()}
_FIXED = [(ID, "id", "long"), (KEY, "k", "int"), (PART, "part", "string"), (VALUE, "v", "string")]


@dataclass(frozen=True)
class ModelRow:
    """An expected row; its lineage is ``None`` until a snapshot shows it."""

    values: Mapping[int, Any]
    row_id: int | None = None
    changed: int | None = None


Rows = dict[int, ModelRow]
"""Rows by the column with unique values."""
Slow = Callable[[], bool]
"""Commits the prepared change if it is still valid; returns whether it did."""


@dataclass
class Writers:
    """All other engines; ``chance`` decides what each does."""

    world: World
    reader: NaiveReader
    expected: dict[int, Rows] = field(default_factory=dict)
    """The expected rows of every snapshot."""
    by_writers: dict[int, Rows] = field(default_factory=dict)
    """The same for snapshots of writers that are not yet read."""
    trace: list[str] = field(default_factory=list)
    chance: random.Random = field(default_factory=random.Random)
    ids: int = 0
    names: int = 0
    merges_manifests: bool = False
    """Whether a commit merges three manifests of a kind, as Iceberg-Java does by the table's properties."""

    # -- the table

    def create(self, version: int, location: str | None = None, properties: Mapping[str, str] | None = None) -> None:
        """Create a table, by default in a new folder."""
        self.names += 1
        location = location or f"{self.world.warehouse}/t{self.names}"
        fields = [{"id": i, "name": name, "type": kind, "required": i == ID} for i, name, kind in _FIXED]
        schema = {"type": "struct", "schema-id": 0, "fields": fields}
        now_ms = self.world.now_ms()
        document = new_document(location, version, schemas=[schema])
        document |= {"last-column-id": VALUE, "last-updated-ms": now_ms, "properties": dict(properties or {})}
        self.world.location = ""
        self.world.publish(TableMetadata(document), WRITER)

    @property
    def table(self) -> TableMetadata:
        return self.world.table

    @property
    def version(self) -> int:
        return self.table.format_version

    @property
    def columns(self) -> list[Mapping[str, Any]]:
        return list(self.table.current_schema["fields"])

    @property
    def defaults(self) -> dict[int, Any]:
        """Initial defaults by field id, of all schemas."""
        return {
            column["id"]: column["initial-default"]
            for schema in self.table.schemas.values()
            for column in schema["fields"]
            if "initial-default" in column
        }

    def head(self, ref: str = MAIN) -> int | None:
        found = self.table.refs.get(ref)
        return None if found is None else found.snapshot_id

    def manifest_list(self, snapshot_id: int) -> str:
        return str(self.table.snapshots[snapshot_id].manifest_list)

    def files(self) -> list[File]:
        """The live files of ``main``."""
        head = self.head()
        return [] if head is None else self.reader.files(self.manifest_list(head))

    def live(self, snapshot_id: int | None) -> list[Row]:
        if snapshot_id is None:
            return []
        return list(self.reader.rows(self.manifest_list(snapshot_id), self.defaults))

    def entries(self, snapshot_id: int) -> Iterator[tuple[ManifestFile, ManifestEntry]]:
        reader = TableReader(self.table, lambda path: Path(local(path)).read_bytes())
        for manifest, entries in reader.entries(reader.manifests(self.table.snapshots[snapshot_id])):
            yield from ((manifest, entry) for entry in entries)

    def model(self, snapshot_id: int | None) -> Rows:
        return {} if snapshot_id is None else dict(self.expected[snapshot_id])

    def branches(self) -> list[str]:
        return sorted(name for name, ref in self.table.refs.items() if ref.type == "branch")

    def some_branch(self) -> str:
        return self.chance.choice([MAIN, MAIN, *self.branches()])

    def some_spec(self) -> int:
        """Mostly the current spec; late writers use an older spec."""
        specs = sorted(self.table.specs)
        return self.chance.choice([self.table.default_spec_id] * 4 + specs)

    def partition_of(self, spec_id: int, values: Mapping[int, Any]) -> tuple[Any, ...]:
        found = []
        for part in self.table.specs[spec_id]["fields"]:
            value = None if part["transform"] == "void" else values.get(part["source-id"])
            found.append(value[:1] if part["transform"] == "truncate[1]" and value is not None else value)
        return tuple(found)

    # -- files

    def new_rows(self, count: int) -> list[dict[int, Any]]:
        rows = []
        for _ in range(count):
            self.ids += 1
            row: dict[int, Any] = {
                ID: self.ids,
                KEY: self.chance.choice([0, 1, 1, 2, 2, 3, 3, 4, None]),
                PART: self.chance.choice(["a", "a", "b", "ba"]),
            }
            for column in self.columns:
                if column["id"] not in row:
                    value = self.chance.choice([None, 0, 1, 7])
                    row[column["id"]] = value if column["type"] != "string" or value is None else f"v{value}"
            rows.append(row)
        return rows

    def write(
        self, rows: Sequence[Mapping[int, Any]], spec_id: int, *, folder: str | None = None
    ) -> list[tuple[int, DataFile]]:
        """Write one or two data files for each partition, by default to the table's data folder."""
        by_partition: dict[tuple[Any, ...], list[Mapping[int, Any]]] = {}
        for row in rows:
            by_partition.setdefault(self.partition_of(spec_id, row), []).append(row)
        files = []
        for partition, mine in by_partition.items():
            split = self.chance.randrange(len(mine))
            for part in (mine[:split], mine[split:]):
                if part:
                    files.append((spec_id, self._data_file(part, partition, folder)))
        return files

    def _data_file(self, rows: Sequence[Mapping[int, Any]], partition: tuple[Any, ...], folder: str | None) -> DataFile:
        columns = [(c["id"], c["name"], _ARROW[c["type"]]) for c in self.columns]
        if any(ROW_ID in row for row in rows):
            columns += [(ROW_ID, "_row_id", pa.int64()), (CHANGED, "_last_updated_sequence_number", pa.int64())]
        path, size = self._parquet("data", columns, rows, folder)
        counts = lower = upper = nulls = None
        if self.chance.random() < 0.7:
            counts, nulls = {ID: len(rows), KEY: len(rows)}, {ID: 0, KEY: sum(row[KEY] is None for row in rows)}
            keys, numbers = [row[KEY] for row in rows if row[KEY] is not None], [row[ID] for row in rows]
            width = "<q" if {c["id"]: c["type"] for c in self.columns}[KEY] == "long" else "<i"
            lower, upper = {ID: struct.pack("<q", min(numbers))}, {ID: struct.pack("<q", max(numbers))}
            if keys:
                lower[KEY], upper[KEY] = struct.pack(width, min(keys)), struct.pack(width, max(keys))
        return DataFile(
            content=FileContent.DATA,
            file_path=path,
            file_format="PARQUET",
            partition=partition,
            record_count=len(rows),
            file_size_in_bytes=size,
            value_counts=counts,
            null_value_counts=nulls,
            lower_bounds=lower,
            upper_bounds=upper,
        )

    def _parquet(
        self,
        name: str,
        columns: Sequence[tuple[int, str, pa.DataType]],
        rows: Iterable[Mapping[int, Any]],
        folder: str | None = None,
    ) -> tuple[str, int]:
        self.names += 1
        path = f"{folder or self.table.data_location}/{name}-{self.names}.parquet"
        fields = [pa.field(n, kind, metadata={"PARQUET:field_id": str(i)}) for i, n, kind in columns]
        rows = list(rows)
        arrays = [pa.array([row.get(i) for row in rows], kind) for i, _, kind in columns]
        Path(local(path)).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(
            pa.Table.from_arrays(arrays, schema=pa.schema(fields)),
            local(path),
            row_group_size=self.chance.choice([1, 2, 100]),
        )
        return path, Path(local(path)).stat().st_size

    def key_file(
        self, spec_id: int, partition: tuple[Any, ...], ids: Sequence[int], keys: Sequence[Mapping[int, Any]]
    ) -> tuple[int, DataFile]:
        """Write an equality delete file."""
        columns = [(c["id"], c["name"], _ARROW[c["type"]]) for c in self.columns if c["id"] in ids]
        path, size = self._parquet("keys", columns, keys)
        return spec_id, DataFile(
            content=FileContent.EQUALITY_DELETES,
            file_path=path,
            file_format="PARQUET",
            partition=partition,
            record_count=len(keys),
            file_size_in_bytes=size,
            equality_ids=tuple(ids),
        )

    def position_files(
        self, rows: Sequence[Row], snapshot_id: int
    ) -> tuple[list[tuple[int, DataFile]], set[tuple[str, int | None]]]:
        """Write delete files for these rows; in v3 vectors, with the delete files that they absorb."""
        by_file: dict[File, set[int]] = {}
        for row in rows:
            by_file.setdefault(row.file, set()).add(row.position)
        if self.version > 2:
            return self._vectors(by_file, snapshot_id)
        by_partition: dict[tuple[int, tuple[Any, ...]], list[tuple[str, int]]] = {}
        for file, positions in by_file.items():
            found = by_partition.setdefault((file.spec_id, file.partition), [])
            found += [(file.path, position) for position in positions]
        files = []
        for (spec_id, partition), pairs in by_partition.items():
            columns = [(PATH, "file_path", pa.string()), (POSITION, "pos", pa.int64())]
            path, size = self._parquet("positions", columns, [{PATH: p, POSITION: n} for p, n in sorted(pairs)])
            paths = sorted({p for p, _ in pairs})
            has_bounds = self.chance.random() < 0.7
            only = paths[0] if len(paths) == 1 and self.chance.random() < 0.5 else None
            files.append(
                (
                    spec_id,
                    DataFile(
                        content=FileContent.POSITION_DELETES,
                        file_path=path,
                        file_format="PARQUET",
                        partition=partition,
                        record_count=len(pairs),
                        file_size_in_bytes=size,
                        lower_bounds={PATH: paths[0].encode()} if has_bounds else None,
                        upper_bounds={PATH: paths[-1].encode()} if has_bounds else None,
                        referenced_data_file=only,
                    ),
                )
            )
        return files, set()

    def _vectors(
        self, by_file: Mapping[File, set[int]], snapshot_id: int
    ) -> tuple[list[tuple[int, DataFile]], set[tuple[str, int | None]]]:
        files = self.reader.files(self.manifest_list(snapshot_id))
        merged, absorbed, of_file = [], set(), {}
        for file, positions in by_file.items():
            if file.path in of_file:  # listed twice
                continue
            bitmap = BitMap64(positions)
            old = next((item for item in files if item.format == "PUFFIN" and item.referenced == file.path), None)
            if old is not None:
                bitmap |= self.reader.vector(old)
                absorbed.add(old.key)
            else:  # older than the upgrade: the vector includes their positions
                bitmap |= BitMap64(
                    self.reader.positions(file, [f for f in files if f.content == 1 and f.format != "PUFFIN"])
                )
            merged.append((file.path, bitmap))
            of_file[file.path] = file
        data, blobs = encode_puffin(merged, {})
        self.names += 1
        path = f"{self.table.data_location}/vectors-{self.names}.puffin"
        Path(local(path)).write_bytes(data)
        added = [
            (
                of_file[data_path].spec_id,
                DataFile(
                    content=FileContent.POSITION_DELETES,
                    file_path=path,
                    file_format="PUFFIN",
                    partition=of_file[data_path].partition,
                    record_count=len(bitmap),
                    file_size_in_bytes=len(data),
                    referenced_data_file=data_path,
                    content_offset=blob.offset,
                    content_size_in_bytes=blob.length,
                ),
            )
            for (data_path, bitmap), blob in zip(merged, blobs, strict=True)
        ]
        return added, absorbed

    # -- commits

    def commit(
        self,
        branch: str,
        operation: str,
        rows: Rows,
        *,
        added: Sequence[tuple[int, DataFile]] = (),
        removed: Iterable[tuple[str, int | None]] = (),
        sequence_number: int | None = None,
        replaces_table: bool = False,
        is_staged: bool = False,
        summary: Mapping[str, str] | None = None,
    ) -> None:
        """Commit a snapshot on the head of a branch, whose rows must then be ``rows``.

        ``sequence_number``: the data sequence number of added data files, by default the commit's.  A staged
        snapshot is in the table, but in no branch.
        """
        table, removed = self.table, set(removed)
        parent = None if replaces_table else self.head(branch)
        self.names += 1
        number = table.last_sequence_number + 1 if table.format_version > 1 else 0
        snapshot_id = self.chance.getrandbits(62) >> 16 << 16 | self.names
        manifests: list[ManifestFile] = []
        live: dict[tuple[int, ManifestContent], list[ManifestEntry]] = {}
        reader = TableReader(table, lambda path: Path(local(path)).read_bytes())
        old = [] if parent is None else reader.manifests(table.snapshots[parent])
        kinds = Counter((manifest.partition_spec_id, manifest.content) for manifest in old)
        for manifest, entries in reader.entries(old):
            found = [entry for entry in entries if entry.is_live]
            is_merged = self.merges_manifests and kinds[manifest.partition_spec_id, manifest.content] > 2
            if not (is_merged or any(entry.file.key in removed for entry in found)):
                manifests.append(manifest)
                continue
            for entry in found:
                gone = entry.file.key in removed
                status = EntryStatus.DELETED if gone else EntryStatus.EXISTING
                changed = replace(entry, status=status, snapshot_id=snapshot_id if gone else entry.snapshot_id)
                live.setdefault((manifest.partition_spec_id, manifest.content), []).append(changed)
        for spec_id, file in added:
            is_data = file.content is FileContent.DATA
            of_file = sequence_number if is_data else None
            entry = ManifestEntry(EntryStatus.ADDED, snapshot_id, of_file, None, file)
            live.setdefault((spec_id, ManifestContent(not is_data)), []).append(entry)
        for (spec_id, content), listed in live.items():
            self.names += 1
            path = f"{table.metadata_directory}/writer-m{self.names}.avro"
            encoded = encode_manifest(
                table,
                spec_id=spec_id,
                content=content,
                entries=listed,
                path=path,
                snapshot_id=snapshot_id,
                sequence_number=number,
            )
            Path(local(path)).write_bytes(encoded.data)
            manifests.append(encoded.manifest)
        self.by_writers[snapshot_id] = rows
        self._land(
            None if is_staged else branch,
            {"operation": operation, **(summary or {})},
            manifests,
            parent,
            snapshot_id,
            number,
        )

    def _land(
        self,
        branch: str | None,
        summary: Mapping[str, str],
        manifests: Sequence[ManifestFile],
        parent: int | None,
        snapshot_id: int,
        number: int,
    ) -> None:
        table = self.table
        lineage: dict[str, int] = {}
        if table.format_version > 2:
            first = table.next_row_id
            manifests, next_row_id = assign_row_ids(manifests, first)
            lineage = {"first-row-id": first, "added-rows": next_row_id - first}
        path = f"{table.metadata_directory}/snap-{snapshot_id}-writer.avro"
        encoded = encode_manifest_list(
            table.format_version,
            manifests,
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent,
            sequence_number=number,
            first_row_id=lineage.get("first-row-id"),
        )
        Path(local(path)).write_bytes(encoded)
        snapshot = {
            "snapshot-id": snapshot_id,
            **({"sequence-number": number} if number else {}),
            "timestamp-ms": max(self.world.now_ms(), table.last_updated_ms),
            "manifest-list": path,
            "summary": dict(summary),
            "schema-id": table.current_schema_id,
            **({} if parent is None else {"parent-snapshot-id": parent}),
            **lineage,
        }
        updates: list[Mapping[str, Any]] = [{"action": "add-snapshot", "snapshot": snapshot}]
        if branch is not None:
            ref = (table.document.get("refs") or {}).get(branch) or {"type": "branch"}
            moved = {**ref, "snapshot-id": snapshot_id}
            updates.append({"action": "set-snapshot-ref", "ref-name": branch, **moved})
        now_ms = self.world.now_ms()
        after = apply_updates(table, updates, metadata_location=self.world.location, now_ms=now_ms)
        self.trace.append(f"{WRITER}: {summary['operation']} {snapshot_id} on {branch}")
        self.world.publish(after, WRITER)

    # -- validation of a writer's earlier read (Iceberg-Java's ``MergingSnapshotProducer``)

    def since(self, branch: str, start: int) -> list[int] | None:
        """The snapshots of a branch after ``start``; ``None`` if it is not a known ancestor."""
        found, now = [], self.head(branch)
        while now != start:
            if now is None or now not in self.table.snapshots:
                return None
            found.append(now)
            now = self.table.snapshots[now].parent_id
        return found

    def still_live(self, branch: str, files: Iterable[File]) -> bool:
        head = self.head(branch)
        return head is not None and set(files) <= set(self.reader.files(self.manifest_list(head)))

    def new_deletes(self, branch: str, start: int, files: Iterable[File], *, equality: bool) -> bool:
        """Whether snapshots after ``start`` added deletes of these files.  As Java, check only snapshots of operations
        ``overwrite`` and ``delete``, and deletes newer than ``start``."""
        between = self.since(branch, start)
        if between is None:
            return True
        started = self.table.snapshots[start].sequence_number or 0 if start in self.table.snapshots else 0
        files = list(files)
        for snapshot_id in between:
            if self.table.snapshots[snapshot_id].summary.get("operation") not in ("overwrite", "delete"):
                continue
            for delete in self._added_deletes(snapshot_id):
                if delete.sequence_number <= started:
                    continue
                if any(self._may_reach(delete, file, equality=equality) for file in files):
                    return True
        return False

    def new_keys(self, branch: str, start: int) -> bool:
        """Whether snapshots after ``start`` added any equality delete."""
        between = self.since(branch, start)
        return between is None or any(
            delete.content == EQUALITY for snapshot_id in between for delete in self._added_deletes(snapshot_id)
        )

    def _added_deletes(self, snapshot_id: int) -> set[File]:
        parent = self.table.snapshots[snapshot_id].parent_id
        known = [i for i in (parent,) if i is not None and i in self.table.snapshots]
        before = {file for i in known for file in self.reader.files(self.manifest_list(i))}
        return {file for file in self.reader.files(self.manifest_list(snapshot_id)) if file.content != DATA} - before

    def _may_reach(self, delete: File, file: File, *, equality: bool) -> bool:
        same = (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
        if delete.content == EQUALITY:
            return equality and (same or not delete.partition)
        if delete.format == "PUFFIN":
            return delete.referenced == file.path
        return same and any(row[PATH] == file.path for row in self.reader.columns(delete.path))


def without(rows: Rows, gone: Iterable[Row]) -> Rows:
    """The model without these rows."""
    ids = {row.id for row in gone}
    return {i: row for i, row in rows.items() if i not in ids}


def with_new(rows: Rows, new: Iterable[Mapping[int, Any]]) -> Rows:
    """The model with rows that a writer adds."""
    return {**rows, **{row[ID]: ModelRow(row) for row in new}}
