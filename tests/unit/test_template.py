"""The stack's state machine, environment, parameters, storage and alarms, as template.yaml gives them."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest

from icekeeper.policy import Policy
from icekeeper.policy.keys import POLICY_KEYS
from icekeeper.policy.layers import BOUND_KEYS, BOUND_PREFIX, ENVIRONMENT_PREFIX, layers_for
from icekeeper.state.dynamodb.items import TABLE_SCHEMA
from support.lambda_functions import give_up_package_logger
from support.stack_template import (
    DOCUMENT,
    MACHINE,
    PARAMETERS,
    RESOURCES,
    ROOT,
    VARIABLES,
    of_type,
    referred,
    strings,
)
from support.state_machine import load_machine, substitutions_used

STACK = {"Ref": "AWS::StackName"}
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
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
    "METRICS",
    "METRICS_PER_TABLE",
}


def script(path: str) -> Any:
    """A module of the functions, which are no package here."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def normal(value: Any) -> Any:
    """Attributes are told in any order."""
    return sorted(value, key=json.dumps) if isinstance(value, list) and "AttributeType" in value[0] else value


class TestStateMachine:
    def test_every_substitution_is_used_and_defined(self) -> None:
        assert set(MACHINE["DefinitionSubstitutions"]) == substitutions_used()

    def test_every_function_and_job_is_substituted_by_itself(self) -> None:
        for name, value in MACHINE["DefinitionSubstitutions"].items():
            if name.endswith("Function"):
                assert value == {"Fn::GetAtt": [name, "Arn"]}
            elif name.endswith("Job"):
                assert value == {"Ref": name}

    def test_is_standard_logged_and_traced(self) -> None:
        assert (MACHINE["Type"], MACHINE["Tracing"]) == ("STANDARD", {"Enabled": True})
        assert MACHINE["Logging"]["Level"] == "ALL"
        assert (ROOT / MACHINE["DefinitionUri"]).is_file()

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
                    of = "Wave" if name == "CompactWave" else "Task"
                    assert DOCUMENT["Mappings"]["JobTimes"]["60"][of] == state["TimeoutSeconds"], name

    def test_a_slow_job_ends_before_its_task_whatever_its_time(self) -> None:
        times = DOCUMENT["Mappings"]["JobTimes"]

        assert list(times) == PARAMETERS["JobTimeoutMinutes"]["AllowedValues"]
        for minutes, seconds in times.items():
            assert int(minutes) * 60 == seconds["Policy"] == seconds["Task"] - 1500
        assert MACHINE["DefinitionSubstitutions"]["JobTaskSeconds"] == {
            "Fn::FindInMap": ["JobTimes", {"Ref": "JobTimeoutMinutes"}, "Task"]
        }


class TestEnvironment:
    def test_holds_known_names_only(self) -> None:
        for name in VARIABLES:
            bound = name.removeprefix(BOUND_PREFIX).lower() if name.startswith(BOUND_PREFIX) else None
            setting = name.removeprefix(ENVIRONMENT_PREFIX).lower()
            assert name in OTHER_VARIABLES or bound in BOUND_KEYS or setting in POLICY_KEYS, name
        assert set(VARIABLES) >= OTHER_VARIABLES

    def test_is_no_misspelt_setting_to_the_package(self) -> None:
        given = dict.fromkeys(VARIABLES, "1")

        named = {layer.source.split()[-1] for layer in layers_for({}, given, {})}

        assert named == set(VARIABLES) - OTHER_VARIABLES

    def test_keys_of_the_policy_that_the_stack_decides_say_by_which_parameter(self) -> None:
        """Nothing in the package asks for their values: whoever sets them must not wonder why nothing happens."""
        decided = {
            "detection_interval_s": "ScheduleExpression",
            "max_concurrent_jobs": "MaxConcurrentTables",
            "job_timeout_s": "JobTimeoutMinutes",
            "job_retry_limit": "JobRetryLimit",
        }
        for key, parameter in decided.items():
            assert parameter in PARAMETERS
            assert f"parameter {parameter}" in str(Policy.model_fields[key].description)
            told = VARIABLES.get(f"{ENVIRONMENT_PREFIX}{key.upper()}")
            assert key == "detection_interval_s" or referred(told) >= {parameter}
        substituted = MACHINE["DefinitionSubstitutions"]
        assert substituted["MaxConcurrentTables"] == {"Ref": "MaxConcurrentTables"}
        assert substituted["JobRetryLimit"] == {"Ref": "JobRetryLimit"}
        assert referred(RESOURCES["Schedule"]) >= {"ScheduleExpression"}

    def test_leaves_out_settings_that_are_empty(self) -> None:
        for name, value in VARIABLES.items():
            parameters = referred(value) & {key for key, found in PARAMETERS.items() if found.get("Default") == ""}
            if parameters and name not in OTHER_VARIABLES:
                assert value["Fn::If"][2] == {"Ref": "AWS::NoValue"}, name


class TestParameters:
    @pytest.mark.parametrize("name", PARAMETERS)
    def test_each_is_described_bounded_and_used(self, name: str) -> None:
        parameter = PARAMETERS[name]

        assert len(parameter["Description"]) > 20
        bounded = {"AllowedValues", "AllowedPattern", "MinValue"} & set(parameter)
        # Patterns of names may hold anything.
        assert bounded or name in {"BucketFilter", "NamespaceFilter", "TableFilter"}
        used = referred([DOCUMENT["Resources"], DOCUMENT["Globals"], DOCUMENT["Conditions"], DOCUMENT["Outputs"]])
        assert name in used

    def test_defaults_are_allowed(self) -> None:
        for name, parameter in PARAMETERS.items():
            default = parameter.get("Default")
            if default is not None and "AllowedPattern" in parameter:
                assert re.fullmatch(parameter["AllowedPattern"], default), name
            if default is not None and "AllowedValues" in parameter:
                assert default in parameter["AllowedValues"], name

    def test_each_is_shown_in_a_group(self) -> None:
        groups = DOCUMENT["Metadata"]["AWS::CloudFormation::Interface"]["ParameterGroups"]
        shown = [name for group in groups for name in group["Parameters"]]

        assert sorted(shown) == sorted(PARAMETERS)

    def test_nothing_runs_before_somebody_switches_it_on(self) -> None:
        assert PARAMETERS["ScheduleState"]["Default"] == "DISABLED"
        assert RESOURCES["Schedule"]["Properties"]["State"] == {"Ref": "ScheduleState"}
        assert PARAMETERS["ScheduleExpression"]["Default"] == "rate(1 hour)"


class TestWhatIsKept:
    def test_the_state_table_is_as_the_state_store_expects(self) -> None:
        table = RESOURCES["StateTable"]["Properties"]
        keys = ("AttributeDefinitions", "KeySchema", "LocalSecondaryIndexes", "BillingMode")

        assert {key: normal(table[key]) for key in keys} == {key: normal(TABLE_SCHEMA[key]) for key in keys}
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
    def test_are_on_the_metrics_that_are_written(self) -> None:
        found = {
            (alarm["Namespace"], alarm["MetricName"], *(d["Name"] for d in alarm.get("Dimensions", ())))
            for alarm in of_type("AWS::CloudWatch::Alarm").values()
        }

        assert found == {
            ("Icekeeper", "PassesFailed", "service"),
            ("Icekeeper", "OrphanRemovalsRefused", "service"),
            ("Icekeeper", "TablesNotReached", "service"),
            ("Icekeeper", "TablesNotReadable", "service"),
            ("Icekeeper", "RunsSucceeded", "service"),
            ("Icekeeper", "CatalogsEmpty", "service"),
            ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
            ("AWS/States", "ExecutionsFailed", "StateMachineArn"),
            ("AWS/States", "ExecutionsTimedOut", "StateMachineArn"),
        }

    def test_ask_by_the_dimensions_that_the_functions_write(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Powertools adds ``service``; a metric with another set of dimensions is another metric to CloudWatch."""
        give_back_logger = give_up_package_logger(monkeypatch)
        cloudwatch = script("functions/cloudwatch.py")
        cloudwatch._emit({"PassesFailed": 1})
        cloudwatch._emit_of_table({"compact.bins": 1}, ("c", "t"))
        give_back_logger()
        total, of_table = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        sets = [told["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for told in (total, of_table)]
        dimensions = [sets[0][0], sorted(sets[1][0])]
        body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]

        assert [len(one) for one in sets] == [1, 1]
        assert total["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Icekeeper"
        for alarm in of_type("AWS::CloudWatch::Alarm").values():
            if alarm["Namespace"] == "Icekeeper":
                assert alarm["Dimensions"] == [{"Name": name, "Value": STACK} for name in dimensions[0]]
        assert VARIABLES["POWERTOOLS_SERVICE_NAME"] == STACK
        assert set(re.findall(r"{(Icekeeper,[\w,]+)}", body)) == {",".join(["Icekeeper", *sorted(dimensions[1])])}

    def test_are_silent_while_nothing_is_measured(self) -> None:
        """Silence is what one of them is about; and only a scan that reads everything ends another one."""
        other = {
            "NoRunSucceededAlarm": {"Fn::If": ["IsScheduled", "breaching", "notBreaching"]},
            "TablesNotReadableAlarm": "ignore",
        }
        for name, alarm in of_type("AWS::CloudWatch::Alarm").items():
            assert alarm["TreatMissingData"] == other.get(name, "notBreaching"), name
            assert alarm["AlarmDescription"], name
            assert alarm["AlarmActions"]["Fn::If"][0] == "HasAlarmTopic", name

    def test_the_dashboard_shows_metrics_that_operations_document(self) -> None:
        body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]
        widgets = json.loads(body)["widgets"]
        documented = (ROOT / "docs" / "operations.md").read_text()
        shown = re.findall(r'MetricName=\\"([\w.]+)\\"', body)

        assert len(widgets) == 10
        assert len(shown) == 4
        for key in shown:
            operation, metric = key.split(".")
            section = documented.partition(f"\n## {operation}\n")[2].partition("\n## ")[0]
            assert f"`{metric}`" in section, key
