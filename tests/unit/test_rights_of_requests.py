"""Which rights a request needs, from what goes over the wire (rule 143)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_stack.rights.api_needs import (
    dynamodb_needs,
    glue_needs,
    lambda_needs,
    s3tables_needs,
    states_needs,
)
from local_stack.rights.denials import denial
from local_stack.rights.evaluate import Need
from local_stack.rights.s3_needs import s3_needs
from local_stack.wire import WireRequest, signer

DELETE = b'<Delete xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Object><Key>a&amp;b</Key></Object></Delete>'
BUCKET = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
TABLE = f"{BUCKET}/table/1"


def s3(method: str, path: str, query: str = "", body: bytes = b"", **headers: str) -> list[str]:
    request = WireRequest("s3", method, path, query, {k.replace("_", "-"): v for k, v in headers.items()}, body)
    return [str(need) for need in s3_needs(request, lambda bucket: TABLE if bucket == "1--table-s3" else None)]


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/", "", "s3:ListAllMyBuckets on *"),
        ("GET", "/b", "list-type=2&prefix=p&encoding-type=url", "s3:ListBucket on arn:aws:s3:::b"),
        ("HEAD", "/b", "", "s3:ListBucket on arn:aws:s3:::b"),
        ("GET", "/b", "location", "s3:GetBucketLocation on arn:aws:s3:::b"),
        ("GET", "/b", "versions", "s3:ListBucketVersions on arn:aws:s3:::b"),
        ("GET", "/b", "policy", "s3:GETBucket?policy on arn:aws:s3:::b"),
        ("PUT", "/b", "", "s3:PUTBucket? on arn:aws:s3:::b"),
        ("GET", "/b/k/l", "", "s3:GetObject on arn:aws:s3:::b/k/l"),
        ("HEAD", "/b/k", "", "s3:GetObject on arn:aws:s3:::b/k"),
        ("GET", "/b/k", "versionId=1", "s3:GetObjectVersion on arn:aws:s3:::b/k"),
        ("PUT", "/b/k", "", "s3:PutObject on arn:aws:s3:::b/k"),
        ("POST", "/b/k", "uploads", "s3:PutObject on arn:aws:s3:::b/k"),
        ("PUT", "/b/k", "partNumber=1&uploadId=u", "s3:PutObject on arn:aws:s3:::b/k"),
        ("POST", "/b/k", "uploadId=u", "s3:PutObject on arn:aws:s3:::b/k"),
        ("DELETE", "/b/k", "uploadId=u", "s3:AbortMultipartUpload on arn:aws:s3:::b/k"),
        ("GET", "/b/k", "uploadId=u", "s3:ListMultipartUploadParts on arn:aws:s3:::b/k"),
        ("DELETE", "/b/k", "", "s3:DeleteObject on arn:aws:s3:::b/k"),
    ],
)
def test_s3(method: str, path: str, query: str, expected: str) -> None:
    assert s3(method, path, query) == [expected]


def test_a_batch_deletion_needs_the_right_to_each_key() -> None:
    assert s3("POST", "/b", "delete", DELETE) == ["s3:DeleteObject on arn:aws:s3:::b/a&b"]


def test_a_copy_needs_to_read_what_it_copies() -> None:
    assert s3("PUT", "/b/k", x_amz_copy_source="/c/l") == [
        "s3:PutObject on arn:aws:s3:::b/k",
        "s3:GetObject on arn:aws:s3:::c/l",
    ]


@pytest.mark.parametrize(
    ("method", "query", "expected"),
    [
        ("GET", "", "GetTableData"),
        ("HEAD", "", "GetTableData"),
        ("PUT", "", "PutTableData"),
        ("POST", "uploads", "PutTableData"),
        ("DELETE", "uploadId=u", "PutTableData"),
        ("GET", "uploadId=u", "GetTableData"),
    ],
)
def test_an_object_of_a_table_bucket_is_data_of_its_table(method: str, query: str, expected: str) -> None:
    assert s3(method, "/1--table-s3/data/f", query) == [f"s3tables:{expected} on {TABLE}"]
    assert TABLE not in s3(method, "/2--table-s3/data/f", query)[0]  # of a table that nobody knows


def test_what_no_table_bucket_does_needs_no_right_and_is_refused_by_the_bucket() -> None:
    assert s3("GET", "/1--table-s3", "list-type=2") == s3("DELETE", "/1--table-s3/f") == []


def json_request(service: str, operation: str, document: Any) -> WireRequest:
    return WireRequest(service, "POST", "/", "", {"x-amz-target": f"X.{operation}"}, json.dumps(document).encode())


@pytest.mark.parametrize(
    ("operation", "document", "expected"),
    [
        ("GetItem", {"TableName": "T"}, ["GetItem on table/T"]),
        ("Query", {"TableName": "T", "IndexName": "newest"}, ["Query on table/T/index/newest"]),
        ("BatchGetItem", {"RequestItems": {"T": {}, "U": {}}}, ["BatchGetItem on table/T", "BatchGetItem on table/U"]),
        (
            "TransactWriteItems",
            {"TransactItems": [{"Put": {"TableName": "T"}}, {"ConditionCheck": {"TableName": "U"}}]},
            ["PutItem on table/T", "ConditionCheckItem on table/U"],
        ),
        ("ListTables", {}, ["ListTables on *"]),
    ],
)
def test_dynamodb(operation: str, document: Any, expected: list[str]) -> None:
    found = [str(need) for need in dynamodb_needs(json_request("dynamodb", operation, document))]
    assert [text.replace("arn:aws:dynamodb:us-east-1:123456789012:", "") for text in found] == [
        f"dynamodb:{one}" for one in expected
    ]


@pytest.mark.parametrize(
    ("operation", "document", "expected"),
    [
        ("GetTable", {"DatabaseName": "d", "Name": "t"}, ["catalog", "database/d", "table/d/t"]),
        ("UpdateTable", {"DatabaseName": "d", "TableInput": {"Name": "t"}}, ["catalog", "database/d", "table/d/t"]),
        ("GetTables", {"DatabaseName": "d"}, ["catalog", "database/d", "table/d/*"]),
        ("GetDatabases", {}, ["catalog", "database/*"]),
        ("GetDatabase", {"Name": "d"}, ["catalog", "database/d"]),
        ("StartJobRun", {"JobName": "j"}, ["job/j"]),
        ("GetJobRun", {"JobName": "j", "RunId": "r"}, ["job/j"]),
    ],
)
def test_glue_asks_for_all_that_lies_above_a_table(operation: str, document: Any, expected: list[str]) -> None:
    found = list(glue_needs(json_request("glue", operation, document)))
    assert {need.action for need in found} == {f"glue:{operation}"}
    assert [need.resource.removeprefix("arn:aws:glue:us-east-1:123456789012:") for need in found] == expected


def test_step_functions_and_lambda() -> None:
    started = json_request("states", "StartExecution", {"stateMachineArn": "arn:m", "input": "{}"})
    invoked = WireRequest("lambda", "POST", "/2015-03-31/functions/f/invocations")
    assert [str(need) for need in states_needs(started)] == ["states:StartExecution on arn:m"]
    assert [str(need) for need in lambda_needs(invoked)] == [
        "lambda:InvokeFunction on arn:aws:lambda:us-east-1:123456789012:function:f"
    ]


@pytest.mark.parametrize(
    ("method", "path", "query", "expected"),
    [
        ("GET", "/buckets", "", "s3tables:ListTableBuckets on *"),
        ("GET", f"/tables/{BUCKET}", "", f"s3tables:ListTables on {BUCKET}"),
        ("GET", f"/buckets/{BUCKET}/maintenance", "", f"s3tables:GetTableBucketMaintenanceConfiguration on {BUCKET}"),
        ("GET", f"/tables/{BUCKET}/ns/t/metadata-location", "", f"s3tables:GetTableMetadataLocation on {TABLE}"),
        ("PUT", f"/tables/{BUCKET}/ns/t/metadata-location", "", f"s3tables:UpdateTableMetadataLocation on {TABLE}"),
        (
            *("PUT", f"/tables/{BUCKET}/ns/t/maintenance/icebergCompaction", ""),
            f"s3tables:PutTableMaintenanceConfiguration on {TABLE}",
        ),
        (
            *("GET", "/get-table", f"tableBucketARN={BUCKET}&namespace=ns&name=t"),
            f"s3tables:GetTable on {TABLE}",
        ),
        ("GET", "/nowhere", "", "s3tables:GET/nowhere on *"),
    ],
)
def test_s3_tables(method: str, path: str, query: str, expected: str) -> None:
    found = s3tables_needs(WireRequest("s3tables", method, path, query), lambda bucket, namespace, name: TABLE)
    assert [str(need) for need in found] == [expected]


def test_who_signed_a_request() -> None:
    signed = "AWS4-HMAC-SHA256 Credential=KEY/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
    assert signer(signed) == ("KEY", "s3")
    assert signer("") == signer("Bearer token") == ("", "")


def test_each_protocol_says_no_in_its_own_way() -> None:
    need = Need("s3:GetObject", "arn:aws:s3:::b/k")
    object_ = denial(WireRequest("s3", "GET", "/b/k"), "R", need)
    assert object_.status.startswith("403")
    assert b"<Code>AccessDenied</Code>" in object_.body
    assert b"assumed-role/R/local is not authorized to perform: s3:GetObject on resource" in object_.body
    assert denial(WireRequest("s3", "HEAD", "/b/k"), "R", need).body == b""
    many = denial(WireRequest("s3", "POST", "/b", "delete", {}, DELETE), "R", need)
    assert many.status.startswith("200")
    assert b"<Error><Key>a&amp;b</Key><Code>AccessDenied</Code>" in many.body
    table = denial(json_request("dynamodb", "GetItem", {}), "R", need)
    assert table.status.startswith("400")
    assert json.loads(table.body)["__type"] == "AccessDeniedException"
    assert denial(WireRequest("s3tables", "GET", "/buckets"), "R", need).status.startswith("403")
