"""An S3 store on 127.0.0.1 that keeps objects in memory, and answers what a test wants instead."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import NamedTuple, TypeAlias
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import unescape

from support.proxies import served_by

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
    """What the store holds (``/bucket/key``), was asked, and answers in place of the truth."""

    url: str = ""
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[StoreRequest] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    sent: int = 0
    """Bytes of answers that clients have taken, but for what waits on the way."""
    script: Script = lambda request: None
    """Is asked first; with ``None`` the store answers as it should."""
    _parts: dict[str, bytes] = field(default_factory=dict)

    @property
    def properties(self) -> dict[str, str]:
        """For PyIceberg and us."""
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
        wanted = re.fullmatch(r"bytes=(\d*)-(\d*)", request.headers.get("range", ""))
        if wanted is None or not found:
            return Answer(200, found, headers)
        start = int(wanted[1]) if wanted[1] else max(0, len(found) - int(wanted[2]))
        end = min(len(found), int(wanted[2]) + 1) if wanted[1] and wanted[2] else len(found)
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
    """The bytes of an upload in ``aws-chunked`` pieces."""
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
            where = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(where.query, keep_blank_values=True).items()}
            request = StoreRequest(self.command, unquote(where.path), query, headers, _plain(headers, body))
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
            """Says nothing."""

    with served_by(Handler) as store.url:
        yield store
