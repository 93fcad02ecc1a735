"""Whether the policies of a role allow a call: the rules of IAM for identity-based policies, and nothing else.

An explicit denial wins, then an allowance, else the call is denied (AWS IAM user guide, "Policy evaluation logic").
Everything that is not known here is an error: a policy that is not understood must not seem to allow a request.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_KNOWN = frozenset({"Sid", "Effect", "Action", "Resource", "Condition"})


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a call needs: ``dynamodb:GetItem`` on the ARN of a table."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)
    """Condition keys, such as ``s3:prefix``."""

    def __str__(self) -> str:
        return f"{self.action} on {self.resource}"


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement of a policy."""

    policy: str
    """The policy it stands in, as the template names it."""
    number: int
    """Its place there, from 0."""
    effect: str
    actions: tuple[str, ...]
    resources: tuple[str, ...]
    conditions: Mapping[str, Mapping[str, tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Role:
    """A role with the statements of all its policies."""

    name: str
    """The logical id that it has in the template."""
    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """What of a policy allowed a call: the action and the resource as they are written there."""

    role: str
    policy: str
    statement: int
    action: str
    resource: str


@dataclass(frozen=True, slots=True)
class Decision:
    """``grants`` holds every statement's part that allows it; without any the call is denied."""

    grants: tuple[Grant, ...]
    is_denied_explicitly: bool = False

    @property
    def is_allowed(self) -> bool:
        return bool(self.grants) and not self.is_denied_explicitly


def statements_of(policy: str, document: Mapping[str, Any]) -> tuple[Statement, ...]:
    """The statements of a policy's document.

    Raises:
        ValueError: it holds what is not known here (NotAction, NotResource, Principal, an unknown operator).
    """
    written = document["Statement"]
    return tuple(_statement(policy, *one) for one in enumerate(written if isinstance(written, list) else [written]))


def decide(role: Role, need: Need) -> Decision:
    """Judge one call."""
    grants: list[Grant] = []
    for statement in role.statements:
        actions = [one for one in statement.actions if _action_pattern(one).fullmatch(need.action.lower())]
        resources = [one for one in statement.resources if _pattern(one).fullmatch(need.resource)]
        if not actions or not resources or not _holds(statement.conditions, need.context):
            continue
        if statement.effect == "Deny":
            return Decision((), is_denied_explicitly=True)
        where = (role.name, statement.policy, statement.number)
        grants += [Grant(*where, action, resource) for action in actions for resource in resources]
    return Decision(tuple(grants))


def _statement(policy: str, number: int, written: Mapping[str, Any]) -> Statement:
    unknown = set(written) - _KNOWN
    if unknown:
        raise ValueError(f"{policy}: {', '.join(sorted(unknown))} of a statement is not known to the local stack")
    if written["Effect"] not in ("Allow", "Deny"):
        raise ValueError(f"{policy}: Effect {written['Effect']} is neither Allow nor Deny")
    conditions = {
        operator: {key: _texts(values) for key, values in keys.items()}
        for operator, keys in written.get("Condition", {}).items()
    }
    for operator in conditions:
        if operator not in _OPERATORS:
            raise ValueError(f"{policy}: the condition operator {operator} is not known to the local stack")
    actions, resources = _texts(written["Action"]), _texts(written["Resource"])
    return Statement(policy, number, written["Effect"], actions, resources, conditions)


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list) else (str(value),)


def _holds(conditions: Mapping[str, Mapping[str, Sequence[str]]], context: Mapping[str, str]) -> bool:
    """All operators and keys must match; a single matching value of a key suffices.  A key that the call lacks matches
    no value, so it satisfies only negated operators."""
    return all(
        _OPERATORS[operator](context.get(key), values)
        for operator, keys in conditions.items()
        for key, values in keys.items()
    )


def _equals(found: str | None, values: Sequence[str]) -> bool:
    return found in values


def _like(found: str | None, values: Sequence[str]) -> bool:
    return found is not None and any(_pattern(value).fullmatch(found) for value in values)


def _is_bool(found: str | None, values: Sequence[str]) -> bool:
    return found is not None and found.lower() in {value.lower() for value in values}


_OPERATORS: Mapping[str, Callable[[str | None, Sequence[str]], bool]] = {
    "ArnEquals": _like,  # which takes wildcards, as ArnLike does (IAM user guide, "Condition operators")
    "ArnLike": _like,
    "Bool": _is_bool,
    # Of several values, each is a need of its own here; without any it does not hold.
    "ForAnyValue:StringNotLike": lambda found, values: found is not None and not _like(found, values),
    "StringEquals": _equals,
    "StringLike": _like,
    "StringNotEquals": lambda found, values: not _equals(found, values),
    "StringNotLike": lambda found, values: not _like(found, values),
}


@functools.lru_cache(maxsize=4096)
def _pattern(text: str) -> re.Pattern[str]:
    """``*`` stands for any characters, ``?`` for one; a bracket is a bracket, unlike in the patterns of a shell."""
    parts = (".*" if one == "*" else "." if one == "?" else re.escape(one) for one in text)
    return re.compile("".join(parts), re.DOTALL)


@functools.lru_cache(maxsize=4096)
def _action_pattern(text: str) -> re.Pattern[str]:
    return _pattern(text.lower())  # actions are compared without case
