"""template.yaml as CloudFormation and SAM read it, as far as a local stack needs: values resolved, globals merged.

``load_template`` gives it as written, with short forms such as ``!Ref`` as mappings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = Path(__file__).resolve().parents[1] / "template.yaml"
"""The stack that is deployed."""

ACCOUNT = "123456789012"
REGION = "us-east-1"

_FUNCTION = "AWS::Serverless::Function"
_VARIABLE = re.compile(r"\$\{([^!}][^}]*)\}")
# How AWS spells the address of what is created here.
_ARNS = {
    "AWS::S3::Bucket": "arn:aws:s3:::{name}",
    "AWS::DynamoDB::Table": f"arn:aws:dynamodb:{REGION}:{ACCOUNT}:table/{{name}}",
    _FUNCTION: f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{{name}}",
    "AWS::SQS::Queue": f"arn:aws:sqs:{REGION}:{ACCOUNT}:{{name}}",
    "AWS::Serverless::StateMachine": f"arn:aws:states:{REGION}:{ACCOUNT}:stateMachine:{{name}}",
    "AWS::IAM::Role": f"arn:aws:iam::{ACCOUNT}:role/{{name}}",
    "AWS::IAM::ManagedPolicy": f"arn:aws:iam::{ACCOUNT}:policy/{{name}}",
    "AWS::Serverless::LayerVersion": f"arn:aws:lambda:{REGION}:{ACCOUNT}:layer:{{name}}:1",
}
# Of these a Ref is the address, of others the name.
_REFERRED_BY_ARN = {"AWS::Serverless::StateMachine", "AWS::IAM::ManagedPolicy", "AWS::Serverless::LayerVersion"}

# Properties that give a resource its name.
_NAMED_BY = {_FUNCTION: "FunctionName", "AWS::Serverless::StateMachine": "Name", "AWS::Glue::Job": "Name"}

# Parameters without a default, which every deployment must set.
_GIVEN = {"ArtifactLocation": "s3://artifacts/icekeeper/local"}

_NO_VALUE = object()

YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Ten times as fast in C, where PyYAML was built with it."""

# PyYAML publishes no types, so it cannot be a base class here.
_Loader: Any = type("_Loader", (YAML_LOADER,), {})


def _short_form(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    value: Any
    if isinstance(node, yaml.ScalarNode):
        value = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_form)


def load_template(text: str | None = None) -> Mapping[str, Any]:
    """A template as mappings; :data:`TEMPLATE` unless a text is given."""
    document: Mapping[str, Any] = yaml.load(TEMPLATE.read_text() if text is None else text, Loader=_Loader)
    return document


class Template:
    """A template with the parameters of a stack.

    A resource without a name in the template is named ``STACK-LogicalId``.  So stacks on the same server do not
    collide, provided that names in the template begin with the stack's name.
    """

    def __init__(self, path: Path, stack: str, parameters: Mapping[str, str]) -> None:
        self.folder = path.parent
        self.stack = stack
        self._document: Mapping[str, Any] = load_template(path.read_text())
        declared: Mapping[str, Any] = self._document.get("Parameters", {})
        unknown = set(parameters) - set(declared)
        assert not unknown, f"{path.name} has no parameters {sorted(unknown)}"
        self._parameters = {
            name: str(parameters.get(name, parameter.get("Default", _GIVEN.get(name, ""))))
            for name, parameter in declared.items()
        }

    def resources(self, kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """``(logical id, resolved properties)`` of every resource of a type whose condition holds."""
        for logical_id, resource in self._document["Resources"].items():
            if resource["Type"] != kind or not self._holds(resource.get("Condition")):
                continue
            properties = resource.get("Properties", {})
            if kind == _FUNCTION:
                properties = _merged(self._document.get("Globals", {}).get("Function", {}), properties)
            yield logical_id, self.resolve(properties)

    def outputs(self) -> dict[str, str]:
        """The stack's outputs, resolved."""
        return {name: str(self.resolve(one["Value"])) for name, one in self._document.get("Outputs", {}).items()}

    def name(self, logical_id: str) -> str:
        """What a resource is called in this stack."""
        resource = self._document["Resources"].get(logical_id, {})
        given = resource.get("Properties", {}).get(_NAMED_BY.get(resource.get("Type", ""), ""))
        if given is not None:
            return str(self.resolve(given))
        return (
            f"{self.stack}-{logical_id}".lower()
            if self._kind(logical_id) == "AWS::S3::Bucket"
            else (f"{self.stack}-{logical_id}")
        )

    def resolve(self, value: Any) -> Any:
        """A value with every intrinsic function evaluated.

        Raises:
            KeyError: it refers to what the template does not hold, or by a function that is not known here.
        """
        if isinstance(value, list):
            return [found for item in value if (found := self.resolve(item)) is not _NO_VALUE]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            (key,) = value
            if key == "Ref" or key.startswith("Fn::"):
                return self._call(key.removeprefix("Fn::"), value[key])
        return {key: found for key, item in value.items() if (found := self.resolve(item)) is not _NO_VALUE}

    def _call(self, function: str, argument: Any) -> Any:
        match function:
            case "Ref":
                return self._ref(argument)
            case "GetAtt":
                logical_id, attribute = argument if isinstance(argument, list) else argument.split(".", 1)
                return self._attribute(logical_id, attribute)
            case "Sub":
                text, local = argument if isinstance(argument, list) else (argument, {})
                known = {key: str(self.resolve(item)) for key, item in local.items()}
                return _VARIABLE.sub(lambda found: known.get(found[1]) or self._variable(found[1]), text)
            case "Join":
                separator, parts = argument
                return str(separator).join(str(part) for part in self.resolve(parts))
            case "Split":
                separator, text = argument
                return str(self.resolve(text)).split(separator)
            case "Select":
                index, parts = argument
                return self.resolve(parts)[int(index)]
            case "If":
                condition, then, otherwise = argument
                return self.resolve(then if self._holds(condition) else otherwise)
            case "FindInMap":
                name, first, second = (self.resolve(part) for part in argument)
                return self._document["Mappings"][name][first][second]
        raise KeyError(f"Fn::{function} is not known to the local stack")

    def _ref(self, name: str) -> Any:
        pseudo = {
            "AWS::AccountId": ACCOUNT,
            "AWS::NoValue": _NO_VALUE,
            "AWS::Partition": "aws",
            "AWS::Region": REGION,
            "AWS::StackName": self.stack,
            "AWS::URLSuffix": "amazonaws.com",
        }
        if name in pseudo:
            return pseudo[name]
        if name in self._parameters:
            declared = self._document["Parameters"][name]
            value = self._parameters[name]
            return value.split(",") if "List" in declared["Type"] else value
        if self._kind(name) in _REFERRED_BY_ARN:
            return self._attribute(name, "Arn")
        return self.name(name)

    def _variable(self, name: str) -> str:
        return str(self._attribute(*name.split(".", 1)) if "." in name else self._ref(name))

    def _attribute(self, logical_id: str, attribute: str) -> str:
        if attribute == "Arn":
            pattern = _ARNS.get(self._kind(logical_id), "arn:aws:local:::{name}")
            return pattern.format(name=self.name(logical_id))
        if attribute in ("Name", "QueueName"):
            return self.name(logical_id)
        self._kind(logical_id)
        return f"{self.name(logical_id)}.{attribute}"  # nothing that runs locally asks for it

    def _kind(self, logical_id: str) -> str:
        resources = self._document["Resources"]
        if logical_id in resources:
            return str(resources[logical_id]["Type"])
        raise KeyError(f"the template has no resource {logical_id}")

    def _holds(self, condition: Any) -> bool:
        if condition is None:
            return True
        if isinstance(condition, str):
            return self._holds(self._document["Conditions"][condition])
        ((function, argument),) = condition.items()
        match function.removeprefix("Fn::"):
            case "Condition":
                return self._holds(argument)
            case "Equals":
                first, second = (self.resolve(part) for part in argument)
                return bool(first == second)
            case "Not":
                return not self._holds(argument[0])
            case "And":
                return all(self._holds(part) for part in argument)
            case "Or":
                return any(self._holds(part) for part in argument)
        raise KeyError(f"{function} is no condition that the local stack knows")


def _merged(common: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """SAM's way: what is a mapping on both sides is merged, everything else is the function's own."""
    merged = dict(common)
    for key, value in own.items():
        before = merged.get(key)
        both = isinstance(before, dict) and isinstance(value, dict) and not any("::" in k or k == "Ref" for k in value)
        merged[key] = _merged(before, value) if both and before is not None else value
    return merged
