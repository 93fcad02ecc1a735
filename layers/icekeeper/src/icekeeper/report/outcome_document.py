"""Outcomes as the JSON documents that functions and jobs write for the report, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from icekeeper.errors import StorageError
from icekeeper.policy import Operation
from icekeeper.report.listings import ListingWriter
from icekeeper.report.outcome import OperationOutcome, StagedOutcome, Status
from icekeeper.state.slack import read_slack, slack_text

__all__ = ["operation_document", "operation_outcome", "staged_outcome"]


def operation_document(outcome: OperationOutcome, run_id: str, listing: ListingWriter) -> dict[str, Any]:
    """What :func:`operation_outcome` reads: as ``maintain --json`` has it, and what the pass is to remember."""
    name = outcome.operation.value
    remembered = {} if outcome.slack is None else {"slack": slack_text({name: outcome.slack})}
    return {**outcome.to_json(run_id, listing), **remembered}


def operation_outcome(document: Mapping[str, Any]) -> OperationOutcome:
    """The outcome that :func:`operation_document` wrote, without lists of files that have a file of their own.

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
            slack=read_slack(document.get("slack")).get(document["operation"]),
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
