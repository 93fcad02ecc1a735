"""What the template lets functions and jobs do in the Glue Data Catalog: list all of it, and touch what was given."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.stack_template import PARAMETERS, RESOURCES, statements

_OWN = "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:"


def allowed(policy: str) -> dict[str, list[Any]]:
    """Action → what it is allowed on."""
    found: dict[str, list[Any]] = {}
    for statement in statements(RESOURCES[policy]):
        actions, resources = statement["Action"], statement["Resource"]
        for action in [actions] if isinstance(actions, str) else actions:
            found.setdefault(action, []).extend(resources if isinstance(resources, list) else [resources])
    return found


def test_the_whole_catalog_can_be_listed() -> None:
    """Glue asks for every database where databases are listed; who deletes files must know every table (rule 88)."""
    rights = allowed("ReadTablesPolicy")
    everything = [{"Fn::Sub": f"{_OWN}{what}"} for what in ("catalog", "database/*", "table/*")]
    for action in ("glue:GetDatabases", "glue:GetTables"):
        assert rights[action] == [{"Ref": "GlueDataCatalogArns"}, *everything], action


def test_only_what_was_given_can_be_read_and_changed() -> None:
    given = [{"Ref": "GlueDataCatalogArns"}, {"Fn::Sub": f"{_OWN}catalog"}]
    read, commit = allowed("ReadTablesPolicy"), allowed("CommitTablesPolicy")
    assert (read["glue:GetTable"], commit["glue:UpdateTable"]) == (given, given)
    assert {action for action in commit if action.startswith("glue:")} == {"glue:UpdateTable"}


def test_lake_formation_may_be_asked_for_access() -> None:
    assert allowed("ReadTablesPolicy")["lakeformation:GetDataAccess"] == ["*"]


@pytest.mark.parametrize(
    ("arn", "fits"),
    [
        ("arn:aws:glue:eu-west-1:222233334444:catalog", True),
        ("arn:aws:glue:eu-west-1:222233334444:database/sales", True),
        (" arn:aws-cn:glue:cn-north-1:222233334444:table/sales/*", True),
        ("", True),
        ("arn:aws:glue:eu-west-1:222233334444:catalog/s3tablescatalog/lake", False),
        ("arn:aws:glue:eu-west-1:222233334444:job/x", False),
        ("arn:aws:glue:eu-west-1:222233334444:database/", False),
    ],
)
def test_the_parameter_takes_catalogs_of_other_accounts(arn: str, fits: bool) -> None:
    pattern = PARAMETERS["GlueDataCatalogArns"]["AllowedPattern"]
    assert bool(re.fullmatch(pattern, arn)) is fits
