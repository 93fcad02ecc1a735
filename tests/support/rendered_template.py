"""template.yaml as CloudFormation makes it of a set of parameters: resources that are there, and what each role may do.

Conditions are decided and intrinsic functions resolved; whatever refers to a resource that its condition leaves out is
an error, as it is to CloudFormation.  Names are those of the local stack (``STACK-LogicalId``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from local_stack.template import TEMPLATE, Template


@dataclass(frozen=True, slots=True)
class Grant:
    """One policy of a role: a managed one of the template by its logical id, or one inside the role."""

    name: str
    document: Mapping[str, Any]
    is_managed: bool

    @property
    def statements(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = self.document["Statement"]
        return found


@dataclass(frozen=True)
class RenderedTemplate:
    """The resources of one stack, their properties resolved."""

    parameters: Mapping[str, str]
    resources: Mapping[str, Mapping[str, Any]] = field(repr=False)
    """By logical id, with ``Type`` and ``Properties``."""
    _template: _Strict = field(repr=False)

    def reference(self, logical_id: str) -> str:
        """What ``!Ref`` of a resource is.

        Raises:
            KeyError: it is not there.
        """
        return str(self._template.resolve({"Ref": logical_id}))

    def of_type(self, kind: str) -> dict[str, Mapping[str, Any]]:
        """Properties by logical id."""
        return {name: one["Properties"] for name, one in self.resources.items() if one["Type"] == kind}

    @cached_property
    def managed(self) -> dict[str, Grant]:
        """The template's managed policies by logical id."""
        found = self.of_type("AWS::IAM::ManagedPolicy")
        return {name: Grant(name, one["PolicyDocument"], is_managed=True) for name, one in found.items()}

    @cached_property
    def grants(self) -> dict[str, list[Grant]]:
        """What everything that acts may do, by logical id: functions, jobs, the state machine, the schedule."""
        found = {}
        for name, one in self.resources.items():
            properties = one["Properties"]
            role = properties.get("Role") or properties.get("Target", {}).get("RoleArn")
            if role is not None:
                own = self._roles[role]
                found[name] = self._of_role(own.get("Policies", ()), own.get("ManagedPolicyArns", ()))
        return found

    @cached_property
    def _roles(self) -> dict[str, Mapping[str, Any]]:
        named = self.of_type("AWS::IAM::Role")
        return {str(self._template.resolve({"Fn::GetAtt": [name, "Arn"]})): one for name, one in named.items()}

    def _of_role(self, policies: Any, managed: Any) -> list[Grant]:
        by_name = {self.reference(name): grant for name, grant in self.managed.items()}
        grants = [by_name[name] for name in managed]
        grants += [Grant(one["PolicyName"], one["PolicyDocument"], is_managed=False) for one in policies]
        return grants


class _Strict(Template):
    """Refers to nothing that is not there."""

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
        return super()._holds(condition)

    def refusals(self) -> list[str]:
        """What the assertions of the section ``Rules`` say that these parameters break."""
        return [
            one["AssertDescription"]
            for rule in self._document.get("Rules", {}).values()
            if self._holds(rule.get("RuleCondition"))
            for one in rule["Assertions"]
            if not self._holds(one["Assert"])
        ]

    def rendered(self) -> RenderedTemplate:
        kinds = {str(one["Type"]) for one in self._document["Resources"].values()}
        found = {
            logical_id: {"Type": kind, "Properties": properties}
            for kind in sorted(kinds)
            for logical_id, properties in self.resources(kind)
        }
        return RenderedTemplate(self._parameters, found, self)


def render(parameters: Mapping[str, str] | None = None, *, stack: str = "icekeeper") -> RenderedTemplate:
    """The stack that these parameters make; the others have their defaults.

    Raises:
        KeyError: something refers to a resource that the template does not hold, or not under these parameters.
    """
    return _Strict(TEMPLATE, stack, {"ArtifactLocation": "s3://artifacts/icekeeper/1", **(parameters or {})}).rendered()


def refusals(parameters: Mapping[str, str]) -> list[str]:
    """Why CloudFormation refuses these parameters, in the words of the template's own rules."""
    return _Strict(TEMPLATE, "icekeeper", parameters).refusals()


def combinations(values: Mapping[str, tuple[str, ...]]) -> Iterator[dict[str, str]]:
    """Every combination of the values of some parameters."""
    for chosen in product(*values.values()):
        yield dict(zip(values, chosen, strict=True))
