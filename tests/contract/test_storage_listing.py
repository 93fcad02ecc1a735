"""Listings divided among threads: complete, each object once, and failing as a whole."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from icekeeper.demo.seaweedfs import SeaweedFSServer
from icekeeper.errors import StorageError
from icekeeper.storage import listing as storage_listing
from icekeeper.storage import local_files as storage_local
from icekeeper.storage import s3_objects as storage_s3_listing
from icekeeper.storage.listing import LISTING_THREADS, in_parallel
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer

# Folders in folders, files at every level, names that sort around the slash.
FOLDERS = ("", "data/", "data/k=1/", "data/k=1-x/", "data/k=2/l=1/m=1/n=1/o=1/")
NAMES = [f"{folder}{name}" for folder in FOLDERS for name in ("f", "g h")]


@pytest.fixture(params=["local", "bucket", "seaweedfs"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Storage, str]:
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


@pytest.mark.parametrize("wanted", [1, 3, 1000])
def test_every_object_is_listed_once(place: tuple[Storage, str], wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many folders the division looks for."""
    monkeypatch.setattr(storage_listing, "_FOLDERS_WANTED", wanted)
    storage, location = place
    for name in NAMES:
        storage.write(f"{location}/{name}", b"xy")
    storage.write(f"{location}2/f", b"x")
    found = list(storage.list(location))
    assert sorted(item.path for item in found) == sorted(f"{location}/{name}" for name in NAMES)
    assert {item.size for item in found} == {2}
    objects, folders = storage.divide(location)
    parts = [*objects, *(item for folder in folders for item in storage.list_folder(folder))]
    assert sorted(item.path for item in parts) == sorted(f"{location}/{name}" for name in NAMES)


def test_a_folder_of_too_many_entries_is_listed_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_local, "_LEVEL_ENTRIES", 3)
    for number in range(10):
        (tmp_path / "t" / "data" / f"k={number}").mkdir(parents=True)
        (tmp_path / "t" / "data" / f"k={number}" / "f").write_bytes(b"x")
    location = f"{tmp_path}/t"
    assert Storage({}).divide(location).folders == [f"{location}/data"]
    assert len(list(Storage({}).list(location))) == 10


def test_a_page_of_prefixes_that_is_not_the_last_is_listed_as_a_whole(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage_s3_listing, "_PAGE", 5)
    s3, bucket = moto_server.client("s3"), f"bucket-{uuid.uuid4()}"
    s3.create_bucket(Bucket=bucket)
    for number in range(6):
        s3.put_object(Bucket=bucket, Key=f"t/data/k={number}/f", Body=b"x")
    storage = Storage(moto_server.s3_properties)
    assert storage.divide(f"s3://{bucket}/t").folders == [f"s3://{bucket}/t/data/"]
    assert len({item.path for item in storage.list(f"s3://{bucket}/t")}) == 6


def test_an_object_is_looked_at_as_it_is_now(place: tuple[Storage, str]) -> None:
    storage, location = place
    assert storage.status(f"{location}/data/f") is None
    storage.write(f"{location}/data/f", b"xyz")
    (listed,) = storage.list(location)
    found = storage.status(listed.path)
    assert found is not None
    assert (found.path, found.size) == (listed.path, 3)
    assert abs((found.modified_ms or 0) - (listed.modified_ms or 0)) < 1000  # a HEAD tells whole seconds
    assert storage.status(f"{location}/data") is None


def numbers(first: int) -> Iterator[int]:
    yield from range(first, first + 2000)


def broken() -> Iterable[int]:
    yield 1
    raise StorageError("the store failed")


def test_sources_are_read_side_by_side_and_none_is_lost() -> None:
    sources = [lambda first=first: numbers(first) for first in range(0, 100_000, 2000)]
    assert sorted(in_parallel(sources)) == list(range(100_000))
    assert list(in_parallel([])) == []


def test_one_source_that_fails_fails_the_whole() -> None:
    with pytest.raises(StorageError, match="the store failed"):
        list(in_parallel([*(lambda: numbers(0) for _ in range(40)), broken]))


def test_a_reader_that_has_enough_stops_the_others() -> None:
    """Threads that wait for room must not wait for ever."""
    found = in_parallel([lambda: iter(range(10**9)) for _ in range(2 * LISTING_THREADS)])
    assert next(iter(found)) == 0
    found.close()  # type: ignore[attr-defined]
