"""What CloudFormation makes of template.yaml under every combination of the parameters that decide what is there."""

from __future__ import annotations

import pytest

from support.rendered_template import RenderedTemplate, combinations, render

ARNS = {
    "TableBucketArns": "arn:aws:s3tables:eu-central-1:123456789012:bucket/lake",
    "DataBucketArns": "arn:aws:s3:::lake",
    "GlueDataCatalogArns": "arn:aws:glue:eu-central-1:123456789012:database/sales",
    "KmsKeyArns": "arn:aws:kms:eu-central-1:123456789012:key/1",
}
CHOICES = {"DiscoverTableBuckets": ("false", "true")} | {name: ("", arn) for name, arn in ARNS.items()}


@pytest.mark.parametrize("parameters", list(combinations(CHOICES)))
def test_every_policy_allows_something_by_name(parameters: dict[str, str]) -> None:
    stack = render(parameters)

    for name, grants in stack.grants.items():
        for grant in grants:
            assert grant.statements, (name, grant.name)
            for statement in grant.statements:
                named = statement["Resource"]
                assert named, (name, grant.name)
                assert "" not in ([named] if isinstance(named, str) else named), (name, grant.name)


def test_what_is_left_out_cannot_be_referred_to() -> None:
    stack: RenderedTemplate = render()

    assert "DeleteFilesPolicy" not in stack.resources
    with pytest.raises(KeyError, match="HasDataBuckets"):
        stack.reference("DeleteFilesPolicy")
