"""What CloudFormation makes of template.yaml under every combination of the parameters that decide what is there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from support.stack_template import (
    DOCUMENT,
    PARAMETERS,
    SINGLE,
    TABLES,
    VPC,
    Grant,
    RenderedTemplate,
    combinations,
    referred,
    refusals,
    render,
    strings,
)

NAMES = {"FunctionName", "Name", "LogGroupName", "DashboardName", "LayerName", "QueueName", "BucketName", "TableName"}


def length(grant: Grant) -> int:
    """Characters as IAM counts them: without white space."""
    return len("".join(json.dumps(grant.document).split()))


def test_every_condition_is_decided_both_ways_here() -> None:
    assert referred(DOCUMENT["Conditions"]) == {*TABLES, *SINGLE, "VpcSubnetIds"}


@pytest.mark.parametrize("others", [{}, {**SINGLE, **VPC}], ids=["alone", "with all others"])
@pytest.mark.parametrize("parameters", list(combinations(TABLES)), ids=lambda chosen: ",".join(chosen.values()))
def test_every_policy_allows_something_by_name(parameters: dict[str, str], others: dict[str, str]) -> None:
    stack = render({**parameters, **others})

    for name, grants in stack.grants.items():
        for grant in grants:
            assert grant.statements, (name, grant.name)
            for statement in grant.statements:
                named = statement["Resource"]
                assert named, (name, grant.name)
                assert "" not in ([named] if isinstance(named, str) else named), (name, grant.name)


@pytest.mark.parametrize("name", SINGLE)
def test_each_other_parameter_works_by_itself(name: str) -> None:
    assert SINGLE[name] in set(strings(render({name: SINGLE[name]}).resources)) or name == "MaintenanceEnabled"


def test_what_is_left_out_cannot_be_referred_to() -> None:
    stack: RenderedTemplate = render()

    assert "DeleteFilesPolicy" not in stack.resources
    with pytest.raises(KeyError, match="HasDataBuckets"):
        stack.reference("DeleteFilesPolicy")


@pytest.mark.parametrize("parameters", list(combinations(TABLES)), ids=lambda chosen: ",".join(chosen.values()))
def test_discovery_without_rights_is_refused_and_nothing_else_is(parameters: dict[str, str]) -> None:
    said = refusals(parameters)

    if parameters["DiscoverTableBuckets"] == "true" and not parameters["TableBucketArns"]:
        (sentence,) = said
        assert "TableBucketArns" in sentence
        assert "bucket/*" in sentence
    else:
        assert said == []


def test_policies_of_thirty_table_buckets_are_short_enough() -> None:
    """6,144 characters a managed policy and 10,240 of all policies inside a role, white space aside (IAM quotas)."""
    arn = "arn:aws-us-gov:s3tables:us-gov-west-1:123456789012:bucket/"
    stack = render(
        {
            **SINGLE,
            **VPC,
            "DiscoverTableBuckets": "true",
            "TableBucketArns": ",".join(f"{arn}{number:063}" for number in range(30)),
            "DataBucketArns": ",".join(f"arn:aws-us-gov:s3:::{number:063}" for number in range(10)),
            "GlueDataCatalogArns": ",".join(f"arn:aws-us-gov:glue:us-gov-west-1:1:table/{n:040}/*" for n in range(10)),
            "KmsKeyArns": ",".join(f"arn:aws-us-gov:kms:us-gov-west-1:123456789012:key/{n:036}" for n in range(3)),
        }
    )

    assert {name: length(grant) for name, grant in stack.managed.items() if length(grant) > 6144} == {}
    for name, grants in stack.grants.items():
        assert sum(length(grant) for grant in grants if not grant.is_managed) <= 10_240, name
        assert sum(grant.is_managed for grant in grants) <= 10, name


def test_a_parameter_full_of_table_buckets_fits_into_every_policy() -> None:
    """A parameter holds 4,096 characters."""
    arn = "arn:aws:s3tables:eu-west-1:123456789012:bucket/"
    given = ",".join(f"{arn}{number:05}" for number in range(4096 // (len(arn) + 6)))
    managed = render({"TableBucketArns": given}).managed

    assert 4000 < len(given) <= 4096
    assert max(length(grant) for grant in managed.values()) <= 6144


def test_two_stacks_of_an_account_share_no_name() -> None:
    first, second = (named(render(stack=stack).resources) for stack in ("one", "two"))

    assert len(first) >= 29
    assert not first & second
    (dashboard,) = render().of_type("AWS::CloudWatch::Dashboard").values()
    assert dashboard["DashboardName"] == "icekeeper-us-east-1"  # dashboards are those of all regions


def named(resources: Any) -> set[str]:
    """What resources call themselves."""
    return {str(one["Properties"][key]) for one in resources.values() for key in NAMES & set(one["Properties"])}


def test_metrics_of_two_stacks_are_told_apart() -> None:
    stack = render(stack="mine")

    functions = stack.of_type("AWS::Serverless::Function").values()
    assert {one["Environment"]["Variables"]["POWERTOOLS_SERVICE_NAME"] for one in functions} == {"mine"}
    for alarm in stack.of_type("AWS::CloudWatch::Alarm").values():
        if alarm["Namespace"] == "Icekeeper":
            assert alarm["Dimensions"] == [{"Name": "service", "Value": "mine"}]
    (dashboard,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    for widget in json.loads(dashboard["DashboardBody"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                assert metric[2:] == ["service", "mine"], metric
            elif isinstance(metric[0], dict):
                assert 'service="mine"' in metric[0]["expression"]


def test_every_role_is_bounded_where_the_account_asks_for_it() -> None:
    boundary = {"PermissionsBoundaryArn": SINGLE["PermissionsBoundaryArn"]}
    for stack, expected in ((render(), {None}), (render(boundary), {SINGLE["PermissionsBoundaryArn"]})):
        roles = stack.of_type("AWS::IAM::Role").values()
        assert len(roles) >= 15
        assert {role.get("PermissionsBoundary") for role in roles} == expected


def test_a_key_of_the_control_bucket_is_used_by_all_who_use_the_bucket() -> None:
    key = SINGLE["ControlBucketKmsKeyArn"]
    stack = render({"ControlBucketKmsKeyArn": key})
    (bucket,) = stack.of_type("AWS::S3::Bucket").values()
    (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]

    assert encryption["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    for name, grants in stack.grants.items():
        statements = [statement for grant in grants for statement in grant.statements]
        reads = any(stack.reference("ControlBucket") in text for one in statements for text in strings(one["Resource"]))
        allowed = {action for one in statements if one["Resource"] == key for action in strings(one["Action"])}
        writes = any("s3:PutObject" in strings(one["Action"]) for one in statements)
        expected = {"kms:Decrypt"} if reads and not writes else {"kms:Decrypt", "kms:GenerateDataKey"}
        assert allowed == (expected if reads else set()), name


def test_a_key_of_the_state_table_is_used_by_all_who_use_the_table_and_through_it_only() -> None:
    """DynamoDB asks KMS in the name of whoever reads or writes the table (platform 131)."""
    key = SINGLE["StateTableKmsKeyArn"]
    stack = render({"StateTableKmsKeyArn": key})
    (table,) = stack.of_type("AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
    for name, grants in stack.grants.items():
        statements = [statement for grant in grants for statement in grant.statements]
        uses = any(stack.reference("StateTable") in text for one in statements for text in strings(one["Resource"]))
        found = [one for one in statements if one["Resource"] == key]
        assert len(found) == int(uses), name
        for one in found:
            assert {"kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"} < set(strings(one["Action"]))
            assert list(one["Condition"]["StringEquals"]) == ["kms:ViaService"]
            assert str(one["Condition"]["StringEquals"]["kms:ViaService"]).startswith("dynamodb.")
    (table,) = render().of_type("AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS"}


def test_a_key_of_the_logs_encrypts_every_log_group() -> None:
    """They hold the names of tables, and the execution data of the state machine."""
    key = SINGLE["LogsKmsKeyArn"]
    for stack, expected in ((render({"LogsKmsKeyArn": key}), key), (render(), None)):
        groups = stack.of_type("AWS::Logs::LogGroup")
        assert len(groups) >= 15
        assert {name: group.get("KmsKeyId") for name, group in groups.items()} == dict.fromkeys(groups, expected)
        assert [name for name, group in groups.items() if not group["RetentionInDays"]] == []


def test_a_key_of_the_artifacts_is_used_by_the_jobs_alone() -> None:
    key = SINGLE["ArtifactKmsKeyArn"]
    stack = render({"ArtifactKmsKeyArn": key})

    using = {name for name, grants in stack.grants.items() for grant in grants if key in set(strings(grant.document))}
    assert using == set(stack.of_type("AWS::Glue::Job"))


def test_silence_alarms_only_while_the_schedule_is_on() -> None:
    for state, missing in (("DISABLED", "notBreaching"), ("ENABLED", "breaching")):
        alarm = render({"ScheduleState": state, "SilentHours": "6"}).resources["NoRunSucceededAlarm"]["Properties"]
        assert (alarm["TreatMissingData"], alarm["EvaluationPeriods"], alarm["Period"]) == (missing, "6", 3600)
    # CloudWatch looks back seven days at most.
    assert PARAMETERS["SilentHours"]["MaxValue"] * 3600 <= 7 * 86_400


def test_logs_of_jobs_go_where_glue_5_writes_and_end() -> None:
    """Glue 5 writes Spark's lines to PREFIX/error and those of the script to PREFIX/output."""
    stack = render(stack="mine")
    groups = {one["LogGroupName"] for one in stack.of_type("AWS::Logs::LogGroup").values()}

    for job in stack.of_type("AWS::Glue::Job").values():
        prefix = job["DefaultArguments"]["--custom-logGroup-prefix"]
        assert prefix == "/aws-glue/jobs/mine"
        assert {f"{prefix}/error", f"{prefix}/output"} <= groups
        assert not [name for name in job["DefaultArguments"] if "continuous" in name]


def test_a_first_deployment_that_fails_leaves_nothing_in_the_way_of_the_second() -> None:
    """Log groups have fixed names: one that is kept would make every further creation of the stack fail."""
    kept = {name: one["DeletionPolicy"] for name, one in DOCUMENT["Resources"].items() if "DeletionPolicy" in one}

    assert len(kept) >= 15
    assert set(kept.values()) == {"RetainExceptOnCreate"}
