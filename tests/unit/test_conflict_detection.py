"""What another commit may do to the ground under a rewritten group (rule 60), decided from manifests alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from icekeeper.errors import MetadataUnreadable, PlanStale
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import (
    EntryStatus,
    FileIdentity,
)
from support.plans import data_file
from support.rebased_claims import (
    FIELDS,
    H_SEQUENCE,
    HEAD,
    KNOWN,
    SCHEMA,
    SNAPSHOT_H,
    SNAPSHOT_S,
    SPECS,
    H,
    Lake,
    claim,
    decide,
    document,
    lake_with,
    position_delete,
)


def test_appends_change_nothing_and_only_new_manifests_are_opened() -> None:
    lake = lake_with("a", "b")
    lake.add("m-new", [data_file("c", 10)], sequence=H_SEQUENCE, status=EntryStatus.ADDED)
    result = decide(lake, claim("a", "b"))
    assert (result.kept, dict(result.dropped), result.affected) == (frozenset({0}), {}, frozenset({"m-planned"}))
    assert "m-planned" not in lake.reads


def test_inputs_that_moved_into_another_manifest_are_found_there() -> None:
    lake = lake_with("a", "b", manifest="m-merged")
    result = decide(lake, claim("a", "b"))
    assert result.affected == frozenset({"m-merged"})
    assert result.kept == {0}


SAME = [KNOWN, KNOWN._replace(file_sequence_number=None), KNOWN._replace(file_sequence_number=3)]
OTHERS = [
    KNOWN._replace(sequence_number=4),
    KNOWN._replace(size=11),
    KNOWN._replace(snapshot_id=77, file_sequence_number=3),
]


@pytest.mark.parametrize(("identity", "is_same"), [*((i, True) for i in SAME), *((i, False) for i in OTHERS)])
def test_a_path_that_was_added_again_is_another_file(identity: FileIdentity, is_same: bool) -> None:
    """It has another data sequence number or size, or another snapshot added it with another file sequence number.
    The latter alone may have been lost or overwritten by whoever rewrote the manifest."""
    lake = lake_with("a", "b", manifest="m-merged")
    result = decide(lake, claim("a", identity=identity), claim("b", group_id=1))
    again = {0: "an input file was added again by another commit"}
    assert dict(result.dropped) == ({} if is_same else again)


def test_an_input_that_is_listed_a_second_time_drops_its_group() -> None:
    """The manifest of its twin may be rewritten for another input, and the twin would go along."""
    lake = lake_with("a")
    lake.add("m-merged", [data_file("a", 10), data_file("b", 10)])
    result = decide(lake, claim("a"), claim("b", group_id=1, manifest="m-gone"))
    assert dict(result.dropped) == {0: "an input file was added again by another commit"}
    assert result.kept == {1}


def test_an_input_that_is_gone_or_only_marked_deleted_drops_its_group() -> None:
    lake = lake_with("a", "b", manifest="m-merged")
    lake.add("m-gone", [data_file("c", 10)], status=EntryStatus.DELETED)
    result = decide(lake, claim("a", "b"), claim("c", group_id=1), claim("d", group_id=2))
    assert result.kept == {0}
    assert set(result.dropped) == {1, 2}


def test_another_table_and_another_line_of_history_are_stale() -> None:
    lake = lake_with("a")
    with pytest.raises(PlanStale, match="replaced"):
        decide(lake, claim("a"), head=document(SNAPSHOT_S, SNAPSHOT_H, head=H, **{"table-uuid": "v"}))
    orphaned = {**SNAPSHOT_H, "parent-snapshot-id": 77}
    with pytest.raises(PlanStale, match="rolled back"):
        decide(lake, claim("a"), head=document(SNAPSHOT_S, orphaned, head=H))
    with pytest.raises(PlanStale):
        decide(lake, claim("a"), head=document(head=-1, refs={}))


def test_a_new_manifest_that_cannot_be_read_decides_nothing() -> None:
    lake = lake_with("a")
    lake.add("m-deletes", [position_delete()], sequence=H_SEQUENCE)
    del lake.stored["m-deletes"]
    with pytest.raises(MetadataUnreadable, match="m-deletes"):
        decide(lake, claim("a"))


def test_outputs_without_row_ids_do_not_replace_rows_that_have_them() -> None:
    """The manifest got a first row id by a commit that landed meanwhile (rule 17, rule 18)."""
    document_v3 = TableMetadata({**HEAD.document, "format-version": 3})
    lake = lake_with("a")
    claims = [replace(claim("a"), without_row_ids=True), claim("a", group_id=1)]
    assert decide(lake, *claims).kept == {0, 1}
    lake.listed = [replace(m, first_row_id=0) for m in lake.listed]
    result = decide(replace(lake, format_version=3), *claims, head=document_v3)
    assert dict(result.dropped) == {0: "the rows of an input file were given ids by another commit"}


def with_fields(*fields: dict[str, Any], last_column_id: int = 5) -> TableMetadata:
    schema = {"type": "struct", "schema-id": 1, "fields": list(fields)}
    more = {"schemas": [SCHEMA, schema], "current-schema-id": 1, "last-column-id": last_column_id}
    return document(SNAPSHOT_S, SNAPSHOT_H, head=H, **more)


def test_schema_changes_that_outputs_survive() -> None:
    """Renamed, dropped, widened, moved columns, and new ones, which no file holds yet."""
    renamed = [{**FIELDS[0], "name": "other"}, FIELDS[2], {**FIELDS[3], "name": "m"}]
    new = {"id": 6, "name": "new", "required": False, "type": "string"}
    assert decide(lake_with("a"), claim("a"), head=with_fields(*renamed, new, last_column_id=6)).kept == {0}


@pytest.mark.parametrize(
    "revived",
    [
        {"id": 0, "name": "old", "required": False, "type": "string"},
        {"id": 4, "name": "l", "required": False, "type": {"type": "struct", "fields": [
            {"id": 0, "name": "old", "required": False, "type": "int"}]}},
        {"id": 9, "name": "m", "required": False, "type": {"type": "map", "key-id": 0, "key": "int", "value-id": 5,
                                                            "value": "int", "value-required": False}},
    ],
)  # fmt: skip
def test_a_column_that_came_back_is_still_in_the_inputs_and_not_in_the_outputs(revived: dict[str, Any]) -> None:
    """The schema was set back to an older one: inputs hold values that the rewrite left out."""
    result = decide(lake_with("a"), claim("a"), head=with_fields(*FIELDS[:3], revived))
    assert result.dropped == {0: "the schema has column 0 again, which the output lacks"}


def test_a_spec_that_was_removed_drops_its_groups() -> None:
    lake = Lake()
    lake.add("m-planned", [data_file("a", 10, (1.5,))], spec_id=1)
    head = document(SNAPSHOT_S, SNAPSHOT_H, head=H, **{"partition-specs": SPECS[:1]})
    assert decide(lake, claim("a", spec_id=1, partition=(1.5,)), head=head).dropped == {
        0: "partition spec 1 was removed"
    }
