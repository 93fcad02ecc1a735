"""Listings of S3: a small table's takes one request, a large one is divided into folders."""

from __future__ import annotations

import uuid

import pytest

from icekeeper.deletion.foreign_tables import find_other_formats
from icekeeper.machine.metering import RequestKind, counting
from icekeeper.storage import listing as storage_listing
from icekeeper.storage import s3_objects as storage_s3_listing
from icekeeper.storage import storage as storage_storage
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer

NAMES = ("data/k=1/a", "data/k=1/b", "data/k=2/deep/er/c", "data/d", "metadata/m", "e")


@pytest.fixture
def place(moto_server: MotoServer) -> tuple[Storage, str]:
    bucket = f"bucket-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    storage, location = Storage(moto_server.s3_properties), f"s3://{bucket}/t"
    for name in (*NAMES, "../t2/f"):
        storage.write(f"{location}/{name}".replace("t/../", ""), b"xy")
    return storage, location


def test_a_small_table_is_listed_with_one_request(place: tuple[Storage, str]) -> None:
    storage, location = place
    with counting() as count:
        found = sorted(item.path for item in storage.list(location))
    assert found == sorted(f"{location}/{name}" for name in NAMES)
    assert count.counts == {RequestKind.PUT: 1}


@pytest.mark.parametrize("wanted", [1, 3, 1000])
def test_every_object_of_a_large_table_is_listed_once(
    place: tuple[Storage, str], wanted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many folders the division looks for."""
    monkeypatch.setattr(storage_listing, "_FOLDERS_WANTED", wanted)
    monkeypatch.setattr(storage_storage, "few_s3", lambda client, prefix: None)
    storage, location = place
    assert sorted(item.path for item in storage.list(location)) == sorted(f"{location}/{name}" for name in NAMES)
    objects, folders = storage.divide(location)
    assert folders
    parts = [*objects, *(item for folder in folders for item in storage.list_folder(folder))]
    assert sorted(item.path for item in parts) == sorted(f"{location}/{name}" for name in NAMES)


@pytest.mark.parametrize("page", [1000, 1])
def test_folders_of_other_formats_are_looked_into_only_where_they_are(
    place: tuple[Storage, str], page: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where one answer does not name all folders: then each is looked for."""
    monkeypatch.setattr(storage_s3_listing, "_PAGE", page)
    storage, location = place
    files = [f"{location}/data/k=1/a", f"{location}/data/k=1/b"]
    with counting() as count:
        assert find_other_formats(storage, [location], files) == set()
    looked_into = 2 if page == 1000 else 8  # the location and data/
    assert count.counts == {RequestKind.PUT: looked_into}
    storage.write(f"{location}/data/_delta_log/0.json", b"{}")
    storage.write(f"{location}/schema/notes.txt", b"no schema of Paimon's")
    assert find_other_formats(storage, [location], files) == {f"{location}/data"}
