"""Outcomes as the documents that functions and jobs leave for the report, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, StagedOutcome, Status

__all__ = ["operation_outcome", "staged_outcome"]


def operation_outcome(document: Mapping[str, Any]) -> OperationOutcome:
    """What :meth:`OperationOutcome.to_json` made; lists of files that were too long for it stay where they are.

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
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StorageError(f"the document of an outcome is damaged: {error!r}") from error


def staged_outcome(document: Mapping[str, Any]) -> StagedOutcome:
    """What :meth:`StagedOutcome.to_json` made.

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
