"""A judge in front of SeaweedFS, as the gate is in front of moto: a role does what its policies allow (rule 143).

SeaweedFS has one pair of keys, and knows no roles.  So who asks here signs with the keys of its own role; what that
may do is signed anew with the server's keys, and sent on.  Objects are judged as those of an ordinary bucket, because
SeaweedFS lists and deletes them; the catalog as the Iceberg REST endpoint of S3 Tables.
"""

from __future__ import annotations

import http.client
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from icekeeper.demo.seaweedfs import SeaweedFSServer
from local_stack.rights.callers import caller_of
from local_stack.rights.denials import denial
from local_stack.rights.evaluate import Need
from local_stack.rights.rest_needs import rest_needs
from local_stack.rights.s3_needs import s3_needs
from local_stack.template import ACCOUNT, REGION
from local_stack.wire import HttpAnswer, WireRequest, s3_error, signer

__all__ = ["JudgedLake", "judged_lake"]

# Made anew, or of one connection only.
_REPLACED = frozenset(
    {"authorization", "host", "x-amz-date", "x-amz-security-token"}
    | {"connection", "keep-alive", "transfer-encoding", "content-length", "expect"}
)


@dataclass
class JudgedLake:
    """Where SeaweedFS is to be asked, and who was let in."""

    bucket: str
    s3_endpoint: str = ""
    iceberg_uri: str = ""
    let_in: set[str] = field(default_factory=set)
    """Names of roles."""

    @property
    def arns(self) -> tuple[str, str]:
        """The bucket of objects and the table bucket whose catalog is asked, as policies name them."""
        return f"arn:aws:s3:::{self.bucket}", f"arn:aws:s3tables:{REGION}:{ACCOUNT}:bucket/{self.bucket}"


class _AsItCame(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """The payload's hash stays the client's: of the bytes, or the word for bytes that are not signed."""

    def _modify_request_before_signing(self, request: Any) -> None:
        SigV4Auth._modify_request_before_signing(self, request)


@dataclass(frozen=True, slots=True)
class _Door:
    """One of the server's two ports."""

    upstream: str
    service: str
    sign: Callable[[AWSRequest], None]
    needs: Callable[[WireRequest], Iterator[Need]]
    lake: JudgedLake


@contextmanager
def judged_lake(server: SeaweedFSServer, bucket: str) -> Iterator[JudgedLake]:
    """A judge on two free ports, while this lasts."""
    lake = JudgedLake(bucket)
    keys = Credentials(server.access_key, server.secret_key)
    of_s3, of_catalog = _AsItCame(keys, "s3", server.region), SigV4Auth(keys, "s3tables", server.region)
    table_bucket = lake.arns[1]
    with ExitStack() as ending:
        lake.s3_endpoint = ending.enter_context(
            _served(_Door(server.s3_endpoint, "s3", of_s3.add_auth, lambda one: s3_needs(one, lambda _: None), lake))
        )
        lake.iceberg_uri = ending.enter_context(
            _served(
                _Door(
                    server.iceberg_uri,
                    "s3tables",
                    of_catalog.add_auth,
                    lambda one: rest_needs(one.method, one.path, table_bucket),
                    lake,
                )
            )
        )
        yield lake


@contextmanager
def _served(at: _Door) -> Iterator[str]:
    class Handler(_Judge):
        door = at

    with _Server(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{httpd.server_address[1]}"
        finally:
            httpd.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closes its connection is no news."""


class _Judge(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Head and body of an answer go out in one piece: else Nagle's algorithm holds the second one back for 40 ms.
    wbufsize = -1
    disable_nagle_algorithm = True
    door: _Door

    def setup(self) -> None:
        super().setup()
        self._connection = http.client.HTTPConnection(urlsplit(self.door.upstream).netloc, timeout=60)

    def finish(self) -> None:
        self._connection.close()
        super().finish()

    def handle_expect_100(self) -> bool:
        super().handle_expect_100()
        self.wfile.flush()  # the client waits a second for it
        return True

    def judge(self) -> None:
        body = self._body()
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = WireRequest(self.door.service, self.command, unquote(path), query, headers, body)
        refused = self._refused(request)
        if refused is None:
            self._forward(body)
        else:
            self._say(int(refused.status.split()[0]), refused.headers, refused.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = judge  # noqa: N815 - as http.server wants them named

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: requests are judged, not told."""

    def _refused(self, request: WireRequest) -> HttpAnswer | None:
        caller = caller_of(signer(request.headers.get("authorization", ""))[0])
        if caller is None:  # nobody gets past without a role
            return s3_error(request, "403 Forbidden", "AccessDenied", "No role has this key")
        role = caller.rights.roles[caller.role].name
        missing = caller.refused(self.door.needs(request))
        if missing is not None:
            return denial(request, role, missing)
        self.door.lake.let_in.add(role)
        return None

    def _forward(self, body: bytes) -> None:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _REPLACED}
        signed = AWSRequest(method=self.command, url=self.door.upstream + self.path, data=body, headers=kept)
        self.door.sign(signed)
        self._connection.putrequest(self.command, self.path, skip_accept_encoding=True)
        for name, value in signed.headers.items():
            self._connection.putheader(name, value)
        if body or self.command in ("PUT", "POST"):
            self._connection.putheader("Content-Length", str(len(body)))
        self._connection.endheaders(body or None)
        answer = self._connection.getresponse()
        data = answer.read()
        told = [(name, value) for name, value in answer.getheaders() if name.lower() not in _REPLACED]
        length = answer.getheader("Content-Length") if self.command == "HEAD" else None
        self._say(answer.status, told, data, length)

    def _say(self, status: int, headers: Sequence[tuple[str, str]], body: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if status not in (204, 304):
            self.send_header("Content-Length", length or str(len(body)))
        self.end_headers()
        if self.command != "HEAD" and status not in (204, 304):
            self.wfile.write(body)
        self.wfile.flush()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            continue
        return b"".join(chunks)
