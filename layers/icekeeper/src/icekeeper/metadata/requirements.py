"""Requirements that a table must still meet when a commit is made: ``TableRequirement`` objects of the REST API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import TableMetadata

__all__ = ["check_requirements", "ref_at", "same_table"]


def same_table(metadata: TableMetadata) -> list[dict[str, Any]]:
    """The requirement that the table still has this UUID; none for a v1 table without UUID."""
    return [] if metadata.uuid is None else [{"type": "assert-table-uuid", "uuid": metadata.uuid}]


def ref_at(name: str, snapshot_id: int | None) -> dict[str, Any]:
    """The requirement that a branch or tag points at a snapshot; with ``None``, that there is no such ref."""
    return {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": snapshot_id}


def check_requirements(metadata: TableMetadata, requirements: Iterable[Mapping[str, Any]]) -> None:
    """Check REST ``TableRequirement`` objects against a document.

    Raises:
        CommitConflict: one of them is not met.
        ValueError: its kind is unknown.
    """
    for requirement in requirements:
        kind = requirement["type"]
        if kind == "assert-table-uuid":
            if metadata.uuid != requirement["uuid"]:
                raise CommitConflict(f"the table was replaced: its UUID is {metadata.uuid}, not {requirement['uuid']}")
        elif kind == "assert-ref-snapshot-id":
            ref = metadata.refs.get(requirement["ref"])
            found = None if ref is None else ref.snapshot_id
            if found != requirement["snapshot-id"]:
                raise CommitConflict(
                    f"ref '{requirement['ref']}' is at snapshot {found}, not at {requirement['snapshot-id']}"
                )
        elif kind == "assert-default-spec-id":
            if metadata.default_spec_id != requirement["default-spec-id"]:
                raise CommitConflict(f"the default partition spec is {metadata.default_spec_id} by now")
        elif kind == "assert-current-schema-id":
            if metadata.current_schema_id != requirement["current-schema-id"]:
                raise CommitConflict(f"the current schema is {metadata.current_schema_id} by now")
        else:
            raise ValueError(f"unknown requirement {kind}")
