"""What a template describes, made in moto: storage, functions, jobs, the state machine."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

import yaml

from local_stack import functions, jobs
from local_stack.functions import DeployedFunction
from local_stack.jobs import DeployedJob
from local_stack.moto_server import MotoServer
from local_stack.rights.callers import StackRights
from local_stack.template import YAML_LOADER, Template


def create_storage(moto: MotoServer, template: Template) -> None:
    """Make the buckets and the state table."""
    for logical_id, _ in template.resources("AWS::S3::Bucket"):
        moto.client("s3").create_bucket(Bucket=template.name(logical_id))
    for logical_id, properties in template.resources("AWS::DynamoDB::Table"):
        wanted = ("AttributeDefinitions", "KeySchema", "BillingMode", "LocalSecondaryIndexes", "GlobalSecondaryIndexes")
        client = moto.client("dynamodb")
        client.create_table(
            TableName=template.name(logical_id), **{key: properties[key] for key in wanted if key in properties}
        )
        if expiry := properties.get("TimeToLiveSpecification"):
            client.update_time_to_live(TableName=template.name(logical_id), TimeToLiveSpecification=expiry)


def create_functions(
    moto: MotoServer, template: Template, rights: StackRights, environment: Mapping[str, str]
) -> dict[str, DeployedFunction]:
    """Make the functions, each with the keys of its own role; by the module of its handler."""
    client, code, deployed_functions = moto.client("lambda"), _empty_zip(), {}
    for logical_id, properties in template.resources("AWS::Serverless::Function"):
        role = str(properties["Role"])
        variables = {k: str(v) for k, v in properties.get("Environment", {}).get("Variables", {}).items()}
        client.create_function(
            FunctionName=template.name(logical_id),
            Runtime=properties["Runtime"],
            Role=role,
            Handler=properties["Handler"],
            Timeout=int(properties["Timeout"]),
            MemorySize=int(properties.get("MemorySize", 128)),
            Code={"ZipFile": code},
            Environment={"Variables": variables},
        )
        kind = str(properties["Handler"]).split(".")[0]
        own = {**variables, **environment, **rights.credentials_of(role, kind)}
        function = DeployedFunction(kind, properties["Handler"], own, folder=template.folder / "functions")
        functions.DEPLOYED[template.name(logical_id)] = deployed_functions[kind] = function
    return deployed_functions


def create_jobs(
    moto: MotoServer, template: Template, rights: StackRights, environment: Mapping[str, str]
) -> dict[str, DeployedJob]:
    """Make the Glue jobs, each with the keys of its own role; by the name of its script."""
    client, deployed_jobs = moto.client("glue"), {}
    for logical_id, properties in template.resources("AWS::Glue::Job"):
        client.create_job(
            Name=template.name(logical_id),
            Role=properties["Role"],
            Command={key: str(value) for key, value in properties["Command"].items()},
            DefaultArguments={k: str(v) for k, v in properties.get("DefaultArguments", {}).items()},
            ExecutionProperty={"MaxConcurrentRuns": int(properties["ExecutionProperty"]["MaxConcurrentRuns"])},
            Timeout=int(properties["Timeout"]),
            GlueVersion=str(properties["GlueVersion"]),
        )
        script = template.folder / "glue_jobs" / str(properties["Command"]["ScriptLocation"]).rsplit("/", 1)[-1]
        job = DeployedJob(
            script.stem, script, {**environment, **rights.credentials_of(properties["Role"], f"job-{script.stem}")}
        )
        jobs.DEPLOYED[template.name(logical_id)] = deployed_jobs[script.stem] = job
    return deployed_jobs


def create_state_machine(moto: MotoServer, template: Template, timeouts: Mapping[str, int]) -> str:
    """Make the state machine, with other ``timeouts`` of some states; its ARN."""
    ((logical_id, properties),) = template.resources("AWS::Serverless::StateMachine")
    text = (template.folder / properties["DefinitionUri"]).read_text()
    for name, value in properties.get("DefinitionSubstitutions", {}).items():
        text = text.replace(f"${{{name}}}", str(value))
    definition = yaml.load(text, Loader=YAML_LOADER)
    for state, seconds in timeouts.items():
        _state(definition, state)["TimeoutSeconds"] = seconds
    created = moto.client("stepfunctions").create_state_machine(
        name=template.name(logical_id), roleArn=str(properties["Role"]), definition=json.dumps(definition)
    )
    return str(created["stateMachineArn"])


def _state(machine: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A state by name, in the machine or in what one of its states repeats."""
    inside = [machine, *(state["ItemProcessor"] for state in machine["States"].values() if "ItemProcessor" in state)]
    found: dict[str, Any] = next(part["States"][name] for part in inside if name in part["States"])
    return found


def _empty_zip() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("empty.py", "")
    return packed.getvalue()
