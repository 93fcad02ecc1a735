"""The stack's rights, names and limits, as template.yaml gives them."""

from __future__ import annotations

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from icekeeper.policy import Policy
from icekeeper.policy.keys import POLICY_KEYS
from icekeeper.policy.layers import BOUND_KEYS, BOUND_PREFIX, ENVIRONMENT_PREFIX, layers_for
from icekeeper.state.dynamodb.table import TABLE_SCHEMA
from local_stack.template import TEMPLATE, load_template
from support.cloudformation import Wildcard, strings, wildcards
from support.state_machine import load_machine, substitutions_used

ROOT = TEMPLATE.parent
DOCUMENT = load_template()
RESOURCES: Mapping[str, Mapping[str, Any]] = DOCUMENT["Resources"]
PARAMETERS: Mapping[str, Mapping[str, Any]] = DOCUMENT["Parameters"]
MACHINE = RESOURCES["MaintainTablesStateMachine"]["Properties"]
VARIABLES: Mapping[str, Any] = DOCUMENT["Globals"]["Function"]["Environment"]["Variables"]

READ, COMMIT, DELETE = "ReadTablesPolicy", "CommitTablesPolicy", "DeleteFilesPolicy"
MAY: Mapping[str, set[str]] = {
    "detect": {READ},
    "lease": set(),
    "plan": {READ},
    "expire_partitions": {READ, COMMIT},
    "compact_small": {READ, COMMIT},
    "expire_snapshots": {READ, COMMIT, DELETE},
    # It asks the storage, by deleting what never existed, whether deleting is possible at all.
    "list_orphans": {READ},
    "remove_orphans": {READ, DELETE},
    "rewrite_manifests": {READ, COMMIT},
    "clean_staged": {READ, DELETE},
    "report": set(),
}
"""What each function may do to tables.  Whoever adds a right here must be able to say which work needs it."""
JOBS_MAY: Mapping[str, set[str]] = {
    "compact_data_files": {READ, COMMIT},
    "rewrite_manifests": {READ, COMMIT},
    "remove_orphans": {READ, DELETE},
}
OTHER_VARIABLES = {
    "ICEKEEPER_STATE",
    "ICEKEEPER_CONTROL_BUCKET",
    "ICEKEEPER_CATALOGS",
    "ICEKEEPER_TABLE_BUCKETS",
    "ICEKEEPER_POLICY_FILE",
    "ICEKEEPER_CATALOG_FILE",
    "ICEKEEPER_ALLOWED_PREFIXES",
    "ICEKEEPER_SMALL_COMPACTION_MB",
    "ICEKEEPER_SMALL_MANIFESTS",
    "ICEKEEPER_SMALL_ORPHANS",
    "POWERTOOLS_SERVICE_NAME",
    "POWERTOOLS_METRICS_NAMESPACE",
    "POWERTOOLS_LOG_LEVEL",
    "METRICS_PER_TABLE",
}


def of_type(kind: str) -> dict[str, Mapping[str, Any]]:
    return {name: found["Properties"] for name, found in RESOURCES.items() if found["Type"] == kind}


FUNCTIONS = {
    properties["Handler"].removesuffix(".handler.handle"): (name, properties)
    for name, properties in of_type("AWS::Serverless::Function").items()
}
"""By role, which is the folder of the handler."""
JOBS = {
    Path(properties["Command"]["ScriptLocation"]["Fn::Sub"]).stem: (name, properties)
    for name, properties in of_type("AWS::Glue::Job").items()
}


def camel(role: str) -> str:
    return "".join(part.title() for part in role.split("_"))


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


def referred(value: Any) -> set[str]:
    """Every logical id and parameter that a part of the template refers to."""
    found: set[str] = set()
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key == "Ref":
                found.add(item)
            elif key == "Fn::GetAtt":
                found.add(item[0])
            elif key == "Fn::Sub":
                text = item if isinstance(item, str) else item[0]
                found |= set(re.findall(r"\$\{([A-Za-z]\w*)[.}]", text))
                found |= referred(item)
            else:
                found |= referred(item)
    elif isinstance(value, list):
        for item in value:
            found |= referred(item)
    return found


def table_rights(policies: Any) -> set[str]:
    return referred(policies) & {READ, COMMIT, DELETE}


def statements(value: Any) -> Iterable[Mapping[str, Any]]:
    """Every statement that allows something, wherever it is."""
    if isinstance(value, Mapping):
        if value.get("Effect") == "Allow":
            yield value
        for item in value.values():
            yield from statements(item)
    elif isinstance(value, list):
        for item in value:
            yield from statements(item)


def actions(value: Any) -> set[str]:
    found: set[str] = set()
    for statement in statements(value):
        action = statement["Action"]
        found |= {action} if isinstance(action, str) else set(action)
    return found


class TestRights:
    @pytest.mark.parametrize("wildcard", wildcards(), ids=lambda wildcard: str(wildcard.line))
    def test_every_wildcard_says_why(self, wildcard: Wildcard) -> None:
        assert wildcard.is_justified, f"template.yaml, line {wildcard.line}: no '# wildcard: why' above {wildcard.text}"

    def test_a_wildcard_without_a_reason_is_found(self) -> None:
        text = 'A:\n  Action: s3:Get*\n  # wildcard: of everything that there is\n  Resource: "*"\n  Principal: "*"\n'

        assert [(w.line, w.is_justified) for w in wildcards(text)] == [(2, False), (4, True)]

    def test_no_action_that_is_allowed_is_a_wildcard(self) -> None:
        assert not [action for action in actions(RESOURCES) if "*" in action]

    def test_each_function_may_do_what_its_work_needs(self) -> None:
        assert {role: table_rights(properties["Policies"]) for role, (_, properties) in FUNCTIONS.items()} == MAY

    def test_each_job_may_do_what_its_work_needs(self) -> None:
        found = {}
        for script, (_, properties) in JOBS.items():
            role = RESOURCES[properties["Role"]["Fn::GetAtt"][0]]["Properties"]
            assert "Policies" not in role
            found[script] = table_rights(role["ManagedPolicyArns"])

        assert found == JOBS_MAY

    def test_only_one_policy_allows_to_delete_files(self) -> None:
        deleting = {
            name
            for name, resource in RESOURCES.items()
            for action in actions(resource)
            if action.startswith(("s3:Delete", "s3tables:Delete", "glue:Delete"))
        }

        assert deleting == {DELETE}

    def test_only_one_policy_allows_to_change_tables(self) -> None:
        changing = {
            name
            for name, resource in RESOURCES.items()
            for action in actions(resource)
            if re.match(r"s3tables:(Put|Update|Create|Rename)|glue:(Update|Create)", action)
        }

        assert changing == {COMMIT}

    def test_reading_tables_is_only_reading(self) -> None:
        verbs = {re.match(r"(Get|List|Decrypt)", action.split(":")[1]) for action in actions(RESOURCES[READ])}

        assert None not in verbs

    def test_every_function_may_remember_what_it_does(self) -> None:
        """For its state, and for Powertools' idempotency, which is kept in the same table (pk "idempotency")."""
        needed = {f"dynamodb:{verb}Item" for verb in ("Get", "Put", "Update", "Delete")} | {"dynamodb:Scan"}

        assert needed <= actions(RESOURCES["StateAccessPolicy"])
        assert "StateTable" in referred(RESOURCES["StateAccessPolicy"])
        for role, (_, properties) in FUNCTIONS.items():
            assert "StateAccessPolicy" in referred(properties["Policies"]), role
        store = RESOURCES["StateTable"]["Properties"]
        assert [key["AttributeName"] for key in store["KeySchema"]] == ["pk", "sk"]
        assert store["TimeToLiveSpecification"]["AttributeName"] == "expires_s"

    def test_no_function_holds_rights_to_tables_of_its_own(self) -> None:
        for role, (_, properties) in FUNCTIONS.items():
            own = {text for found in statements(properties["Policies"]) for text in strings(found["Resource"])}
            assert own == ({"${ControlBucket.Arn}/detection/cursor.json"} if role == "detect" else set()), role

    def test_tables_are_only_those_that_were_given(self) -> None:
        given = {"TableBucketArns", "DataBucketArns", "GlueDataCatalogArns", "KmsKeyArns"}
        for name in (READ, COMMIT, DELETE):
            for statement in statements(RESOURCES[name]):
                if statement["Action"] == "s3tables:ListTableBuckets":
                    continue  # only their names
                catalog = {"Fn::Sub": "arn:${AWS::Partition}:glue:${AWS::Region}:${AWS::AccountId}:catalog"}
                assert statement["Resource"] == catalog or referred(statement["Resource"]) & given, (name, statement)

    def test_the_state_machine_may_start_what_it_names(self) -> None:
        role = RESOURCES["StateMachineRole"]["Properties"]["Policies"]
        invoked = next(found for found in statements(role) if found["Action"] == "lambda:InvokeFunction")

        assert referred(invoked["Resource"]) == {name for name, _ in FUNCTIONS.values()}
        assert {name for name, _ in JOBS.values()} <= referred(role)


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
                    assert DOCUMENT["Mappings"]["JobTimes"]["60"]["Task"] == state["TimeoutSeconds"], name

    def test_a_slow_job_ends_before_its_task_whatever_its_time(self) -> None:
        times = DOCUMENT["Mappings"]["JobTimes"]

        assert list(times) == PARAMETERS["JobTimeoutMinutes"]["AllowedValues"]
        for minutes, seconds in times.items():
            assert int(minutes) * 60 == seconds["Policy"] == seconds["Task"] - 900
        assert MACHINE["DefinitionSubstitutions"]["JobTaskSeconds"] == {
            "Fn::FindInMap": ["JobTimes", {"Ref": "JobTimeoutMinutes"}, "Task"]
        }


class TestFunctions:
    def test_are_named_after_their_folders(self) -> None:
        assert {name for name, _ in FUNCTIONS.values()} == {f"{camel(role)}Function" for role in FUNCTIONS}
        assert set(FUNCTIONS) == set(MAY)

    def test_every_folder_has_its_function(self) -> None:
        folders = {handler.parent.name for handler in (ROOT / "functions").glob("*/handler.py")}

        assert folders <= set(FUNCTIONS)

    def test_each_has_its_logs_which_end(self) -> None:
        for role, (name, properties) in FUNCTIONS.items():
            logs = RESOURCES[properties["LoggingConfig"]["LogGroup"]["Ref"]]["Properties"]
            function = properties["FunctionName"]["Fn::Sub"]
            assert logs["LogGroupName"] == {"Fn::Sub": f"/aws/lambda/{function}"}, role
            assert referred(properties["LoggingConfig"]) == {name.replace("Function", "LogGroup")}

    def test_all_logs_end(self) -> None:
        for name, properties in of_type("AWS::Logs::LogGroup").items():
            assert properties["RetentionInDays"] == {"Ref": "LogRetentionDays"}, name

    def test_each_says_its_own_time_and_memory(self) -> None:
        for role, (_, properties) in FUNCTIONS.items():
            assert 0 < properties["Timeout"] <= 900, role
            assert properties["MemorySize"], role

    def test_run_on_the_python_of_the_layer(self) -> None:
        common = DOCUMENT["Globals"]["Function"]
        layer = RESOURCES["IcekeeperLayer"]["Properties"]

        assert common["Runtime"] == "python3.12"
        assert layer["CompatibleRuntimes"] == ["python3.12"]
        assert common["Architectures"] == layer["CompatibleArchitectures"] == [{"Ref": "Architecture"}]


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


class TestJobs:
    def test_run_scripts_that_exist(self) -> None:
        scripts = {path.stem for path in (ROOT / "glue_jobs").glob("*.py")}

        assert scripts <= set(JOBS_MAY) == set(JOBS)

    def test_are_named_after_their_scripts(self) -> None:
        assert {script: name for script, (name, _) in JOBS.items()} == {s: f"{camel(s)}Job" for s in JOBS}

    def test_are_bounded_and_repeated_by_the_state_machine_only(self) -> None:
        for script, (_, job) in JOBS.items():
            assert (job["GlueVersion"], job["MaxRetries"]) == ("5.1", 0), script
            runs = job["ExecutionProperty"]["MaxConcurrentRuns"]
            assert runs >= 2 * PARAMETERS["MaxConcurrentTables"]["MaxValue"], script
            assert job["DefaultArguments"]["--job-bookmark-option"] == "job-bookmark-disable"
            assert "WheelName" in referred(job["DefaultArguments"]["--additional-python-modules"])

    def test_take_the_wheel_of_this_version(self) -> None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

        assert PARAMETERS["WheelName"]["Default"] == f"icekeeper-{project['version']}-py3-none-any.whl"


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
            assert (RESOURCES[name]["DeletionPolicy"], RESOURCES[name]["UpdateReplacePolicy"]) == ("Retain", "Retain")
        assert RESOURCES["StateTable"]["Properties"]["PointInTimeRecoverySpecification"] == {
            "PointInTimeRecoveryEnabled": True
        }

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
            ("AWS/SQS", "ApproximateNumberOfMessagesVisible", "QueueName"),
            ("AWS/States", "ExecutionsFailed", "StateMachineArn"),
            ("AWS/States", "ExecutionsTimedOut", "StateMachineArn"),
        }

    def test_ask_by_the_dimensions_that_the_functions_write(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Powertools adds ``service``; a metric with another set of dimensions is another metric to CloudWatch."""
        cloudwatch = script("functions/cloudwatch.py")
        cloudwatch._emit({"PassesFailed": 1})
        cloudwatch._emit({"compact.bins": 1}, ("c", "t"))
        cloudwatch._emit({"lake_snapshots": 1}, ("c", "t"), total=False)
        total, both, of_table = (json.loads(line) for line in capsys.readouterr().out.splitlines())
        sets = [told["_aws"]["CloudWatchMetrics"][0]["Dimensions"] for told in (total, both, of_table)]
        dimensions = [sets[0][0], sorted(sets[2][0])]
        body = RESOURCES["Dashboard"]["Properties"]["DashboardBody"]["Fn::Sub"]

        assert [sorted(group) for group in sets[1]] == dimensions
        assert total["_aws"]["CloudWatchMetrics"][0]["Namespace"] == "Icekeeper"
        for alarm in of_type("AWS::CloudWatch::Alarm").values():
            if alarm["Namespace"] == "Icekeeper":
                assert alarm["Dimensions"] == [{"Name": name, "Value": total[name]} for name in dimensions[0]]
        assert set(re.findall(r"{(Icekeeper,[\w,]+)}", body)) == {",".join(["Icekeeper", *sorted(dimensions[1])])}

    def test_are_silent_while_nothing_is_measured(self) -> None:
        for name, alarm in of_type("AWS::CloudWatch::Alarm").items():
            assert alarm["TreatMissingData"] == "notBreaching", name
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
