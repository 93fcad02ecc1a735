"""Definitions, names and inputs that Step Functions refuses.

Sources: AWS Step Functions developer guide, "Step Functions service quotas" (names of 80 characters at most and without
some characters, 1 MB for a definition, 256 KiB for an input) and "Using Map state in Distributed mode" (labels of 40
characters at most, 10,000 children at a time; of an Inline Map 40); API reference, "StateEnteredEventDetails" (names of
states); Amazon States Language, "States" (a name is unique within the whole machine).
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from local_stack.wire import HttpAnswer, WireRequest, json_error

_LONGEST_NAME, _LONGEST_LABEL = 80, 40
_LARGEST_DEFINITION, _LARGEST_INPUT = 1024**2, 256 * 1024
_MOST_CHILDREN = {"DISTRIBUTED": 10_000, "INLINE": 40}
_FORBIDDEN = re.compile(r'[\s<>{}\[\]?*"#%\\^|~`$&,;:/\x00-\x1f\x7f-\x9f]')


def refused_by_step_functions(request: WireRequest) -> HttpAnswer | None:
    """AWS's answer to a state machine or an execution that it does not take."""
    if request.service != "states":
        return None
    sent = request.document
    if "name" in sent and not _is_name(str(sent["name"])):
        return _refused("InvalidName", f"Invalid Name: '{sent['name']}'")
    if request.target == "StartExecution" and len(str(sent.get("input", "")).encode()) > _LARGEST_INPUT:
        return _refused("ValidationException", "The input is longer than 262144 bytes")
    if request.target not in ("CreateStateMachine", "UpdateStateMachine") or "definition" not in sent:
        return None
    text = str(sent["definition"])
    if len(text.encode()) > _LARGEST_DEFINITION:
        return _refused("InvalidDefinition", "Invalid State Machine Definition: longer than 1 MB")
    if wrong := next(_mistakes(json.loads(text)), None):
        return _refused("InvalidDefinition", f"Invalid State Machine Definition: {wrong}")
    return None


def _mistakes(definition: Mapping[str, Any]) -> Iterator[str]:
    states = list(_states(definition))
    labels = [str(state["Label"]) for _, state in states if "Label" in state]
    for text, count in (Counter(name for name, _ in states) + Counter(f"label {label}" for label in labels)).items():
        if count > 1:
            yield f"DUPLICATE_STATE_NAME: {text}"
    for name, state in states:
        if not _is_name(name):
            yield f"state name '{name}'"
        if "ItemProcessor" in state:
            mode = state["ItemProcessor"].get("ProcessorConfig", {}).get("Mode", "INLINE")
            if int(state.get("MaxConcurrency") or 0) > _MOST_CHILDREN[mode]:
                yield f"{name}: MaxConcurrency above {_MOST_CHILDREN[mode]}"
    for label in labels:
        if len(label) > _LONGEST_LABEL or not _is_name(label):
            yield f"label '{label}'"


def _states(machine: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every state with its name, those inside of maps and branches too."""
    for name, state in machine["States"].items():
        yield name, state
        for inside in (*([state["ItemProcessor"]] if "ItemProcessor" in state else []), *state.get("Branches", ())):
            yield from _states(inside)


def _is_name(text: str) -> bool:
    return 1 <= len(text) <= _LONGEST_NAME and _FORBIDDEN.search(text) is None


def _refused(code: str, message: str) -> HttpAnswer:
    return json_error("400 Bad Request", code, message)
