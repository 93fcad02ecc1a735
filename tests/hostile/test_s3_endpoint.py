"""A hostile S3 endpoint: nothing outside the table is deleted, and every bad answer ends in a named error
(rule: trust-only-own-answers)."""

from __future__ import annotations

import base64
import hashlib
import itertools
import pickle
import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import unescape

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.aws.settings import ENDPOINT_OF_SERVER
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.load import open_catalog
from icekeeper.catalogs.pointer import keeping_documents, kept_document, load_document
from icekeeper.catalogs.sql import SqlCatalog as OurSqlCatalog
from icekeeper.deletion.table_claims import read_new_manifests
from icekeeper.errors import MaintenanceError, StorageError
from icekeeper.machine.foreign_bytes import MAX_UNPACKED_MB
from icekeeper.operation_facts import Operation
from icekeeper.storage.arrow_files import read_s3_range
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.part_plan import ObjectRange
from icekeeper.storage.s3_reads import read_beginning, read_end
from icekeeper.storage.storage import Storage
from support.maintained_table import ID_AND_PART, MaintainedTable
from support.proxies import served_by
from support.scripted_rest import hostile_rest

# An S3 store on 127.0.0.1 that keeps objects in memory; a test scripts its answers.

_PIECE = 256 * 1024
OLD = "2020-01-01T00:00:00.000Z"
_RESULT = (
    '<?xml version="1.0" encoding="UTF-8"?><{name} xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{inner}</{name}>'
)


class Answer(NamedTuple):
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {}


class StoreRequest(NamedTuple):
    method: str
    path: str
    """``/bucket/key``, decoded."""
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and "list-type" in self.query


Script: TypeAlias = Callable[[StoreRequest], Answer | None]


def listed(key: str, size: object = 1) -> str:
    """One entry of a listing."""
    return f"<Contents><Key>{quote(key)}</Key><LastModified>{OLD}</LastModified><Size>{size}</Size></Contents>"


def listing(inner: str, token: str | None = None) -> Answer:
    """An answer to ListObjectsV2."""
    more = "" if token is None else f"<NextContinuationToken>{token}</NextContinuationToken>"
    head = f"<IsTruncated>{'false' if token is None else 'true'}</IsTruncated>{more}<EncodingType>url</EncodingType>"
    return Answer(200, _RESULT.format(name="ListBucketResult", inner=head + inner).encode())


@dataclass
class HostileStore:
    """The objects (``/bucket/key``) and requests of the store, and the script of its false answers."""

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[StoreRequest] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of answers sent to clients, including those in network buffers."""
    script: Script = lambda request: None
    """Called first; if it returns ``None``, the store answers correctly."""
    _parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """Catalog properties for this store."""
        keys = {"s3.access-key-id": "THEIRS", "s3.secret-access-key": "their-secret", "s3.session-token": "their-token"}
        return {"s3.endpoint": self.url, "s3.region": "us-east-1", **keys}

    def answer(self, request: StoreRequest) -> Answer:
        self.requests.append(request)
        return self.script(request) or getattr(self, f"_{request.method.lower()}")(request)

    def _get(self, request: StoreRequest) -> Answer:
        if request.is_listing:
            bucket = request.path.rstrip("/")
            prefix = f"{bucket}/{request.query.get('prefix', '')}"
            keys = [key for key in sorted(self.objects) if key.startswith(prefix)]
            return listing("".join(listed(key[len(bucket) + 1 :], len(self.objects[key])) for key in keys))
        found = self.objects.get(request.path)
        if found is None:
            return Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        headers = {"ETag": _etag(found)}
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if byte_range is None or not found:
            return Answer(200, found, headers)
        start = int(byte_range[1]) if byte_range[1] else max(0, len(found) - int(byte_range[2]))
        end = min(len(found), int(byte_range[2]) + 1) if byte_range[1] and byte_range[2] else len(found)
        return Answer(206, found[start:end], {**headers, "Content-Range": f"bytes {start}-{end - 1}/{len(found)}"})

    _head = _get

    def _put(self, request: StoreRequest) -> Answer:
        if "partNumber" in request.query:
            self._parts[f"{request.path} {int(request.query['partNumber']):06}"] = request.body
        else:
            self.objects[request.path] = request.body
        return Answer(200, b"", {"ETag": _etag(request.body)})

    def _post(self, request: StoreRequest) -> Answer:
        if "uploads" in request.query:
            return Answer(
                200, _RESULT.format(name="InitiateMultipartUploadResult", inner="<UploadId>1</UploadId>").encode()
            )
        if "uploadId" in request.query:
            parts = sorted(name for name in self._parts if name.startswith(f"{request.path} "))
            self.objects[request.path] = b"".join(self._parts.pop(name) for name in parts)
            return Answer(200, _RESULT.format(name="CompleteMultipartUploadResult", inner="<ETag>1</ETag>").encode())
        for key in re.findall(r"<Key>(.*?)</Key>", request.body.decode(), re.DOTALL):
            self._gone(f"{request.path.rstrip('/')}/{unescape(key)}")
        return Answer(200, _RESULT.format(name="DeleteResult", inner="").encode())

    def _delete(self, request: StoreRequest) -> Answer:
        self._gone(request.path)
        return Answer(204)

    def _gone(self, path: str) -> None:
        self.deleted.append(path)
        self.objects.pop(path, None)


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _plain(headers: Mapping[str, str], body: bytes) -> bytes:
    """The body of an upload, without its ``aws-chunked`` framing."""
    if "aws-chunked" not in headers.get("content-encoding", ""):
        return body
    plain = b""
    while body:
        head, _, rest = body.partition(b"\r\n")
        size = int(head.partition(b";")[0] or b"0", 16)
        if not size:
            break
        plain, body = plain + rest[:size], rest[size + 2 :]
    return plain


@contextmanager
def hostile_store() -> Iterator[HostileStore]:
    store = HostileStore()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self._chunked() if "chunked" in headers.get("transfer-encoding", "") else self._whole(headers)
            address = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(address.query, keep_blank_values=True).items()}
            request = StoreRequest(self.command, unquote(address.path), query, headers, _plain(headers, body))
            with lock:
                status, answer, more = store.answer(request)
            self.send_response(status)
            for name, value in {"Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT", **more}.items():
                self.send_header(name, value)
            if "Content-Length" not in more:
                self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            for at in range(0, 0 if self.command == "HEAD" else len(answer), _PIECE):
                self.wfile.write(answer[at : at + _PIECE])
                store.sent += len(answer[at : at + _PIECE])

        def _whole(self, headers: Mapping[str, str]) -> bytes:
            return self.rfile.read(int(headers.get("content-length") or 0))

        def _chunked(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline().strip() or b"0", 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 (the names by which http.server calls)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing."""

    with served_by(Handler) as store.url:
        yield store


AT = "s3://bucket/t"
LAUGHS = "".join(f'<!ENTITY {chr(98 + i)} "{("&" + chr(97 + i) + ";") * 10}">' for i in range(10))
FILE = '<!ENTITY x SYSTEM "file:///etc/passwd">'
LISTED = "<ListBucketResult><Contents><Key>t/{}</Key><Size>1</Size></Contents></ListBucketResult>"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)
    monkeypatch.setattr("icekeeper.storage.s3.DELETE_ATTEMPTS", 1)


@pytest.fixture
def store() -> Iterator[HostileStore]:
    with hostile_store() as store:
        yield store


@pytest.fixture
def elsewhere() -> Iterator[HostileStore]:
    with hostile_store() as other:
        other.objects["/bucket/t/a"] = b"of another host"
        yield other


def listings(store: HostileStore, answer: Callable[[int], Answer]) -> None:
    """Answer each listing by its number, from 0."""
    count = itertools.count()
    store.script = lambda request: answer(next(count)) if request.is_listing else None


@pytest.mark.parametrize(
    ("inner", "sentence"),
    [
        (listed("other/x"), "lists 'other/x', which is outside the prefix"),
        (listed("t/a") + listed("t"), "lists 't', which is outside the prefix"),
        (listed("tt/a\x1b[2J"), r"lists 'tt/a\\x1b\[2J', which is outside the prefix"),
        (listed(""), "lists '', which is outside the prefix"),
        ("<Contents><Size>1</Size></Contents>", "lists '', which is outside the prefix"),
        ("<Contents><Key>t/a</Key></Contents>", "lists 't/a' without its size"),
        *((listed("t/a", size), "failed with NoNumber") for size in ("", "x", "-1", "1e9", "9" * 20, "9" * 5000)),
        (listed("t/a", 2**63), "lists 't/a' without its size"),
    ],
    ids=[
        *("outside", "beside", "another table", "no name", "no key", "no size", "empty size", "text", "negative"),
        *("exponent", "20 digits", "5000 digits", "more than a long"),
    ],
)
def test_a_listing_with_entries_outside_the_prefix_or_bad_sizes_is_an_error(
    store: HostileStore, inner: str, sentence: str
) -> None:
    listings(store, lambda number: listing(inner))
    storage = Storage(store.properties)
    for listed_by in (storage.list, storage.list_folder, storage.list_if_allowed):
        with pytest.raises(StorageError, match=sentence):
            list(listed_by(AT) or ())


@pytest.mark.parametrize("folder", ["other/", "t/", "t/a", "t", "", None])
def test_a_listed_folder_outside_the_prefix_is_an_error(store: HostileStore, folder: str | None) -> None:
    element = "" if folder is None else f"<Prefix>{folder}</Prefix>"
    listings(store, lambda number: listing(f"<CommonPrefixes>{element}</CommonPrefixes>", None if number else "on"))
    with pytest.raises(StorageError, match="which is outside the prefix"):
        list(Storage(store.properties).list(AT))
    with pytest.raises(StorageError, match="which is outside the prefix"):
        Storage(store.properties).folders_in(AT)


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(lambda number: listing(listed(f"t/{number}"), "again"), id="the same token"),
        pytest.param(lambda number: listing(listed(f"t/{number}"), "ab"[number % 2]), id="tokens in a ring"),
        pytest.param(lambda number: listing(listed("t/a"), f"on-{number}"), id="the same page"),
        pytest.param(lambda number: listing("", f"on-{number}"), id="empty pages"),
    ],
)
def test_an_endless_listing_is_an_error(
    store: HostileStore, page: Callable[[int], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icekeeper.storage.s3_objects._MOST_EMPTY_PAGES", 20)
    listings(store, page)
    with pytest.raises(StorageError, match=r"repeats its pages and never ends|same next token was received twice"):
        list(Storage(store.properties).list_folder(AT))
    assert len(store.requests) < 30


@pytest.mark.parametrize(
    "body",
    [
        f'<!DOCTYPE l [<!ENTITY a "aaaaaaaaaa">{LAUGHS}]>{LISTED.format("&k;")}',
        f"<!DOCTYPE l [{FILE}]>{LISTED.format('&x;')}",
        "<ListBucketResult>" + "<a>" * 20_000,
        LISTED.format("a&#1;"),
        LISTED.format("\xff\xfe"),
    ],
    ids=["laughs", "entity of a file", "deep", "control character", "no UTF-8"],
)
def test_malformed_xml_is_an_error(store: HostileStore, body: str) -> None:
    store.script = lambda request: Answer(200, body.encode("latin-1"))
    storage = Storage(store.properties)
    with pytest.raises(StorageError, match="s3://bucket/t failed"):
        list(storage.list_folder(AT))
    report = storage.delete([f"{AT}/a", f"{AT}/b"])
    assert (report.deleted, set(report.failed)) == ((), {f"{AT}/a", f"{AT}/b"})


@pytest.mark.parametrize(
    "answer",
    [
        Answer(206, b"abcdefgh", {"Content-Range": "bytes 0-2/3", "ETag": '"a"'}),
        Answer(206, b"abc", {"Content-Range": "bytes 0-9/10", "ETag": '"a"'}),
        Answer(206, b"abc", {"Content-Range": "bytes 5-2/3", "ETag": '"a"'}),
        Answer(206, b"abc", {"Content-Range": "bytes */3", "ETag": '"a"'}),
        Answer(206, b"abc", {"Content-Range": "bytes 0-2/" + "9" * 5000, "ETag": '"a"'}),
        Answer(206, b"abc", {"Content-Range": "bytes 0-2/" + "9" * 19, "ETag": '"a"'}),
        Answer(200, b"abc", {"x-amz-missing-meta": "many", "ETag": '"a"'}),
    ],
    ids=["more", "less", "backwards", "no range", "long number", "exabytes", "no number"],
)
def test_an_answer_with_wrong_length_headers_is_an_error(store: HostileStore, answer: Answer) -> None:
    store.script = lambda request: answer
    storage = Storage(store.properties)
    for act in (lambda: storage.read(f"{AT}/a"), lambda: storage.read_end(f"{AT}/a", 8)):
        with pytest.raises(StorageError, match="s3://bucket/t/a failed"):
            act()


@pytest.mark.parametrize("status", [200, 403])
@pytest.mark.parametrize("ask", ["list", "read", "delete"])
def test_an_endless_answer_is_an_error(
    store: HostileStore, status: int, ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """boto3 reads an error of any length into memory: 3 GB in 3 s (rule: bound-foreign-bytes)."""
    monkeypatch.setattr("icekeeper.storage.s3.MOST_BYTES", 1 << 20)
    monkeypatch.setenv(MAX_UNPACKED_MB, "1")
    endless = Answer(status, b"<ListBucketResult>" + bytes(40 << 20))
    store.script = lambda request: endless
    storage = Storage(store.properties)
    what = "is larger than one file may" if (ask, status) == ("read", 200) else "an answer has more than 1,048,576"
    if ask == "delete":
        assert what in str(storage.delete([f"{AT}/a"]).failed)
    else:
        with pytest.raises(MaintenanceError, match=what):
            storage.read(f"{AT}/a") if ask == "read" else list(storage.list(AT))
    assert store.sent < 24 << 20


def test_an_answer_longer_than_its_range_is_not_read_into_memory(store: HostileStore) -> None:
    body = bytes(64 << 20)
    store.script = lambda request: Answer(206, body, {"Content-Range": "bytes 0-2/3", "ETag": '"a"'})
    client, path = Storage(store.properties).s3, f"{AT}/a"
    acts: tuple[Callable[[], object], ...] = (
        lambda: read_end(client, path, 8),
        lambda: read_beginning(client, path),
        lambda: read_s3_range(client, ObjectRange(path, None, 0, 3)),
    )
    for act in acts:
        store.sent = 0
        with pytest.raises(OSError, match="the store answered with"):
            act()
        assert store.sent < 32 << 20


# -- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_request_to_an_endpoint_from_the_server_follows_a_redirect(
    store: HostileStore, elsewhere: HostileStore, status: int
) -> None:
    """PyArrow follows redirects with the session token, also to link-local addresses
    (platform: pyarrow-follows-redirects)."""
    region = {"x-amz-bucket-region": "eu-west-1"} if status == 301 else {}
    store.script = lambda request: Answer(status, b"", {"Location": f"{elsewhere.url}{request.path}", **region})
    storage = Storage({**store.properties, ENDPOINT_OF_SERVER: "true"})
    path = f"{AT}/a"

    def write() -> None:
        with storage.translated(path), bounded_output(storage, path) as stream:
            stream.write(b"x")

    acts: tuple[Callable[[], object], ...] = (
        *(lambda: storage.read(path), lambda: storage.read_end(path, 8), lambda: storage.open_input(path)),
        *(lambda: storage.size(path), lambda: storage.status(path), lambda: list(storage.list(AT)), write),
        *(lambda: storage.write(path, b"x"), lambda: storage.open_output(path)),  # PyArrow must not upload
    )
    for act in acts:
        with pytest.raises(StorageError, match=f"^{AT}"):
            act()
    assert storage.delete([path]).deleted == ()
    assert elsewhere.requests == []


def test_an_endpoint_that_later_resolves_to_a_link_local_address_is_not_used(
    store: HostileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_up, resolves_to = socket.getaddrinfo, ["127.0.0.1"]

    def answer(name: str, *args: Any, **more: Any) -> Any:
        return look_up(resolves_to[0] if name.endswith("store.example") else name, *args, **more)

    monkeypatch.setattr("socket.getaddrinfo", answer)
    properties = {**store.properties, "s3.endpoint": store.url.replace("127.0.0.1", "store.example")}
    for more in ({}, {"s3.force-virtual-addressing": "true"}):
        resolves_to[0] = "127.0.0.1"
        storage = pickle.loads(pickle.dumps(Storage({**properties, **more, ENDPOINT_OF_SERVER: "true"})))  # a worker's
        storage.write(f"{AT}/a", b"x")
        assert storage.read(f"{AT}/a") == b"x"
        resolves_to[0] = "169.254.169.254"
        with pytest.raises(StorageError, match=r"store\.example resolves to a link-local address, which is never used"):
            storage.read(f"{AT}/a")
        assert storage.delete([f"{AT}/a"]).deleted == ()


def test_objects_at_an_endpoint_from_the_server_are_read_and_written(store: HostileStore) -> None:
    storage = Storage({**store.properties, ENDPOINT_OF_SERVER: "true"})
    data = bytes(range(256)) * 1000
    with storage.translated(f"{AT}/a"), bounded_output(storage, f"{AT}/a") as stream:
        stream.write(data[:1000])
        stream.write(data[1000:])
        assert stream.tell() == len(data)
    assert store.objects == {"/bucket/t/a": data}
    with storage.open_input(f"{AT}/a") as stream:
        assert (stream.size(), stream.read(), stream.read_at(10, 300)) == (len(data), data, data[300:310])
        assert (stream.seek(-3, 2), stream.read(), stream.read()) == (len(data) - 3, data[-3:], b"")
        store.objects["/bucket/t/a"] = data[:-1] + b"x"
        with pytest.raises(OSError, match=r"fewer than|replaced"):
            stream.read_at(10, 0)
    with pytest.raises(StorageError, match=f"{AT}/b does not exist"):
        storage.open_input(f"{AT}/b")
    assert storage.size(f"{AT}/b") is None


# -- a whole sweep


@pytest.fixture
def table(store: HostileStore, tmp_path: Path) -> Iterator[MaintainedTable]:
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": "s3://bucket", **store.properties}
    writer = SqlCatalog("local", **properties)
    ours = OurSqlCatalog(ConfiguredCatalog("local", CatalogKind.SQL, properties))
    table = MaintainedTable(ours, tmp_path, pyiceberg=writer)
    table.create(location=AT)
    table.append(1, 2)
    yield table
    writer.close()
    ours.close()


def test_a_sweep_of_a_hostile_listing_deletes_nothing_outside(store: HostileStore, table: MaintainedTable) -> None:
    store.objects.update(
        {"/bucket/other/data/x.parquet": b"x", "/bucket/t2/x.parquet": b"x", "/bucket/t/data/o.parquet": b"x"}
    )
    before = dict(store.objects)
    for key in ("other/data/x.parquet", "t2/x.parquet", "t/../other/data/x.parquet"):

        def tampered(request: StoreRequest, key: str = key) -> Answer | None:
            if not request.is_listing:
                return None
            keys = [path.removeprefix("/bucket/") for path in store.objects if path.startswith("/bucket/t/")]
            return listing("".join(listed(item) for item in [*keys, key]))

        store.script = tampered
        outcome = table.run(Operation.REMOVE_ORPHANS)
        gone = {path for path in before if path not in store.objects}
        assert gone <= {"/bucket/t/data/o.parquet"}
        assert all(path.startswith("/bucket/t/") and ".." not in path for path in store.deleted)
        if ".." not in key:
            assert (outcome.status.value, gone) == ("failed", set())
            assert f"the store lists '{key}', which is outside the prefix" in str(outcome.reason)


@pytest.mark.parametrize("resource", ["t@bucket", "/bucket/t/data/x.parquet", None])
def test_no_file_in_lakefs_is_deleted(store: HostileStore, table: MaintainedTable, resource: str | None) -> None:
    """In lakeFS the first folder is a branch, which its errors name; other branches may need any file."""
    with table.table.transaction() as transaction:
        transaction.set_properties(
            {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
        )
    table.fill(3)
    store.objects["/bucket/t/data/orphan.parquet"] = b"x"
    before, lookups = dict(store.objects), []

    def gateway(request: StoreRequest) -> Answer | None:
        if request.method != "GET" or request.is_listing or request.path in store.objects:
            return None
        lookups.append(request.path)
        element = "" if resource is None else f"<Resource>{resource}</Resource>"
        return Answer(404, f"<Error><Code>NoSuchKey</Code>{element}</Error>".encode())

    store.script = gateway
    outcomes = {item.operation: item for item in table.maintain().operations}
    is_lakefs = resource == "t@bucket"
    expected = "refused" if is_lakefs else "succeeded"
    for operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS):
        assert outcomes[operation].status.value == expected
        assert ("ns.t is in lakeFS, whose other branches" in str(outcomes[operation].reason)) is is_lakefs
    assert outcomes[Operation.COMPACT].status.value == "succeeded"
    assert (before.keys() <= store.objects.keys()) is is_lakefs
    assert len(lookups) <= 2, "once per client of a pass"


@pytest.mark.parametrize("by", ["endpoint", "region"])
def test_metadata_of_another_store_under_the_same_path_is_not_reused(
    store: HostileStore, elsewhere: HostileStore, table: MaintainedTable, by: str
) -> None:
    """A pass reads tables of all catalogs; an attacker's table may name the victim's manifests in another store.

    Bucket names are unique only within an AWS partition, so another region may be another store
    (rule: cache-only-immutable-metadata).
    """
    table.append(3)
    victim = table.loaded
    old, new = (snapshot.manifest_list for snapshot in victim.metadata.snapshots.values())
    assert old is not None
    assert new is not None
    elsewhere.objects.update(store.objects)
    elsewhere.objects[new.removeprefix("s3:/")] = store.objects[old.removeprefix("s3:/")]
    theirs = {"s3.endpoint": elsewhere.url} if by == "endpoint" else {"s3.region": "cn-north-1"}
    forged = replace(victim, io_properties={**victim.io_properties, **theirs})
    runtime = table.runtime_with()
    context = runtime.context(victim, runtime.policy(victim, {}), table.engine)
    with keeping_documents():
        if by == "region":  # one server plays both stores
            honest, store.objects = store.objects, elsewhere.objects
        read_new_manifests(context, forged, ())
        load_document(context.stores.storage(forged), victim.metadata_location)
        assert kept_document(context.stores.storage(victim).place, victim.metadata_location) is None
        if by == "region":
            store.objects = honest
        reader = context.reader(victim)
        manifests = reader.manifests_of(victim.metadata.snapshots.values())
        assert len({manifest.manifest_path for manifest in manifests}) == 2


def test_a_table_with_vended_keys_and_endpoint_is_maintained(
    store: HostileStore, table: MaintainedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An honest set-up, in which the operator has no keys for the store."""
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    big = pa.table({"id": list(range(100_000)), "part": ["p"] * 100_000}, schema=ID_AND_PART)
    for number in range(3):
        table.append(number)
    table.table.append(big)
    assert max(map(len, store.objects.values())) > 150_000
    monkeypatch.setattr("icekeeper.storage.storage.ONE_READ_BYTES", 100_000)  # larger files are read by ranges
    store.objects["/bucket/t/data/orphan.parquet"] = b"x"
    with hostile_rest(table.catalog.inner) as rest:
        rest.config = store.properties
        ours = open_catalog("scripted", {"type": "rest", "uri": rest.url, "warehouse": "s3://bucket"})
        (tmp_path / "ours").mkdir()
        beside = MaintainedTable(ours, tmp_path / "ours", pyiceberg=table.pyiceberg)
        assert beside.loaded.io_properties[ENDPOINT_OF_SERVER] == "true"
        outcome = beside.maintain()
        assert [item.reason for item in outcome.operations if item.status.value not in ("succeeded", "skipped")] == []
        beside.assert_sound()
    assert "/bucket/t/data/orphan.parquet" in store.deleted
    assert len(table.data_files()) == 1
    found = table.table.scan().to_arrow()["id"].to_pylist()
    assert sorted(found) == sorted([1, 2, 0, 1, 2, *range(100_000)])


# A store that requires Content-MD5 for DeleteObjects, which boto3 does not send by default.

NO_MD5 = (
    ("MissingContentMD5", "Missing required header for this request: Content-Md5."),
    ("InvalidRequest", "DeleteObjects requires one valid Content-MD5 header"),
)


@pytest.mark.parametrize(("code", "message"), NO_MD5)
def test_a_store_that_demands_content_md5_gets_it(store: HostileStore, code: str, message: str) -> None:
    """(platform: some-stores-demand-content-md5)."""
    refused: list[StoreRequest] = []

    def demand(request: StoreRequest) -> Answer | None:
        if request.method != "POST" or "delete" not in request.query:
            return None
        digest = base64.b64encode(hashlib.md5(request.body, usedforsecurity=False).digest()).decode()
        if request.headers.get("content-md5") == digest:
            return None
        refused.append(request)
        return Answer(400, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())

    store.script = demand
    paths = [f"{AT}/{number}" for number in range(1500)]
    store.objects.update({path.removeprefix("s3:/"): b"x" for path in paths})
    storage = Storage(store.properties)
    assert storage.can_delete(AT)
    report = storage.delete(paths)
    assert (set(report.deleted), report.failed, store.objects) == (set(paths), {}, {})
    assert len(refused) == 1, "learned once, by asking whether it deletes"


def test_other_refusals_are_not_retried_with_content_md5(store: HostileStore) -> None:
    store.script = lambda request: Answer(400, b"<Error><Code>InvalidRequest</Code></Error>")
    report = Storage(store.properties).delete([f"{AT}/a"])
    assert list(report.failed) == [f"{AT}/a"]
    assert [request.headers.get("content-md5") for request in store.requests] == [None]
