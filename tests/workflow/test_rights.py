"""Passes over tables of every kind need exactly the rights of the policies (rule: least-privilege-roles)."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import boto3
import pytest

from icekeeper.operation_facts import FUNCTIONS, Function
from local_stack.credential_server import KEY_VARIABLES
from local_stack.functions import invoke
from local_stack.moto_server import MotoServer
from local_stack.rights.callers import DENIED
from local_stack.rights.coverage import surprises
from local_stack.stack import LocalStack, deployed
from support.examples import in_nightly
from support.lambda_functions import sample
from support.rights_fleet import DATA_BUCKET, IN_JOBS, PARAMETERS, RightsFleet, jobs_in_this_process
from support.scripted_pipeline import ScriptedPipeline

OF_GLUE = "Glue itself asks for it, to start, to log and to measure a run"
OF_STEP_FUNCTIONS = "Step Functions itself asks for it"
OF_REST = "only a table bucket that is reached as an Iceberg REST catalog asks for it: test_counted_requests.py"
OF_READERS = "nothing here asks for it; AWS's own policies for readers of table buckets have it"
OF_KMS = "S3 itself asks for it, where tables are encrypted with a key of KMS"
OF_OTHER_ACCOUNTS = "all of this account's catalog can be listed; what was given may be another account's"
UNUSED: Mapping[str, Mapping[str, str]] = {
    "ListTableBucketsPolicy": {
        "s3tables:GetTableBucket": OF_REST,
        "s3tables:ListNamespaces": OF_REST,
        "s3tables:GetNamespace": OF_READERS,
    },
    "ReadTableBucketsPolicy": {"s3tables:GetTable": OF_READERS},
    "ReadTablesPolicy": {
        "glue:GetDatabases": OF_OTHER_ACCOUNTS,
        "glue:GetTables": OF_OTHER_ACCOUNTS,
        "lakeformation:GetDataAccess": "Lake Formation asks for it, where it governs the catalog",
        "kms:Decrypt": OF_KMS,
    },
    "CommitTablesPolicy": {
        "s3:AbortMultipartUpload": "only an upload in parts that failed midway asks for it",
        "kms:GenerateDataKey": OF_KMS,
    },
    "FunctionRuntimePolicy": dict.fromkeys(
        ("logs:CreateLogStream", "logs:PutLogEvents"), "Lambda itself asks for it, to log a call"
    ),
    "GlueRuntimePolicy": dict.fromkeys(
        (
            "s3:GetObject",
            "s3:PutObject",
            "cloudwatch:PutMetricData",
            "logs:CreateLogGroup",
            "logs:CreateLogStream",
            "logs:PutLogEvents",
        ),
        OF_GLUE,
    ),
    "ScheduleRole.StartRuns": {"sqs:SendMessage": "only a schedule that could not start a run asks for it"},
    "StateMachineRole.RunFunctionsAndJobs": {
        "glue:GetJobRuns": f"{OF_STEP_FUNCTIONS}: its policy for startJobRun.sync has it",
        "glue:BatchStopJobRun": f"{OF_STEP_FUNCTIONS}, where an execution is stopped while its job runs",
    },
    "StateMachineRole.MapTables": dict.fromkeys(
        ("states:DescribeExecution", "states:StopExecution"), f"{OF_STEP_FUNCTIONS}, of a Distributed Map's children"
    ),
    "StateMachineRole.Observe": dict.fromkeys(
        (
            *("logs:CreateLogDelivery", "logs:GetLogDelivery", "logs:UpdateLogDelivery", "logs:DeleteLogDelivery"),
            *("logs:ListLogDeliveries", "logs:PutResourcePolicy", "logs:DescribeResourcePolicies"),
            "logs:DescribeLogGroups",
        ),
        f"{OF_STEP_FUNCTIONS}, to deliver logs",
    ),
}
"""By policy: actions that no call here needs, each with the reason why it is allowed."""


@in_nightly
def test_every_right_is_needed(fleet: RightsFleet) -> None:
    """The test reports rights that no call needs, and reasons in ``UNUSED`` that no longer hold."""
    fleet.run({})  # the first run: there is no policy file, and the state table is new
    fleet.give_policy()
    fleet.leave_orphans(fleet.glue_table("t"))
    fleet.bucket_table("b")
    fleet.bucket_table("a", bucket="rights-auto")  # the policy leaves its maintenance to AWS
    assert fleet.statuses(fleet.run({})) == {f"rights.{name}": "succeeded" for name in "tba"}
    fleet.stack.stand_in({}, jobs_in_this_process(fleet.stack))
    fleet.stack.start_cold(IN_JOBS)
    fleet.leave_orphans(fleet.glue_table("j"))
    fleet.bucket_table("k", bucket="rights-jobs", files_today=4)
    execution = fleet.run({"tables": ["rights.j", "rights.k"]})
    jobs = ["CompactDataFiles", "ExpireManySnapshots", "RemoveLargeOrphans", "SweepAfterJobs", "RewriteLargeManifests"]
    assert [name for name in execution.names if name in jobs] == jobs
    (swept,) = execution.of_map("SweepAfterJobs")
    assert (swept.table, swept.tasks) == ("rights.j", ["RewriteManifestsAfterJobs"])
    assert fleet.ended_steps(execution, "rights.j") == [
        *("expire_partitions", "compact", "expire_snapshots", "remove_orphans", "rewrite_manifests", "clean_staged")
    ]
    assert fleet.statuses(execution) == {"rights.j": "succeeded", "rights.k": "succeeded"}
    rights = fleet.stack.rights
    assert surprises(rights.roles.values(), rights.used, UNUSED) == []


@in_nightly
def test_rights_to_a_folder_suffice_for_its_tables_only(
    moto_server: MotoServer, own_account: None, tmp_path: Path
) -> None:
    """``DataBucketArns`` names a folder; the bucket may be listed below that folder only."""
    bucket = PARAMETERS["DataBucketArns"]
    bounded = {"DataBucketArns": f"{bucket}/warehouse", "ListedBucketArns": bucket, "ListedPrefixes": "warehouse"}
    with deployed(moto_server, parameters={**PARAMETERS, **bounded}) as stack:
        fleet = RightsFleet(stack, tmp_path)
        fleet.give_policy()
        inside = fleet.glue_table("inside", "warehouse/")
        fleet.leave_orphans(inside)
        fleet.run({"table": "rights.inside", "catalog": "glue"})
        objects = stack.moto.client("s3").list_objects_v2(Bucket=DATA_BUCKET)["Contents"]
        assert not [item["Key"] for item in objects if item["Key"].endswith(("orphan.parquet", "staged.parquet"))]
        assert DENIED == []
        outside = fleet.glue_table("outside", "other/")
        before = outside.metadata_location
        stack.run({"table": "rights.outside", "catalog": "glue"})
        assert {item.need.resource for item in DENIED} & {f"{bucket}/{before.partition('/rights-lake/')[2]}"}
        assert outside.refresh().metadata_location == before
        DENIED.clear()


def test_a_missing_right_stops_the_call_that_needs_it(scripted_stack: LocalStack, script: ScriptedPipeline) -> None:
    rights = scripted_stack.rights
    with rights.without("StateMachineRole.MapTables", "s3:GetObject"):
        execution = scripted_stack.run({})
    assert execution.status == "FAILED"
    assert script.steps == ["detect"]
    with rights.without("StateMachineRole.RunFunctionsAndJobs", "glue:StartJobRun"):
        script.routes = {**script.routes, "compact": "glue"}
        execution = scripted_stack.run({})
    assert "job:compaction" not in script.steps
    assert list(script.event_of("report")["state"]["jobs"]) == ["compaction"]
    assert {str(item.need.action) for item in DENIED} == {"s3:GetObject", "glue:StartJobRun"}
    DENIED.clear()


@pytest.mark.parametrize("function", Function)
def test_a_function_refuses_the_steps_of_all_others_before_it_reads(
    scripted_stack: LocalStack, monkeypatch: pytest.MonkeyPatch, function: Function
) -> None:
    monkeypatch.setattr(scripted_stack.rights, "used", set())
    own = ", ".join(step for step, its in FUNCTIONS.items() if its is function)
    foreign = [step for step, its in FUNCTIONS.items() if its is not function]
    for step in foreign:
        name = scripted_stack.template.name(f"{function.title()}Function")
        result, error = invoke(name, sample(step), timeout_s=60, memory_mb=1024)
        assert error is not None
        sentence = f"this function does only {own}: it does not do {step}"
        assert (result, error["errorType"], error["errorMessage"]) == (None, "StepRefused", sentence)
    assert len(foreign) >= 6
    assert scripted_stack.rights.used == set()  # no request, not even for its state or the control bucket


# Functions and jobs of a local stack fetch the keys of their role, as on AWS.

TOY = Path(__file__).parent / "toy" / "template.yaml"


def test_each_function_and_job_fetches_the_keys_of_its_role(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in KEY_VARIABLES:  # the environment of the tests may have keys
        monkeypatch.setenv(name, "of-a-person")
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # another test may have used it
    with deployed(moto_server, path=TOY) as stack:
        functions = [function.environment for function in stack.functions.values()]
        environments = [dict(os.environ), *functions, *(job.environment for job in stack.jobs.values())]
        assert [set(KEY_VARIABLES) & set(variables) for variables in environments] == [set() for _ in environments]
        stack.put_control("items.json", json.dumps([{"way": "good"}, {"way": "job", "how": "well"}]))
        assert stack.run({"who": "the machine"}).status == "SUCCEEDED"
        assert set(stack.keys.roles.values()) >= {"work", "job-count"}
    assert os.environ["AWS_ACCESS_KEY_ID"] == "of-a-person"
