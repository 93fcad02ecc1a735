"""Requests are counted, and no unnecessary request is sent."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from botocore.exceptions import ClientError

from icekeeper.catalogs.pointer import keep_document, keeping_documents, kept_document, load_document
from icekeeper.errors import MetadataUnreadable, StorageError
from icekeeper.machine.metering import RequestKind, WorkThreads, counting, joined_count, note_request
from icekeeper.metadata.avro_files import write_avro
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import render_document
from icekeeper.model import ManifestFile
from icekeeper.pass_context.stores import CachedFiles, MetadataCache, is_whole_avro
from icekeeper.report.outcome import request_metrics
from icekeeper.rows.file_rows import read_parquet_footer
from icekeeper.storage.s3_reads import ObjectPart
from icekeeper.storage.storage import Storage
from support.engine_work import sends
from support.paper_s3 import storage_over
from support.source_tree import MODULES
from support.tables import new_document

# Requests are counted for the work that causes them, in any thread or process.

GET, PUT = RequestKind.GET, RequestKind.PUT
# Modules whose threads begin separate work, such as a pass with its own count, or hand over the counts of workers.
OWN_WORK = {
    "icekeeper.machine.metering",
    "icekeeper.cycle.service",
    "icekeeper.cycle.pass_process",
    "icekeeper.engines.shared_tasks",
}


def test_a_count_has_only_the_requests_of_its_block() -> None:
    note_request(GET)  # outside any block
    with counting() as around:
        note_request(GET)
        with counting() as inside:
            note_request(PUT, 3)
        with joined_count() as joined:
            note_request(RequestKind.DELETE)
    assert joined is around
    assert inside.counts == {PUT: 3}
    assert around.counts == {GET: 1, RequestKind.DELETE: 1}


def test_threads_count_for_the_caller_that_gave_them_work() -> None:
    with WorkThreads(4) as pool:
        with counting() as first:
            assert list(pool.map(sends, range(20))) == [-number for number in range(20)]
        with counting() as second:
            assert pool.submit(sends, 7).result() == -7
    assert (first.counts, second.counts) == ({GET: 190}, {GET: 7})


def test_no_other_module_starts_threads_whose_requests_are_not_counted() -> None:
    """Otherwise the metrics would silently lack their requests."""
    starting = {
        name
        for name, path in MODULES.items()
        if any(
            isinstance(node, ast.Name) and node.id == ThreadPoolExecutor.__name__
            for node in ast.walk(ast.parse(path.read_text()))
        )
    }
    assert starting == OWN_WORK


def test_metrics_have_no_zeros() -> None:
    assert request_metrics("compact", {GET: 3, PUT: 0, RequestKind.CATALOG: 1}) == {
        "compact.get_requests": 3,
        "compact.catalog_requests": 1,
    }


# One request suffices: a listing also shows whether it is allowed, and a footer is read without a known file size.

WHERE = "s3://bucket/t/metadata"


class Listings:
    """Answers to the next listings; a text is the error code of a refusal."""

    def __init__(self, *answers: dict[str, Any] | str) -> None:
        self.answers, self.asked = list(answers), 0

    def list_objects_v2(self, **request: Any) -> dict[str, Any]:
        self.asked += 1
        found = self.answers.pop(0)
        if isinstance(found, str):
            raise ClientError({"Error": {"Code": found}, "ResponseMetadata": {"HTTPStatusCode": 403}}, "ListObjectsV2")
        return found

    def require(self, paths: list[str]) -> None:
        """It has no bound."""


@pytest.mark.parametrize("answer", ["AccessDenied", {"Contents": [{"Key": "t/metadata/a", "Size": 3}]}])
def test_a_listing_shows_whether_it_is_allowed(answer: dict[str, Any] | str) -> None:
    client = Listings(answer)
    storage, is_allowed = storage_over(client), not isinstance(answer, str)
    found = storage.list_if_allowed(WHERE)
    assert (None if found is None else [file.path for file in found]) == ([f"{WHERE}/a"] if is_allowed else None)
    assert storage.can_list(WHERE) is is_allowed
    assert is_allowed or storage.list_if_allowed(WHERE) is None
    assert client.asked == 1


@pytest.mark.parametrize("answers", [["InvalidAccessKeyId"], [{"IsTruncated": True}, "AccessDenied"]])
def test_a_listing_that_fails_or_breaks_off_is_an_error(answers: list[Any]) -> None:
    """Files in a folder that may not be listed are unknown; they must not count as absent."""
    with pytest.raises(StorageError):
        storage_over(Listings(*answers)).list_if_allowed(WHERE)


def test_a_footer_takes_one_request_and_a_long_footer_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    read_end = Storage.read_end

    def noted(self: Storage, path: str, length: int) -> ObjectPart:
        lengths.append(length)
        return read_end(self, path, length)

    monkeypatch.setattr(Storage, "read_end", noted)
    for columns, requests in ((3, 1), (1500, 2)):
        path = str(tmp_path / f"{columns}.parquet")
        pq.write_table(pa.table({f"column {i}": [1, 2] for i in range(columns)}), path)
        lengths.clear()
        assert read_parquet_footer(path, Storage({})).equals(pq.read_metadata(path))
        assert len(lengths) == requests


@pytest.mark.parametrize("damaged", [b"", b"PAR1", b"PAR1" * 3, b"x" * 100, b"PAR1" + b"\xff\xff\xff\x7fPAR1"])
def test_bytes_that_are_not_a_parquet_file_are_an_error(damaged: bytes, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(damaged)
    with pytest.raises((pa.ArrowException, OSError)):
        read_parquet_footer(str(tmp_path / "f"), Storage({}))


# A pass reads each manifest and metadata file once, and caches only complete files
# (rule: cache-only-immutable-metadata).

SCHEMA = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "string"}]}
FILE = write_avro(SCHEMA, [{"a": "x" * 100}], {})


HERE = ("http://here", "us-east-1")


class Store:
    """Bytes by path, or an error to raise; ``reads`` lists every read."""

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

    def require(self, paths: list[str]) -> None:
        """It has no bound."""


@pytest.mark.parametrize(
    "damaged",
    [StorageError("gone"), b"", b"Obj\x01", FILE[:-1], FILE[:-40], FILE + b"x", b"no Avro" * 20],
    ids=["gone", "nothing", "magic", "cut", "cut more", "longer", "other"],  # a file has random bytes, a name must not
)
def test_a_manifest_is_read_again_only_while_it_is_incomplete(damaged: bytes | StorageError) -> None:
    store: Any = Store(m=damaged)
    files = CachedFiles(MetadataCache(), store)
    if isinstance(damaged, bytes):
        assert not is_whole_avro(damaged)
        assert files.read("m") == damaged
    else:
        with pytest.raises(StorageError, match="gone"):
            files.read("m")
    store.files["m"] = FILE
    assert [files.read("m") for _ in range(3)] == [FILE] * 3
    assert store.reads == ["m", "m"]


def test_the_cache_is_bounded_and_keeps_the_first_files() -> None:
    """Operations read the same files in the same order: if the oldest file were dropped, no later read would hit."""
    store: Any = Store(a=FILE, b=FILE, c=FILE)
    files = CachedFiles(MetadataCache(most_bytes=2 * len(FILE)), store)
    for _ in range(3):
        for path in "abc":
            assert files.read(path) == FILE
    assert store.reads == ["a", "b", "c", "c", "c"]


def test_a_file_that_two_threads_read_at_once_takes_its_room_once() -> None:
    cache = MetadataCache(most_bytes=2 * len(FILE))
    for path in "aab":
        cache.keep_file(HERE, path, FILE)
    assert cache.files == {(HERE, "a"): FILE, (HERE, "b"): FILE}


def test_decoded_lists_are_kept_while_they_fit() -> None:
    listed = ManifestFile(manifest_path="m", manifest_length=1, partition_spec_id=0, added_snapshot_id=1)
    store: Any = Store(b=b"B", none=b"")
    files = CachedFiles(MetadataCache(most_bytes=2_000), store)
    assert not files.keep_list("none", (9, []), 0), "a truncated file looks like a list without entries"
    assert files.keep_list("a", (10, [listed, listed]), 1_000)
    assert not files.keep_list("b", (11, [listed]), 1_000)
    assert [files.read_list(path) for path in ("a", "b", "none")] == [(10, [listed, listed]), b"B", b""]
    assert store.reads == ["b", "none"]
    other: Any = Store(a=b"A")
    other.place = ("http://elsewhere", "us-east-1")
    assert CachedFiles(files.cache, other).read_list("a") == b"A"


def document() -> bytes:
    return render_document(TableMetadata(new_document("s3://b/t", 2)))


def test_within_a_pass_a_metadata_file_is_read_once_and_a_damaged_file_again() -> None:
    store: Any = Store(m=document())
    for _ in range(2):
        load_document(store, "m")
    assert store.reads == ["m", "m"]
    with keeping_documents():
        store.files["m"] = document()[:-5]
        with pytest.raises(MetadataUnreadable, match="cannot be parsed"):
            load_document(store, "m")
        store.files["m"] = document()
        for _ in range(3):
            load_document(store, "m")
    assert len(store.reads) == 4
    load_document(store, "m")
    assert len(store.reads) == 5


def test_only_the_latest_metadata_files_are_kept() -> None:
    with keeping_documents():
        for number in range(20):
            keep_document(HERE, str(number), b"x")
        keep_document(HERE, "large", bytes(17 << 20))
        assert [number for number in range(20) if kept_document(HERE, str(number)) is not None] == list(range(4, 20))
        assert kept_document(HERE, "large") is None
    assert kept_document(HERE, "19") is None
