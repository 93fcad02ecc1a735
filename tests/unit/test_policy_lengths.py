"""How long the parameters may be that policies repeat: IAM takes 6,144 characters a managed policy."""

from __future__ import annotations

import json
import re

from support.stack_template import ROOT, SINGLE, VPC, Grant, render

KMS = "arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"


def length(grant: Grant) -> int:
    """Characters as IAM counts them: without white space."""
    return len("".join(json.dumps(grant.document).split()))


def test_tables_outside_of_table_buckets_fit_as_far_as_the_page_says() -> None:
    page = (ROOT / "docs" / "deployment.md").read_text()
    said = re.search(r"twice the characters of\s`DataBucketArns`\s[^.]*? at most ([\d,]+)", page)
    assert said is not None
    limit = int(said[1].replace(",", ""))
    catalogs, bucket = "arn:aws-us-gov:glue:us-gov-west-1:123456789012:database/sales", "arn:aws-us-gov:s3:::{:024}"
    left = limit - len(KMS) - len(catalogs)
    buckets = ",".join(bucket.format(number) for number in range(left // 2 // (len(bucket.format(0)) + 1)))
    tables = {"DataBucketArns": buckets, "GlueDataCatalogArns": catalogs, "KmsKeyArns": KMS}
    stack = render({**SINGLE, **VPC, **tables})

    assert limit - 2 * len(buckets) - len(catalogs) - len(KMS) < 2 * 46  # as many as there may be
    assert {name: length(grant) for name, grant in stack.managed.items() if length(grant) > 6144} == {}
