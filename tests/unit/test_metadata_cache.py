"""A pass reads each manifest and metadata file once, and remembers only what it has read whole (rule 133)."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.catalogs.pointer import keep_document, keeping_documents, kept_document, load_document
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.pass_context.stores import MetadataCache, is_whole_avro
from support.tables import new_document

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
FILE = write_avro(SCHEMA, [{"a": "x" * 100}], {})


HERE = ("http://here", "us-east-1")


class Store:
    """Bytes by path, or an error to raise; every read is noted."""

    place = HERE

    def __init__(self, **files: bytes | Exception) -> None:
        self.files: dict[str, bytes | Exception] = dict(files)
        self.reads: list[str] = []

    def read(self, path: str) -> bytes:
        self.reads.append(path)
        found = self.files[path]
        if isinstance(found, Exception):
            raise found
        return found


def test_a_manifest_is_read_once() -> None:
    store, cache = Store(m=FILE), MetadataCache()
    assert [cache.read(HERE, "m", store.read) for _ in range(3)] == [FILE] * 3
    assert store.reads == ["m"]


def test_what_could_not_be_read_is_read_again() -> None:
    store, cache = Store(m=StorageError("gone")), MetadataCache()
    with pytest.raises(StorageError, match="gone"):
        cache.read(HERE, "m", store.read)
    store.files["m"] = FILE
    assert cache.read(HERE, "m", store.read) == FILE


@pytest.mark.parametrize(
    "damaged",
    [b"", b"Obj\x01", FILE[:-1], FILE[:-40], FILE + b"x", b"no Avro" * 20],
    ids=["nothing", "magic", "cut", "cut more", "longer", "other"],  # a file has random bytes, a test's name must not
)
def test_what_is_not_whole_is_read_again(damaged: bytes) -> None:
    assert not is_whole_avro(damaged)
    store, cache = Store(m=damaged), MetadataCache()
    assert cache.read(HERE, "m", store.read) == damaged
    store.files["m"] = FILE
    assert cache.read(HERE, "m", store.read) == FILE


def test_the_room_is_bounded_and_the_first_files_keep_it() -> None:
    """Operations read the same files in the same order: with the oldest dropped first none would be found again."""
    store = Store(a=FILE, b=FILE, c=FILE)
    cache = MetadataCache(most_bytes=2 * len(FILE))
    for _ in range(3):
        for path in "abc":
            assert cache.read(HERE, path, store.read) == FILE
    assert store.reads == ["a", "b", "c", "c", "c"]


def document() -> bytes:
    return render_document(TableMetadata(new_document("s3://b/t", 2)))


def test_within_a_pass_a_metadata_file_is_read_once() -> None:
    store: Any = Store(m=document())
    for _ in range(2):
        load_document(store, "m")
    assert store.reads == ["m", "m"]
    with keeping_documents():
        for _ in range(3):
            load_document(store, "m")
    assert store.reads == ["m", "m", "m"]
    load_document(store, "m")
    assert len(store.reads) == 4


def test_a_damaged_metadata_file_is_read_again() -> None:
    store: Any = Store(m=document()[:-5])
    with keeping_documents():
        with pytest.raises(MetadataUnreadable, match="cannot be parsed"):
            load_document(store, "m")
        store.files["m"] = document()
        load_document(store, "m")
    assert store.reads == ["m", "m"]


def test_only_the_latest_metadata_files_are_kept() -> None:
    with keeping_documents():
        for number in range(20):
            keep_document(HERE, str(number), b"x")
        keep_document(HERE, "large", bytes(17 << 20))
        assert [number for number in range(20) if kept_document(HERE, str(number)) is not None] == list(range(4, 20))
        assert kept_document(HERE, "large") is None
    assert kept_document(HERE, "19") is None
