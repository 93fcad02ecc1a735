"""template.yaml: its resources under every combination of parameters."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

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
    statements,
    strings,
)
from support.state_machine import load_machine

# The stack's state machine, environment, parameters, storage and alarms, as template.yaml gives them.

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
    "ICEKEEPER_MAX_UNPACKED_MB",
    "ICEKEEPER_SMALL_COMPACTION_MB",
    "ICEKEEPER_SMALL_MANIFESTS",
    "ICEKEEPER_SMALL_ORPHANS",
    "ICEKEEPER_SMALL_STATISTICS_MB",
    "ICEKEEPER_WAVE_EXECUTION_CLASS",
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
    "METRICS",
    "METRICS_PER_TABLE",
}


class TestStateMachine:
    def test_may_start_and_stop_its_own_children(self) -> None:
        """Its name is given because its own role must know it."""
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
    def test_holds_settings_that_the_package_knows(self) -> None:
        named = {layer.source.split()[-1] for layer in layers_for({}, dict.fromkeys(VARIABLES, "1"), {})}
        assert set(VARIABLES) >= OTHER_VARIABLES
        assert named == set(VARIABLES) - OTHER_VARIABLES

    def test_keys_of_the_policy_that_the_stack_decides_say_by_which_parameter(self) -> None:
        """The package reads none of these values, so the description of each key names the parameter."""
        decided = {
            "detection_interval_s": "ScheduleExpression",
            "max_concurrent_jobs": "MaxConcurrentTables",
            "job_timeout_s": "JobTimeoutMinutes",
            "job_retry_limit": "JobRetryLimit",
        }
        for key, parameter in decided.items():
            assert parameter in PARAMETERS
            assert f"parameter {parameter}" in str(Policy.model_fields[key].description)
            shown = VARIABLES.get(f"{ENVIRONMENT_PREFIX}{key.upper()}")
            assert key == "detection_interval_s" or referred(shown) >= {parameter}
        substituted = MACHINE["DefinitionSubstitutions"]
        assert substituted["MaxConcurrentTables"] == {"Ref": "MaxConcurrentTables"}
        assert substituted["JobRetryLimit"] == {"Ref": "JobRetryLimit"}
        assert referred(RESOURCES["Schedule"]) >= {"ScheduleExpression"}


class TestParameters:
    def test_each_is_described_bounded_used_and_shown(self) -> None:
        used = referred([DOCUMENT[part] for part in ("Resources", "Globals", "Conditions", "Outputs")])
        for name, parameter in PARAMETERS.items():
            assert len(parameter["Description"]) > 20, name
            # Patterns of names may hold anything.
            unbounded = {"BucketFilter", "NamespaceFilter", "TableFilter"}
            assert {"AllowedValues", "AllowedPattern", "MinValue"} & set(parameter) or name in unbounded, name
            assert name in used
            default = parameter.get("Default")
            if default is not None:
                assert re.fullmatch(parameter.get("AllowedPattern", ".*"), str(default)), name
                assert default in parameter.get("AllowedValues", [default]), name
        groups = DOCUMENT["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
        assert sorted(name for group in groups for name in group["Parameters"]) == sorted(PARAMETERS)

    def test_nothing_runs_before_somebody_switches_it_on(self) -> None:
        assert PARAMETERS["ScheduleState"]["Default"] == "DISABLED"
        assert RESOURCES["Schedule"]["Properties"]["State"] == {"Ref": "ScheduleState"}
        assert PARAMETERS["ScheduleExpression"]["Default"] == "rate(6 hours)"


class TestWhatIsKept:
    def test_the_state_table_is_as_the_state_store_expects(self) -> None:
        table = RESOURCES["StateTable"]["Properties"]
        keys = ("AttributeDefinitions", "KeySchema", "LocalSecondaryIndexes", "BillingMode")

        for key in keys:
            expected: Any = TABLE_SCHEMA[key]
            if key == "AttributeDefinitions":
                assert sorted(map(json.dumps, table[key])) == sorted(map(json.dumps, expected))
            else:
                assert table[key] == expected
        assert table["TimeToLiveSpecification"] == {"AttributeName": "expires_s", "Enabled": True}

    def test_outlives_the_stack(self) -> None:
        for name in ("StateTable", "ControlBucket"):
            policies = (RESOURCES[name]["DeletionPolicy"], RESOURCES[name]["UpdateReplacePolicy"])
            assert policies == ("RetainExceptOnCreate", "Retain")
        table = RESOURCES["StateTable"]["Properties"]
        assert table["PointInTimeRecoverySpecification"] == {"PointInTimeRecoveryEnabled": True}
        assert table["DeletionProtectionEnabled"] is True

    def test_the_control_bucket_is_closed(self) -> None:
        bucket = RESOURCES["ControlBucket"]["Properties"]
        (statement,) = RESOURCES["ControlBucketPolicy"]["Properties"]["PolicyDocument"]["Statement"]

        assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
        assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
        assert "BucketEncryption" in bucket
        assert statement["Effect"] == "Deny"
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}

    def test_runs_are_forgotten_and_configuration_is_not(self) -> None:
        rules = RESOURCES["ControlBucket"]["Properties"]["LifecycleConfiguration"]["Rules"]

        assert [(rule["Prefix"], rule["ExpirationInDays"]) for rule in rules if "ExpirationInDays" in rule] == [
            ("runs/", 90)
        ]


class TestAlarms:
    def test_are_on_metrics_of_ours_or_on_these_of_aws(self) -> None:
        """Which metrics of ours are written: tests/integration/test_functions.py."""
        others = {
            name: (alarm["Namespace"], alarm["MetricName"], *(d["Name"] for d in alarm["Dimensions"]))
            for name, alarm in ALARMS.items()
            if alarm.get("Namespace") != "Icekeeper" and "Metrics" not in alarm
        }
        assert others == {
            # A run that cannot say that it failed.
            "ReportErrorsAlarm": ("AWS/Lambda", "Errors", "FunctionName"),
            "DeadLettersAlarm": ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
            "ExecutionsTimedOutAlarm": ("AWS/States", "ExecutionsTimedOut", "StateMachineArn"),
        }
        assert ALARMS["ReportErrorsAlarm"]["Dimensions"][0]["Value"] == {"Ref": "ReportFunction"}

    def test_a_budget_is_created_where_a_limit_is_set(self) -> None:
        assert not render().of_type("AWS::Budgets::Budget")
        topic = SINGLE["AlarmTopicArn"]
        (alone,) = render({"MonthlyBudgetUsd": "60"}, stack="mine").of_type("AWS::Budgets::Budget").values()
        (shown,) = render({"MonthlyBudgetUsd": "60", "AlarmTopicArn": topic}).of_type("AWS::Budgets::Budget").values()

        assert alone["Budget"] == {
            "BudgetName": "mine-us-east-1",
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": "60", "Unit": "USD"},
            "CostFilters": {"TagKeyValue": ["aws:cloudformation:stack-name$mine"]},
        }
        assert "NotificationsWithSubscribers" not in alone
        sent = shown["NotificationsWithSubscribers"]
        assert [(item["Notification"]["NotificationType"], item["Notification"]["Threshold"]) for item in sent] == [
            ("ACTUAL", 100),
            ("FORECASTED", 100),
        ]
        assert [item["Subscribers"] for item in sent] == [[{"SubscriptionType": "SNS", "Address": topic}]] * 2

    def test_are_silent_while_nothing_is_measured(self) -> None:
        """Silence is what one of them is about; and only a scan that reads everything ends another one."""
        other = {
            "NoRunSucceededAlarm": {"Fn::If": ["IsScheduled", "breaching", "notBreaching"]},
            "TablesNotReadableAlarm": "ignore",
        }
        for name, alarm in ALARMS.items():
            assert alarm["TreatMissingData"] == other.get(name, "notBreaching"), name
            assert alarm["AlarmDescription"], name
            assert alarm["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic", name


# Functions and Glue jobs in a VPC: where parameters put them, and what Lambda and Glue may then do.

# AWS managed policy reference, AWSLambdaVPCAccessExecutionRole; the rights to logs are those to the function's own.
RIGHTS = {
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"),
    *("ec2:DeleteNetworkInterface", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
}
CODE = {"lambda:SourceFunctionArn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:icekeeper-detect"}


def may_in_ec2(parameters: dict[str, str], context: dict[str, str]) -> list[set[str]]:
    """What each function may do to any network interface."""
    stack = render(parameters)
    found = []
    for name, _ in FUNCTIONS.values():
        grants = stack.grants[name]
        role = Role(name, tuple(item for each in grants for item in statements_of(each.name, each.document)))
        allowed = {action for item in role.statements for action in item.actions if action.startswith("ec2:")}
        needs = [Need(action, "arn:aws:ec2:us-east-1:1:network-interface/eni-1", context) for action in allowed]
        found.append({need.action for need in needs if decide(role, need).is_allowed})
    return found


def test_functions_are_in_the_vpc_that_is_given_and_only_lambda_may_use_its_interfaces() -> None:
    given = {"SubnetIds": ["subnet-0a1b2c3d", "subnet-4e5f6a7b"], "SecurityGroupIds": ["sg-0a1b2c3d"]}
    none: dict[str, str] = {}
    for parameters, config, rights in ((none, None, set[str]()), (VPC, given, RIGHTS)):
        functions: list[Any] = list(render(parameters).of_type("AWS::Serverless::Function").values())
        assert [item.get("VpcConfig") for item in functions] == [config] * len(FUNCTIONS)
        assert may_in_ec2(parameters, {}) == [rights] * len(FUNCTIONS)
        assert may_in_ec2(parameters, CODE) == [set()] * len(FUNCTIONS)


def test_a_connection_gives_jobs_the_rights_of_the_network_and_no_other_role() -> None:
    for connection, expected in (("", None), ("private", {"Connections": ["private"]})):
        template = Template(TEMPLATE, "stack", {"GlueConnection": connection})
        assert [job.get("Connections") for _, job in template.resources("AWS::Glue::Job")] == [expected] * len(JOBS)
    policy = RESOURCES["GlueNetworkPolicy"]
    assert policy["Condition"] == "HasGlueConnection"
    roles = {role["Ref"] for role in policy["Properties"]["Roles"]}
    assert roles == {job["Role"]["Fn::GetAtt"][0] for _, job in JOBS.values()}
    assert {name for name, item in RESOURCES.items() if any(a.startswith("ec2:") for a in actions(item))} == {
        *("GlueNetworkPolicy", "FunctionRuntimePolicy"),
    }
    assert {action for action in actions(policy) if not action.startswith(("ec2:Describe", "glue:Get"))} == {
        *("ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:CreateTags", "ec2:DeleteTags"),
    }


def test_parameters_that_go_together() -> None:
    for pair in (VPC, LISTED):
        for name, value in pair.items():
            (sentence,) = refusals({name: value})
            assert f"{' and '.join(pair)} go together" in sentence
    assert refusals(VPC) == refusals(FOLDER) == refusals({}) == []


SECRET, GLUE = "arn:aws:secretsmanager:eu-west-1:123456789012:secret:", "arn:aws:glue:eu-west-1:222233334444:"
FITS = {
    "DataBucketArns": ("arn:aws:s3:::lake", " arn:aws-cn:s3:::lake/ware_house/v=1"),
    "ListedPrefixes": ("warehouse/sales",),
    "CatalogSecretArns": (f"{SECRET}lake/rest-a1B2c3",),
    "GlueDataCatalogArns": ("", f"{GLUE}catalog", f"{GLUE}database/sales", f" {GLUE}table/sales/*"),
}
FITS_NOT = {
    "DataBucketArns": ("arn:aws:s3:::lake/", "arn:aws:s3:::lake/*"),
    "ListedPrefixes": ("/warehouse", "warehouse/", "ware*"),
    "CatalogSecretArns": (f"{SECRET}*",),
    "GlueDataCatalogArns": (f"{GLUE}catalog/s3tablescatalog/lake", f"{GLUE}job/x", f"{GLUE}database/"),
}


@pytest.mark.parametrize("name", FITS)
def test_what_parameters_of_rights_take(name: str) -> None:
    pattern = PARAMETERS[name]["AllowedPattern"]
    assert [value for value in FITS[name] if not re.fullmatch(pattern, value)] == []
    assert [value for value in FITS_NOT[name] if re.fullmatch(pattern, value)] == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [("auto", ("auto", None)), ("icekeeper", ("icekeeper", None)), ("bucket", ("auto", "auto"))],
)
def test_a_deployment_may_forbid_to_take_table_buckets_over(given: str, expected: tuple[str, str | None]) -> None:
    """Whatever a policy file says below the deployment's bound."""
    names = ("ICEKEEPER_OWNERSHIP", "ICEKEEPER_BOUND_OWNERSHIP")
    variables = Template(TEMPLATE, "stack", {"Ownership": given}).resolve({name: VARIABLES[name] for name in names})
    assert tuple(variables.get(name) for name in names) == expected
    greedy = {"ownership": "icekeeper"}
    layers = layers_for({}, {name: value for name, value in variables.items() if value}, {}, rules=[Layer("f", greedy)])
    assert resolve(layers).policy.ownership is (Ownership.AUTO if given == "bucket" else Ownership.ICEKEEPER)


def test_the_page_names_every_service_that_is_asked() -> None:
    """docs/deployment.md says how a VPC reaches each service that the package has a client of."""
    page = (ROOT / "docs" / "deployment.md").read_text().partition("## In a VPC")[2].partition("\n## ")[0]
    texts = [path.read_text() for path in SOURCES if "demo" not in path.parts]
    asked = {found for text in texts for found in re.findall(r"client(?:\(|=)\"(\w+)\"", text)}

    assert {"s3", "dynamodb", "s3tables", "glue", "stepfunctions"} <= asked
    for service in asked | {"sts"}:
        assert f"`{ {'stepfunctions': 'states'}.get(service, service) }`" in page, service


def test_a_function_writes_logs_of_this_stack_only() -> None:
    stack = render({})
    groups = {stack.resources[f"{name.removesuffix('Function')}LogGroup"]["Type"] for name, _ in FUNCTIONS.values()}
    (logs, traces) = stack.managed["FunctionRuntimePolicy"].statements

    assert groups == {"AWS::Logs::LogGroup"}
    assert len(logs["Resource"]) == len(FUNCTIONS)
    assert all("LogGroup" in item and "*" not in item for item in logs["Resource"])
    assert set(traces["Action"]) == {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}


# What CloudFormation makes of template.yaml under every combination of the parameters that decide what is there.

NAMES = {"FunctionName", "Name", "LogGroupName", "DashboardName", "LayerName", "QueueName", "BucketName", "TableName"}


def test_every_condition_is_decided_both_ways_here() -> None:
    assert referred(DOCUMENT["Conditions"]) == {*TABLES, *SINGLE, "VpcSubnetIds", "ListedBucketArns"}
    for name, value in SINGLE.items():
        is_shown_otherwise = name in ("MaintenanceEnabled", "Ownership")
        assert value in set(strings(render({name: value}).resources)) or is_shown_otherwise, name


@pytest.mark.parametrize("others", [{}, {**SINGLE, **VPC, **LISTED}], ids=["alone", "with all others"])
def test_every_policy_allows_something_by_name(others: dict[str, str]) -> None:
    """Discovery without rights to table buckets is refused, and no other combination is."""
    for parameters in combinations(TABLES):
        found = refusals(parameters)
        if parameters["DiscoverTableBuckets"] == "true" and not parameters["TableBucketArns"]:
            assert [("TableBucketArns" in item, "bucket/*" in item) for item in found] == [(True, True)]
        else:
            assert found == []
        for name, grants in render({**parameters, **others}).grants.items():
            for grant in grants:
                assert grant.statements, (name, grant.name)
                for statement in grant.statements:
                    named = statement["Resource"]
                    assert named, (name, grant.name)
                    assert "" not in ([named] if isinstance(named, str) else named), (name, grant.name)


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

    assert {name: grant.length for name, grant in stack.managed.items() if grant.length > 6144} == {}
    for name, grants in stack.grants.items():
        assert sum(grant.length for grant in grants if not grant.is_managed) <= 10_240, name
        assert sum(grant.is_managed for grant in grants) <= 10, name


def test_a_parameter_full_of_table_buckets_fits_into_every_policy() -> None:
    """A parameter holds 4,096 characters."""
    arn = "arn:aws:s3tables:eu-west-1:123456789012:bucket/"
    given = ",".join(f"{arn}{number:05}" for number in range(4096 // (len(arn) + 6)))
    managed = render({"TableBucketArns": given}).managed

    assert 4000 < len(given) <= 4096
    assert max(grant.length for grant in managed.values()) <= 6144


def test_two_stacks_of_an_account_share_no_name_and_no_metric() -> None:
    def named(stack: str) -> set[str]:
        found = render(stack=stack).resources.values()
        return {str(item["Properties"][key]) for item in found for key in NAMES & set(item["Properties"])}

    assert len(named("one")) >= 27
    assert not named("one") & named("two")
    stack = render(stack="mine")
    for alarm in stack.of_type("AWS::CloudWatch::Alarm").values():
        if alarm.get("Namespace") == "Icekeeper":
            assert alarm["Dimensions"] == [{"Name": "service", "Value": "mine"}]
    assert VARIABLES["POWERTOOLS_SERVICE_NAME"] == {"Ref": "AWS::StackName"}
    (dashboard,) = stack.of_type("AWS::CloudWatch::Dashboard").values()
    assert dashboard["DashboardName"] == "mine-us-east-1"  # dashboards are those of all regions
    for widget in json.loads(dashboard["DashboardBody"])["widgets"]:
        for metric in widget["properties"]["metrics"]:
            if metric[0] == "Icekeeper":
                assert metric[2:] == ["service", "mine"], metric
            elif isinstance(metric[0], dict):
                assert 'service="mine"' in metric[0]["expression"]
    # The next steps of a run are the newest functions: nothing names a version ("Upgrading" in docs/deployment.md).
    functions = [DOCUMENT["Globals"]["Function"], *of_type("AWS::Serverless::Function").values()]
    assert not any("AutoPublishAlias" in function for function in functions)
    assert {str(item["Type"]) for item in RESOURCES.values()} & {"AWS::Lambda::Version", "AWS::Lambda::Alias"} == set()


def test_every_role_is_bounded_where_the_account_asks_for_it() -> None:
    boundary = {"PermissionsBoundaryArn": SINGLE["PermissionsBoundaryArn"]}
    for stack, expected in ((render(), {None}), (render(boundary), {SINGLE["PermissionsBoundaryArn"]})):
        assert {role.get("PermissionsBoundary") for role in stack.of_type("AWS::IAM::Role").values()} == expected


def test_a_key_of_the_control_bucket_is_used_by_all_who_use_the_bucket() -> None:
    key = SINGLE["ControlBucketKmsKeyArn"]
    stack = render({"ControlBucketKmsKeyArn": key})
    (bucket,) = stack.of_type("AWS::S3::Bucket").values()
    (encryption,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]

    assert encryption["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": key}
    for name, grants in stack.grants.items():
        statements = [statement for grant in grants for statement in grant.statements]
        reads = any(
            stack.reference("ControlBucket") in text for item in statements for text in strings(item["Resource"])
        )
        allowed = {action for item in statements if item["Resource"] == key for action in strings(item["Action"])}
        writes = any("s3:PutObject" in strings(item["Action"]) for item in statements)
        expected = {"kms:Decrypt"} if reads and not writes else {"kms:Decrypt", "kms:GenerateDataKey"}
        assert allowed == (expected if reads else set()), name


def test_a_key_of_the_state_table_is_used_by_all_who_use_the_table_and_through_it_only() -> None:
    """DynamoDB calls KMS with the rights of the caller that reads or writes the table."""
    key = SINGLE["StateTableKmsKeyArn"]
    stack = render({"StateTableKmsKeyArn": key})
    (table,) = stack.of_type("AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS", "KMSMasterKeyId": key}
    for name, grants in stack.grants.items():
        statements = [statement for grant in grants for statement in grant.statements]
        uses = any(stack.reference("StateTable") in text for item in statements for text in strings(item["Resource"]))
        found = [item for item in statements if item["Resource"] == key]
        assert len(found) == int(uses), name
        for item in found:
            assert {"kms:Decrypt", "kms:Encrypt", "kms:GenerateDataKey"} < set(strings(item["Action"]))
            assert list(item["Condition"]["StringEquals"]) == ["kms:ViaService"]
            assert str(item["Condition"]["StringEquals"]["kms:ViaService"]).startswith("dynamodb.")
    (table,) = render().of_type("AWS::DynamoDB::Table").values()
    assert table["SSESpecification"] == {"SSEEnabled": True, "SSEType": "KMS"}


@pytest.mark.parametrize(
    ("parameter", "service"),
    [
        ("ControlBucketKmsKeyArn", "s3."),
        ("StateTableKmsKeyArn", "dynamodb."),
        ("QueueKmsKeyArn", "sqs."),
        ("ArtifactKmsKeyArn", "s3.*."),
    ],
)
def test_a_key_of_the_stack_is_used_through_its_service_only(parameter: str, service: str) -> None:
    """No role decrypts with the key directly."""
    stack = render({parameter: SINGLE[parameter]})
    policies = [*stack.of_type("AWS::IAM::Role").values(), *stack.of_type("AWS::IAM::ManagedPolicy").values()]
    found = [item for policy in policies for item in statements(policy) if item.get("Resource") == SINGLE[parameter]]
    assert found
    for item in found:
        ((keys),) = item["Condition"].values()
        assert list(keys) == ["kms:ViaService"]
        assert str(keys["kms:ViaService"]).startswith(service)


def test_a_key_of_the_queue_is_used_by_the_schedule_alone() -> None:
    """Who sends to a queue that is encrypted with a key asks for a data key, and decrypts it."""
    key = SINGLE["QueueKmsKeyArn"]
    stack = render({"QueueKmsKeyArn": key})
    (queue,) = stack.of_type("AWS::SQS::Queue").values()
    assert (queue["KmsMasterKeyId"], queue["SqsManagedSseEnabled"]) == (key, False)
    (alone,) = (
        (name, statement["Action"])
        for name, role in stack.of_type("AWS::IAM::Role").items()
        for statement in statements(role)
        if statement.get("Resource") == key
    )
    assert alone == ("ScheduleRole", ["kms:Decrypt", "kms:GenerateDataKey"])
    assert key not in set(strings([grant.document for grant in stack.managed.values()]))
    (queue,) = render().of_type("AWS::SQS::Queue").values()
    assert ("KmsMasterKeyId" in queue, queue["SqsManagedSseEnabled"]) == (False, True)


def test_a_key_of_the_logs_encrypts_every_log_group() -> None:
    """They hold the names of tables, and the execution data of the state machine."""
    key = SINGLE["LogsKmsKeyArn"]
    for stack, expected in ((render({"LogsKmsKeyArn": key}), key), (render(), None)):
        groups = stack.of_type("AWS::Logs::LogGroup")
        assert len(groups) >= 13
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
    groups = {item["LogGroupName"] for item in stack.of_type("AWS::Logs::LogGroup").values()}

    for job in stack.of_type("AWS::Glue::Job").values():
        prefix = job["DefaultArguments"]["--custom-logGroup-prefix"]
        assert prefix == "/aws-glue/jobs/mine"
        assert {f"{prefix}/error", f"{prefix}/output"} <= groups
        assert not [name for name in job["DefaultArguments"] if "continuous" in name]


def test_a_first_deployment_that_fails_leaves_nothing_in_the_way_of_the_second() -> None:
    """Log groups have fixed names: one that is kept would make every further creation of the stack fail."""
    kept = {name: item["DeletionPolicy"] for name, item in DOCUMENT["Resources"].items() if "DeletionPolicy" in item}

    assert len(kept) >= 15
    assert set(kept.values()) == {"RetainExceptOnCreate"}
