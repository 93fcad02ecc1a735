"""template.yaml: its resources under every combination of parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import pytest

from artifacts import layer
from icekeeper.machine.resources import variables_set
from icekeeper.policy import Policy
from icekeeper.policy.layers import ENVIRONMENT_PREFIX, Layer, layers_for
from icekeeper.policy.resolve import resolve
from icekeeper.policy.values import Ownership
from icekeeper.state.dynamodb.table import TABLE_SCHEMA
from local_stack.rights.evaluate import Need, Role, decide, statements_of
from local_stack.template import ACCOUNT, REGION, TEMPLATE, Template
from support.source_tree import SOURCES
from support.stack_template import (
    DOCUMENT,
    FOLDER,
    FUNCTIONS,
    JOBS,
    LISTED,
    MACHINE,
    PARAMETERS,
    RESOURCES,
    ROOT,
    SINGLE,
    TABLES,
    VARIABLES,
    VPC,
    actions,
    combinations,
    of_type,
    referred,
    refusals,
    render,
    role_of,
    statements,
    strings,
)
from support.state_machine import load_machine

# The state machine, environment, parameters, storage and alarms.

STACK = {"Ref": "AWS::StackName"}
ALARMS = of_type("AWS::CloudWatch::Alarm")
OTHER_VARIABLES = {
    "ICEKEEPER_STATE",
    "ICEKEEPER_CONTROL_BUCKET",
    "ICEKEEPER_CATALOGS",
    "ICEKEEPER_TABLE_BUCKETS",
    "ICEKEEPER_POLICY_FILE",
    "ICEKEEPER_CATALOG_FILE",
    "ICEKEEPER_ALLOWED_PREFIXES",
    "ICEKEEPER_REQUESTS_MAY",
    "ICEKEEPER_SMALL_COMPACTION_MB",
    "ICEKEEPER_WAVE_EXECUTION_CLASS",
    "ICEKEEPER_WORKER_TYPE",
    "ICEKEEPER_MAX_WORKERS",
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
    "METRICS",
}


class TestStateMachine:
    def test_it_may_start_and_stop_its_child_executions(self) -> None:
        """It has a fixed name, which its role contains."""
        name = MACHINE["Name"]["Fn::Sub"]
        texts = list(strings(RESOURCES["StateMachineRole"]))

        assert any(text.endswith(f":stateMachine:{name}") for text in texts)
        assert any(text.endswith(f":execution:{name}/*") for text in texts)

    def test_a_slow_function_ends_before_its_task(self) -> None:
        for level in load_machine().levels():
            for name, state in level.states.items():
                if state["Type"] == "Task" and "FunctionName" in state["Parameters"]:
                    function = RESOURCES[state["Parameters"]["FunctionName"]]["Properties"]
                    assert function["Timeout"] < state["TimeoutSeconds"], name
                elif state["Type"] == "Task":
                    job = RESOURCES[state["Parameters"]["JobName"]]["Properties"]
                    assert job["Timeout"] == {"Ref": "JobTimeoutMinutes"}, name


class TestEnvironment:
    def test_every_variable_is_a_setting_of_the_package(self) -> None:
        settings = {layer.source.split()[-1] for layer in layers_for({}, dict.fromkeys(VARIABLES, "1"), {})}
        assert set(VARIABLES) >= OTHER_VARIABLES
        assert settings == set(VARIABLES) - OTHER_VARIABLES

    @pytest.mark.parametrize(
        ("parameter", "variable", "value"),
        [
            ("ShortestSnapshotRetentionHours", "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS", "24"),
            ("FewestSnapshotsToKeep", "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP", "3"),
            ("ShortestOrphanGraceHours", "ICEKEEPER_BOUND_ORPHAN_OLDER_THAN_HOURS", "48"),
            ("AllowedPrefixes", "ICEKEEPER_ALLOWED_PREFIXES", "lake.sales=s3://lake/sales/"),
            ("RequestsMay", "ICEKEEPER_REQUESTS_MAY", "expire_partitions,partition_retention_hours"),
        ],
    )
    def test_a_bound_reaches_every_function_and_is_unset_when_empty(
        self, parameter: str, variable: str, value: str
    ) -> None:
        for given, parameters in ((value, {parameter: value}), ("", None)):
            functions = render(parameters).of_type("AWS::Serverless::Function").values()
            assert {function["Environment"]["Variables"][variable] for function in functions} == {given}
        assert variables_set({variable: ""}) == {}

    def test_policy_keys_that_the_stack_decides_name_their_parameter(self) -> None:
        """In a stack the package does not read these values; the description of each key names the parameter."""
        decided = {
            "detection_interval_s": "ScheduleExpression",
            "max_concurrent_jobs": "MaxConcurrentTables",
            "job_timeout_s": "JobTimeoutMinutes",
        }
        for key, parameter in decided.items():
            assert parameter in PARAMETERS
            assert f"parameter {parameter}" in str(Policy.model_fields[key].description)
            variable = VARIABLES.get(f"{ENVIRONMENT_PREFIX}{key.upper()}")
            assert key == "detection_interval_s" or referred(variable) >= {parameter}
        substituted = MACHINE["DefinitionSubstitutions"]
        assert substituted["MaxConcurrentTables"] == {"Ref": "MaxConcurrentTables"}
        assert referred(RESOURCES["Schedule"]) >= {"ScheduleExpression"}


class TestParameters:
    def test_each_is_described_bounded_used_and_grouped(self) -> None:
        used = referred([DOCUMENT[part] for part in ("Resources", "Globals", "Conditions", "Outputs")])
        for name, parameter in PARAMETERS.items():
            assert len(parameter["Description"]) > 20, name
            assert {"AllowedValues", "AllowedPattern", "MinValue"} & set(parameter), name
            assert name in used
            default = parameter.get("Default")
            if default is not None:
                assert re.fullmatch(parameter.get("AllowedPattern", ".*"), str(default)), name
                assert default in parameter.get("AllowedValues", [default]), name
        groups = DOCUMENT["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
        assert sorted(name for group in groups for name in group["Parameters"]) == sorted(PARAMETERS)

    def test_the_schedule_is_disabled_by_default(self) -> None:
        assert PARAMETERS["ScheduleState"]["Default"] == "DISABLED"
        assert RESOURCES["Schedule"]["Properties"]["State"] == {"Ref": "ScheduleState"}
        assert PARAMETERS["ScheduleExpression"]["Default"] == "rate(6 hours)"


class TestStorage:
    def test_the_state_table_has_the_schema_of_the_state_store(self) -> None:
        table = RESOURCES["StateTable"]["Properties"]
        keys = ("AttributeDefinitions", "KeySchema", "LocalSecondaryIndexes", "BillingMode")

        for key in keys:
            expected: Any = TABLE_SCHEMA[key]
            if key == "AttributeDefinitions":
                assert sorted(map(json.dumps, table[key])) == sorted(map(json.dumps, expected))
            else:
                assert table[key] == expected
        assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_s", "Enabled": True}

    def test_the_state_table_and_control_bucket_are_retained(self) -> None:
        assert {RESOURCES[name]["UpdateReplacePolicy"] for name in ("StateTable", "ControlBucket")} == {"Retain"}
        table = RESOURCES["StateTable"]["Properties"]
        assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
        assert table["DeletionProtectionEnabled"] is True

    def test_the_control_bucket_is_private(self) -> None:
        bucket = RESOURCES["ControlBucket"]["Properties"]
        (statement,) = RESOURCES["ControlBucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]

        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        assert "BucketEncryption" in bucket
        assert statement["Effect"] == "Deny"
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}

    def test_documents_of_runs_expire_and_configuration_does_not(self) -> None:
        rules = RESOURCES["ControlBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]

        assert [(rule["Prefix"], rule["ExpirationInDays"]) for rule in rules if "ExpirationInDays" in rule] == [
            ("runs/", 90),
            ("spark-logs/", 14),
        ]


class TestAlarms:
    def test_they_use_our_metrics_or_these_of_aws(self) -> None:
        """tests/integration/test_functions.py checks which of our metrics are written."""
        others = {
            name: (alarm["Namespace"], alarm["MetricName"], *(d["Name"] for d in alarm["Dimensions"]))
            for name, alarm in ALARMS.items()
            if alarm.get("Namespace") != "Icekeeper"
        }
        assert others == {
            "ThrottledAlarm": ("AWS/Lambda", "Throttles", "FunctionName"),
            "DeadLettersAlarm": ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
        }

    def test_they_do_not_fire_without_data(self) -> None:
        """Except NoRunSucceeded, which reports missing runs; TablesNotReadable keeps its state until a full scan."""
        other = {
            "NoRunSucceededAlarm": {"Fn::If": ["IsScheduled", "breaching", "notBreaching"]},
            "TablesNotReadableAlarm": "ignore",
        }
        for name, alarm in ALARMS.items():
            assert alarm["TreatMissingData"] == other.get(name, "notBreaching"), name
            assert alarm["AlarmDescription"], name
            assert alarm["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic", name


# Functions and Glue jobs in a VPC, and the rights of Lambda and Glue there.

# AWS managed policy reference, AWSLambdaVPCAccessExecutionRole, without its rights to logs.
RIGHTS = {
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"),
    *("ec2:DeleteNetworkInterface", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
}
CODE = {"lambda:SourceFunctionArn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:icekeeper-read"}


def may_in_ec2(parameters: dict[str, str], context: dict[str, str]) -> list[set[str]]:
    """The EC2 actions that each function may call for any network interface."""
    stack = render(parameters)
    found = []
    for name, _ in FUNCTIONS.values():
        grants = stack.grants[name]
        role = Role(name, tuple(item for each in grants for item in statements_of(each.name, each.document)))
        allowed = {action for item in role.statements for action in item.actions if action.startswith("ec2:")}
        needs = [Need(action, "arn:aws:ec2:us-east-1:1:network-interface/eni-1", context) for action in allowed]
        found.append({need.action for need in needs if decide(role, need).is_allowed})
    return found


def test_functions_are_in_the_given_vpc_and_only_lambda_may_use_its_interfaces() -> None:
    vpc = {"SubnetIds": ["subnet-0a1b2c3d", "subnet-4e5f6a7b"], "SecurityGroupIds": ["sg-0a1b2c3d"]}
    none: dict[str, str] = {}
    for parameters, config, rights in ((none, None, set[str]()), (VPC, vpc, RIGHTS)):
        functions: list[Any] = list(render(parameters).of_type("AWS::Serverless::Function").values())
        assert [item.get("VpcConfig") for item in functions] == [config] * len(FUNCTIONS)
        assert may_in_ec2(parameters, {}) == [rights] * len(FUNCTIONS)
        assert may_in_ec2(parameters, CODE) == [set()] * len(FUNCTIONS)


NETWORK = {"ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:CreateTags", "ec2:DeleteTags"}


def test_a_connection_gives_network_rights_to_jobs_only() -> None:
    for connection, expected in (("", None), ("private", {"Connections": ["private"]})):
        template = Template(TEMPLATE, "stack", {"GlueConnection": connection})
        assert [job.get("Connections") for _, job in template.resources("AWS::Glue::Job")] == [expected] * len(JOBS)
        policy = render({"GlueConnection": connection}).of_type("AWS::IAM::ManagedPolicy")["GlueRuntimePolicy"]
        changing = {action for action in actions(policy) if re.match(r"(ec2|glue):(?!Describe|Get)", action)}
        assert changing == (NETWORK if connection else set())
        assert ("glue:GetConnection" in actions(policy)) == bool(connection)
    assert {name for name, item in RESOURCES.items() if any(a.startswith("ec2:") for a in actions(item))} == {
        *("GlueRuntimePolicy", "FunctionRuntimePolicy")
    }
    assert all({"Ref": "GlueRuntimePolicy"} in role_of(job)["ManagedPolicyArns"] for _, job in JOBS.values())


def test_parameters_that_go_together_are_refused_alone() -> None:
    (sentence,) = refusals({"TableBucketArns": TABLES["TableBucketArns"][1]})
    assert sentence.startswith("TableBucketArns needs Ownership")
    (sentence,) = refusals({"WorkerType": "G.4X"})
    assert sentence == "WaveExecutionClass=FLEX takes WorkerType G.1X or G.2X only; larger workers need STANDARD"
    assert refusals({"WorkerType": "G.2X"}) == refusals({"WorkerType": "G.8X", "WaveExecutionClass": "STANDARD"}) == []
    for pair in (VPC, LISTED):
        for name, value in pair.items():
            (sentence,) = refusals({name: value})
            assert f"{' and '.join(pair)} go together" in sentence
    assert refusals(VPC) == refusals(FOLDER) == refusals({}) == []


SECRET, GLUE = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:", "arn:aws:glue:eu-west-1:222233334444:"
VALID = {
    "DataBucketArns": ("arn:aws:s3:::lake", " arn:aws-cn:s3:::lake/ware_house/v=1"),
    "ListedPrefixes": ("warehouse/sales",),
    "CatalogSecretArns": (f"{SECRET}lake/rest-a1B2c3",),
    "GlueDataCatalogArns": ("", f"{GLUE}catalog", f"{GLUE}database/sales", f" {GLUE}table/sales/*"),
}
INVALID = {
    "DataBucketArns": ("arn:aws:s3:::lake/", "arn:aws:s3:::lake/*"),
    "ListedPrefixes": ("/warehouse", "warehouse/", "ware*"),
    "CatalogSecretArns": (f"{SECRET}*",),
    "GlueDataCatalogArns": (f"{GLUE}catalog/s3tablescatalog/lake", f"{GLUE}job/x", f"{GLUE}database/"),
}


@pytest.mark.parametrize("name", VALID)
def test_parameters_of_rights_accept_only_valid_values(name: str) -> None:
    pattern = PARAMETERS[name]["AllowedPattern"]
    assert [value for value in VALID[name] if not re.fullmatch(pattern, value)] == []
    assert [value for value in INVALID[name] if re.fullmatch(pattern, value)] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", ("", None)), ("auto", ("auto", None)), ("icekeeper", ("icekeeper", None)), ("bucket", ("auto", "auto"))],
)
def test_a_deployment_may_forbid_the_takeover_of_table_buckets(given: str, expected: tuple[str, str | None]) -> None:
    """The deployment's bound also limits a policy file."""
    names = ("ICEKEEPER_OWNERSHIP", "ICEKEEPER_BOUND_OWNERSHIP")
    variables = Template(TEMPLATE, "stack", {"Ownership": given}).resolve({name: VARIABLES[name] for name in names})
    assert tuple(variables.get(name) for name in names) == expected
    greedy = {"ownership": "icekeeper"}
    layers = layers_for({}, {name: value for name, value in variables.items() if value}, {}, rules=[Layer("f", greedy)])
    assert resolve(layers).policy.ownership is (Ownership.AUTO if given == "bucket" else Ownership.ICEKEEPER)


def test_the_page_names_every_service_with_a_client() -> None:
    """docs/deployment.md describes how a VPC reaches each service for which the package has a client."""
    page = (ROOT / "docs" / "deployment.md").read_text().partition("## In a VPC")[2].partition("\n## ")[0]
    texts = [path.read_text() for path in SOURCES if "demo" not in path.parts]
    services = {found for text in texts for found in re.findall(r"client(?:\(|=)\"(\w+)\"", text)}

    assert {"s3", "dynamodb", "s3tables", "glue", "stepfunctions"} <= services
    assert services | {"sts"} == layer.SERVICES
    for service in layer.SERVICES:
        assert f"`{ {'stepfunctions': 'states'}.get(service, service) }`" in page, service


def test_a_function_writes_only_logs_of_this_stack() -> None:
    stack = render({})
    (logs,) = stack.managed["FunctionRuntimePolicy"].statements
    functions = stack.of_type("AWS::Serverless::Function").values()

    assert {function["LoggingConfig"]["LogGroup"] for function in functions} == {stack.reference("FunctionsLogGroup")}
    assert logs["Resource"] == "arn:aws:local:::icekeeper-FunctionsLogGroup"


# The rendered template under every combination of the parameters that create resources.

NAMES = {"FunctionName", "Name", "LogGroupName", "DashboardName", "LayerName", "QueueName", "BucketName", "TableName"}


def test_the_tests_cover_both_values_of_every_condition() -> None:
    assert referred(DOCUMENT["Conditions"]) == {*TABLES, *SINGLE, "VpcSubnetIds", "ListedBucketArns"}
    for name, value in SINGLE.items():
        is_shown_otherwise = name in ("MaintenanceEnabled", "Ownership")
        assert value in set(strings(render({name: value}).resources)) or is_shown_otherwise, name


@pytest.mark.parametrize("others", [{}, {**SINGLE, **VPC, **LISTED}], ids=["alone", "with all others"])
def test_every_policy_allows_named_resources(others: dict[str, str]) -> None:
    """Only discovery without rights to table buckets is refused."""
    for parameters in combinations(TABLES):
        found = refusals({"Ownership": "auto", **parameters})
        if parameters["DiscoverTableBuckets"] == "true" and not parameters["TableBucketArns"]:
            assert [("TableBucketArns" in item, "bucket/*" in item) for item in found] == [(True, True)]
        else:
            assert found == []
        for name, grants in render({**parameters, **others}).grants.items():
            for grant in grants:
                assert grant.statements, (name, grant.name)
                for statement in grant.statements:
                    resource = statement["Resource"]
                    assert resource, (name, grant.name)
                    assert "" not in ([resource] if isinstance(resource, str) else resource), (name, grant.name)


def test_policies_of_thirty_table_buckets_are_short_enough() -> None:
    """IAM quotas without white space: 6,144 characters per managed policy, 10,240 for all inline policies of a role."""
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

    assert {name: grant.length for name, grant in stack.managed.items() if grant.length > 6144} == {}
    for name, grants in stack.grants.items():
        assert sum(grant.length for grant in grants if not grant.is_managed) <= 10_240, name
        assert sum(grant.is_managed for grant in grants) <= 9, name  # IAM allows ten


def test_a_parameter_full_of_table_buckets_fits_into_every_policy() -> None:
    """A parameter holds 4,096 characters."""
    arn = "arn:aws:s3tables:eu-west-1:123456789012:bucket/"
    arns = ",".join(f"{arn}{number:05}" for number in range(4096 // (len(arn) + 6)))
    managed = render({"TableBucketArns": arns}).managed

    assert 4000 < len(arns) <= 4096
    assert max(grant.length for grant in managed.values()) <= 6144


def test_two_stacks_of_an_account_share_no_name_and_no_metric() -> None:
    def named(stack: str) -> set[str]:
        found = render(stack=stack).resources.values()
        return {str(item["Properties"][key]) for item in found for key in NAMES & set(item["Properties"])}

    assert len(named("one")) >= 16
    assert not named("one") & named("two")
    stack = render(stack="mine")
    for alarm in stack.of_type("AWS::CloudWatch::Alarm").values():
        if alarm.get("Namespace") == "Icekeeper":
            assert alarm["Dimensions"] == [{"Name": "service", "Value": "mine"}]
    assert VARIABLES["POWERTOOLS_SERVICE_NAME"] == {"Ref": "AWS::StackName"}
    (dashboard,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    assert dashboard["DashboardName"] == "mine-us-east-1"  # dashboard names are shared by all regions
    for widget in json.loads(dashboard["DashboardBody"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                assert metric[2:] == ["service", "mine"], metric
            elif isinstance(metric[0], dict):
                assert 'service="mine"' in metric[0]["expression"]
    # Each step of a run uses the newest function: nothing names a version ("Upgrading" in docs/deployment.md).
    functions = [DOCUMENT["Globals"]["Function"], *of_type("AWS::Serverless::Function").values()]
    assert not any("AutoPublishAlias" in function for function in functions)
    assert {str(item["Type"]) for item in RESOURCES.values()} & {"AWS::Lambda::Version", "AWS::Lambda::Alias"} == set()


def test_every_role_has_the_given_permissions_boundary() -> None:
    boundary = {"PermissionsBoundaryArn": SINGLE["PermissionsBoundaryArn"]}
    for stack, expected in ((render(), {None}), (render(boundary), {SINGLE["PermissionsBoundaryArn"]})):
        assert {role.get("PermissionsBoundary") for role in stack.of_type("AWS::IAM::Role").values()} == expected


@pytest.mark.parametrize(
    ("parameter", "services"),
    [
        ("StackKmsKeyArn", {"s3", "dynamodb", "sqs"}),
        ("ArtifactKmsKeyArn", {"s3"}),
        ("KmsKeyArns", {"s3", "s3tables", "secretsmanager"}),
    ],
)
def test_a_key_is_used_only_through_the_services_that_need_it(parameter: str, services: set[str]) -> None:
    """No role may decrypt with the key directly."""
    key = SINGLE.get(parameter) or TABLES[parameter][1]
    stack = render({parameter: key})
    policies = [*stack.of_type("AWS::IAM::Role").values(), *stack.of_type("AWS::IAM::ManagedPolicy").values()]
    through: set[str] = set()
    for item in (item for policy in policies for item in statements(policy) if item.get("Resource") in (key, [key])):
        ((condition),) = item["Condition"].values()
        assert list(condition) == ["kms:ViaService"]
        through |= {service.partition(".")[0] for service in strings({"": condition["kms:ViaService"]})}
    assert through == services


def test_the_key_of_the_stack_encrypts_all_that_it_keeps() -> None:
    key = SINGLE["StackKmsKeyArn"]
    for stack, given in ((render({"StackKmsKeyArn": key}), key), (render(), None)):
        (bucket,) = stack.of_type("AWS::S3::Bucket").values()
        (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
        (table,) = stack.of_type("AWS::DynamoDB::Table").values()
        (queue,) = stack.of_type("AWS::SQS::Queue").values()
        groups = stack.of_type("AWS::Logs::LogGroup")
        named = {} if given is None else {"KMSMasterKeyId": key}
        by_default = {"SSEAlgorithm": "AES256"} if given is None else {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}

        assert encryption["ServerSideEncryptionByDefault"] == by_default
        assert encryption.get("BucketKeyEnabled") == (None if given is None else True)
        assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", **named}
        assert (queue.get("KmsMasterKeyId"), queue["SqsManagedSseEnabled"]) == (given, given is None)
        assert {name: group.get("KmsKeyId") for name, group in groups.items()} == dict.fromkeys(groups, given)
        assert [name for name, group in groups.items() if not group["RetentionInDays"]] == []


def test_every_role_may_use_the_key_of_the_stack_through_the_services_that_it_uses() -> None:
    """DynamoDB and S3 call KMS with the rights of the caller; a sender to a queue generates a data key and decrypts
    it.  No role may decrypt with the key directly."""
    key = SINGLE["StackKmsKeyArn"]
    stack = render({"StackKmsKeyArn": key})
    for name, grants in stack.grants.items():
        found = [item for grant in grants for item in grant.statements]
        of_key = {
            item["Condition"]["StringEquals"]["kms:ViaService"].partition(".")[0]: set(strings(item["Action"]))
            for item in found
            if item["Resource"] == key
        }

        def uses(logical_id: str, found: list[Mapping[str, Any]] = found) -> bool:
            return any(stack.reference(logical_id) in text for item in found for text in strings(item["Resource"]))

        writes = any("s3:PutObject" in strings(item["Action"]) for item in found)
        both = {"kms:Decrypt", "kms:GenerateDataKey"}
        expected = {"s3": both if writes else {"kms:Decrypt"}} if uses("ControlBucket") else {}
        if uses("StateTable"):
            more = {"kms:DescribeKey", "kms:Encrypt", "kms:ReEncryptFrom", "kms:ReEncryptTo"}
            expected["dynamodb"] = both | more
        if name == "Schedule":
            expected["sqs"] = both
        assert of_key == expected, name


def test_only_jobs_may_use_the_key_of_the_artifacts() -> None:
    key = SINGLE["ArtifactKmsKeyArn"]
    stack = render({"ArtifactKmsKeyArn": key})

    using = {
        name: statement["Condition"]
        for name, grants in stack.grants.items()
        for grant in grants
        for statement in grant.statements
        if statement["Resource"] == key
    }
    # The bucket of the artifacts may be in another region.
    through_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com"}}
    assert using == dict.fromkeys(stack.of_type("AWS::Glue::Job"), through_s3)


def test_missing_runs_alarm_only_while_the_schedule_is_enabled() -> None:
    for state, missing in (("DISABLED", "notBreaching"), ("ENABLED", "breaching")):
        alarm = render({"ScheduleState": state, "SilentHours": "6"}).resources["NoRunSucceededAlarm"]["Properties"]
        assert (alarm["TreatMissingData"], alarm["EvaluationPeriods"], alarm["Period"]) == (missing, "6", 3600)
    # CloudWatch evaluates at most seven days.
    assert PARAMETERS["SilentHours"]["MaxValue"] * 3600 <= 7 * 86_400


def test_job_logs_are_in_groups_of_the_stack() -> None:
    """Glue 5 writes Spark's log to PREFIX/error and the script's to PREFIX/output."""
    stack = render(stack="mine")
    groups = {item["LogGroupName"] for item in stack.of_type("AWS::Logs::LogGroup").values()}

    for job in stack.of_type("AWS::Glue::Job").values():
        prefix = job["DefaultArguments"]["--custom-logGroup-prefix"]
        assert prefix == "/aws-glue/jobs/mine"
        assert {f"{prefix}/error", f"{prefix}/output"} <= groups
        assert not [name for name in job["DefaultArguments"] if "continuous" in name]


def test_jobs_report_metrics_and_write_spark_event_logs() -> None:
    """Icekeeper's own right to write metrics is limited to Glue's namespace."""
    for job in RESOURCES.values():
        if job["Type"] == "AWS::Glue::Job":
            arguments = job["Properties"]["DefaultArguments"]
            assert (arguments["--enable-metrics"], arguments["--enable-spark-ui"]) == ("true", "true")
            assert set(strings(arguments["--spark-event-logs-path"])) == {"s3://${ControlBucket}/spark-logs/"}
    (metrics,) = (
        each for each in statements(RESOURCES["GlueRuntimePolicy"]) if each["Action"] == "cloudwatch:PutMetricData"
    )
    assert metrics["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Glue"}}


def test_a_failed_first_deployment_leaves_no_resource_behind() -> None:
    """Log groups have fixed names: a retained log group would make every later creation of the stack fail."""
    kept = {name: item["DeletionPolicy"] for name, item in DOCUMENT["Resources"].items() if "DeletionPolicy" in item}

    assert len(kept) == 6
    assert {"StateTable", "ControlBucket"} <= kept.keys()
    assert set(kept.values()) == {"RetainExceptOnCreate"}
