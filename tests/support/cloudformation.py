"""What tests look for in template.yaml: the lines that hold a wildcard, variables by default, every text of a part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from local_stack.template import TEMPLATE, YAML_LOADER

_GUARDED = ("Action", "NotAction", "Resource", "NotResource")
JUSTIFICATION = "# wildcard: "


def local_environment(template: Mapping[str, Any]) -> dict[str, str]:
    """The variables of all functions as ``sam local invoke`` sets them: parameters at their defaults, no condition
    holds, and what is ``AWS::NoValue`` is there, but empty."""
    resources = template["Resources"].values()
    parts = [template["Globals"]["Function"]]
    parts += [one["Properties"] for one in resources if one["Type"] == "AWS::Serverless::Function"]
    variables = [part.get("Environment", {}).get("Variables", {}) for part in parts]
    return {name: _by_default(template, value) for some in variables for name, value in some.items()}


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
        return _by_default(template, given[1])  # of a list in one parameter
    if function == "Fn::Sub":
        return str(given)
    raise NotImplementedError(function)


@dataclass(frozen=True)
class Wildcard:
    """A ``*`` in an action or resource; ``line`` counts from 1."""

    line: int
    text: str
    is_justified: bool


def wildcards(text: str | None = None) -> list[Wildcard]:
    """Every ``*`` that grants something, and whether the line above says why."""
    source = TEMPLATE.read_text() if text is None else text
    lines = source.splitlines()
    found = {}
    for node in _guarded(yaml.compose(source, Loader=YAML_LOADER)):
        above = node.start_mark.line - 1
        why = lines[above].strip() if above >= 0 else ""
        said = why.startswith(JUSTIFICATION) and len(why) > len(JUSTIFICATION) + 10
        found[node.start_mark.line] = Wildcard(node.start_mark.line + 1, node.value, said)
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
