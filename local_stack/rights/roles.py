"""The roles of a template with their policies, in the names of the local stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from local_stack.rights.evaluate import Role, Statement, statements_of
from local_stack.template import Template

_OF_RESOURCE = ("AWS::Serverless::Function", "AWS::Serverless::StateMachine")


def roles_of(template: Template) -> Mapping[str, Role]:
    """Every role by its ARN: those of the template, and those that SAM makes for functions and state machines.

    What SAM adds to a function's role by itself (writing its logs) is left out: a function here prints its
    logs.  So are policies of resources, such as the denial of what comes without TLS: nothing here has TLS.

    Raises:
        ValueError: a policy holds what ``evaluate`` does not know.
        KeyError: a role has a policy that the template does not hold.
    """
    managed = {
        str(template.resolve({"Ref": logical_id})): statements_of(logical_id, properties["PolicyDocument"])
        for logical_id, properties in template.resources("AWS::IAM::ManagedPolicy")
    }
    roles: dict[str, Role] = {}
    for logical_id, properties in template.resources("AWS::IAM::Role"):
        found = [one for name in properties.get("ManagedPolicyArns", ()) for one in managed[name]]
        for policy in properties.get("Policies", ()):
            found += statements_of(f"{logical_id}.{policy['PolicyName']}", policy["PolicyDocument"])
        roles[_arn(template, logical_id)] = Role(logical_id, tuple(found))
    for kind in _OF_RESOURCE:
        for logical_id, properties in template.resources(kind):
            if "Role" not in properties:
                name = f"{logical_id}Role"
                roles[template.role_of(logical_id, properties)] = Role(name, tuple(_of_sam(name, properties, managed)))
    return roles


def _of_sam(
    role: str, properties: Mapping[str, Any], managed: Mapping[str, tuple[Statement, ...]]
) -> Iterator[Statement]:
    """SAM's ``Policies``: names of managed policies and documents, in any order."""
    for policy in properties.get("Policies", ()):
        yield from managed[policy] if isinstance(policy, str) else statements_of(role, policy)


def _arn(template: Template, logical_id: str) -> str:
    return str(template.resolve({"Fn::GetAtt": [logical_id, "Arn"]}))
