"""Glue jobs in a VPC: their connection, and the rights of the network, are there when they are asked for."""

from __future__ import annotations

from local_stack.template import TEMPLATE, Template
from support.stack_template import JOBS, RESOURCES, actions, statements

POLICY = "GlueNetworkPolicy"
FUNCTIONS_POLICY = "FunctionRuntimePolicy"


def test_every_job_has_the_connection_that_was_given() -> None:
    for script, (_, job) in JOBS.items():
        given = {"Connections": [{"Ref": "GlueConnection"}]}
        assert job["Connections"] == {"Fn::If": ["HasGlueConnection", given, {"Ref": "AWS::NoValue"}]}, script


def test_a_job_is_outside_of_any_vpc_unless_told() -> None:
    for connection, expected in (("", None), ("private", {"Connections": ["private"]})):
        template = Template(TEMPLATE, "stack", {"GlueConnection": connection})
        for _, job in template.resources("AWS::Glue::Job"):
            assert job.get("Connections") == expected


def test_rights_of_the_network_are_those_of_the_jobs_and_only_with_a_connection() -> None:
    assert RESOURCES[POLICY]["Condition"] == "HasGlueConnection"
    roles = {role["Ref"] for role in RESOURCES[POLICY]["Properties"]["Roles"]}
    assert roles == {job["Role"]["Fn::GetAtt"][0] for _, job in JOBS.values()}
    assert {name for name, one in RESOURCES.items() if any(a.startswith("ec2:") for a in actions(one))} == {
        POLICY,
        FUNCTIONS_POLICY,
    }


def test_they_reach_network_interfaces_and_nothing_else_of_ec2() -> None:
    changing = {
        action
        for statement in statements(RESOURCES[POLICY])
        for action in (statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]])
        if not action.startswith(("ec2:Describe", "glue:Get"))
    }
    assert changing == {"ec2:CreateNetworkInterface", "ec2:DeleteNetworkInterface", "ec2:CreateTags", "ec2:DeleteTags"}
