"""Listings that break off, and rights that a bucket denies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, PaginationError
from botocore.stub import Stubber

from icekeeper.storage.s3_objects import can_delete_s3, can_list_s3, few_if_allowed, list_s3

# A listing that breaks off is an error: files that were not listed could need others (rule: unreadable-deletes-less).


def listed(*pages: dict[str, Any]) -> list[str]:
    client = boto3.client("s3", region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    with Stubber(client) as store:
        for page in pages:
            store.add_response("list_objects_v2", page)
        return [found.path for found in list_s3(client, "s3://bucket/t/metadata")]


def page(key: str, **more: Any) -> dict[str, Any]:
    return {"Contents": [{"Key": f"t/metadata/{key}", "Size": 1}], **more}


def test_pages_are_followed_to_the_last() -> None:
    pages = (page("a", IsTruncated=True, NextContinuationToken="on"), page("b", IsTruncated=False))
    assert listed(*pages) == ["s3://bucket/t/metadata/a", "s3://bucket/t/metadata/b"]


@pytest.mark.parametrize(
    "pages",
    [
        pytest.param((page("a", IsTruncated=True),), id="no way on"),
        pytest.param((page("a", IsTruncated=True, NextContinuationToken="on"),) * 2, id="the same page again"),
        pytest.param((page("a", NextContinuationToken="on"),), id="a way on, and no word whether there is more"),
    ],
)
def test_a_listing_that_does_not_end_well_is_an_error(pages: tuple[dict[str, Any], ...]) -> None:
    with pytest.raises(PaginationError):
        listed(*pages)


# A right that is missing in an ordinary bucket is told, once; a table bucket refuses by its nature.


class Refusing:
    """An S3 client whose every answer is one error; in a batch, of its one key."""

    def __init__(self, code: str, status: int) -> None:
        self.error = ClientError(
            {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}},
            "Operation",
        )
        self.in_batch = False

    def list_objects_v2(self, **_: Any) -> Any:
        raise self.error

    def delete_objects(self, **_: Any) -> Any:
        if not self.in_batch:
            raise self.error
        return {"Errors": [{"Key": "k", "Code": self.error.response["Error"]["Code"]}]}


def by_list(client: Refusing, bucket: str) -> bool:
    return can_list_s3(client, bucket, "t/")


def by_few(client: Refusing, bucket: str) -> bool:
    return few_if_allowed(client, f"s3://{bucket}/t")[0]


def by_delete(client: Refusing, bucket: str) -> bool:
    return can_delete_s3(client, bucket, "t/")


def by_batch(client: Refusing, bucket: str) -> bool:
    client.in_batch = True
    return can_delete_s3(client, bucket, "t/")


Ask = Callable[[Refusing, str], bool]
ASKED: list[tuple[Ask, str]] = [
    (by_list, "s3:ListBucket"),
    (by_few, "s3:ListBucket"),
    (by_delete, "s3:DeleteObject"),
    (by_batch, "s3:DeleteObject"),
]


@pytest.mark.parametrize(("ask", "right"), ASKED)
def test_a_missing_right_is_told_once(ask: Ask, right: str, caplog: pytest.LogCaptureFixture) -> None:
    """The outcome says that the storage removes such files itself, which no ordinary bucket does
    (rule: throttles-are-failures)."""
    bucket = f"denied-{ask.__name__}"
    assert [ask(Refusing("AccessDenied", 403), bucket) for _ in range(3)] == [False] * 3
    assert caplog.messages == [
        f"unneeded files remain in s3://{bucket}, because a permission is missing: allow {right}"
    ]


@pytest.mark.parametrize(("ask", "right"), ASKED)
@pytest.mark.parametrize(
    ("bucket", "code", "status"),
    [("quiet", "MethodNotAllowed", 405), ("x--table-s3", "AccessDenied", 403), ("quiet", "NotImplemented", 501)],
)
def test_a_bucket_that_does_it_itself_is_not_told_of(
    ask: Ask, right: str, bucket: str, code: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert not ask(Refusing(code, status), bucket)
    assert caplog.messages == []


@pytest.mark.parametrize("ask", [by_list, by_few, by_delete])
@pytest.mark.parametrize(("code", "status"), [("SlowDown", 503), ("InternalError", 500), ("TooManyRequests", 429)])
def test_a_throttle_is_no_refusal(ask: Ask, code: str, status: int) -> None:
    with pytest.raises(ClientError, match=code):
        ask(Refusing(code, status), "busy")
