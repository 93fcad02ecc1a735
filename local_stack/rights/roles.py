"""The roles of a template with their policies, in the names of the local stack."""

from __future__ import annotations

from collections.abc import Mapping

from local_stack.rights.evaluate import Role, statements_of
from local_stack.template import Template


def roles_of(template: Template) -> Mapping[str, Role]:
    """Every role of the template by its ARN.

    Policies of resources, such as the denial of what comes without TLS, are left out: nothing here has TLS.

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
        roles[str(template.resolve({"Fn::GetAtt": [logical_id, "Arn"]}))] = Role(logical_id, tuple(found))
    return roles
