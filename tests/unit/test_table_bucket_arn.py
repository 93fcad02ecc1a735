"""What a table bucket's ARN is, stands in one place: who asks for its maintenance agrees with who opens its catalog."""

from __future__ import annotations

import re

import pytest

from icekeeper.catalogs.addresses import TableBucketArn, is_table_bucket
from icekeeper.catalogs.bucket_maintenance import maintenance_behind
from support.source_tree import SOURCES

LAKE = "arn:aws-us-gov:s3tables:us-gov-west-1:123456789012:bucket/lake"


@pytest.mark.parametrize("arn", [LAKE, "arn:aws:s3tables:::bucket/lake"])
def test_a_table_bucket_is_one_to_everybody(arn: str) -> None:
    assert is_table_bucket(arn)
    assert TableBucketArn.parse(arn).name == "lake"
    assert maintenance_behind({"warehouse": arn}) is not None


@pytest.mark.parametrize("arn", ["", f"{LAKE}/table/t", f"{LAKE},{LAKE}", f"{LAKE}*", f"{LAKE} ", "arn:aws:s3:::lake"])
def test_what_is_none_is_none_to_everybody(arn: str) -> None:
    assert not is_table_bucket(arn)
    assert maintenance_behind({"warehouse": arn}) is None


def test_no_other_module_has_a_pattern_of_its_own() -> None:
    pattern = re.compile(r"re\.compile\(.*:s3tables:")
    found = [path.name for path in SOURCES if pattern.search(path.read_text())]

    assert found == ["table_bucket_arn.py"]
