"""The parts of template.yaml by kind and role, what they refer to, and which actions they allow."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from local_stack.template import TEMPLATE, load_template

ROOT = TEMPLATE.parent
DOCUMENT = load_template()
RESOURCES: Mapping[str, Mapping[str, Any]] = DOCUMENT["Resources"]
PARAMETERS: Mapping[str, Mapping[str, Any]] = DOCUMENT["Parameters"]
MACHINE = RESOURCES["MaintainTablesStateMachine"]["Properties"]
VARIABLES: Mapping[str, Any] = DOCUMENT["Globals"]["Function"]["Environment"]["Variables"]


def of_type(kind: str) -> dict[str, Mapping[str, Any]]:
    return {name: found["Properties"] for name, found in RESOURCES.items() if found["Type"] == kind}


FUNCTIONS = {
    properties["Handler"].removesuffix(".handler.handle"): (name, properties)
    for name, properties in of_type("AWS::Serverless::Function").items()
}
"""By role, which is the folder of the handler."""
JOBS = {
    Path(properties["Command"]["ScriptLocation"]["Fn::Sub"]).stem: (name, properties)
    for name, properties in of_type("AWS::Glue::Job").items()
}


def role_of(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    """The properties of the role that a function or job has."""
    found: Mapping[str, Any] = RESOURCES[properties["Role"]["Fn::GetAtt"][0]]["Properties"]
    return found


def camel(role: str) -> str:
    return "".join(part.title() for part in role.split("_"))


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
    """Every statement that allows something, wherever it is."""
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
