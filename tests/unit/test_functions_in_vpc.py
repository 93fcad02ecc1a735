"""Functions in a VPC: where two parameters put them, and what Lambda, but not their code, may then do (rule 165)."""

from __future__ import annotations

import re
from typing import Any

import pytest

from local_stack.rights.evaluate import Need, Role, decide, statements_of
from local_stack.template import ACCOUNT, REGION
from support.source_tree import SOURCES
from support.stack_template import FUNCTIONS, ROOT, VPC, refusals, render

# AWS managed policy reference, AWSLambdaVPCAccessExecutionRole; the rights to logs are those to the function's own.
RIGHTS = {
    *("ec2:CreateNetworkInterface", "ec2:DescribeNetworkInterfaces", "ec2:DescribeSubnets"),
    *("ec2:DeleteNetworkInterface", "ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"),
}
CODE = {"lambda:SourceFunctionArn": f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:icekeeper-detect"}


def roles(parameters: dict[str, str]) -> dict[str, Role]:
    """Of each function, by its logical id."""
    stack = render(parameters)
    found: dict[str, Role] = {}
    for name, _ in FUNCTIONS.values():
        grants = stack.grants[name]
        found[name] = Role(name, tuple(one for each in grants for one in statements_of(each.name, each.document)))
    return found


def may(role: Role, context: dict[str, str]) -> set[str]:
    """What it may do in EC2, to anything."""
    actions = {action for one in role.statements for action in one.actions if action.startswith("ec2:")}
    needs = [Need(action, "arn:aws:ec2:us-east-1:123456789012:network-interface/eni-1", context) for action in actions]
    return {need.action for need in needs if decide(role, need).is_allowed}


def test_all_functions_are_in_the_vpc_that_was_given_or_none() -> None:
    given = {"SubnetIds": ["subnet-0a1b2c3d", "subnet-4e5f6a7b"], "SecurityGroupIds": ["sg-0a1b2c3d"]}
    for parameters, expected in (({}, None), (VPC, given)):
        functions: list[Any] = list(render(parameters).of_type("AWS::Serverless::Function").values())
        assert len(functions) == len(FUNCTIONS)
        assert [one.get("VpcConfig") for one in functions] == [expected] * len(functions)


def test_lambda_may_what_it_documents_and_the_code_of_functions_nothing() -> None:
    for role in roles(VPC).values():
        assert may(role, {}) == RIGHTS
        assert may(role, CODE) == set()


def test_outside_of_a_vpc_nobody_may_anything_in_ec2() -> None:
    for role in roles({}).values():
        assert not [action for one in role.statements for action in one.actions if action.startswith("ec2:")]


@pytest.mark.parametrize("alone", VPC)
def test_subnets_and_security_groups_go_together(alone: str) -> None:
    (sentence,) = refusals({alone: VPC[alone]})

    assert "VpcSubnetIds and VpcSecurityGroupIds go together" in sentence
    assert refusals(VPC) == refusals({}) == []


def test_the_page_names_every_service_that_is_asked() -> None:
    """Whoever makes a client of another service must say in docs/deployment.md how a VPC reaches it."""
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
    assert all("LogGroup" in one and "*" not in one for one in logs["Resource"])
    assert set(traces["Action"]) == {"xray:PutTraceSegments", "xray:PutTelemetryRecords"}
