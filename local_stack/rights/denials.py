"""How AWS says no to a call that no policy allows."""

from __future__ import annotations

from xml.sax.saxutils import escape

from local_stack.rights.evaluate import Need
from local_stack.rights.s3_needs import deleted_keys, is_batch_deletion
from local_stack.template import ACCOUNT
from local_stack.wire import HttpAnswer, WireRequest, json_error, s3_error


def denial(request: WireRequest, role: str, need: Need) -> HttpAnswer:
    """The answer to a call that no policy allows (AWS IAM user guide, "Troubleshoot access denied error messages")."""
    message = (
        f"User: arn:aws:sts::{ACCOUNT}:assumed-role/{role}/local is not authorized to perform: {need.action} on "
        f"resource: {need.resource} because no identity-based policy allows the {need.action} action"
    )
    if request.service == "s3":
        if is_batch_deletion(request):
            return _each_key_denied(request, message)
        return s3_error(request, "403 Forbidden", "AccessDenied", message)
    if request.service == "sts":  # the query protocol
        error = f"<Error><Type>Sender</Type><Code>AccessDenied</Code><Message>{escape(message)}</Message></Error>"
        body = f"<ErrorResponse>{error}</ErrorResponse>".encode()
        return HttpAnswer("403 Forbidden", [("Content-Type", "text/xml")], body)
    # The JSON protocols answer 400, those that go by method and path 403.
    return json_error("400 Bad Request" if request.target else "403 Forbidden", "AccessDeniedException", message)


def missing_key(request: WireRequest) -> HttpAnswer:
    """What S3 says of a key that is not there to who may not list the bucket (Amazon S3 API reference, "GetObject")."""
    return s3_error(request, "403 Forbidden", "AccessDenied", "Access Denied")


def _each_key_denied(request: WireRequest, message: str) -> HttpAnswer:
    """DeleteObjects answers 200, and says of each key that it was not deleted."""
    errors = "".join(
        f"<Error><Key>{escape(key)}</Key><Code>AccessDenied</Code><Message>{escape(message)}</Message></Error>"
        for key in deleted_keys(request)
    )
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<DeleteResult>{errors}</DeleteResult>'
    return HttpAnswer("200 OK", [("Content-Type", "application/xml")], body.encode())
