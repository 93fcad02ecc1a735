"""Which partition specs and schemas nothing uses any more once snapshots have expired (rule 80) (pure).

The model is ``cleanExpiredMetadata`` of Iceberg-Java's RemoveSnapshots, with more care: a schema whose snapshot expired
may still say what a delete file or a partition spec means by a column that was dropped.  Then all schemas stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from icekeeper.metadata.document import TableMetadata

__all__ = ["UnusedMetadata", "unused_metadata"]


@dataclass(frozen=True, slots=True)
class UnusedMetadata:
    """Ids to take out of the table's metadata; empty when there is nothing to take out."""

    spec_ids: tuple[int, ...] = ()
    schema_ids: tuple[int, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spec_ids or self.schema_ids)

    @property
    def updates(self) -> list[dict[str, Any]]:
        """REST ``TableUpdate`` objects."""
        updates: list[dict[str, Any]] = []
        if self.spec_ids:
            updates.append({"action": "remove-partition-specs", "spec-ids": list(self.spec_ids)})
        if self.schema_ids:
            updates.append({"action": "remove-schemas", "schema-ids": list(self.schema_ids)})
        return updates

    def requirements(self, metadata: TableMetadata) -> list[dict[str, Any]]:
        """The commit's requirements: the default spec and the current schema are still the same."""
        requirements: list[dict[str, Any]] = []
        if self.spec_ids:
            requirements.append({"type": "assert-default-spec-id", "default-spec-id": metadata.default_spec_id})
        if self.schema_ids:
            current = metadata.current_schema_id
            requirements.append({"type": "assert-current-schema-id", "current-schema-id": current})
        return requirements


def unused_metadata(
    metadata: TableMetadata, expired: Collection[int], used_specs: Collection[int] | None, has_deletes: bool
) -> UnusedMetadata:
    """The specs and schemas that go together with the expired snapshots (ids).

    ``used_specs`` are those of the manifests that the other snapshots list, ``None`` when that is not known;
    ``has_deletes``: one of these manifests holds delete files.
    """
    if used_specs is None:
        return UnusedMetadata()
    specs = {i: spec for i, spec in metadata.specs.items() if i in used_specs or i == metadata.default_spec_id}
    unused_specs = tuple(sorted(metadata.specs.keys() - specs.keys()))
    used_schemas = {
        metadata.current_schema_id,
        *(s.schema_id for i, s in metadata.snapshots.items() if i not in expired),
    }
    if has_deletes or None in used_schemas:
        return UnusedMetadata(unused_specs)
    known = {i for schema_id in used_schemas for i in _column_ids(metadata.schemas.get(schema_id or 0, {}))}
    orders = metadata.document.get("sort-orders") or ()
    if {i for meaning in (*specs.values(), *orders) for i in _source_ids(meaning)} - known:
        return UnusedMetadata(unused_specs)
    return UnusedMetadata(unused_specs, tuple(sorted(metadata.schemas.keys() - used_schemas)))


def _source_ids(meaning: Mapping[str, Any]) -> Iterator[int]:
    """The columns of a partition spec or sort order."""
    for field in meaning.get("fields") or ():
        yield from field.get("source-ids") or [field["source-id"]]


def _column_ids(kind: Any) -> Iterator[int]:
    """The ids of a type's fields, nested ones too."""
    if not isinstance(kind, Mapping):
        return
    for field in kind.get("fields") or ():
        yield int(field["id"])
        yield from _column_ids(field["type"])
    for part in ("element", "key", "value"):
        if f"{part}-id" in kind:
            yield int(kind[f"{part}-id"])
            yield from _column_ids(kind[part])
