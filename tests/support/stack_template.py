"""template.yaml by kind and role, as CloudFormation renders it for given parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from local_stack.template import TEMPLATE, YAML_LOADER, Template, load_template

# The parts of template.yaml by kind and role, their references, and the actions that they allow.

ROOT = TEMPLATE.parent
DOCUMENT = load_template()
RESOURCES: Mapping[str, Mapping[str, Any]] = DOCUMENT["Resources"]
PARAMETERS: Mapping[str, Mapping[str, Any]] = DOCUMENT["Parameters"]
MACHINE = RESOURCES["MaintainTablesStateMachine"]["Properties"]
VARIABLES: Mapping[str, Any] = DOCUMENT["Globals"]["Function"]["Environment"]["Variables"]


def of_type(kind: str) -> dict[str, Mapping[str, Any]]:
    return {name: found["Properties"] for name, found in RESOURCES.items() if found["Type"] == kind}


FUNCTIONS = {
    properties["Handler"].removesuffix(".handle"): (name, properties)
    for name, properties in of_type("AWS::Serverless::Function").items()
}
"""Functions by role, which is the module of the handler."""
JOBS = {
    Path(properties["Command"]["ScriptLocation"]["Fn::Sub"]).stem: (name, properties)
    for name, properties in of_type("AWS::Glue::Job").items()
}


def role_of(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of the role of a function or job."""
    found: Mapping[str, Any] = RESOURCES[properties["Role"]["Fn::GetAtt"][0]]["Properties"]
    return found


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


def statements(value: Any) -> Iterable[Mapping[str, Any]]:
    """Every statement with effect Allow, at any depth."""
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


# Parts of template.yaml that tests check: lines with a wildcard, default variables, every text.

_GUARDED = ("Action", "NotAction", "Resource", "NotResource")
JUSTIFICATION = "# wildcard: "


def local_environment(template: Mapping[str, Any]) -> dict[str, str]:
    """The variables of all functions as ``sam local invoke`` sets them: parameters have their defaults, no condition
    holds, and ``AWS::NoValue`` becomes an empty text."""
    resources = template["Resources"].values()
    parts = [template["Globals"]["Function"]]
    parts += [found["Properties"] for found in resources if found["Type"] == "AWS::Serverless::Function"]
    variables = [part.get("Environment", {}).get("Variables", {}) for part in parts]
    return {name: _by_default(template, value) for group in variables for name, value in group.items()}


def _by_default(template: Mapping[str, Any], value: Any) -> str:
    if not isinstance(value, Mapping):
        return str(value)
    ((function, given),) = value.items()
    if function == "Ref":
        return "" if given == "AWS::NoValue" else str(template["Parameters"].get(given, {}).get("Default", given))
    if function == "Fn::If":
        return _by_default(template, given[2])
    if function == "Fn::FindInMap":
        return str(template["Mappings"][given[0]][_by_default(template, given[1])][given[2]])
    if function == "Fn::Join":
        return _by_default(template, given[1])  # the joined list is a single parameter
    if function == "Fn::Sub":
        return str(given)
    if function == "Fn::Select":
        separator, text = given[1]["Fn::Split"]
        return _by_default(template, text).split(str(separator))[int(given[0])]
    raise NotImplementedError(function)


@dataclass(frozen=True)
class Wildcard:
    """A ``*`` in an action or resource; ``line`` counts from 1."""

    line: int
    text: str
    is_justified: bool


def wildcards(text: str | None = None) -> list[Wildcard]:
    """Every ``*`` in an action or resource, and whether the line above justifies it."""
    source = TEMPLATE.read_text() if text is None else text
    lines = source.splitlines()
    found = {}
    for node in _guarded(yaml.compose(source, Loader=YAML_LOADER)):
        above = node.start_mark.line - 1
        why = lines[above].strip() if above >= 0 else ""
        is_justified = why.startswith(JUSTIFICATION) and len(why) > len(JUSTIFICATION) + 10
        found[node.start_mark.line] = Wildcard(node.start_mark.line + 1, node.value, is_justified)
    return [found[line] for line in sorted(found)]


def _guarded(node: yaml.Node, *, inside: bool = False) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        if inside and "*" in node.value:
            yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _guarded(item, inside=inside)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _guarded(value, inside=inside or key.value in _GUARDED)


def strings(value: Any) -> Iterator[str]:
    """Every text in a part of a template, keys left out."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


# template.yaml as CloudFormation renders it for a set of parameters: its resources, and the rights of each role.
#
# Conditions are evaluated and intrinsic functions resolved; a reference to a resource whose condition does not hold is
# an error, as in CloudFormation.  Names are those of the local stack (``STACK-LogicalId``).


@dataclass(frozen=True, slots=True)
class Grant:
    """A policy of a role: a managed policy of the template by its logical id, or an inline policy."""

    name: str
    document: Mapping[str, Any]
    is_managed: bool

    @property
    def statements(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.document["Statement"]
        return found

    @property
    def length(self) -> int:
        """Characters as IAM counts them: without white space."""
        return len("".join(json.dumps(self.document).split()))


@dataclass(frozen=True)
class RenderedTemplate:
    """The resources of a stack with resolved properties."""

    parameters: Mapping[str, str]
    resources: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """Resources by logical id, with ``Type`` and ``Properties``."""
    _template: _Strict = field(repr=False)

    def reference(self, logical_id: str) -> str:
        """The value of ``!Ref`` of a resource.

        Raises:
            KeyError: the resource does not exist.
        """
        return str(self._template.resolve({"Ref": logical_id}))

    def of_type(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Properties by logical id."""
        return {name: found["Properties"] for name, found in self.resources.items() if found["Type"] == kind}

    @cached_property
    def managed(self) -> dict[str, Grant]:
        """The template's managed policies by logical id."""
        found = self.of_type("AWS::IAM::ManagedPolicy")
        return {name: Grant(name, policy["PolicyDocument"], is_managed=True) for name, policy in found.items()}

    @cached_property
    def grants(self) -> dict[str, list[Grant]]:
        """The policies of every principal by logical id: functions, jobs, the state machine, the schedule."""
        found = {}
        for name, resource in self.resources.items():
            properties = resource["Properties"]
            role = properties.get("Role") or properties.get("Target", {}).get("RoleArn")
            if role is not None:
                own = self._roles[role]
                found[name] = self._of_role(own.get("Policies", ()), own.get("ManagedPolicyArns", ()))
        return found

    @cached_property
    def _roles(self) -> dict[str, Mapping[str, Any]]:
        named = self.of_type("AWS::IAM::Role")
        return {str(self._template.resolve({"Fn::GetAtt": [name, "Arn"]})): role for name, role in named.items()}

    def _of_role(self, policies: Any, managed: Any) -> list[Grant]:
        by_name = {self.reference(name): grant for name, grant in self.managed.items()}
        grants = [by_name[name] for name in managed]
        grants += [Grant(policy["PolicyName"], policy["PolicyDocument"], is_managed=False) for policy in policies]
        return grants


class _Strict(Template):
    """A reference to a missing resource is an error."""

    def _kind(self, logical_id: str) -> str:
        kind = super()._kind(logical_id)
        condition = self._document["Resources"].get(logical_id, {}).get("Condition")
        if not self._holds(condition):
            raise KeyError(f"{logical_id} is not there: {condition} does not hold")
        return kind

    def _holds(self, condition: Any) -> bool:
        if isinstance(condition, Mapping) and "Fn::EachMemberIn" in condition:
            members, allowed = (self.resolve(part) for part in condition["Fn::EachMemberIn"])
            return set(members) <= set(allowed)
        if isinstance(condition, Mapping) and "Fn::Contains" in condition:
            among, value = (self.resolve(part) for part in condition["Fn::Contains"])
            return bool(value in among)
        return super()._holds(condition)

    def refusals(self) -> list[str]:
        """The descriptions of the assertions in the section ``Rules`` that these parameters break."""
        return [
            assertion["AssertDescription"]
            for rule in self._document.get("Rules", {}).values()
            if self._holds(rule.get("RuleCondition"))
            for assertion in rule["Assertions"]
            if not self._holds(assertion["Assert"])
        ]

    def rendered(self) -> RenderedTemplate:
        kinds = {str(resource["Type"]) for resource in self._document["Resources"].values()}
        found = {
            logical_id: {"Type": kind, "Properties": properties}
            for kind in sorted(kinds)
            for logical_id, properties in self.resources(kind)
        }
        return RenderedTemplate(self._parameters, found, self)


def render(parameters: Mapping[str, str] | None = None, *, stack: str = "icekeeper") -> RenderedTemplate:
    """The stack with these parameters; other parameters have their defaults.

    Raises:
        KeyError: a reference names a resource that the template does not have with these parameters.
    """
    return _Strict(TEMPLATE, stack, {"ArtifactLocation": "s3://artifacts/icekeeper/1", **(parameters or {})}).rendered()


def refusals(parameters: Mapping[str, str]) -> list[str]:
    """Why CloudFormation refuses these parameters, in the words of the template's rules."""
    return _Strict(TEMPLATE, "icekeeper", parameters).refusals()


def combinations(values: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Every combination of the values of some parameters."""
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))


# Values of the parameters that conditions of template.yaml read.

TABLES = {
    "DiscoverTableBuckets": ("false", "true"),
    "TableBucketArns": ("", "arn:aws:s3tables:eu-central-1:123456789012:bucket/lake"),
    "DataBucketArns": ("", "arn:aws:s3:::lake"),
    "GlueDataCatalogArns": ("", "arn:aws:glue:eu-central-1:123456789012:database/sales"),
    "KmsKeyArns": ("", "arn:aws:kms:eu-central-1:123456789012:key/1"),
}
"""These parameters decide which policies exist and what they contain."""
SINGLE = {
    "AssumableRoleArns": "arn:aws:iam::210987654321:role/lake",
    "MaintenanceEnabled": "false",
    "GlueConnection": "lake-network",
    "AlarmTopicArn": "arn:aws:sns:eu-central-1:123456789012:alarms",
    "ScheduleState": "ENABLED",
    "ArtifactKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/2",
    "StackKmsKeyArn": "arn:aws:kms:eu-central-1:123456789012:key/3",
    "CatalogSecretArns": "arn:aws:secretsmanager:eu-central-1:123456789012:secret:lake-a1B2c3",
    "Ownership": "bucket",
    "PermissionsBoundaryArn": "arn:aws:iam::123456789012:policy/boundary",
}
"""A value of every other parameter that a condition reads, each to be set alone."""
VPC = {"VpcSubnetIds": "subnet-0a1b2c3d,subnet-4e5f6a7b", "VpcSecurityGroupIds": "sg-0a1b2c3d"}
"""These two must be set together."""
FOLDER = {
    "DataBucketArns": "arn:aws:s3:::shared/warehouse",
    "ListedBucketArns": "arn:aws:s3:::shared",
    "ListedPrefixes": "warehouse",
}
"""A folder of a bucket, and how it is listed."""
LISTED = {name: value for name, value in FOLDER.items() if name != "DataBucketArns"}
