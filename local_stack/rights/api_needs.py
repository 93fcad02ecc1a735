"""The rights that requests to DynamoDB, Glue, Step Functions, Lambda, S3 Tables and STS need.

Source: AWS service authorization reference, one page for each service; for Glue also AWS Glue developer guide,
"Specifying AWS Glue resource ARNs" (a table needs its database and its catalog as well).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, unquote

import botocore.session

from local_stack.rights.evaluate import Need
from local_stack.template import ACCOUNT, REGION
from local_stack.wire import WireRequest

_TRANSACTED = {
    "Put": "PutItem",
    "Update": "UpdateItem",
    "Delete": "DeleteItem",
    "ConditionCheck": "ConditionCheckItem",
    "Get": "GetItem",
}
_GLUE = f"arn:aws:glue:{REGION}:{ACCOUNT}"


def dynamodb_needs(request: WireRequest) -> Iterator[Need]:
    """An index is a resource of its own, a transaction needs the rights of its parts, a batch those to each key."""
    document, operation = request.document, request.target
    if operation in ("TransactWriteItems", "TransactGetItems"):
        for item in document["TransactItems"]:
            for kind, part in item.items():
                yield Need(f"dynamodb:{_TRANSACTED[kind]}", _table(part["TableName"]), _leading_key(part))
    elif operation == "BatchWriteItem":
        for name, items in document["RequestItems"].items():
            for part in (part for item in items for part in item.values()):
                yield Need("dynamodb:BatchWriteItem", _table(name), _leading_key(part))
    elif operation == "BatchGetItem":
        yield from (Need("dynamodb:BatchGetItem", _table(name)) for name in document["RequestItems"])
    else:
        name, index = document.get("TableName"), document.get("IndexName")
        resource = _table(name) if name else "*"
        yield Need(f"dynamodb:{operation}", f"{resource}/index/{index}" if index else resource, _leading_key(document))


def _leading_key(part: Mapping[str, Any]) -> Mapping[str, str]:
    """The partition key that a part of a request names; the keys of the state table are text."""
    found = (part.get("Item") or part.get("Key") or {}).get("pk", {}).get("S")
    return {} if found is None else {"dynamodb:LeadingKeys": found}


def glue_needs(request: WireRequest) -> Iterator[Need]:
    """Jobs by their name; databases and tables with all that lies above them, lists with all that they may show."""
    operation, document = request.target, request.document
    yield from (Need(f"glue:{operation}", resource) for resource in _glue_resources(operation, document))


def _glue_resources(operation: str, document: Mapping[str, Any]) -> Iterator[str]:
    if "JobName" in document:
        yield f"{_GLUE}:job/{document['JobName']}"
        return
    yield f"{_GLUE}:catalog"
    table = document.get("TableInput", {}).get("Name") or ("" if "Database" in operation else document.get("Name"))
    if operation == "GetDatabases":
        yield f"{_GLUE}:database/*"
    elif "Database" in operation:
        yield f"{_GLUE}:database/{document['Name']}"
    else:
        yield f"{_GLUE}:database/{document['DatabaseName']}"
        yield f"{_GLUE}:table/{document['DatabaseName']}/{'*' if operation == 'GetTables' else table}"


def states_needs(request: WireRequest) -> Iterator[Need]:
    """State machines and executions, by the ARN that the request gives."""
    arn = request.document.get("executionArn") or request.document.get("stateMachineArn") or "*"
    yield Need(f"states:{request.target}", arn)


def lambda_needs(request: WireRequest) -> Iterator[Need]:
    """Invocations only."""
    name = unquote(request.path).rstrip("/").split("/")[-2]
    arn = name if name.startswith("arn:") else f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{name}"
    is_invocation = request.method == "POST" and request.path.endswith("/invocations")
    yield Need("lambda:InvokeFunction" if is_invocation else f"lambda:{request.method}{request.path}", arn)


def s3tables_needs(request: WireRequest, table_arn: Callable[[str, str, str], str]) -> Iterator[Need]:
    """Actions are named after operations; ``table_arn`` is asked for bucket, namespace and name."""
    for operation, method, pattern in _s3tables_operations():
        found = pattern.fullmatch(request.path) if method == request.method else None
        if found is None:
            continue
        given = {**request.query, **found.groupdict()}
        bucket, name = given.get("tableBucketARN"), given.get("name")
        resource = given.get("tableArn") or bucket or "*"
        if bucket and name:
            resource = table_arn(bucket, given["namespace"], name)
        yield Need(f"s3tables:{operation}", resource)
        return
    yield Need(f"s3tables:{request.method}{request.path}", "*")


def secretsmanager_needs(request: WireRequest) -> Iterator[Need]:
    """Secrets by their ARN, which is how catalogs name them."""
    yield Need(f"secretsmanager:{request.target}", request.document.get("SecretId", "*"))


def sts_needs(request: WireRequest) -> Iterator[Need]:
    """Who somebody is needs no right, and no policy can deny it (AWS STS API reference, "GetCallerIdentity")."""
    form = {**request.query, **{name: values[-1] for name, values in parse_qs(request.body.decode()).items()}}
    if form.get("Action") != "GetCallerIdentity":
        yield Need(f"sts:{form.get('Action', request.method)}", form.get("RoleArn", "*"))


def other_needs(request: WireRequest) -> Iterator[Need]:
    """Of a service that nothing here is meant to call: no policy allows it, so it is denied, and seen."""
    yield Need(f"{request.service}:{request.target or request.method}", "*")


def _table(name: str) -> str:
    return name if name.startswith("arn:") else f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{name}"


@functools.cache
def _s3tables_operations() -> tuple[tuple[str, str, re.Pattern[str]], ...]:
    """Name, method and address of every operation, from botocore's own description; a bucket's ARN has a slash."""
    model = botocore.session.get_session().get_service_model("s3tables")
    found = []
    for name in model.operation_names:
        http = model.operation_model(name).http
        path = re.sub(r"\{(\w+)\}", lambda part: _PARTS.get(part[1], f"(?P<{part[1]}>[^/]+)"), http["requestUri"])
        found.append((name, str(http["method"]), re.compile(path)))
    return tuple(found)


_PARTS = {"tableBucketARN": "(?P<tableBucketARN>arn:[^/]+:bucket/[^/]+)", "resourceArn": "(?P<tableArn>arn:.+)"}
