"""Fuzzed formats: every format that Icekeeper reads, with sound files and Icekeeper's readers.

This module has data files, delete files and files of users; ``metadata_targets`` has metadata.
"""

from __future__ import annotations

import builtins
import io
import json
import random
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc
from pyroaring import BitMap64

from icekeeper.errors import FileUnreadable, MaintenanceError, MetadataUnreadable, StorageError
from icekeeper.metadata.document_files import parse_document
from icekeeper.metadata.manifest_read import decode_manifest, decode_manifest_list
from icekeeper.model import DataFile, FileContent, ManifestFile
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.policy.policy_file import parse_policy_file
from icekeeper.row_group_copy.footer_structs import CannotCopy, NotCopyable
from icekeeper.row_group_copy.merge_files import copyable_file
from icekeeper.rows.apply_deletes import position_rows
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.file_rows import projected_rows
from icekeeper.rows.read import Tally, read_rows
from icekeeper.rows.read_task import DeleteFile, InputFile, ReadableFile, ReadTask
from support.copied import (
    Input,
    entry_of,
    lineage_file,
    lineage_target,
    merged,
    mixed_rows,
    parquet_file,
    resolved,
    target_of,
)
from support.deletes import commit_deletes, create_by_region, position_delete
from support.hostile.avro import gzipped, uncompressed
from support.hostile.metadata_targets import (
    FIELDS,
    STORAGE,
    Target,
    deletion_vector,
    manifest,
    manifest_list,
    metadata_json,
    puffin_footer,
    sketch,
)
from support.maintained_table import NAME, MaintainedTable, local_path, maintained_table
from support.rewrites import rows as rows_of
from support.rewrites import struct as iceberg_struct

ROWS = 60
VALUES: Mapping[str, Sequence[Any]] = {
    "id": range(ROWS),
    "cost": [None if n % 7 == 3 else Decimal(n) / 4 for n in range(ROWS)],
    "tags": [["a", None][: n % 3] for n in range(ROWS)],
    "by": [[("k", n)][: n % 2] for n in range(ROWS)],
    "point": [{"x": n / 2, "day": n} for n in range(ROWS)],
    "at": range(ROWS),
    "raw": [b"\0\xff" * (n % 4) for n in range(ROWS)],
    "flag": [n % 3 == 0 for n in range(ROWS)],
    "name": [f"text {n % 5}" for n in range(ROWS)],
}


# Data and delete files.


def _format_of(data: bytes) -> str:
    return {b"Obj": "AVRO", b"ORC": "ORC"}.get(data[:3], "PARQUET")


def _parquet(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=25, **options)
    return sink.getvalue()


def _orc(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    orc.write_table(_with_orc_ids(table), sink, compression="uncompressed", stripe_size=4096)
    return sink.getvalue()


def _with_orc_ids(table: pa.Table) -> pa.Table:
    def named(field: pa.Field) -> pa.Field:
        return field.with_metadata({"iceberg.id": (field.metadata or {}).get(b"PARQUET:field_id", b"0").decode()})

    return table.cast(pa.schema([named(field) for field in table.schema]))


def _avro(schema: Any, records: Sequence[Mapping[str, Any]]) -> bytes:
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(json.loads(json.dumps(schema))), records, codec="null")
    return sink.getvalue()


AVRO_SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "table",
    "fields": [
        {"name": "id", "type": "long", "field-id": 1},
        {
            "name": "cost",
            "type": [
                "null",
                {"type": "fixed", "name": "d", "size": 4, "logicalType": "decimal", "precision": 9, "scale": 2},
            ],
            "field-id": 2,
        },
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"], "element-id": 4}, "field-id": 3},
        {"name": "by", "type": {"type": "map", "values": "int", "key-id": 6, "value-id": 7}, "field-id": 5},
        {
            "name": "point",
            "type": {
                "type": "record",
                "name": "r8",
                "fields": [
                    {"name": "x", "type": "double", "field-id": 9},
                    {"name": "day", "type": {"type": "int", "logicalType": "date"}, "field-id": 10},
                ],
            },
            "field-id": 8,
        },
        {
            "name": "at",
            "type": {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True},
            "field-id": 11,
        },
        {"name": "raw", "type": ["null", "bytes"], "field-id": 12},
        {"name": "flag", "type": "boolean", "field-id": 13},
        {"name": "name", "type": "string", "field-id": 14},
    ],
}


def _avro_rows() -> bytes:
    records = [{name: values[n] for name, values in VALUES.items()} for n in range(20)]
    return _avro(AVRO_SCHEMA, [{**r, "by": dict(r["by"]), "at": 1} for r in records])


def data_rows(folder: Path, file_format: str) -> Target:
    path = folder / "f"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        try:
            for batch in projected_rows(ReadableFile(str(path), file_format), FIELDS, STORAGE):
                assert batch.schema.equals(arrow_schema(FIELDS))
                batch.validate()
        except FileUnreadable as error:
            if str(path) not in str(error):
                raise AssertionError("the message does not name the file") from error
            raise

    table = rows_of(FIELDS, VALUES)
    seeds = {
        "PARQUET": [
            _parquet(table, compression="none"),
            _parquet(table, compression="zstd", data_page_version="2.0"),
            _parquet(table, compression="snappy", use_dictionary=False, write_page_index=True),
        ],
        "ORC": [_orc(table), _orc(table.slice(0, 0))],
        "AVRO": [_avro_rows()],
    }
    return Target(seeds[file_format], read)


def _deletes() -> pa.Table:
    ids = [{"PARQUET:field_id": str(number), "iceberg.id": str(number)} for number in (2147483546, 2147483545)]
    fields = [pa.field("file_path", pa.string(), False, ids[0]), pa.field("pos", pa.int64(), False, ids[1])]
    return pa.table([pa.array(["s3://b/d1"] * 30 + ["s3://b/d2"] * 30), pa.array([*range(30)] * 2)], pa.schema(fields))


def position_deletes(folder: Path) -> Target:
    path = folder / "p"

    def read(data: bytes) -> None:
        path.write_bytes(data)
        for count, by_path in position_rows(str(path), _format_of(data), STORAGE):
            assert sum(len(positions) for _, positions in by_path) <= count
            for named, positions in by_path:
                BitMap64().update(positions.to_pylist())
                assert isinstance(named, str)

    record = {"type": "record", "name": "deletes", "fields": [
        {"name": "file_path", "type": "string", "field-id": 2147483546},
        {"name": "pos", "type": "long", "field-id": 2147483545},
    ]}  # fmt: skip
    avro = _avro(record, _deletes().to_pylist())
    return Target([_parquet(_deletes(), compression="none"), _orc(_deletes()), avro], read)


def equality_deletes(folder: Path) -> Target:
    """Rows of a sound file, from which a damaged delete file removes some."""
    keys = iceberg_struct((1, "id", "long"), (14, "name", "string"))
    path, source = folder / "e", folder / "sound.parquet"
    table = rows_of(FIELDS, VALUES)
    source.write_bytes(_parquet(table, compression="none"))
    file = InputFile(str(source), ROWS, source.stat().st_size, deletes=(0,))

    def read(data: bytes) -> None:
        path.write_bytes(data)
        delete = DeleteFile(
            path=str(path),
            file_format=_format_of(data),
            content=FileContent.EQUALITY_DELETES,
            sequence_number=1,
            record_count=4,
            equality_ids=(1, 14),
        )
        tally = Tally()
        task = ReadTask(inputs=(file,), schema=keys, deletes=(delete,), io_properties={})
        live = sum(batch.num_rows for batch in read_rows(task, STORAGE, tally))
        assert (tally.read, tally.live) == (ROWS, live)

    some: Mapping[str, Any] = {"id": [1, 2, 3, None], "name": ["text 1", "text 2", "other", None]}
    made = rows_of(keys, some)
    record = {"type": "record", "name": "keys", "fields": [
        {"name": "id", "type": ["null", "long"], "field-id": 1},
        {"name": "name", "type": ["null", "string"], "field-id": 14},
    ]}  # fmt: skip
    return Target([_parquet(made, compression="none"), _orc(made), _avro(record, made.to_pylist())], read)


def parquet_footer(folder: Path) -> Target:
    """A copy of the file between two sound files has the rows that a reader finds in them, or the file is refused.

    Pages are short, so that changed bytes often hit headers and indexes.
    """
    path, beside, copy = (folder / f"{name}.parquet" for name in ("f", "beside", "copy"))
    whole = Input(entry_of(parquet_file(beside, mixed_rows(0, 40)), first_row_id=100), 3)
    options: Sequence[Mapping[str, Any]] = (
        {},
        {"write_page_checksum": True},
        {"bloom_filter_options": {"text": {"ndv": 20, "fpp": 0.1}}},
        {"data_page_version": "2.0", "use_dictionary": False},
        {"row_group_size": 1000, "write_page_index": False},
    )
    seeds = [parquet_file(path, mixed_rows(0, 40), **more).read_bytes() for more in options]
    for nulls in (range(0), range(0, 40, 6)):
        ids = [None if n in nulls else 700 + n for n in range(40)]
        lineage_file(path, 0, (ids, ids))
        seeds.append(path.read_bytes())

    def read(data: bytes) -> None:
        path.write_bytes(data)
        copy.unlink(missing_ok=True)
        chance = random.Random(data)  # the bytes alone repeat a failure
        target = lineage_target() if b"_row_id" in data or chance.random() < 0.5 else target_of()
        entry = entry_of(beside, file_path=str(path), file_size_in_bytes=len(data), first_row_id=5000)
        file = copyable_file(entry, target, STORAGE, 9)
        groups = [] if isinstance(file, NotCopyable) else [group.number for group in file.groups]
        inputs = [whole, Input(entry, 9, chance.choice([None, None, groups[:1], groups[1:]])), whole]
        try:
            made = merged(inputs, copy, target)
        except StorageError as error:
            # Pages are damaged, or only decoding disproves the claim about row ids.
            if "row group" not in str(error) and _rows(path) is not None:
                raise AssertionError("a file that Arrow can read fails the copy") from error
            raise
        if not isinstance(made, DataFile):
            assert not copy.exists()
            assert str(made).startswith(f"{path} ")
            raise CannotCopy(str(made))
        _assert_copied(inputs, made)

    return Target(seeds, read, (MaintenanceError, CannotCopy))


def _assert_copied(inputs: Sequence[Input], made: DataFile) -> None:
    """Arrow reads the same rows from the copy; pages that it cannot decode are copied unchanged."""
    changed, copy = inputs[1], _rows(Path(made.file_path))
    if _rows(Path(changed.entry.file_path)) is None:
        assert copy is None or changed.only is not None
        return
    assert copy is not None, "the copy cannot be read"
    assert copy.num_rows == made.record_count
    try:
        found = [row for source in inputs for row in resolved(source)]
    except (OverflowError, ValueError):  # a damaged date or time outside of Python's range
        return
    assert copy.equals(pa.Table.from_pylist(found, schema=copy.schema)), "a copy has other rows"


def _rows(path: Path) -> pa.Table | None:
    """The rows of a file; ``None`` if Arrow cannot decode them."""
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, MemoryError):
        return None
    return table


# Files of users: inventories of a bucket, and the policy.

INVENTORY = b"path,size,last_modified\n" + b"s3://b/t/f,1,2026-01-01T00:00:00Z\n" * 20
POLICY = b"rules:\n- namespace: sales\n  settings:\n    operations: compact\n    target_file_size_mb: 64\n"


def inventory(folder: Path) -> Target:
    def read(data: bytes) -> None:
        ending = {b"PAR1": "parquet", b"\x1f\x8b\x08\0": "csv.gz"}.get(data[:4], "csv")
        path = folder / f"inventory.{ending}"
        path.write_bytes(data)
        for _found in InventoryFiles(STORAGE, str(path), "s3://b/t").objects():
            pass

    files = pa.table({"path": ["s3://b/t/f"] * 20, "size": range(20)})
    return Target([INVENTORY, gzipped(INVENTORY), _parquet(files)], read)


def policy_file(_: Path) -> Target:
    return Target([POLICY], lambda data: parse_policy_file(data.decode(errors="replace"), "P"))


# A pass over a table with a damaged file keeps the files that the damage hides from it
# (rule: prove-before-commit).

_SWEEP = "expire_snapshots,remove_orphans"


class DamagedTable:
    """A local table with snapshots to expire and an orphan; a metadata file is damaged and restored."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "table"
        self._opened = ExitStack()
        self.table = self._opened.enter_context(maintained_table(self.folder))
        create_by_region(self.table, 1)
        data = next(file for file in self.table.data_files() if file.partition == ("us",))
        commit_deletes(self.table, [position_delete(data.file_path, 1, "us")])
        self.table.plant("data/orphan.parquet")
        self.pointer = self.table.metadata_location
        head = self.table.metadata.current_snapshot
        assert head is not None
        manifests = self.table.reader.manifests(head)
        places = {"json": self.pointer, "list": head.manifest_list or ""}
        places |= {manifest.content.name: manifest.manifest_path for manifest in manifests}
        self.places = {kind: local_path(path) for kind, path in places.items()}
        for path in self.places.values():
            if path.suffix == ".avro":
                path.write_bytes(uncompressed(path.read_bytes()))
        self.sound = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        self.may_go = self.deleted_by_pass()

    def seeds(self) -> list[bytes]:
        return [self.sound[path] for path in self.places.values()]

    def read(self, data: bytes) -> None:
        kind = _kind_of(data)
        self.places[kind].write_bytes(data)
        refused = _is_refused(kind, data)
        for look in (self.table.runtime.verify, self.table.runtime.afresh.health):
            with suppress(MaintenanceError):
                look(NAME)
        gone = self.deleted_by_pass()
        if refused:
            assert gone <= self.may_go, f"deleted although the {kind} cannot be read: {gone - self.may_go}"

    def deleted_by_pass(self) -> set[Path]:
        """The files that a pass deletes; afterwards, the table is restored."""
        sentences: list[str] = []
        try:
            with TemporaryDirectory(dir=self.folder.parent) as state:
                outcome = MaintainedTable(self.table.catalog.inner, Path(state)).maintain(_SWEEP)
                sentences = [part.reason or "" for part in outcome.operations]
        except MaintenanceError as error:
            sentences = [str(error)]
        finally:
            gone = {path for path in self.sound if not path.exists()}
            self._put_back()
        for sentence in sentences:
            if "\n" in sentence or sentence.partition(":")[0] in vars(builtins):
                raise ValueError(f"an error without a name: {sentence}")
        return gone

    def _put_back(self) -> None:
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.sound and not path.name.startswith("catalog.db"):
                path.unlink()
        for path, data in self.sound.items():
            if not path.name.startswith(("catalog.db", "state.db")):
                path.write_bytes(data)
        with closing(sqlite3.connect(self.folder / "catalog.db")) as connection:
            connection.execute("UPDATE iceberg_tables SET metadata_location = ?", (self.pointer,))
            connection.commit()


def _kind_of(data: bytes) -> str:
    """The file of the table from which the bytes were made."""
    if not data.startswith(b"Obj"):
        return "json"
    if b'"manifest_path"' in data:
        return "list"
    return "DELETES" if b"\x0edeletes" in data else "DATA"


def _is_refused(kind: str, data: bytes) -> bool:
    listed = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
    try:
        if kind == "json":
            parse_document(data, "m")
        elif kind == "list":
            decode_manifest_list(data, "m")
        else:
            list(decode_manifest(data, listed, {"spec-id": 0, "fields": []}))
    except MetadataUnreadable:
        return True
    return False


def damaged_table(folder: Path) -> Target:
    table = DamagedTable(folder)
    return Target(table.seeds(), table.read, deletes=True)


TARGETS: Mapping[str, Callable[[Path], Target]] = {
    "metadata.json": metadata_json,
    "manifest list": manifest_list,
    "manifest": manifest,
    "Puffin footer": puffin_footer,
    "deletion vector": deletion_vector,
    "sketch": sketch,
    "position deletes": position_deletes,
    "equality deletes": equality_deletes,
    "Avro rows": lambda folder: data_rows(folder, "AVRO"),
    "Parquet rows": lambda folder: data_rows(folder, "PARQUET"),
    "Parquet footer": parquet_footer,
    "ORC rows": lambda folder: data_rows(folder, "ORC"),
    "inventory": inventory,
    "policy file": policy_file,
    "damaged table": damaged_table,
}
