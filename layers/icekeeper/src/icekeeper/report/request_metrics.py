"""Requests as metrics: ``PREFIX.get_requests`` and so on, without zeros."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.machine.metering import RequestKind

__all__ = ["REQUESTS", "request_key", "request_metrics"]

REQUESTS = "_requests"
"""How the keys of these metrics end."""


def request_key(kind: RequestKind) -> str:
    """How the key of one kind's metric ends: ``.get_requests``."""
    return f".{kind.value}{REQUESTS}"


def request_metrics(prefix: str, counts: Mapping[RequestKind, int]) -> dict[str, int]:
    """The metrics of an operation, or of what a pass does around its operations (``pass``)."""
    return {f"{prefix}{request_key(kind)}": number for kind, number in counts.items() if number}
