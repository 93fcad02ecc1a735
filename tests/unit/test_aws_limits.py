"""What AWS refuses and moto lets pass (platform 59)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from local_stack.executions import Execution, require_within_quotas
from local_stack.limits.dynamodb import LARGEST_ITEM, item_size, refused_by_dynamodb, reserved_words
from local_stack.limits.faults import Faults
from local_stack.limits.table_buckets import refused_by_table_bucket
from local_stack.wire import HttpAnswer, WireRequest

STORAGE = "s3://1--table-s3"


def s3(method: str, path: str, query: str = "", **headers: str) -> HttpAnswer | None:
    request = WireRequest("s3", method, path, query, {key.replace("_", "-"): value for key, value in headers.items()})
    return refused_by_table_bucket(request, lambda path: STORAGE)


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("GET", "/1--table-s3/f", ""),
        ("HEAD", "/1--table-s3/f", ""),
        ("PUT", "/1--table-s3/f", ""),
        ("POST", "/1--table-s3/f", "uploads"),
        ("PUT", "/1--table-s3/f", "partNumber=1&uploadId=u"),
        ("POST", "/1--table-s3/f", "uploadId=u"),
        ("DELETE", "/1--table-s3/f", "uploadId=u"),
        ("GET", "/1--table-s3/f", "uploadId=u"),
        ("DELETE", "/ordinary/f", ""),
        ("GET", "/ordinary", "list-type=2"),
    ],
)
def test_what_a_table_bucket_does(method: str, path: str, query: str) -> None:
    assert s3(method, path, query) is None


@pytest.mark.parametrize(
    ("method", "path", "query"),
    [
        ("DELETE", "/1--table-s3/f", ""),
        ("POST", "/1--table-s3", "delete"),
        ("GET", "/1--table-s3", "list-type=2"),
        ("GET", "/1--table-s3", "versions"),
        ("HEAD", "/1--table-s3", ""),
        ("GET", "/1--table-s3/f", "versionId=1"),
        ("PUT", "/1--table-s3/f", "tagging"),
        ("GET", "/1--table-s3/f", "acl"),
        ("POST", "/1--table-s3/f", ""),
    ],
)
def test_what_no_table_bucket_does(method: str, path: str, query: str) -> None:
    refused = s3(method, path, query)
    assert refused is not None
    assert refused.status == "405 Method Not Allowed"
    assert (b"MethodNotAllowed" in refused.body) is (method != "HEAD")


def test_a_table_bucket_copies_nothing() -> None:
    for query in ("", "partNumber=1&uploadId=u"):
        assert s3("PUT", "/1--table-s3/f", query, x_amz_copy_source="/1--table-s3/g") is not None


@pytest.mark.parametrize(
    ("location", "is_refused"),
    [
        (f"{STORAGE}/metadata/1.metadata.json", False),
        (f"{STORAGE}/metadata/1.metadata.json.gz", False),
        (f"{STORAGE}/metadata/1.gz.metadata.json", False),
        (f"{STORAGE}/metadata/1.json", True),
        (f"{STORAGE}/metadata/1.metadata.json.zst", True),
        ("s3://2--table-s3/metadata/1.metadata.json", True),
        (f"{STORAGE}-other/metadata/1.metadata.json", True),
    ],
)
def test_a_metadata_location_lies_in_its_table_and_ends_as_one(location: str, is_refused: bool) -> None:
    body = json.dumps({"metadataLocation": location, "versionToken": "1"}).encode()
    request = WireRequest("s3tables", "PUT", "/tables/arn/ns/t/metadata-location", "", {}, body)
    refused = refused_by_table_bucket(request, lambda path: STORAGE)
    assert (refused is not None) is is_refused
    assert refused is None or (refused.status[:3], b"BadRequestException" in refused.body) == ("400", True)


def dynamodb(operation: str, document: Any) -> str | None:
    body = json.dumps(document).encode()
    request = WireRequest("dynamodb", "POST", "/", "", {"x-amz-target": f"D.{operation}"}, body)
    refused = refused_by_dynamodb(request)
    return None if refused is None else json.loads(refused.body)["message"]


@pytest.mark.parametrize(
    ("item", "size"),
    [
        ({"pk": {"S": "é"}}, 4),
        ({"n": {"N": "1234567"}}, 6),
        ({"b": {"B": "AAAA"}}, 4),
        ({"t": {"BOOL": True}, "u": {"NULL": True}}, 4),
        ({"l": {"L": [{"S": "ab"}]}}, 7),
        ({"m": {"M": {"k": {"S": "ab"}}}}, 8),
        ({"s": {"SS": ["a", "bc"]}}, 4),
    ],
)
def test_the_size_of_an_item(item: Any, size: int) -> None:
    assert item_size(item) == size


def test_an_item_of_400_kb_is_the_largest() -> None:
    fits, larger = ({"pk": {"S": "x" * size}} for size in (LARGEST_ITEM - 2, LARGEST_ITEM - 1))
    for wrapped in (
        lambda item: ("PutItem", {"TableName": "T", "Item": item}),
        lambda item: ("TransactWriteItems", {"TransactItems": [{"Put": {"TableName": "T", "Item": item}}]}),
        lambda item: ("BatchWriteItem", {"RequestItems": {"T": [{"PutRequest": {"Item": item}}]}}),
    ):
        assert dynamodb(*wrapped(fits)) is None
        assert "Item size has exceeded" in str(dynamodb(*wrapped(larger)))


def test_so_many_items_at_once_and_no_more() -> None:
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


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("pk = :pk AND begins_with(sk, :prefix)", set()),
        ("attribute_not_exists(pk) OR #status = :status", set()),
        ("size(entries) > :size", set()),
        ("SET #s = if_not_exists(#s, :s) REMOVE holder", set()),
        ("status = :status", {"STATUS"}),
        ("pk, name", {"NAME"}),
        ("SET ttl = :ttl", {"TTL"}),
    ],
)
def test_reserved_words(expression: str, words: set[str]) -> None:
    document = {"TransactItems": [{"Update": {"UpdateExpression": expression, "Key": {"pk": {"S": "name"}}}}]}
    assert reserved_words(document) == words
    assert reserved_words({"ProjectionExpression": expression}) == words
    assert (dynamodb("Query", {"KeyConditionExpression": expression}) is None) is (not words)


def test_a_throttle_never_strikes_twice_in_a_row() -> None:
    faults, request = Faults(), WireRequest("glue", "POST", "/")
    with faults.throttling(3):
        answers = [faults.throttled(request) is not None for _ in range(9)]
    assert answers == [False, False, True] * 3
    assert faults.throttled(request) is None


def test_a_lost_answer_is_one() -> None:
    faults, request = Faults(), WireRequest("s3tables", "PUT", "/tables/arn/ns/t/metadata-location")
    with faults.losing_an_answer("PUT", "/metadata-location"):
        assert not faults.is_lost(WireRequest("s3tables", "GET", "/tables/arn/ns/t/metadata-location"))
        assert [faults.is_lost(request) for _ in range(2)] == [True, False]


def test_an_execution_within_its_quotas() -> None:
    def execution(payload: int, events: int) -> Execution:
        said = [{"stateEnteredEventDetails": {"input": "x" * payload}}] + [{}] * (events - 1)
        return Execution("run", "SUCCEEDED", None, None, None, said, [])

    require_within_quotas(execution(262_144, 25_000))
    with pytest.raises(AssertionError, match="262145 bytes"):
        require_within_quotas(execution(262_145, 1))
    with pytest.raises(AssertionError, match="25001 events"):
        require_within_quotas(execution(1, 25_001))
