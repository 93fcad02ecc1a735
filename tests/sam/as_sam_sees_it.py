"""Print SAM's view of a template as one JSON document; SAM CLI's Python runs this script.

``environments``: the variables that ``sam local invoke`` would give to each function.
``roles``: the managed policies of each function's role, as SAM's transform writes them.

Usage: ``python as_sam_sees_it.py TEMPLATE ENVIRONMENT_JSON PARAMETERS_JSON``.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any
from unittest.mock import Mock

from samcli.commands.local.lib.local_lambda import LocalLambdaRunner
from samcli.lib.providers.sam_function_provider import SamFunctionProvider
from samcli.lib.providers.sam_stack_provider import SamLocalStackProvider
from samcli.yamlhelper import yaml_parse
from samtranslator.translator.transform import transform

_FUNCTION, _LAYER = "AWS::Serverless::Function", "AWS::Serverless::LayerVersion"
_ELSEWHERE = {_FUNCTION: "CodeUri", _LAYER: "ContentUri", "AWS::Serverless::StateMachine": "DefinitionUri"}


def environments(template: str, variables: str, parameters: dict[str, str]) -> dict[str, dict[str, str]]:
    """By function: the variables that SAM resolves, including those of the ``--env-vars`` file."""
    stacks, _ = SamLocalStackProvider.get_stacks(template, parameter_overrides=parameters)
    provider = SamFunctionProvider(stacks, ignore_code_extraction_warnings=True)
    with open(variables) as file:
        runner = LocalLambdaRunner(Mock(), provider, ".", ".", env_vars_values=json.load(file))
    return {item.name: runner._make_env_vars(item).resolve() for item in provider.get_all()}


def roles(template: str, parameters: dict[str, str]) -> dict[str, Any]:
    """By role: its managed policies."""
    with open(template) as file:
        document = yaml_parse(file.read())
    document["Globals"]["Function"]["CodeUri"] = "s3://bucket/key"
    for resource in document["Resources"].values():
        if name := _ELSEWHERE.get(resource["Type"]):
            resource["Properties"][name] = "s3://bucket/key"
    policies = Mock()
    names = ("AWSLambdaBasicExecutionRole",)
    policies.load.return_value = {name: f"arn:aws:iam::aws:policy/{name}" for name in names}
    resources = transform(document, parameters, policies)["Resources"]
    kind = "AWS::IAM::Role"
    found = {name: item["Properties"] for name, item in resources.items() if item["Type"] == kind}
    return {name: item.get("ManagedPolicyArns", []) for name, item in found.items()}


def main() -> None:
    """Print the environments and the roles."""
    os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")
    template, variables, parameters = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    view = {"environments": environments(template, variables, parameters), "roles": roles(template, parameters)}
    sys.stdout.write(json.dumps(view))


if __name__ == "__main__":
    main()
