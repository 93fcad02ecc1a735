"""Reads outcomes back from the JSON documents that functions and jobs write for the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, StagedOutcome, Status

__all__ = ["operation_outcome", "staged_outcome"]


def operation_outcome(document: Mapping[str, Any]) -> OperationOutcome:
    """The outcome that :meth:`OperationOutcome.to_json` wrote, without lists of files that have a file of their own.

    Raises:
        StorageError: it is no such document.
    """
    try:
        files = document["files"]
        return OperationOutcome(
            operation=Operation(document["operation"]),
            status=Status(document["status"]),
            reason=document["reason"],
            summary=document["summary"],
            snapshot_ids=tuple(document["snapshot_ids"]),
            metrics=dict(document["metrics"]),
            files_planned=tuple(files.get("planned", ())),
            files_deleted=tuple(files.get("deleted", ())),
            schedule=document.get("schedule"),
            lost_lease=document.get("lost_lease", False),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error


def staged_outcome(document: Mapping[str, Any]) -> StagedOutcome:
    """The outcome that :meth:`StagedOutcome.to_json` wrote.

    Raises:
        StorageError: it is no such document.
    """
    try:
        files = document["files"]
        return StagedOutcome(
            summary=document["summary"],
            problem=document["problem"],
            metrics=dict(document["metrics"]),
            files_planned=tuple(files.get("planned", ())),
            files_deleted=tuple(files.get("deleted", ())),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error
