"""Every store: reading, writing, listing, deleting, and failures."""

from __future__ import annotations

import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icekeeper.deletion.foreign_tables import find_other_formats
from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.errors import FileUnreadable, LocationRefused, StorageError
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.rows.arrow_schema import arrow_schema
from icekeeper.rows.read import Tally, read_rows, unreadable_files
from icekeeper.rows.read_task import InputFile, ReadTask
from icekeeper.storage import listing as storage_listing
from icekeeper.storage import local_files as storage_local
from icekeeper.storage import s3_objects as storage_s3_listing
from icekeeper.storage import storage as storage_storage
from icekeeper.storage.allowed_locations import AllowedLocations
from icekeeper.storage.copies import copy_object, create_object, versions_of
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.listing import LISTING_THREADS, in_parallel
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.paths import split_path
from icekeeper.storage.storage import Storage
from local_stack.moto_server import REGION, MotoServer
from support.proxies import closed_port, faulty_proxy, served_by

# The stores: a local folder, SeaweedFS, moto's general purpose bucket, and moto's table bucket.

LISTABLE = ["local", "seaweedfs", "bucket"]
ALL = [*LISTABLE, "table_bucket"]


@dataclass(frozen=True)
class Place:
    storage: Storage
    location: str


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    """A new location in the store that the parameter names."""
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
def test_a_pickled_storage_reads_the_same_objects(place: Place) -> None:
    path = f"{place.location}/metadata/a.avro"
    assert place.storage.size(path) is None
    place.storage.write(path, b"first")
    place.storage.write(path, b"second")
    for storage in (place.storage, pickle.loads(pickle.dumps(place.storage))):
        assert storage.read(path) == b"second"
        assert storage.size(path) == 6
    missing = f"{place.location}/metadata/missing.avro"
    for read in (place.storage.read, place.storage.open_input):
        with pytest.raises(StorageError) as caught:
            read(missing)
        assert str(caught.value) == f"{missing} does not exist"
        assert place.storage.shows_missing(missing, caught.value)


@pytest.mark.parametrize("place", ALL, indirect=True)
def test_parquet_is_written_and_read_as_a_stream(place: Place) -> None:
    path = f"{place.location}/data/k=1/a.parquet"
    table = pa.table({"id": range(1000)})
    with bounded_output(place.storage, path) as sink:
        pq.write_table(table, sink)
    with place.storage.open_input(path) as source:
        assert pq.ParquetFile(source).read(["id"]).equals(table)


@pytest.mark.parametrize("size", [1000, 10**8], ids=["small", "large"])
@pytest.mark.parametrize("place", ALL, indirect=True)
def test_a_missing_input_is_reported_by_its_path(place: Place, size: int) -> None:
    """The file would be read whole or by row groups, depending on the size in the manifest, which is wrong here
    (rule: leave-out-unreadable-files)."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "id", "type": "long", "required": False}]}
    inputs = [InputFile(f"{place.location}/data/{number}.parquet", 1, size) for number in range(3)]
    for source in (inputs[0], inputs[2]):
        with bounded_output(place.storage, source.path) as sink:
            pq.write_table(pa.table({"id": [1]}, schema=arrow_schema(schema)), sink)
    task = ReadTask(inputs=tuple(inputs), schema=schema, io_properties={})
    with pytest.raises(FileUnreadable) as caught:
        list(read_rows(task, place.storage, Tally()))
    missing = {inputs[1].path: f"{inputs[1].path} does not exist"}
    assert {caught.value.path: str(caught.value)} == unreadable_files(task, place.storage) == missing


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_listing_is_recursive_with_sizes_and_ages(place: Place) -> None:
    """A sibling with the same prefix is not listed; ``can_list`` and ``can_delete`` leave no trace."""
    start = int(time.time()) * 1000
    sizes = {"data/a.parquet": 1, "data/k=a b/c.parquet": 2, "metadata/d.avro": 3}
    for name, size in sizes.items():
        place.storage.write(f"{place.location}/{name}", b"x" * size)
    place.storage.write(f"{place.location}2/data/b.parquet", b"x")
    assert place.storage.can_list(place.location)
    assert place.storage.can_delete(place.location)
    for prefix in (place.location, f"{place.location}/"):
        listed = list(place.storage.list(prefix))
        assert {item.path: item.size for item in listed} == {f"{place.location}/{n}": s for n, s in sizes.items()}
        assert all(item.modified_ms and start <= item.modified_ms <= time.time() * 1000 + 1000 for item in listed)
    assert list(place.storage.list(f"{place.location}/nowhere")) == []


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_a_bounded_storage_accesses_nothing_outside(place: Place) -> None:
    inside, outside = f"{place.location}/data/a", f"{place.location}-of-others/data/a"
    place.storage.write(outside, b"theirs")
    storage = place.storage.within(AllowedLocations((place.location,), from_operator=True))
    storage.write(inside, b"ours")
    assert storage.read(inside) == b"ours"
    assert not storage.allows(outside)
    attempts: list[Callable[[], object]] = [
        *(partial(attempt, outside) for attempt in (storage.read, storage.size, storage.status, storage.open_input)),
        partial(storage.write, outside, b"ours"),
        lambda: list(storage.list(f"{place.location}-of-others")),
    ]
    for attempt in attempts:
        with pytest.raises(LocationRefused, match=r"is outside .*; nothing was accessed"):
            attempt()
    report = storage.delete([inside, outside])
    assert (report.deleted, list(report.failed)) == ((inside,), [outside])
    assert place.storage.read(outside) == b"theirs"


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_a_copy_and_a_new_object_never_replace_an_object(place: Place) -> None:
    """A repair writes only where there is nothing."""
    storage, (source, target, new) = (
        place.storage,
        (f"{place.location}/data/{name}" for name in ("source", "copy", "new")),
    )
    storage.write(source, b"rows")
    copy_object(storage, source, target)
    assert create_object(storage, new, b"vector")
    assert not create_object(storage, new, b"vector")  # as an attempt that crashed has left it
    assert [storage.read(path) for path in (source, target, new)] == [b"rows", b"rows", b"vector"]
    storage.write(source, b"other")
    for write in (partial(copy_object, storage, source), partial(create_object, storage, data=b"other")):
        for path in (target, new):
            with pytest.raises(StorageError, match="exists now; nothing was overwritten"):
                write(path=path)
    assert [storage.read(path) for path in (target, new)] == [b"rows", b"vector"]
    assert {listed.path.rpartition("/")[2] for listed in storage.list(place.location)} == {"source", "copy", "new"}


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_an_older_version_is_copied_back_behind_its_delete_marker(place: Place) -> None:
    storage, path = place.storage, f"{place.location}/f"
    bucket = split_path(path).authority
    storage.write(f"{path}2", b"unversioned")
    assert versions_of(storage, f"{path}2") == []
    storage.s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    storage.write(path, b"first")
    storage.write(path, b"second")
    storage.delete([path])
    found = versions_of(storage, path)
    assert [version.size for version in found] == [6, 5]
    assert storage.open_version(found[1]).read() == b"first"
    copy_object(storage, path, path, found[1].version)
    assert storage.read(path) == b"first"


@pytest.mark.parametrize("place", LISTABLE, indirect=True)
def test_deletion_reports_every_path_and_ignores_missing_files(place: Place) -> None:
    paths = [f"{place.location}/data/{i}.parquet" for i in range(3)]
    for path in paths[:2]:
        place.storage.write(path, b"x")
    report = place.storage.delete([*paths, paths[0]])
    assert report.deleted == tuple(paths)
    assert report.failed == {}
    assert list(place.storage.list(place.location)) == []
    assert place.storage.delete([]).deleted == ()


@pytest.mark.parametrize("place", ["local", "bucket"], indirect=True)  # SeaweedFS's table buckets refuse such keys
def test_keys_that_xml_cannot_represent_are_deleted_with_the_others(place: Place) -> None:
    """The store would refuse their whole batch with MalformedXML."""
    paths = [f"{place.location}/data/{name}" for name in ("a", "b\x01", "c\x1f", "d\ufffe")]
    for path in paths:
        place.storage.write(path, b"x")
    report = place.storage.delete(paths)
    assert (report.deleted, report.failed) == (tuple(paths), {})
    assert list(place.storage.list(place.location)) == []


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


def test_can_delete_leaves_no_delete_marker_in_a_versioned_bucket(seaweedfs: SeaweedFSServer) -> None:
    bucket = f"bucket-{uuid.uuid4()}"
    s3 = seaweedfs.client("s3")
    s3.create_bucket(Bucket=bucket)
    s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    assert Storage(seaweedfs.catalog_properties(bucket)).can_delete(f"s3://{bucket}/t")
    assert not s3.list_object_versions(Bucket=bucket).get("DeleteMarkers")
    # A deletion of a missing key leaves a delete marker.
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "t/never"}]})
    assert [marker["Key"] for marker in s3.list_object_versions(Bucket=bucket)["DeleteMarkers"]] == ["t/never"]


@pytest.mark.parametrize("place", ["seaweedfs"], indirect=True)
def test_listing_and_deletion_go_beyond_one_page(place: Place) -> None:
    paths = {f"{place.location}/data/{i:04d}.parquet" for i in range(1003)}
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
    (unread,) = storage.list_unread(location)
    assert item.path == unread.path == f"{location}/data/a#b?c%20d.parquet"
    assert unread.read() == item
    (gone,) = storage.list_unread(location)
    assert storage.size(item.path) == 1
    assert storage.delete([item.path]).deleted == (item.path,)
    assert gone.read() is None
    assert list(storage.list(location)) == []


def test_symbolic_links_are_neither_listed_nor_followed_and_a_folder_is_not_deleted(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/a").write_bytes(b"x")
    (tmp_path / "t").mkdir()
    (tmp_path / "t/folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "t/file").symlink_to(tmp_path / "elsewhere/a")
    assert list(Storage({}).list(str(tmp_path / "t"))) == []
    assert list(Storage({}).list_unread(str(tmp_path / "t"))) == []
    report = Storage({}).delete([str(tmp_path)])
    assert (report.deleted, report.failed) == ((), {str(tmp_path): os.strerror(21)})
    paths = [str(tmp_path / "t/file"), str(tmp_path / "elsewhere/a")]
    report = Storage({}).delete(paths, links=False)
    assert (report.deleted, report.failed) == ((paths[1],), {paths[0]: "is a symbolic link"})
    assert (report.transient, Storage({}).delete(paths).deleted) == (frozenset(paths[:1]), tuple(paths))


@pytest.mark.parametrize("place", ["bucket"], indirect=True)
def test_keys_are_not_url_decoded(place: Place) -> None:
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
def test_a_key_with_an_empty_part_is_read_written_and_deleted(place: Place) -> None:
    """PyArrow refuses it (platform: pyarrow-refuses-empty-parts, rule: any-spelling-protects)."""
    storage, bucket = place.storage, "/".join(place.location.split("/")[:3])
    twin, large = f"{bucket}/t/data/a", bytes(21 * 1024 * 1024)
    path = f"{bucket}/t//data/a"
    with storage.translated(path), bounded_output(storage, path, 20 * 1024 * 1024) as sink:  # in parts
        sink.write(large)
    assert storage.size(path) == len(large)
    for name in ("t//data/a", "/t/data/a", "t///data//a"):
        path = f"{bucket}/{name}"
        storage.write(path, b"theirs")
        storage.write(twin, b"ours")
        assert (storage.size(path), storage.read(path), storage.read_end(path, 2).data) == (6, b"theirs", b"rs")
        for size in (None, 6):
            with storage.open_input(path, size) as stream:
                stream.seek(2)
                assert stream.read() == b"eirs"
        found = storage.status(path)
        assert found is not None
        assert (found.path, found.size) == (path, 6)
        assert {item.path for item in storage.list(bucket)} == {path, twin}
        assert pickle.loads(pickle.dumps(storage)).read(path) == b"theirs"
        assert storage.delete([path]).deleted == (path,)
        assert [item.path for item in storage.list(bucket)] == [twin], "another object"
        assert storage.size(path) is None


def test_unsupported_stores_are_neither_listed_nor_deleted_from() -> None:
    assert not Storage({}).can_list("gs://b/t")
    assert not Storage({}).can_delete("gs://b/t")
    assert list(Storage({}).delete(["gs://b/t/x"]).failed) == ["gs://b/t/x"]
    with pytest.raises(StorageError, match="only S3 and local folders"):
        Storage({}).list("gs://b/t")


# A store that refuses every request, and a missing control bucket.

ADVICE = r"sign in again, or name a profile or role, whose keys are renewed$"


@contextmanager
def expired_keys() -> Iterator[Storage]:
    """A store that answers 400 because keys have expired; the answer to a HEAD has no body."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            error = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            body = b"" if self.command == "HEAD" else error
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c", "s3.region": REGION}
    with served_by(Handler) as endpoint:
        yield Storage({**keys, "s3.endpoint": endpoint})


def test_expired_keys_are_reported_by_every_way_to_read() -> None:
    """Arrow does not distinguish expired keys from other mistakes (platform: arrow-hides-expired-keys)."""
    with expired_keys() as storage:
        for read in (
            lambda: storage.read("s3://lake/a"),  # boto3
            lambda: storage.size("s3://lake/a"),  # PyArrow
            lambda: list(storage.list("s3://lake/")),
        ):
            with pytest.raises(StorageError, match=ADVICE) as caught:
                read()
            assert failed_by_store(caught.value)  # not for a missing or damaged file


def test_a_missing_control_bucket_is_an_error_not_a_missing_document(moto_server: MotoServer) -> None:
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": REGION}
    storage, name = Storage({**keys, "s3.endpoint": moto_server.endpoint}), f"control-{uuid.uuid4()}"
    control = ControlBucket(f"s3://{name}", storage)
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.find("runs/r/report.json")
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.find_hint("outgrown/t.json")
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.write("runs/r/report.json", {})
    moto_server.client("s3").create_bucket(Bucket=name)
    assert control.find("runs/r/report.json") is None


# S3 listings: one request for a small table; a large table is divided into folders.

NAMES = ("data/k=1/a", "data/k=1/b", "data/k=2/deep/er/c", "data/d", "metadata/m", "e")


@pytest.fixture
def bucket_of_folders(moto_server: MotoServer) -> tuple[Storage, str]:
    bucket = f"bucket-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    storage, location = Storage(moto_server.s3_properties), f"s3://{bucket}/t"
    for name in (*NAMES, "../t2/f"):
        storage.write(f"{location}/{name}".replace("t/../", ""), b"xy")
    return storage, location


def test_a_small_table_is_listed_with_one_request(bucket_of_folders: tuple[Storage, str]) -> None:
    storage, location = bucket_of_folders
    with counting() as count:
        found = sorted(item.path for item in storage.list(location))
    assert found == sorted(f"{location}/{name}" for name in NAMES)
    assert count.counts == {RequestKind.PUT: 1}


@pytest.mark.parametrize("page", [1000, 1])
def test_other_formats_are_searched_in_as_few_folders_as_possible(
    bucket_of_folders: tuple[Storage, str], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If one page does not list all folders, each folder is searched separately."""
    monkeypatch.setattr(storage_s3_listing, "_PAGE", page)
    storage, location = bucket_of_folders
    files = [f"{location}/data/k=1/a", f"{location}/data/k=1/b"]
    with counting() as count:
        assert find_other_formats(storage, [location], files) == set()
    requests = 2 if page == 1000 else 10  # the location and data/
    assert count.counts == {RequestKind.PUT: requests}
    storage.write(f"{location}/data/_delta_log/0.json", b"{}")
    storage.write(f"{location}/schema/notes.txt", b"no schema of Paimon's")
    assert find_other_formats(storage, [location], files) == {f"{location}/data"}


# A store that is unreachable, throttles, breaks connections or refuses raises a StorageError that names the path.


def test_a_missing_bucket_is_no_evidence_that_an_object_is_missing(moto_server: MotoServer) -> None:
    """The bucket may return with all its objects (rule: leave-out-unreadable-files)."""
    storage = Storage(moto_server.s3_properties)
    for check in (storage.can_list, storage.can_delete):
        with pytest.raises(StorageError, match="s3://no-such-bucket/t failed with NoSuchBucket"):
            check("s3://no-such-bucket/t")
    for read in (storage.read, lambda path: storage.open_input(path, 10), storage.open_input):
        with pytest.raises(StorageError, match="s3://no-such-bucket/t/x") as caught:
            read("s3://no-such-bucket/t/x")
        assert not storage.shows_missing("s3://no-such-bucket/t/x", caught.value)


def test_an_unreachable_endpoint_fails_soon_with_one_sentence(moto_server: MotoServer) -> None:
    with closed_port() as endpoint:
        storage = Storage({**moto_server.s3_properties, "s3.endpoint": endpoint})
        path = "s3://b/t/x"
        actions: list[Callable[[], object]] = [
            lambda: storage.read(path),
            lambda: storage.write(path, b"x"),
            lambda: storage.size(path),
            lambda: list(storage.list("s3://b/t")),
            lambda: storage.can_list("s3://b/t"),
            lambda: storage.can_delete("s3://b/t"),
        ]
        for action in actions:
            start = time.monotonic()
            with pytest.raises(StorageError, match=f"cannot be reached: nothing answers at {endpoint}$"):
                action()
            assert time.monotonic() - start < 15
        assert storage.delete([path]).failed == {path: f"cannot be reached: nothing answers at {endpoint}"}


def test_throttled_deletions_are_retried(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    bucket = f"bucket-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    storage = Storage(moto_server.s3_properties)
    paths = [f"s3://{bucket}/t/{i}" for i in range(3)]
    for path in paths:
        storage.write(path, b"x")
    original, calls = storage.s3.delete_objects, []

    def throttled(**arguments: object) -> dict[str, object]:
        """The first two calls throttle the first key; every call denies the last key."""
        keys = [entry["Key"] for entry in arguments["Delete"]["Objects"]]  # type: ignore[index]
        calls.append(keys)
        errors = [{"Key": key, "Code": "AccessDenied", "Message": "locked"} for key in keys if key == "t/2"]
        errors += [{"Key": keys[0], "Code": "SlowDown", "Message": ""}] if len(calls) < 3 else []
        spared = {entry["Key"] for entry in errors}
        if spared != set(keys):
            rest = [{"Key": key} for key in keys if key not in spared]
            original(Bucket=bucket, Delete={"Objects": rest})
        return {"Errors": errors}

    monkeypatch.setattr(storage.s3, "delete_objects", throttled)
    report = storage.delete(paths)
    assert calls == [["t/0", "t/1", "t/2"], ["t/0"], ["t/0"]]
    assert report.deleted == tuple(paths[:2])
    assert report.failed == {paths[2]: "was refused by the store (AccessDenied: locked)"}
    assert report.transient == frozenset()
    assert [item.path for item in storage.list(f"s3://{bucket}/t")] == [paths[2]]


def test_an_error_about_wrong_credentials_hides_the_secret(table_bucket: dict[str, str]) -> None:
    storage = Storage({**table_bucket, "s3.secret-access-key": "not-the-secret-key"})
    for action in (storage.read, storage.can_list, storage.can_delete, lambda path: list(storage.list(path))):
        with pytest.raises(StorageError) as caught:
            action(f"{table_bucket['warehouse']}ns/t")
        assert "not-the-secret-key" not in str(caught.value)
    assert "not-the-secret-key" not in repr(storage)


def test_a_broken_connection_is_a_transient_storage_error(moto_server: MotoServer) -> None:
    with faulty_proxy(moto_server.endpoint) as proxy:
        storage = Storage({**moto_server.s3_properties, "s3.endpoint": proxy.url})
        proxy.fault = b""
        with pytest.raises(StorageError, match="s3://b/x"):
            storage.read("s3://b/x")
        report = storage.delete(["s3://b/x"])
        assert list(report.failed) == ["s3://b/x"]
        assert report.transient == {"s3://b/x"}


# Listings divided among threads contain each object once and fail as a whole.

# Nested folders, files at every level, names that sort around the slash.
FOLDERS = ("", "data/", "data/k=1/", "data/k=1-x/", "data/k=2/l=1/m=1/n=1/o=1/")
LISTED = [f"{folder}{name}" for folder in FOLDERS for name in ("f", "g h")]


@pytest.fixture(params=["local", "bucket", "seaweedfs"])
def listed_place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
    if request.param == "local":
        return Storage({}), (tmp_path / "t").as_uri()
    if request.param == "bucket":
        server: MotoServer = request.getfixturevalue("moto_server")
        bucket = f"bucket-{uuid.uuid4()}"
        server.client("s3").create_bucket(Bucket=bucket)
        return Storage(server.s3_properties), f"s3://{bucket}/t"
    weed: SeaweedFSServer = request.getfixturevalue("seaweedfs")
    bucket = f"bucket-{uuid.uuid4()}"
    weed.client("s3").create_bucket(Bucket=bucket)
    return Storage(weed.catalog_properties(bucket)), f"s3://{bucket}/t"


def test_every_object_is_listed_once(listed_place: tuple[Storage, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """For every number of wanted folders, although one page would hold all objects."""
    monkeypatch.setattr(storage_storage, "few_s3", lambda client, prefix: None)
    storage, location = listed_place
    for name in LISTED:
        storage.write(f"{location}/{name}", b"xy")
    storage.write(f"{location}2/f", b"x")
    expected = sorted(f"{location}/{name}" for name in LISTED)
    for wanted in (1, 3, 1000):
        monkeypatch.setattr(storage_listing, "_FOLDERS_WANTED", wanted)
        found = list(storage.list(location))
        assert sorted(item.path for item in found) == expected
        assert {item.size for item in found} == {2}
        objects, folders = storage.divide(location)
        parts = [*objects, *(item for folder in folders for item in storage.list_folder(folder))]
        assert sorted(item.path for item in parts) == expected
    # The status of each object equals its listing.
    for listed in found:
        status = storage.status(listed.path)
        assert status is not None
        assert (status.path, status.size) == (listed.path, 2)
        assert abs((status.modified_ms or 0) - (listed.modified_ms or 0)) < 1000  # HEAD has whole seconds
    assert storage.status(f"{location}/data/nothing") is storage.status(f"{location}/data") is None


def test_a_folder_with_too_many_entries_is_not_divided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_local, "_LEVEL_ENTRIES", 3)
    for number in range(10):
        (tmp_path / "t" / "data" / f"k={number}").mkdir(parents=True)
        (tmp_path / "t" / "data" / f"k={number}" / "f").write_bytes(b"x")
    location = f"{tmp_path}/t"
    assert Storage({}).divide(location)[1] == [f"{location}/data"]
    assert len(list(Storage({}).list(location))) == 10


def test_a_folder_whose_prefixes_exceed_a_page_is_not_divided(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_s3_listing, "_PAGE", 5)
    s3, bucket = moto_server.client("s3"), f"bucket-{uuid.uuid4()}"
    s3.create_bucket(Bucket=bucket)
    for number in range(6):
        s3.put_object(Bucket=bucket, Key=f"t/data/k={number}/f", Body=b"x")
    storage = Storage(moto_server.s3_properties)
    assert storage.divide(f"s3://{bucket}/t")[1] == [f"s3://{bucket}/t/data/"]
    assert len({item.path for item in storage.list(f"s3://{bucket}/t")}) == 6


def numbers(first: int) -> Iterator[int]:
    yield from range(first, first + 2000)


def broken() -> Iterable[int]:
    yield 1
    raise StorageError("the store failed")


def test_sources_are_read_in_parallel_and_completely() -> None:
    sources = [lambda first=first: numbers(first) for first in range(0, 100_000, 2000)]
    assert sorted(in_parallel(sources)) == list(range(100_000))
    assert list(in_parallel([])) == []
    with pytest.raises(StorageError, match="the store failed"):
        list(in_parallel([*(lambda: numbers(0) for _ in range(40)), broken]))


def test_closing_the_iterator_stops_the_threads() -> None:
    """Threads that wait for space in the queue must not wait for ever."""
    found = in_parallel([lambda: iter(range(10**9)) for _ in range(2 * LISTING_THREADS)])
    assert next(iter(found)) == 0
    found.close()  # type: ignore[attr-defined]
