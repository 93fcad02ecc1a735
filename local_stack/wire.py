"""Requests and answers as they go over the wire; SigV4's Authorization header names the access key and the service."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

_REQUEST_ID = "0123456789ABCDEF"
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([^/]+)/([^/]+)/aws4_request")


def signer(authorization: str) -> tuple[str, str]:
    """``(access key, service)`` of an Authorization header; empty texts where nothing is signed."""
    found = _CREDENTIAL.search(authorization)
    return (found[1], found[3]) if found else ("", "")


@dataclass(frozen=True)
class WireRequest:
    """One request of a service, as it came."""

    service: str
    """As SigV4 names it: ``s3``, ``s3tables``, ``dynamodb``, ``glue``, ``states``, ``lambda``."""
    method: str
    path: str
    """Decoded."""
    query_string: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""
    body: bytes = b""
    """Empty for objects that are written: no right depends on what is in them."""

    @cached_property
    def query(self) -> Mapping[str, str]:
        """Parameters of the address; the last of a name, an empty text where there is no value."""
        return {key: values[-1] for key, values in parse_qs(self.query_string, keep_blank_values=True).items()}

    @cached_property
    def document(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body or b"{}")

    @property
    def target(self) -> str:
        """The operation, of services whose protocol is JSON."""
        return self.headers.get("x-amz-target", "").rpartition(".")[2]


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, complete."""

    status: str
    headers: Sequence[tuple[str, str]]
    body: bytes


def json_error(status: str, code: str, message: str) -> HttpAnswer:
    """As services answer whose protocol is JSON."""
    document = json.dumps({"__type": code, "Message": message, "message": message}).encode()
    return HttpAnswer(status, [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", code)], document)


def s3_error(request: WireRequest, status: str, code: str, message: str) -> HttpAnswer:
    """As S3 answers; a HEAD has no body."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message>'
        f"<RequestId>{_REQUEST_ID}</RequestId></Error>"
    )
    text = b"" if request.method == "HEAD" else body.encode()
    return HttpAnswer(status, [("Content-Type", "application/xml"), ("x-amz-request-id", _REQUEST_ID)], text)
