"""How AWS says no: the status, headers and body of each protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from local_stack.rights.evaluate import Need
from local_stack.rights.s3_needs import deleted_keys, is_batch_deletion
from local_stack.rights.wire import WireRequest
from local_stack.template import ACCOUNT

__all__ = ["HttpAnswer", "denial", "missing_key"]

_REQUEST_ID = "0123456789ABCDEF"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer, complete."""

    status: str
    headers: Sequence[tuple[str, str]]
    body: bytes


def denial(request: WireRequest, role: str, need: Need) -> HttpAnswer:
    """The answer to a call that no policy allows (AWS IAM user guide, "Troubleshoot access denied error messages")."""
    message = (
        f"User: arn:aws:sts::{ACCOUNT}:assumed-role/{role}/local is not authorized to perform: {need.action} on "
        f"resource: {need.resource} because no identity-based policy allows the {need.action} action"
    )
    if request.service == "s3":
        if is_batch_deletion(request):
            return _each_key_denied(request, message)
        return _s3(request, "AccessDenied", message)
    document = json.dumps({"__type": "AccessDeniedException", "Message": message, "message": message}).encode()
    kind = [("Content-Type", "application/x-amz-json-1.1"), ("x-amzn-ErrorType", "AccessDeniedException")]
    # The JSON protocols answer 400, those that go by method and path 403.
    status = "400 Bad Request" if request.target else "403 Forbidden"
    return HttpAnswer(status, kind, document)


def missing_key(request: WireRequest) -> HttpAnswer:
    """What S3 says of a key that is not there to who may not list the bucket (Amazon S3 API reference, "GetObject")."""
    return _s3(request, "AccessDenied", "Access Denied")


def _s3(request: WireRequest, code: str, message: str) -> HttpAnswer:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{escape(message)}</Message>'
        f"<RequestId>{_REQUEST_ID}</RequestId></Error>"
    )
    text = b"" if request.method == "HEAD" else body.encode()
    return HttpAnswer("403 Forbidden", [("Content-Type", "application/xml"), ("x-amz-request-id", _REQUEST_ID)], text)


def _each_key_denied(request: WireRequest, message: str) -> HttpAnswer:
    """DeleteObjects answers 200, and says of each key that it was not deleted."""
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>{escape(message)}</Message></Error>"
        for key in deleted_keys(request)
    )
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<DeleteResult>{errors}</DeleteResult>'
    return HttpAnswer("200 OK", [("Content-Type", "application/xml")], body.encode())
