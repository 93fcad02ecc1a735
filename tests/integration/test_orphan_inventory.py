"""Orphans from an inventory instead of a listing, and the comparison by an engine's workers."""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.engines.engine import Engine
from icekeeper.engines.local_engine import LocalEngine
from icekeeper.engines.spark import SparkEngine
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.metadata.table_reader import References
from icekeeper.operations.orphans import remove_orphans
from icekeeper.operations.orphans import remove_orphans as compare_listing
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.orphan_rules import OrphanCandidates, find_candidates, live_files
from icekeeper.operations.orphans.remove_orphans import compare_by_engine
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import SourcePart, Storage
from local_stack.moto_server import MotoServer
from support.maintained_table import MaintainedTable, grow_old, new_table
from support.moments import Moment, at

# Orphans from an inventory instead of a listing: S3 Inventory in its three formats, handwritten CSV, plain text.

OLD = datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)
OLD_MS = int(OLD.timestamp() * 1000)
LOCATION = "s3://lake/ns/t"
# The columns of a report: bucket, key, version, latest, delete marker, size, modified.
ROWS: list[tuple[str, str, str, bool, bool, int | None, datetime]] = [
    ("lake", "ns/t/data/a b+c%41.parquet", "v1", True, False, 7, OLD),
    ("lake", "ns/t/data/old version.parquet", "v0", False, False, 7, OLD),
    ("lake", "ns/t/data/deleted.parquet", "v2", True, True, None, OLD),
    ("lake", "ns/t2/data/other.parquet", "v1", True, False, 7, OLD),
]
FOUND = [ListedObject(f"{LOCATION}/data/a b+c%41.parquet", 7, OLD_MS)]


def arrow() -> pa.Table:
    names = ["bucket", "key", "version_id", "is_latest", "is_delete_marker", "size", "last_modified_date"]
    columns = [list(column) for column in zip(*ROWS, strict=True)]
    columns[-1] = [pa.scalar(moment, pa.timestamp("ms", "UTC")).as_py() for moment in columns[-1]]
    return pa.table(dict(zip(names, columns, strict=True)))


def csv_lines(*, header: bool) -> bytes:
    """The lines of a CSV report, with URL-encoded keys."""
    lines = [
        f'"{bucket}","{quote_plus(key, safe="/")}","{version}","{str(latest).lower()}","{str(gone).lower()}",'
        f'"{"" if size is None else size}","{modified:%Y-%m-%dT%H:%M:%S}.000Z"'
        for bucket, key, version, latest, gone, size, modified in ROWS
    ]
    first = ["Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate"] if header else []
    return "\n".join([*first, *lines]).encode()


SCHEMA = "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate"


def report(folder: Path, kind: str) -> str:
    """A local copy of an inventory report: manifest and data as in the bucket."""
    data, there = folder / "config" / "data", folder / "config" / "2024-01-03T00-00Z"
    data.mkdir(parents=True)
    there.mkdir()
    if kind == "CSV":
        name = "part.csv.gz"
        (data / name).write_bytes(gzip.compress(csv_lines(header=False)))
    elif kind == "Parquet":
        name = "part.parquet"
        pq.write_table(arrow(), data / name)
    else:
        name = "part.orc"
        orc.write_table(arrow(), data / name)
    schema = SCHEMA if kind == "CSV" else "message s3.inventory { required binary bucket (UTF8); }"
    manifest = {
        "sourceBucket": "lake",
        "destinationBucket": "arn:aws:s3:::inventories",
        "version": "2016-11-30",
        "fileFormat": kind,
        "fileSchema": schema,
        "files": [{"key": f"lake/config/data/{name}", "size": 1, "MD5checksum": "x"}],
    }
    (there / "manifest.json").write_text(json.dumps(manifest))
    return str(there / "manifest.json")


def read(address: str | Path, location: str = LOCATION) -> list[ListedObject]:
    return list(InventoryFiles(Storage({}), str(address), location).objects())


@pytest.mark.parametrize("kind", ["CSV", "Parquet", "ORC"])
def test_a_report_is_read_by_its_manifest(kind: str, tmp_path: Path) -> None:
    """Old versions, delete markers and other tables' files are skipped; paths are spelled like the location."""
    manifest, location = report(tmp_path, kind), LOCATION.replace("s3://", "s3a://")
    assert read(manifest) == FOUND
    assert [found.path for found in read(manifest, location)] == [f"{location}/data/a b+c%41.parquet"]
    if kind != "CSV":  # other formats contain their column names
        assert read(next((tmp_path / "config" / "data").iterdir())) == FOUND


@pytest.mark.parametrize("name", ["list.csv", "list.csv.gz"])
def test_handwritten_csv_names_its_columns(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    data = csv_lines(header=True)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert read(path) == FOUND
    path = tmp_path / "paths.csv"
    path.write_text(f"path,size,last_modified\n{LOCATION}/data/a%20b,3,{OLD.isoformat()}\n{LOCATION}/data/c,4,\n")
    assert read(path) == [
        ListedObject(f"{LOCATION}/data/a%20b", 3, OLD_MS),
        ListedObject(f"{LOCATION}/data/c", 4, None),
    ]


def test_a_text_file_has_no_ages(tmp_path: Path) -> None:
    path = tmp_path / "files.txt"
    path.write_text(f"{LOCATION}/data/a b\n\ns3://lake/elsewhere\n{LOCATION}/data/ü\r\n")
    assert read(path) == [ListedObject(f"{LOCATION}/data/{name}", 0, None) for name in ("a b", "ü")]


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.csv", b"lake,ns/t/data/f,3\n", "has no column key"),
        ("a.csv", b"key,size\nns/t/data/f,3\n", "has no column bucket"),
        ("a.csv", b"path,size\ns3://lake/ns/t/f,many\n", "ValueError"),
        ("a.csv", b"path,last_modified\ns3://lake/ns/t/f,yesterday\n", "ValueError"),
        ("a.csv.gz", gzip.compress(b"path\n" + b"x" * 1000)[:-30], "EOFError"),
        ("a.parquet", b"no parquet", "ArrowInvalid"),
        ("a.txt", b"\xff\xfe", "UnicodeDecodeError"),
        ("manifest.json", b"{}", "not a manifest"),
        ("manifest.json", b"[", "not a manifest"),
    ],
)
def test_a_malformed_inventory_fails_with_a_sentence(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(PolicyError, match=words) as refusal:
        read(tmp_path / name)
    assert "orphan_inventory" in str(refusal.value)


# -- a sweep by an inventory


def sweep(table: MaintainedTable, inventory: Path, **more: Any) -> OperationOutcome:
    settings = {"orphan_older_than_hours": "72", "orphan_inventory": str(inventory), **more}
    return table.run(Operation.REMOVE_ORPHANS, **settings)


def write_list(folder: Path, paths: Sequence[str], moment: datetime = OLD) -> Path:
    path = folder / "list.csv"
    path.write_text("path,size,last_modified\n" + "".join(f"file://{p},1,{moment.isoformat()}\n" for p in paths))
    return path


def test_the_inventory_names_the_candidate_files(
    old_table: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = old_table
    named, unnamed = table.plant("data/named.parquet"), table.plant("data/unnamed.parquet")
    inventory = write_list(tmp_path, [*table.files() - {unnamed}, "/elsewhere/f"])
    dry = sweep(table, inventory, dry_run=True)
    outcome = sweep(table, inventory)
    assert [*map(normalise, outcome.files_deleted)] == [*map(normalise, dry.files_planned)] == [named]
    assert outcome.metrics["remove_orphans.files_listed"] == len(table.files())
    assert unnamed in table.files()

    # A file created again since the inventory is kept; a missing file is not an orphan.
    again, gone = table.plant("data/again.parquet"), table.plant("data/gone.parquet")
    inventory = write_list(tmp_path, [*table.files() - {unnamed}])
    table.plant("data/again.parquet", days_old=0)
    Path(gone).unlink()
    outcome = sweep(table, inventory)
    assert outcome.files_planned == ()
    assert again in table.files()

    # A file created again just before its batch is kept, too.
    again, orphan = table.plant("data/again.parquet"), table.plant("data/orphan.parquet")
    inventory = write_list(tmp_path, [*table.files() - {unnamed}])
    status: Callable[..., Any] = Storage.status
    looked_at: list[str] = []

    def created_meanwhile(self: Storage, path: str) -> Any:
        found = status(self, path)
        looked_at.append(path)
        if looked_at.count(path) == 1 and path.endswith("again.parquet"):
            grow_old([Path(again)], 0)
        return found

    monkeypatch.setattr(Storage, "status", created_meanwhile)
    outcome = sweep(table, inventory)
    assert {*map(normalise, outcome.files_planned)} == {again, orphan}
    assert {*map(normalise, outcome.files_deleted)} == {orphan}
    assert again in table.files()


def test_an_unusable_inventory_deletes_nothing(old_table: MaintainedTable, tmp_path: Path) -> None:
    """An inventory without times, of another location, malformed, or missing."""
    orphan, text = old_table.plant("data/orphan.parquet"), tmp_path / "files.txt"
    text.write_text("\n".join(f"file://{path}" for path in old_table.files()))
    outcome = sweep(old_table, text)
    assert (outcome.files_planned, outcome.metrics["remove_orphans.files_too_young"]) == ((), 1)
    outcome = sweep(old_table, write_list(tmp_path, ["/elsewhere/f"]))
    assert outcome.status is Status.REFUSED
    assert "names no file under" in (outcome.reason or "")
    inventory = write_list(tmp_path, [*old_table.files()])
    inventory.write_text(inventory.read_text() + "file:///x,many,\n")
    assert sweep(old_table, inventory).status is Status.FAILED
    assert sweep(old_table, tmp_path / "missing.csv").status is Status.FAILED
    assert orphan in old_table.files()


def test_a_report_in_a_bucket_names_its_files_there(moto_server: MotoServer) -> None:
    s3, name = moto_server.client("s3"), f"inventories-{uuid.uuid4()}"
    s3.create_bucket(Bucket=name)
    manifest = {
        "sourceBucket": "lake",
        "destinationBucket": f"arn:aws:s3:::{name}",
        "fileFormat": "CSV",
        "fileSchema": SCHEMA,
        "files": [{"key": "lake/config/data/part.csv.gz"}],
    }
    s3.put_object(Bucket=name, Key="lake/config/data/part.csv.gz", Body=gzip.compress(csv_lines(header=False)))
    s3.put_object(Bucket=name, Key="lake/config/now/manifest.json", Body=json.dumps(manifest).encode())
    source = InventoryFiles(Storage(moto_server.s3_properties), f"s3://{name}/lake/config/now/manifest.json", LOCATION)
    assert list(source.objects()) == FOUND
    assert [found for part in source.parts() for found in part()] == FOUND


# Workers of both engines find the same candidates as a single process; failures keep their names.

HOME, LIMIT_MS = "s3://b/t", 1000
NAMES = st.sampled_from(["a", "a b", "a%20b", "%41", "A", "b/c", "b//c", "x.metadata.json", "y.metadata.json"])
LISTED = st.builds(
    ListedObject, NAMES.map(lambda name: f"{HOME}/{name}"), st.just(1), st.one_of(st.none(), st.integers(900, 1100))
)
REFERENCES = st.builds(str.__add__, st.sampled_from(["s3://b/t/", "s3a://b/t/", "s3://other/t/", "hdfs://h/t/"]), NAMES)


@dataclass(frozen=True)
class Given:
    """A source with a given list of files."""

    listed: Sequence[ListedObject]
    is_current: bool = True

    def objects(self) -> Iterator[ListedObject]:
        return iter(self.listed)

    def parts(self) -> Sequence[SourcePart]:
        return [partial(tuple, self.listed[number::3]) for number in range(3)]


def by_engine(engine: Engine, source: Given, references: Sequence[str]) -> OrphanCandidates:
    return compare_by_engine(source, (HOME,), references, {}, References(), LIMIT_MS, engine, Storage({}))


def in_order_of_path(listed: Iterable[ListedObject]) -> list[ListedObject]:
    return sorted(listed, key=lambda found: (found.path, found.modified_ms or 0, found.size))


def in_order(candidates: OrphanCandidates) -> tuple[object, ...]:
    unreferenced = in_order_of_path(candidates.unreferenced)
    return (
        candidates.listed,
        candidates.too_young,
        unreferenced,
        in_order_of_path(candidates.metadata_files),
        sorted(candidates.prefix_mismatches),
    )


@given(st.lists(LISTED, max_size=30), st.lists(REFERENCES, max_size=10))
@settings(max_examples=40)
def test_workers_find_the_same_candidates(listed: list[ListedObject], references: list[str]) -> None:
    here = find_candidates(listed, ReferencedPaths(HOME, references), LIMIT_MS)
    assert in_order(by_engine(LocalEngine(1), Given(listed), references)) == in_order(here)


@pytest.fixture
def table_in_parts(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Four old appends; the engine makes every comparison, in several parts and tasks."""
    made = new_table(local_catalog, tmp_path, appends=4)
    grow_old(Path(path) for path in made.files())
    monkeypatch.setattr(remove_orphans, "DISTRIBUTED_ABOVE", 0)
    monkeypatch.setattr(compare_listing, "_REFERENCES_PER_PART", 3)
    monkeypatch.setattr(compare_listing, "_MANIFESTS_PER_TASK", 2)
    monkeypatch.setattr(compare_listing, "_ITEM_PATHS", 2)
    return made


@pytest.mark.parametrize("kind", ["local", "spark"])
def test_workers_find_the_orphans(table_in_parts: MaintainedTable, kind: str, request: pytest.FixtureRequest) -> None:
    engine: Engine = LocalEngine(2)
    if kind == "spark":
        engine = SparkEngine(request.getfixturevalue("spark_session").sparkContext)
    before = table_in_parts.files()
    planted = {table_in_parts.plant(f"data/part={number}/orphan.parquet") for number in range(5)}
    table_in_parts.plant("data/young.parquet", days_old=0)
    outcome = table_in_parts.run(Operation.REMOVE_ORPHANS, engine=engine, orphan_older_than_hours="72")
    assert set(map(normalise, outcome.files_deleted)) == planted
    assert outcome.metrics["remove_orphans.files_listed"] == len(before) + 6
    assert before < table_in_parts.files()


def test_references_found_by_workers_are_counted_and_read_again(table_in_parts: MaintainedTable) -> None:
    table, reader = table_in_parts, table_in_parts.reader
    manifests = References().listed(reader, reader.metadata.snapshots.values())
    assert live_files(manifests.values()) == len(table.data_files())

    # A file that a commit adds while workers compare is not an orphan.
    source = Path(normalise(table.data_files()[0].file_path))
    adopted = Path(table.plant("data/adopted.parquet", source.read_bytes()))
    with at(Moment.AFTER_EXCHANGE, lambda: table.table.add_files([adopted.as_uri()])):
        outcome = table.run(Operation.REMOVE_ORPHANS, orphan_older_than_hours="72")
    assert outcome.files_planned == ()
    assert adopted.exists()

    # A manifest that a worker cannot read refuses the sweep.
    oldest = next(iter(table.metadata.snapshots.values()))
    manifest = Path(normalise(reader.manifests(oldest)[0].manifest_path))
    manifest.unlink()
    orphan = table.plant("data/orphan.parquet")
    outcome = table.run(Operation.REMOVE_ORPHANS, orphan_older_than_hours="72")
    assert outcome.status is Status.REFUSED
    assert str(manifest) in (outcome.reason or "")
    assert orphan in table.files()


def fail() -> Iterable[ListedObject]:
    raise StorageError("the folder cannot be listed")


class Torn(Given):
    def parts(self) -> Sequence[SourcePart]:
        return [*super().parts(), fail]


def test_a_listing_that_fails_in_a_worker_fails_the_comparison() -> None:
    with pytest.raises(StorageError, match="cannot be listed") as caught:
        by_engine(LocalEngine(1), Torn([]), [])
    assert not isinstance(caught.value, MetadataUnreadable)
