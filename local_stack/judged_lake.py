"""Checks requests in front of SeaweedFS, as the gate does in front of moto: a role may do what its policies allow
(rule: least-privilege-roles).

SeaweedFS has a single pair of keys, and no roles.  So callers sign with the keys of their own role; a permitted request
is signed again with the server's keys and forwarded.  Objects are checked like those of an ordinary bucket, because
SeaweedFS lists and deletes them; the catalog is checked like the Iceberg REST endpoint of S3 Tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from icekeeper.demo.seaweedfs import SeaweedFSServer
from local_stack.loopback_proxy import OF_ONE_CONNECTION, ProxyHandler, serving
from local_stack.rights.callers import caller_of
from local_stack.rights.denials import denial
from local_stack.rights.evaluate import Need
from local_stack.rights.rest_needs import rest_needs
from local_stack.rights.s3_needs import s3_needs
from local_stack.template import ACCOUNT, REGION
from local_stack.wire import HttpAnswer, WireRequest, s3_error, signer

_NOT_SENT_ON = OF_ONE_CONNECTION | {"authorization", "host", "x-amz-date", "x-amz-security-token"}
"""The latter are made anew."""


@dataclass
class JudgedLake:
    """Where SeaweedFS is to be asked, and who was let in."""

    bucket: str
    s3_endpoint: str = ""
    iceberg_uri: str = ""
    let_in: set[str] = field(default_factory=set)
    """Names of roles."""
    closed: str = ""
    """The path of an object, from its bucket on, that is refused to everybody; empty: none is."""

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
        upstream = urlsplit(at.upstream).netloc
        door = at

    with serving(Handler) as address:
        yield address


class _Judge(ProxyHandler):
    door: _Door

    def serve(self) -> None:
        body = self.body()
        path, _, query = self.path.partition("?")
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = WireRequest(self.door.service, self.command, unquote(path), query, headers, body)
        refused = self._refused(request)
        if refused is None:
            self._forward(body)
        else:
            length = str(len(refused.body))
            self.answer(int(refused.status.split()[0]), refused.headers, refused.body, length)

    def _refused(self, request: WireRequest) -> HttpAnswer | None:
        caller = caller_of(signer(request.headers.get("authorization", ""))[0])
        if caller is None:  # nobody gets past without a role
            return s3_error(request, "403 Forbidden", "AccessDenied", "No role has this key")
        closed = self.door.lake.closed
        if closed and request.path.endswith(closed):
            return s3_error(request, "403 Forbidden", "AccessDenied", "Access Denied")
        role = caller.rights.roles[caller.role].name
        missing = caller.refused(self.door.needs(request))
        if missing is not None:
            return denial(request, role, missing)
        self.door.lake.let_in.add(role)
        return None

    def _forward(self, body: bytes) -> None:
        kept = {name: value for name, value in self.headers.items() if name.lower() not in _NOT_SENT_ON}
        signed = AWSRequest(method=self.command, url=self.door.upstream + self.path, data=body, headers=kept)
        self.door.sign(signed)
        self.send_on(body, [("Host", self.upstream), *signed.headers.items()])
