"""Run the commands of docs/deployment.md, verbatim and in order, against moto and the local stack.

A script in place of ``make`` writes what it would build, and a deployment ends with its change set, because moto's
CloudFormation has no SAM resources.  After that, a stand-in has the name, outputs and log groups of the stack, on top
of the local stack.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from local_stack.moto_server import MotoServer
from local_stack.stack import ROOT, LocalStack, deployed
from support.local_lake import LocalLake
from support.stack_template import PARAMETERS, render

SAM = Path(os.environ["SAM_CLI"]).resolve()
PAGE = (ROOT / "docs" / "deployment.md").read_text()
BLOCKS = [
    textwrap.dedent(found) for found in re.findall(r"^ *```sh test\n(.*?)^ *```$", PAGE, re.MULTILINE | re.DOTALL)
]
BUILT = """#!/bin/sh
rm -rf dist
mkdir -p dist/glue_jobs build/layer/python
echo wheel > "dist/icekeeper-$VERSION-py3-none-any.whl"
echo wheels > "dist/icekeeper.gluewheels.zip"
cp glue_jobs/*.py dist/glue_jobs/
echo "built = True" > build/layer/python/icekeeper.py
"""
UNTIL_THE_CHANGE_SET = """#!/bin/sh
[ "$1" = deploy ] && set -- "$@" --no-execute-changeset
exec "{sam}" "$@"
"""


class Shell:
    """A shell session in a new checkout, as of a reader who follows the page."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        for name in ("template.yaml", "samconfig.toml", "functions", "glue_jobs"):
            (folder / name).symlink_to(ROOT / name)
        tools = folder / "tools"
        tools.mkdir()
        for name, script in (("make", BUILT), ("sam", UNTIL_THE_CHANGE_SET.format(sam=SAM))):
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "ICEKEEPER_"))}
        self.environment = {
            **inherited,
            "PATH": f"{tools}:{SAM.parent}:{os.environ['PATH']}",
            # moto finds the template of a change set only at this host name.
            "AWS_ENDPOINT_URL": endpoint.replace("127.0.0.1", "localhost"),
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "SAM_CLI_TELEMETRY": "0",
        }

    def run(self, commands: str) -> str:
        """Run commands, keep the variables that they export, and return their output."""
        script = f"set -e\n{commands}\necho -----\nexport -p"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
        printed, _, exported = done.stdout.rpartition("-----\n")
        self.environment |= dict(re.findall(r'^declare -x (\w+)="(.*)"$', exported, re.MULTILINE))
        return printed


@pytest.fixture
def stack(moto_server: MotoServer) -> Iterator[LocalStack]:
    with deployed(moto_server, parameters={"SmallCompactionMb": "1280"}) as stack:  # without Spark
        yield stack


def test_the_commands_of_the_page_work(stack: LocalStack, local_catalog: SqlCatalog, tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    shell, client = Shell(tmp_path / "checkout", stack.moto.endpoint), stack.moto.client
    client("s3").create_bucket(Bucket="my-artifacts")
    lake = LocalLake(stack, local_catalog, tmp_path)
    local_catalog.create_namespace("sales")
    rows = pa.table({"id": [1, 2]})
    orders = local_catalog.create_table("sales.orders", rows.schema)
    for _ in range(3):
        orders.append(rows)
    mine, deploy, start, switch_on, stop, drain, upgrade, remove = BLOCKS

    shell.run(mine)
    output = shell.run(deploy)
    assert "Changeset created successfully" in output
    assert artifacts(client("s3"), "0.1.0") == expected_artifacts("0.1.0")
    change = last_change(stack)
    assert parameters(change) >= {
        ("ArtifactLocation", "s3://my-artifacts/icekeeper/0.1.0"),
        ("TableBucketArns", "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"),
        ("Ownership", "auto"),
    }
    assert "CAPABILITY_IAM" in output
    (reviewed,) = client("cloudformation").describe_stacks(StackName="icekeeper")["Stacks"]
    assert reviewed["Tags"] == [{"Key": "application", "Value": "icekeeper"}]

    stand_in(stack)
    started = json.loads(shell.run(start))
    assert shell.environment["ICEKEEPER_STATE"] == "dynamodb://icekeeper"
    execution = stack.wait(started["executionArn"])
    assert (execution.name, execution.status) == ("try-1", "SUCCEEDED")
    assert [item["status"] for item in execution.output["report"]["tables"]] == ["succeeded"]
    assert len(lake.pyiceberg.load_table("sales.orders").inspect.files()) == 1
    shell.run(switch_on)
    kept = ("ArtifactLocation", "s3://my-artifacts/icekeeper/0.1.0")
    assert parameters(last_change(stack)) >= {("ScheduleState", "ENABLED"), kept}
    assert status_after(lambda: shell.run(stop), stack) == "ABORTED"
    assert parameters(last_change(stack)) >= {("ScheduleState", "DISABLED"), ("MaintenanceEnabled", "false"), kept}
    assert shell.run(drain).rstrip().endswith("[]")
    shell.run(upgrade)
    assert parameters(last_change(stack)) >= {("ArtifactLocation", "s3://my-artifacts/icekeeper/0.2.0")}
    assert artifacts(client("s3"), "0.2.0") == expected_artifacts("0.2.0")
    assert artifacts(client("s3"), "0.1.0") == expected_artifacts("0.1.0")
    assert len(log_groups(stack)) == 4
    shell.run(remove)
    assert log_groups(stack) == []


def status_after(stop: Callable[[], object], stack: LocalStack) -> str:
    """Call ``stop`` while a run is in detection; return how the run ends."""
    over = threading.Event()
    stack.stand_in({"read": lambda _: over.wait(300)}, {})
    begun = stack.start()
    try:
        stop()
    finally:
        over.set()
    return stack.wait(begun).status


def last_change(stack: LocalStack) -> Mapping[str, Any]:
    client = stack.moto.client("cloudformation")
    made = client.list_change_sets(StackName="icekeeper")["Summaries"]
    found: Mapping[str, Any] = client.describe_change_set(ChangeSetName=made[-1]["ChangeSetId"])
    return found


def parameters(change: Mapping[str, Any]) -> set[tuple[str, str]]:
    return {(item["ParameterKey"], item["ParameterValue"]) for item in change["Parameters"]}


def artifacts(s3: Any, version: str) -> set[str]:
    prefix = f"icekeeper/{version}/"
    found = s3.list_objects_v2(Bucket="my-artifacts", Prefix=prefix).get("Contents", [])
    return {item["Key"].removeprefix(prefix) for item in found}


def expected_artifacts(version: str) -> set[str]:
    scripts = {f"glue_jobs/{path.name}" for path in (ROOT / "glue_jobs").glob("*.py")}
    return {f"icekeeper-{version}-py3-none-any.whl", "icekeeper.gluewheels.zip", *scripts}


def log_groups(stack: LocalStack) -> list[str]:
    found = stack.moto.client("logs").describe_log_groups()["logGroups"]
    return [item["logGroupName"] for item in found if "icekeeper" in item["logGroupName"]]


def stand_in(stack: LocalStack) -> None:
    """Replace the change set by a stack of the same name with the local stack's outputs."""
    client = stack.moto.client("cloudformation")
    client.delete_stack(StackName="icekeeper")
    groups = {
        name: {"Type": "AWS::Logs::LogGroup", "DeletionPolicy": "Retain", "Properties": properties}
        for name, properties in render().of_type("AWS::Logs::LogGroup").items()
    }
    outputs = {"StateMachineArn": {"Value": stack.state_machine}, "State": {"Value": "dynamodb://icekeeper"}}
    parameters = {"ArtifactLocation": {"Type": "String"}, "ScheduleState": {"Type": "String", "Default": "DISABLED"}}
    document = {"Parameters": parameters, "Resources": groups, "Outputs": outputs}
    values = [{"ParameterKey": "ArtifactLocation", "ParameterValue": "s3://my-artifacts/icekeeper/0.1.0"}]
    client.create_stack(StackName="icekeeper", TemplateBody=json.dumps(document), Parameters=values)


def test_every_parameter_that_the_page_names_exists() -> None:
    text = PAGE + (ROOT / "samconfig.toml").read_text()
    parameters = set(re.findall(r'[`"\s]([A-Z][a-z]\w+)=', text))
    assert len(parameters) >= 8
    assert parameters <= set(PARAMETERS)


def test_every_make_target_of_the_page_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = [line for block in BLOCKS for line in block.splitlines() if line.startswith("make ")]
    assert made
    assert {target for line in made for target in line.split()[1:]} <= targets
