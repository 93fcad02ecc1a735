"""Partition specs and schemas go when nothing uses them, and stay when something may."""

from __future__ import annotations

from typing import Any

import pytest

from icekeeper.errors import CommitConflict
from icekeeper.metadata.document import TableMetadata, apply_updates, check_requirements
from icekeeper.operations.expiry.unreferenced import UnusedMetadata, unreferenced_files, unused_metadata
from support.listed_manifests import LOCATION, ListedManifests


def schema(schema_id: int, *columns: int) -> dict[str, Any]:
    fields = [{"id": i, "name": f"c{i}", "required": False, "type": "long"} for i in columns]
    return {"type": "struct", "schema-id": schema_id, "fields": fields}


def spec(spec_id: int, *sources: int) -> dict[str, Any]:
    fields = [{"source-id": i, "field-id": 1000 + i, "name": f"p{i}", "transform": "bucket[4]"} for i in sources]
    return {"spec-id": spec_id, "fields": fields}


@pytest.fixture
def table() -> ListedManifests:
    """Three schemas and specs, one for each of three snapshots; the last ones are current."""
    made = ListedManifests()
    made.document |= {
        "schemas": [schema(0, 1), schema(1, 1, 2), schema(2, 1, 2, 3)],
        "partition-specs": [spec(0), spec(1), spec(2)],
        "current-schema-id": 2,
        "default-spec-id": 2,
    }
    for number in (1, 2, 3):
        manifest = made.manifest(f"m{number}", [f"data/{number}"], spec_id=number - 1)
        made.snapshot(number, manifest, **{"schema-id": number - 1})
    return made


def unused(table: ListedManifests, *expired: int) -> UnusedMetadata:
    found = unreferenced_files(table.reader, set(expired), [LOCATION])
    return unused_metadata(table.metadata, set(expired), found.kept_specs, found.keeps_deletes)


def test_what_only_expired_snapshots_used_goes(table: ListedManifests) -> None:
    assert unused(table, 1) == UnusedMetadata((0,), (0,))
    assert unused(table, 1, 2) == UnusedMetadata((0, 1), (0, 1))


def test_a_spec_of_any_kept_manifest_stays(table: ListedManifests) -> None:
    table.snapshot(4, table.manifest("m4", ["data/4"], spec_id=0), **{"schema-id": 2})
    assert unused(table, 1, 2) == UnusedMetadata((1,), (0, 1))


def test_schemas_stay_while_deletes_may_mean_dropped_columns(table: ListedManifests) -> None:
    table.snapshot(4, table.manifest("d", ["data/d"], deletes=True, spec_id=2), **{"schema-id": 2})
    assert unused(table, 1, 2) == UnusedMetadata((0, 1), ())


@pytest.mark.parametrize("meaning", ["partition-specs", "sort-orders"])
def test_schemas_stay_while_a_spec_or_order_means_a_dropped_column(table: ListedManifests, meaning: str) -> None:
    table.document["schemas"][0] = schema(0, 1, 9)
    made = spec(2, 9) if meaning == "partition-specs" else {"order-id": 1, "fields": [{"source-id": 9}]}
    table.document[meaning] = [*table.document[meaning][:2], made]
    assert unused(table, 1).schema_ids == ()


def test_what_is_not_known_is_in_use(table: ListedManifests) -> None:
    raw = table.document["snapshots"][1]
    del raw["schema-id"]
    assert unused(table, 1) == UnusedMetadata((0,), ())
    assert unused_metadata(table.metadata, {1}, None, has_deletes=False) == UnusedMetadata()


def test_nested_columns_are_columns(table: ListedManifests) -> None:
    inner = {"type": "struct", "fields": [{"id": 9, "name": "x", "required": False, "type": "long"}]}
    nested = {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": inner, "value-required": False}
    current = schema(2, 1, 2)
    current["fields"].append({"id": 3, "name": "m", "required": False, "type": nested})
    table.document["schemas"][2] = current
    table.document["sort-orders"] = [{"order-id": 1, "fields": [{"source-id": 9}]}]
    assert unused(table, 1, 2).schema_ids == (0, 1)


def test_the_document_loses_them_unless_they_are_in_use_again(table: ListedManifests) -> None:
    found = unused(table, 1, 2)
    requirements = found.requirements(table.metadata)
    assert requirements == [
        {"type": "assert-default-spec-id", "default-spec-id": 2},
        {"type": "assert-current-schema-id", "current-schema-id": 2},
    ]
    check_requirements(table.metadata, requirements)
    after = apply_updates(table.metadata, found.updates, metadata_location=None, now_ms=0)
    assert (list(after.schemas), list(after.specs)) == ([2], [2])
    for key in ("default-spec-id", "current-schema-id"):
        moved = TableMetadata({**table.document, key: 1})
        with pytest.raises(CommitConflict):
            check_requirements(moved, requirements)
        with pytest.raises(CommitConflict):
            apply_updates(moved, found.updates, metadata_location=None, now_ms=0)
