"""A pass by the command over one local table, what its JSON said of every operation, and the rows it left."""

from __future__ import annotations

from typing import Any

from icekeeper.policy import ALL_OPERATIONS
from support.command import EVERYTHING_IS_OLD, Answer, Command

LOCAL = ("--engine", "local")
PASS = ("maintain", "ns.t", *LOCAL, *EVERYTHING_IS_OLD)
OPERATION_NAMES = [operation.value for operation in ALL_OPERATIONS]


def statuses(answer: Answer) -> dict[str, tuple[str, str | None]]:
    return {part["operation"]: (part["status"], part["reason"]) for part in answer.json["operations"]}


def summaries(answer: Answer) -> dict[str, str]:
    return {part["operation"]: part["summary"] for part in answer.json["operations"]}


def rows(command: Command, name: str = "ns.t") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = command.catalog.load_table(name).scan().to_arrow().to_pylist()
    return sorted(found, key=str)
