"""One suite over every store: a local folder, SeaweedFS, an ordinary bucket, and a table bucket as AWS has them."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.errors import FileUnreadable, StorageError
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer

LISTABLE = ["local", "seaweedfs", "bucket"]
ALL = [*LISTABLE, "table_bucket"]


@dataclass(frozen=True)
class Place:
    storage: Storage
    location: str


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """A location of the test's own on the store that the parameter names."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def local_place(tmp_path: Path) -> Place:
    return Place(Storage({}), str(tmp_path / "t"))


@pytest.fixture
def seaweedfs_place(table_bucket: dict[str, str]) -> Place:
    return Place(Storage(table_bucket), f"{table_bucket['warehouse']}ns/t")


@pytest.fixture
def bucket_place(moto_server: MotoServer) -> Place:
    bucket = f"bucket-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    return Place(Storage(moto_server.s3_properties), f"s3://{bucket}/t")


@pytest.fixture
def table_bucket_place(moto_server: MotoServer) -> Place:
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"lake-{uuid.uuid4()}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    s3tables.create_table(tableBucketARN=arn, namespace="ns", name="t", format="ICEBERG")
    answer = s3tables.get_table_metadata_location(tableBucketARN=arn, namespace="ns", name="t")
    return Place(Storage(moto_server.s3_properties), answer["warehouseLocation"])


@pytest.mark.parametrize("place", ALL, indirect=True)
def test_what_is_written_is_read(place: Place) -> None:
    path = f"{place.location}/metadata/a.avro"
    assert place.storage.size(path) is None
    place.storage.write(path, b"first")
    place.storage.write(path, b"second")
    assert place.storage.read(path) == b"second"
    assert place.storage.size(path) == 6


@pytest.mark.parametrize("place", ALL, indirect=True)
def test_parquet_streams_both_ways(place: Place) -> None:
    path = f"{place.location}/data/k=1/a.parquet"
    table = pa.table({"id": range(1000)})
    with place.storage.open_output(path) as sink:
        pq.write_table(table, sink)
    with place.storage.open_input(path) as source:
        assert pq.ParquetFile(source).read(["id"]).equals(table)


@pytest.mark.parametrize("place", ALL, indirect=True)
def test_a_missing_object_is_named(place: Place) -> None:
    path = f"{place.location}/metadata/missing.avro"
    for read in (place.storage.read, place.storage.open_input):
        with pytest.raises(StorageError) as caught:
            read(path)
        assert str(caught.value) == f"{path} does not exist"
        assert place.storage.shows_missing(path, caught.value)


@pytest.mark.parametrize("size", [1000, 10**8], ids=["small", "large"])
@pytest.mark.parametrize("place", ALL, indirect=True)
def test_an_input_that_is_not_there_is_found_by_its_path(place: Place, size: int) -> None:
    """Whether it would be read at once or by row groups (rule 215); the bytes are those of another size than told."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
    inputs = [InputFile(f"{place.location}/data/{number}.parquet", 1, size) for number in range(3)]
    for source in (inputs[0], inputs[2]):
        with place.storage.open_output(source.path) as sink:
            pq.write_table(pa.table({"id": [1]}, schema=arrow_schema(schema)), sink)
    task = ReadTask(inputs=tuple(inputs), schema=schema, io_properties={})
    with pytest.raises(FileUnreadable) as caught:
        list(read_rows(task, place.storage, Tally()))
    missing = {inputs[1].path: f"{inputs[1].path} does not exist"}
    assert {caught.value.path: str(caught.value)} == unreadable_files(task, place.storage) == missing


@pytest.mark.parametrize("place", ALL, indirect=True)
def test_a_pickled_storage_reads_the_same(place: Place) -> None:
    place.storage.write(f"{place.location}/metadata/a.avro", b"x")
    twin = pickle.loads(pickle.dumps(place.storage))
    assert twin.read(f"{place.location}/metadata/a.avro") == b"x"


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_listing_is_recursive_with_sizes_and_ages(place: Place) -> None:
    start = int(time.time()) * 1000
    sizes = {"data/a.parquet": 1, "data/k=a b/c.parquet": 2, "metadata/d.avro": 3}
    for name, size in sizes.items():
        place.storage.write(f"{place.location}/{name}", b"x" * size)
    for prefix in (place.location, f"{place.location}/"):
        listed = list(place.storage.list(prefix))
        assert {item.path: item.size for item in listed} == {f"{place.location}/{n}": s for n, s in sizes.items()}
        assert all(item.modified_ms and start <= item.modified_ms <= time.time() * 1000 + 1000 for item in listed)


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_a_sibling_with_the_same_beginning_is_not_listed(place: Place) -> None:
    place.storage.write(f"{place.location}/data/a.parquet", b"x")
    place.storage.write(f"{place.location}2/data/b.parquet", b"x")
    assert [item.path for item in place.storage.list(place.location)] == [f"{place.location}/data/a.parquet"]


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_a_missing_directory_lists_as_empty(place: Place) -> None:
    assert list(place.storage.list(f"{place.location}/nowhere")) == []


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_deletion_reports_every_path_and_ignores_what_is_gone(place: Place) -> None:
    paths = [f"{place.location}/data/{i}.parquet" for i in range(3)]
    for path in paths[:2]:
        place.storage.write(path, b"x")
    report = place.storage.delete([*paths, paths[0]])
    assert report.deleted == tuple(paths)
    assert report.failed == {}
    assert list(place.storage.list(place.location)) == []
    assert place.storage.delete([]).deleted == ()


@pytest.mark.parametrize("place", ["local", "bucket"], indirect=True)  # SeaweedFS's table buckets take no such key
def test_a_key_that_xml_cannot_hold_keeps_no_other_from_being_deleted(place: Place) -> None:
    """Its batch would be refused whole: MalformedXML."""
    paths = [f"{place.location}/data/{name}" for name in ("a", "b\x01", "c\x1f", "d\ufffe")]
    for path in paths:
        place.storage.write(path, b"x")
    report = place.storage.delete(paths)
    assert (report.deleted, report.failed) == (tuple(paths), {})
    assert list(place.storage.list(place.location)) == []


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_what_can_be_listed_and_deleted_is_known_without_a_trace(place: Place) -> None:
    place.storage.write(f"{place.location}/data/a.parquet", b"x")
    before = list(place.storage.list(place.location))
    assert place.storage.can_list(place.location)
    assert place.storage.can_delete(place.location)
    assert list(place.storage.list(place.location)) == before


@pytest.mark.parametrize("place", ["table_bucket"], indirect=True)
def test_a_table_bucket_neither_lists_nor_deletes(place: Place) -> None:
    path = f"{place.location}/data/a.parquet"
    place.storage.write(path, b"x")
    assert not place.storage.can_list(place.location)
    assert not place.storage.can_delete(place.location)
    report = place.storage.delete([path])
    assert report.deleted == ()
    assert list(report.failed) == [path]
    assert "refused by the store (MethodNotAllowed" in report.failed[path]
    assert place.storage.read(path) == b"x"
    with pytest.raises(StorageError, match="refused by the store"):
        list(place.storage.list(place.location))


def test_the_probe_leaves_no_delete_marker_in_a_versioned_bucket(seaweedfs: SeaweedFSServer) -> None:
    bucket = f"bucket-{uuid.uuid4()}"
    s3 = seaweedfs.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert Storage(seaweedfs.catalog_properties(bucket)).can_delete(f"s3://{bucket}/t")
    assert not s3.list_object_versions(Bucket=bucket).get("DeleteMarkers")
    # The marker that it takes care not to leave:
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "t/never"}]})
    assert [marker["Key"] for marker in s3.list_object_versions(Bucket=bucket)["DeleteMarkers"]] == ["t/never"]


@pytest.mark.parametrize("place", ["seaweedfs"], indirect=True)
def test_listing_and_deletion_go_beyond_one_page(place: Place) -> None:
    paths = {f"{place.location}/data/{i:04d}.parquet" for i in range(1203)}
    client, bucket = place.storage.s3, place.location.split("/")[2]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: client.put_object(Bucket=bucket, Key=path.split("/", 3)[3], Body=b"x"), paths))
    assert {item.path for item in place.storage.list(place.location)} == paths
    report = place.storage.delete(sorted(paths))
    assert report.deleted == tuple(sorted(paths))
    assert list(place.storage.list(place.location)) == []


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_listed_paths_are_spelled_like_the_prefix(place: Place) -> None:
    place.storage.write(f"{place.location}/data/a.parquet", b"x")
    for scheme in ("s3", "s3a", "s3n"):
        location = place.location.replace("s3://", f"{scheme}://")
        assert [item.path for item in place.storage.list(location)] == [f"{location}/data/a.parquet"]
        assert place.storage.read(f"{location}/data/a.parquet") == b"x"


@pytest.mark.parametrize("spelled", [lambda p: p, lambda p: f"file:{p}", lambda p: f"file://{p}"])
def test_local_paths_work_in_every_spelling(tmp_path: Path, spelled: Callable[[str], str]) -> None:
    storage, location = Storage({}), spelled(str(tmp_path / "t"))
    storage.write(f"{location}/data/a#b?c%20d.parquet", b"x")
    assert (tmp_path / "t/data/a#b?c%20d.parquet").read_bytes() == b"x"
    (item,) = storage.list(location)
    assert item.path == f"{location}/data/a#b?c%20d.parquet"
    assert storage.size(item.path) == 1
    assert storage.delete([item.path]).deleted == (item.path,)
    assert list(storage.list(location)) == []


def test_symbolic_links_are_neither_listed_nor_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"x")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t/file").symlink_to(tmp_path / "elsewhere/a")
    assert list(Storage({}).list(str(tmp_path / "t"))) == []


def test_a_local_path_that_cannot_be_deleted_says_why(tmp_path: Path) -> None:
    report = Storage({}).delete([str(tmp_path)])
    assert report.deleted == ()
    assert report.failed == {str(tmp_path): os.strerror(21)}


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_keys_are_taken_literally(place: Place) -> None:
    names = ["a?b", "a", "a#c", "a%20d", "a d", "ü"]
    for name in names:
        place.storage.write(f"{place.location}/{name}", name.encode())
    assert {item.path for item in place.storage.list(place.location)} == {f"{place.location}/{n}" for n in names}
    for name in names:
        assert place.storage.read(f"{place.location}/{name}") == name.encode()
    place.storage.delete([f"{place.location}/a?b", f"{place.location}/a%20d"])
    assert {item.path for item in place.storage.list(place.location)} == {
        f"{place.location}/{n}" for n in names if n not in ("a?b", "a%20d")
    }


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_a_key_with_an_empty_part_is_listed_and_deleted_but_pyarrow_cannot_read_it(place: Place) -> None:
    path = f"{place.location}//data/a"
    place.storage.s3.put_object(Bucket=place.location.split("/")[2], Key="t//data/a", Body=b"x")
    assert [item.path for item in place.storage.list(place.location)] == [path]
    with pytest.raises(StorageError, match="Empty path component"):
        place.storage.read(path)
    assert place.storage.delete([f"{place.location}/data/a"]).deleted == (f"{place.location}/data/a",)
    assert [item.path for item in place.storage.list(place.location)] == [path], "another object"
    assert place.storage.delete([path]).deleted == (path,)
    assert list(place.storage.list(place.location)) == []


def test_other_stores_are_neither_listed_nor_deleted_from() -> None:
    assert not Storage({}).can_list("gs://b/t")
    assert not Storage({}).can_delete("gs://b/t")
    assert list(Storage({}).delete(["gs://b/t/x"]).failed) == ["gs://b/t/x"]
    with pytest.raises(StorageError, match="only S3 and local folders"):
        Storage({}).list("gs://b/t")
