"""A listing that breaks off is an error: files that were not listed could need others (rule 83)."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.exceptions import PaginationError
from botocore.stub import Stubber

from icekeeper.storage.s3_objects import list_s3


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
