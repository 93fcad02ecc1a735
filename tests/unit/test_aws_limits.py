"""Requests that AWS refuses and moto accepts (platform: moto-lets-pass, table-buckets-refuse-headers)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest
from botocore.exceptions import ClientError

from icekeeper.storage.storage import Storage
from local_stack.executions import Execution, require_within_quotas
from local_stack.limits.dynamodb import LARGEST_ITEM, item_size, refused_by_dynamodb, reserved_words
from local_stack.limits.faults import Faults
from local_stack.limits.object_headers import refused_headers
from local_stack.limits.state_machines import refused_by_step_functions
from local_stack.limits.table_buckets import refused_by_table_bucket
from local_stack.moto_server import MotoServer
from local_stack.wire import HttpAnswer, WireRequest
from support.state_machine import load_machine

STORAGE = "s3://1--table-s3"


def s3(method: str, path: str, query: str = "", **headers: str) -> HttpAnswer | None:
    request = WireRequest("s3", method, path, query, {key.replace("_", "-"): value for key, value in headers.items()})
    return refused_by_table_bucket(request, lambda path: STORAGE)


F, UPLOAD = "/1--table-s3/f", "partNumber=1&uploadId=u"
ACCEPTED = [("GET", F, ""), ("HEAD", F, ""), ("PUT", F, ""), ("POST", F, "uploads"), ("PUT", F, UPLOAD)]
ACCEPTED += [("POST", F, "uploadId=u"), ("DELETE", F, "uploadId=u"), ("GET", F, "uploadId=u")]
ACCEPTED += [("DELETE", "/ordinary/f", ""), ("GET", "/ordinary", "list-type=2")]
REFUSED = [("DELETE", F, ""), ("POST", "/1--table-s3", "delete"), ("GET", "/1--table-s3", "list-type=2")]
REFUSED += [("GET", "/1--table-s3", "versions"), ("HEAD", "/1--table-s3", ""), ("GET", F, "versionId=1")]
REFUSED += [("PUT", F, "tagging"), ("GET", F, "acl"), ("POST", F, "")]


def test_a_table_bucket_refuses_requests_that_are_not_listed() -> None:
    assert [request for request in ACCEPTED if s3(*request) is not None] == []
    for method, path, query in REFUSED:
        refused = s3(method, path, query)
        assert refused is not None, (method, path, query)
        assert refused.status == "405 Method Not Allowed"
        assert (b"MethodNotAllowed" in refused.body) is (method != "HEAD")
    for query in ("", UPLOAD):
        assert s3("PUT", F, query, x_amz_copy_source="/1--table-s3/g") is not None


def test_a_metadata_location_must_be_in_its_table_and_have_a_known_suffix() -> None:
    for location, is_refused in (
        (f"{STORAGE}/metadata/1.metadata.json", False),
        (f"{STORAGE}/metadata/1.gz.metadata.json", False),
        (f"{STORAGE}/metadata/1.metadata.json.zst", True),
        ("s3://2--table-s3/metadata/1.metadata.json", True),
        (f"{STORAGE}-other/metadata/1.metadata.json", True),
    ):
        body = json.dumps({"metadataLocation": location, "versionToken": "1"}).encode()
        request = WireRequest("s3tables", "PUT", "/tables/arn/ns/t/metadata-location", "", {}, body)
        refused = refused_by_table_bucket(request, lambda path: STORAGE)
        assert (refused is not None) is is_refused, location
        assert refused is None or (refused.status[:3], b"BadRequestException" in refused.body) == ("400", True)


def dynamodb(operation: str, document: Any) -> str | None:
    body = json.dumps(document).encode()
    request = WireRequest("dynamodb", "POST", "/", "", {"x-amz-target": f"D.{operation}"}, body)
    refused = refused_by_dynamodb(request)
    return None if refused is None else json.loads(refused.body)["message"]


def test_an_item_has_at_most_400_kb() -> None:
    items: list[tuple[Any, int]] = [
        ({"pk": {"S": "é"}}, 4),
        ({"n": {"N": "1234567"}}, 6),
        ({"b": {"B": "AAAA"}}, 4),
        ({"t": {"BOOL": True}, "u": {"NULL": True}}, 4),
        ({"l": {"L": [{"S": "ab"}]}}, 7),
        ({"m": {"M": {"k": {"S": "ab"}}}}, 8),
        ({"s": {"SS": ["a", "bc"]}}, 4),
    ]
    assert [item_size(item) for item, _ in items] == [size for _, size in items]
    fits, larger = ({"pk": {"S": "x" * size}} for size in (LARGEST_ITEM - 2, LARGEST_ITEM - 1))
    for wrapped in (
        lambda item: ("PutItem", {"TableName": "T", "Item": item}),
        lambda item: ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": "T", "Item": item}}]}),
        lambda item: ("BatchWriteItem", {"RequestItems": {"T": [{"PutRequest": {"Item": item}}]}}),
    ):
        assert dynamodb(*wrapped(fits)) is None
        assert "Item size has exceeded" in str(dynamodb(*wrapped(larger)))


def test_a_request_has_a_limited_number_of_items() -> None:
    for operation, most in (("BatchWriteItem", 25), ("BatchGetItem", 100), ("TransactWriteItems", 100)):
        for count in (most, most + 1):
            keys = [{"pk": {"S": str(number)}} for number in range(count)]
            document = {
                "BatchWriteItem": {"RequestItems": {"T": [{"DeleteRequest": {"Key": key}} for key in keys]}},
                "BatchGetItem": {"RequestItems": {"T": {"Keys": keys}}},
                "TransactWriteItems": {"TransactItems": [{"Delete": {"TableName": "T", "Key": key}} for key in keys]},
            }[operation]
            assert (dynamodb(operation, document) is None) is (count == most)
    large = [{"Put": {"TableName": "T", "Item": {"pk": {"S": "x" * 300_000}}}}] * 14
    assert "transaction" in str(dynamodb("TransactWriteItems", {"TransactItems": large}))


def test_reserved_words_in_expressions_are_refused() -> None:
    for expression, words in (
        ("attribute_not_exists(pk) OR #status = :status", set()),
        ("SET #s = if_not_exists(#s, :s) REMOVE holder", set()),
        ("status = :status", {"STATUS"}),
        ("pk, name", {"NAME"}),
    ):
        document = {"TransactItems": [{"Update": {"UpdateExpression": expression, "Key": {"pk": {"S": "name"}}}}]}
        assert reserved_words(document) == reserved_words({"ProjectionExpression": expression}) == words
        assert (dynamodb("Query", {"KeyConditionExpression": expression}) is None) is (not words)


def test_throttles_are_never_consecutive_and_one_answer_is_lost() -> None:
    faults, request = Faults(), WireRequest("glue", "POST", "/")
    with faults.throttling(3):
        answers = [faults.throttled(request) is not None for _ in range(9)]
    assert answers == [False, False, True] * 3
    assert faults.throttled(request) is None
    request = WireRequest("s3tables", "PUT", "/tables/arn/ns/t/metadata-location")
    with faults.losing_an_answer("PUT", "/metadata-location"):
        assert not faults.is_lost(WireRequest("s3tables", "GET", "/tables/arn/ns/t/metadata-location"))
        assert [faults.is_lost(request) for _ in range(2)] == [True, False]


def test_an_execution_must_be_within_its_quotas() -> None:
    def execution(payload: int, events: int) -> Execution:
        history = [{"stateEnteredEventDetails": {"input": "x" * payload}}] + [{}] * (events - 1)
        return Execution("run", "SUCCEEDED", None, None, None, history, [])

    require_within_quotas(execution(262_144, 25_000))
    with pytest.raises(AssertionError, match="262145 bytes"):
        require_within_quotas(execution(262_145, 1))
    with pytest.raises(AssertionError, match="25001 events"):
        require_within_quotas(execution(1, 25_001))


# AWS Step Functions (platform: moto-lets-pass).


def refused_request(target: str, document: Any) -> HttpAnswer | None:
    headers = {"x-amz-target": f"AWSStepFunctions.{target}"}
    return refused_by_step_functions(WireRequest("states", "POST", "/", "", headers, json.dumps(document).encode()))


def machine(**states: Any) -> HttpAnswer | None:
    definition = {"StartAt": next(iter(states)), "States": states}
    return refused_request("CreateStateMachine", {"name": "m", "definition": json.dumps(definition)})


def mapped(inside: str = "Inside", mode: str = "DISTRIBUTED", **fields: Any) -> dict[str, Any]:
    processor = {"ProcessorConfig": {"Mode": mode}, "StartAt": inside, "States": {inside: {"Type": "Succeed"}}}
    return {"Type": "Map", "ItemProcessor": processor, "End": True, **fields}


def test_the_name_and_input_of_an_execution_are_limited() -> None:
    for target in ("StartExecution", "CreateStateMachine"):
        for name in ("n" * 81, "", "two words", "a:b"):
            refused = refused_request(target, {"name": name})
            assert refused is not None, name
            assert b"InvalidName" in refused.body
        assert refused_request(target, {"name": "n" * 80}) is None
    assert refused_request("StartExecution", {"input": "x" * 262_144}) is None
    assert refused_request("StartExecution", {"input": "x" * 262_145}) is not None


def test_invalid_definitions_are_refused() -> None:
    ours = json.dumps(load_machine().definition)
    assert refused_request("CreateStateMachine", {"name": "stack-maintain-tables", "definition": ours}) is None
    distributed, inline = mapped("B", Label="l" * 40, MaxConcurrency=10_000), mapped("D", "INLINE", MaxConcurrency=40)
    assert machine(A=distributed, C=inline) is None
    assert machine(A={"Type": "Succeed", "Comment": "x" * 2**20}) is not None
    for states in (
        {"n" * 81: {"Type": "Succeed"}},
        {"A": mapped("A")},  # a state's name is unique in the whole machine
        {"A": mapped("B", Label="l" * 41)},
        {"A": mapped("B", Label="same"), "C": mapped("D", Label="same")},
        {"A": mapped("B", MaxConcurrency=10_001)},
    ):
        refused = machine(**states)
        assert refused is not None, states
        assert b"InvalidDefinition" in refused.body


# Object headers (platform: table-buckets-refuse-headers).

TRAILER = "x-amz-checksum-crc32c, x-amz-checksum-crc32"


def refused_by_s3(method: str, query: str = "", bucket: str = "1--table-s3", **headers: str) -> HttpAnswer | None:
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    return refused_headers(WireRequest("s3", method, f"/{bucket}/f", query, spelled))


ACCEPTED_HEADERS: list[tuple[str, str, dict[str, str]]] = [
    ("GET", "", {"if_match": "e", "x_amz_checksum_mode": "ENABLED", "x_amz_security_token": "t"}),
    ("PUT", "", {"x_amz_trailer": TRAILER, "x_amz_decoded_content_length": "1", "if_none_match": "*"}),
    ("POST", "uploads", {"x_amz_checksum_algorithm": "CRC32", "x_amz_storage_class": "STANDARD"}),
    ("PUT", UPLOAD, {"x_amz_trailer": "x-amz-checksum-crc32", "x_amz_checksum_sha256": "s"}),
    ("POST", "uploadId=u", {"if_match": "e", "x_amz_checksum_crc32": "s"}),
]
REFUSED_HEADERS = [
    ("PUT", "", "if_match", "e"),
    ("PUT", "", "x_amz_tagging", "a=b"),
    ("PUT", "", "x_amz_trailer", "x-amz-checksum-crc64nvme"),  # PyArrow's default
    ("PUT", UPLOAD, "x_amz_checksum_crc64nvme", "s"),
    ("PUT", "", "x_amz_meta_by", "us"),
    ("PUT", "", "x_amz_server_side_encryption", "aws:kms"),
    ("PUT", UPLOAD, "if_none_match", "*"),
    ("GET", "", "x_amz_request_payer", "requester"),
]


def test_a_table_bucket_accepts_listed_headers_and_those_that_clients_add() -> None:
    for method, query, headers in ACCEPTED_HEADERS:
        assert refused_by_s3(method, query, **headers) is None, headers
    for method, query, header, value in REFUSED_HEADERS:
        refused = refused_by_s3(method, query, **{header: value})
        assert refused is not None, (method, query, header, value)
        assert refused.status == "400 Bad Request"
        assert b"<Code>S3TablesUnsupportedHeader</Code>" in refused.body


def test_a_general_purpose_bucket_refuses_acls() -> None:
    assert refused_by_s3("PUT", bucket="lake", x_amz_acl="bucket-owner-full-control", x_amz_tagging="a=b") is None
    for header in ({"x_amz_acl": "public-read"}, {"x_amz_grant_read": "id=1"}):
        refused = refused_by_s3("PUT", bucket="lake", **header)
        assert refused is not None
        assert b"AccessControlListNotSupported" in refused.body


def test_the_gate_refuses_tags_and_accepts_our_reads_and_writes(moto_server: MotoServer) -> None:
    """Of small and large objects, in one request and in parts."""
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"headers-{uuid.uuid4().hex[:8]}")["arn"]
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    address = {"tableBucketARN": arn, "namespace": "ns", "name": "t"}
    s3tables.create_table(**address, format="ICEBERG")
    location = s3tables.get_table_metadata_location(**address)["warehouseLocation"]
    with pytest.raises(ClientError, match="S3TablesUnsupportedHeader"):
        moto_server.client("s3").put_object(Bucket=location.removeprefix("s3://"), Key="f", Body=b"x", Tagging="a=b")
    storage = Storage(moto_server.s3_properties)
    for name, content in (("small", b"x"), ("large", bytes(12 << 20))):
        storage.write(f"{location}/{name}", content)
        assert storage.read(f"{location}/{name}") == content
        with storage.open_input(f"{location}/{name}") as stream:
            assert stream.read() == content
