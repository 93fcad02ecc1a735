"""Stands in front of moto's server: what a policy or AWS itself does not allow gets AWS's answer, and goes no further.

The request on the wire decides, so boto3, PyArrow and every other client are judged alike, in this process and in those
of jobs.  There is no server between: the gate is a layer of moto's own application.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.s3tables.exceptions import TableDoesNotExist
from moto.s3tables.models import s3tables_backends

from local_stack.limits.dynamodb import refused_by_dynamodb
from local_stack.limits.faults import FAULTS
from local_stack.limits.object_headers import refused_headers
from local_stack.limits.state_machines import refused_by_step_functions
from local_stack.limits.table_buckets import refused_by_table_bucket
from local_stack.rights.api_needs import (
    dynamodb_needs,
    glue_needs,
    lambda_needs,
    other_needs,
    s3tables_needs,
    secretsmanager_needs,
    states_needs,
    sts_needs,
)
from local_stack.rights.callers import Caller, caller_of
from local_stack.rights.denials import denial, missing_key
from local_stack.rights.evaluate import Need
from local_stack.rights.s3_needs import TABLE_STORAGE, bucket_and_key, is_batch_deletion, s3_needs
from local_stack.template import ACCOUNT, REGION
from local_stack.wire import HttpAnswer, WireRequest, json_error, signer

Application: TypeAlias = Callable[[Any, dict[str, Any], Any], Iterable[bytes]]

_LIMITED = frozenset({"s3", "s3tables", "dynamodb", "states"})

_TABLES: dict[str, Any] = {}
"""moto's tables by the bucket that holds their files; a dropped table may still be in it."""
_ANSWERED_BY_MOTO: Application = DomainDispatcherApplication.__call__


@functools.cache
def install() -> None:
    """Put the gate in front of every server of this process, once."""
    DomainDispatcherApplication.__call__ = _judged  # type: ignore[method-assign]  # a layer around it


def needs_of(request: WireRequest) -> Iterator[Need]:
    """The rights that a request needs."""
    match request.service:
        case "s3":
            return s3_needs(request, _table_of_storage)
        case "s3tables":
            return s3tables_needs(request, _table_arn)
        case "dynamodb":
            return dynamodb_needs(request)
        case "glue":
            return glue_needs(request)
        case "states":
            return states_needs(request)
        case "lambda":
            return lambda_needs(request)
        case "secretsmanager":
            return secretsmanager_needs(request)
        case "sts":
            return sts_needs(request)
    return other_needs(request)


def _judged(self: Any, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
    key, service = signer(environ.get("HTTP_AUTHORIZATION", ""))
    caller = caller_of(key)
    if caller is None and service not in _LIMITED:
        return _ANSWERED_BY_MOTO(self, environ, start_response)
    request = _request(environ, service)
    if caller is not None and (throttled := FAULTS.throttled(request)) is not None:
        return _answer(throttled, start_response)
    refused = (
        refused_by_dynamodb(request)
        or refused_by_step_functions(request)
        or refused_by_table_bucket(request, _storage_of_pointer)
        or refused_headers(request)
    )
    if refused is not None:
        return _answer(refused, start_response)
    if caller is None:
        return _ANSWERED_BY_MOTO(self, environ, start_response)
    missing = caller.refused(needs_of(request))
    if missing is not None:
        role = caller.rights.roles[caller.role].name
        return _answer(denial(request, role, missing), start_response)
    if FAULTS.is_lost(request):
        list(_ANSWERED_BY_MOTO(self, environ, lambda *_: None))
        return _answer(json_error("500 Internal Server Error", "InternalServerError", "lost"), start_response)
    return _hiding_what_is_missing(self, environ, start_response, caller, request)


def _hiding_what_is_missing(
    application: Any, environ: dict[str, Any], start_response: Any, caller: Caller, request: WireRequest
) -> Iterable[bytes]:
    """moto's answer; a caller that may not list a bucket gets 403 instead of 404 for a missing key."""
    bucket, object_key = bucket_and_key(request)
    may_be_hidden = request.service == "s3" and request.method in ("GET", "HEAD") and bool(object_key)
    if not may_be_hidden or bucket.endswith(TABLE_STORAGE):
        return _ANSWERED_BY_MOTO(application, environ, start_response)
    held: list[Any] = []
    body = _ANSWERED_BY_MOTO(application, environ, lambda *arguments: held.append(arguments))
    if held[0][0].startswith("404"):
        listing = Need("s3:ListBucket", f"arn:aws:s3:::{bucket}", {"s3:prefix": object_key})
        if caller.refused([listing]) is not None:
            return _answer(missing_key(request), start_response)
    start_response(*held[0])
    return body


def _request(environ: dict[str, Any], service: str) -> WireRequest:
    headers = {
        name.removeprefix("HTTP_").replace("_", "-").lower(): str(value)
        for name, value in environ.items()
        if name.startswith(("HTTP_X_AMZ_", "HTTP_IF_"))
    }
    request = WireRequest(
        service=service,
        method=environ["REQUEST_METHOD"],
        path=environ["PATH_INFO"].encode("latin-1").decode(),  # WSGI's way to hold bytes in a text (PEP 3333)
        query_string=environ.get("QUERY_STRING", ""),
        headers=headers,
    )
    if service == "s3" and not is_batch_deletion(request):
        return request  # an object: its bytes are moto's to read
    return _with_body(request, environ)


def _with_body(request: WireRequest, environ: dict[str, Any]) -> WireRequest:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return WireRequest(request.service, request.method, request.path, request.query_string, request.headers, body)


def _answer(answer: HttpAnswer, start_response: Any) -> Iterable[bytes]:
    start_response(answer.status, [*answer.headers, ("Content-Length", str(len(answer.body)))])
    return [answer.body]


def _table_arn(bucket: str, namespace: str, name: str) -> str:
    """The ARN of a table, as AWS writes it; for a missing table, an ARN that only a wildcard covers."""
    try:
        return str(s3tables_backends[ACCOUNT][REGION].get_table(bucket, namespace, name).arn)
    except TableDoesNotExist:
        return f"{bucket}/table/{namespace}.{name}"


def _storage_of_pointer(path: str) -> str | None:
    """The location of the table whose pointer a path names: ``/tables/ARN/NAMESPACE/NAME/metadata-location``."""
    bucket, namespace, name = path.removeprefix("/tables/").removesuffix("/metadata-location").rsplit("/", 2)
    try:
        return str(s3tables_backends[ACCOUNT][REGION].get_table(bucket, namespace, name).warehouse_location)
    except TableDoesNotExist:
        return None


def _table_of_storage(storage: str) -> str | None:
    """The ARN of the table whose files a bucket holds."""
    if storage not in _TABLES:  # found anew only then: fleets have many tables, and each has many requests
        _TABLES.clear()
        for bucket in list(s3tables_backends[ACCOUNT][REGION].table_buckets.values()):
            for namespace in list(bucket.namespaces.values()):
                for table in list(namespace.tables.values()):
                    _TABLES[str(table.warehouse_location).removeprefix("s3://").partition("/")[0]] = table
    return str(_TABLES[storage].arn) if storage in _TABLES else None
