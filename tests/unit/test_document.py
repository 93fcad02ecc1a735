"""Updates to a metadata document, field by field, and the locations of new files."""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from icekeeper.errors import CommitConflict, MetadataUnreadable, PolicyError, TableUnsupported
from icekeeper.metadata.document import TableMetadata, require_writable
from icekeeper.metadata.document_files import parse_document, render_document
from icekeeper.metadata.updates import apply_updates, check_requirements
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import maintained_table
from support.tables import CREATED_MS, new_document, snapshot

# Updates to a metadata document: what the specification requires, field by field.

NOW = CREATED_MS + 5000
VERSIONS = [1, 2, 3]


def applied(document: dict[str, Any], *updates: dict[str, Any], now_ms: int = NOW, location: str | None = None) -> Any:
    before = copy.deepcopy(document)
    result = apply_updates(TableMetadata(document), updates, metadata_location=location, now_ms=now_ms)
    assert document == before, "the base document must stay as it was"
    return result.document


def add(raw: dict[str, Any], branch: str = "main") -> list[dict[str, Any]]:
    return [{"action": "add-snapshot", "snapshot": raw}, set_ref(branch, raw["snapshot-id"])]


def set_ref(name: str, snapshot_id: int, kind: str = "branch", **more: Any) -> dict[str, Any]:
    return {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": snapshot_id} | more


def with_history(format_version: int = 2, count: int = 4) -> dict[str, Any]:
    """A line of snapshots 1..count, a second apart, with main at the last."""
    document = new_document("s3://b/t", format_version)
    for i in range(1, count + 1):
        raw = snapshot(
            i,
            format_version=format_version,
            sequence_number=i,
            timestamp_ms=CREATED_MS + 1000 * i,
            parent_id=i - 1 or None,
            first_row_id=10 * (i - 1),
            added_rows=10,
        )
        document = applied(document, *add(raw), now_ms=CREATED_MS + 1000 * i)
    return document


@pytest.mark.parametrize("version", VERSIONS)
def test_adding_a_snapshot_moves_main_and_both_counters(version: int) -> None:
    document = with_history(version, 2)
    assert document["current-snapshot-id"] == 2
    assert [s["snapshot-id"] for s in document["snapshots"]] == [1, 2]
    assert document["snapshot-log"] == [
        {"timestamp-ms": CREATED_MS + 1000, "snapshot-id": 1},
        {"timestamp-ms": CREATED_MS + 2000, "snapshot-id": 2},
    ]
    assert document["last-updated-ms"] == CREATED_MS + 2000
    if version == 1:
        assert "refs" not in document
        assert "last-sequence-number" not in document
        assert TableMetadata(document).refs["main"].snapshot_id == 2
    else:
        assert document["refs"] == {"main": {"type": "branch", "snapshot-id": 2}}
        assert document["last-sequence-number"] == 2
    assert document.get("next-row-id") == (20 if version == 3 else None)


@pytest.mark.parametrize("version", [2, 3])
def test_old_sequence_numbers_known_snapshots_and_refs_to_missing_snapshots_conflict(version: int) -> None:
    document = with_history(version, 2)

    def added(snapshot_id: int, number: int, row_id: int = 20) -> list[dict[str, Any]]:
        more = {"sequence_number": number, "parent_id": 2, "first_row_id": row_id}
        return add(snapshot(snapshot_id, format_version=version, **more))

    conflicts: list[tuple[list[dict[str, Any]], str]] = [
        (added(9, 2), "sequence number 2"),
        (added(2, 3), "snapshot 2 is already"),
        ([set_ref("main", 99)], "'main' cannot point at snapshot 99"),
        ([set_ref("t", 99, "tag")], "'t' cannot point at snapshot 99"),
    ]
    for updates, sentence in [*conflicts, (added(9, 3, 19), "row id 19")][: 4 + (version == 3)]:
        with pytest.raises(CommitConflict, match=sentence):
            applied(document, *updates)


def test_tags_and_branch_settings_are_kept_as_given() -> None:
    document = applied(
        with_history(2, 2),
        set_ref("monthly", 1, "tag", **{"max-ref-age-ms": 5}),
        set_ref("audit", 2, "branch", **{"min-snapshots-to-keep": 3, "max-snapshot-age-ms": 7, "max-ref-age-ms": None}),
    )
    assert document["refs"] == {
        "main": {"type": "branch", "snapshot-id": 2},
        "monthly": {"type": "tag", "snapshot-id": 1, "max-ref-age-ms": 5},
        "audit": {"type": "branch", "snapshot-id": 2, "min-snapshots-to-keep": 3, "max-snapshot-age-ms": 7},
    }
    assert len(document["snapshot-log"]) == 2, "only main is logged"


def test_a_rollback_is_logged_when_it_happens() -> None:
    """Java rejects a snapshot log that is not in order of time."""
    document = applied(with_history(2, 3), set_ref("main", 1), now_ms=CREATED_MS + 9000)
    assert document["current-snapshot-id"] == 1
    assert document["snapshot-log"][-1] == {"timestamp-ms": CREATED_MS + 9000, "snapshot-id": 1}
    times = [entry["timestamp-ms"] for entry in document["snapshot-log"]]
    assert times == sorted(times)
    assert applied(document, set_ref("main", 1))["snapshot-log"] == document["snapshot-log"], "it is there already"


def test_expiry_cuts_the_snapshot_log_up_to_the_last_expired_entry() -> None:
    """The specification requires this."""
    document = applied(with_history(2, 4), {"action": "remove-snapshots", "snapshot-ids": [1, 3]})
    assert [s["snapshot-id"] for s in document["snapshots"]] == [2, 4]
    assert document["snapshot-log"] == [{"timestamp-ms": CREATED_MS + 4000, "snapshot-id": 4}]
    assert document["refs"] == {"main": {"type": "branch", "snapshot-id": 4}}
    document = with_history(2, 2)
    audit = add(snapshot(7, format_version=2, sequence_number=3, parent_id=1), "audit")
    after = applied(applied(document, *audit), {"action": "remove-snapshots", "snapshot-ids": [7]})
    assert after["snapshot-log"] == document["snapshot-log"], "snapshot 7 is not in the log"


def test_expiry_removes_statistics_and_refs_of_the_snapshot() -> None:
    document = with_history(2, 3)
    document = applied(
        document,
        set_ref("old", 1, "tag"),
        set_ref("kept", 2, "tag"),
        *(
            {"action": f"set-{kind}", "snapshot-id": i, kind: {"snapshot-id": i, "statistics-path": f"{kind}-{i}"}}
            for kind in ("statistics", "partition-statistics")
            for i in (1, 2)
        ),
    )
    document = applied(document, {"action": "remove-snapshots", "snapshot-ids": [1]})
    assert document["statistics"] == [{"snapshot-id": 2, "statistics-path": "statistics-2"}]
    assert document["partition-statistics"] == [{"snapshot-id": 2, "statistics-path": "partition-statistics-2"}]
    assert sorted(document["refs"]) == ["kept", "main"]


@pytest.mark.parametrize(("version", "none"), [(1, -1), (2, -1), (3, None)])
def test_expiring_the_head_of_main_leaves_an_empty_table(version: int, none: int | None) -> None:
    document = applied(with_history(version, 2), {"action": "remove-snapshots", "snapshot-ids": [1, 2]})
    assert document["current-snapshot-id"] == none
    assert document["snapshot-log"] == []
    assert document.get("refs", {}) == {}
    assert TableMetadata(document).current_snapshot is None


def test_statistics_of_a_snapshot_are_replaced_and_removed() -> None:
    document = with_history(2, 2)
    for path in ("a", "b"):
        update = {"action": "set-statistics", "statistics": {"snapshot-id": 2, "statistics-path": path}}
        document = applied(document, update)
    assert document["statistics"] == [{"snapshot-id": 2, "statistics-path": "b"}]
    document = applied(
        document,
        {"action": "remove-statistics", "snapshot-id": 2},
        {"action": "remove-partition-statistics", "snapshot-id": 2},
    )
    assert document["statistics"] == document["partition-statistics"] == []


def test_properties_are_set_and_removed() -> None:
    document = new_document("s3://b/t", 2, properties={"a": "1", "b": "2"})
    document = applied(
        document,
        {"action": "set-properties", "updates": {"b": "3", "c": "4"}},
        {"action": "remove-properties", "removals": ["a", "missing"]},
    )
    assert document["properties"] == {"b": "3", "c": "4"}


def test_the_metadata_log_gets_the_base_and_drops_its_oldest_entries() -> None:
    """It keeps a hundred files by default and at least one file; a new limit applies at once."""
    limit = "write.metadata.previous-versions-max"

    def logged(count: int, *updates: dict[str, Any], **properties: str) -> list[dict[str, Any]]:
        log = [{"timestamp-ms": CREATED_MS - 10 + i, "metadata-file": f"m{i}"} for i in range(count)]
        document = new_document("s3://b/t", 2, properties=properties, **{"metadata-log": log})
        found: list[dict[str, Any]] = applied(document, *updates, location="new")["metadata-log"]
        return found

    assert logged(3, **{limit: "2"}) == [
        {"timestamp-ms": CREATED_MS - 8, "metadata-file": "m2"},
        {"timestamp-ms": CREATED_MS, "metadata-file": "new"},
    ]
    assert [e["metadata-file"] for e in logged(100)] == [*(f"m{i}" for i in range(1, 100)), "new"]
    for shortened in (logged(100, **{limit: "0"}), logged(5, {"action": "set-properties", "updates": {limit: "1"}})):
        assert [e["metadata-file"] for e in shortened] == ["new"]
    with pytest.raises(PolicyError, match=r"write\.metadata\.previous-versions-max is 'many'"):
        logged(1, **{limit: "many"})


def test_time_never_runs_backwards() -> None:
    """A slow clock does not move the last update back; a snapshot from a fast clock moves it forward."""
    document = new_document("s3://b/t", 2)
    assert applied(document, now_ms=CREATED_MS - 60_000)["last-updated-ms"] == CREATED_MS
    ahead = snapshot(1, format_version=2, timestamp_ms=NOW + 60_000)
    document = applied(document, *add(ahead))
    assert document["last-updated-ms"] == NOW + 60_000
    document = applied(document, location="m1")
    assert document["last-updated-ms"] == NOW + 60_000
    assert document["metadata-log"][-1]["timestamp-ms"] <= document["last-updated-ms"]


def test_unknown_fields_survive_and_an_unknown_update_is_an_error() -> None:
    unknown = {"zz-future": {"kept": [1]}, "encryption-keys": [{"key-id": "k"}]}
    document = new_document("s3://b/t", 2, **unknown)
    document = applied(document, *add(snapshot(1, format_version=2, **{"zz-snapshot": True})))
    assert {key: document[key] for key in unknown} == unknown
    assert document["snapshots"][0]["zz-snapshot"] is True
    with pytest.raises(ValueError, match="unknown update assign-uuid"):
        applied(document, {"action": "assign-uuid", "uuid": "x"})


def test_requirements_hold_or_conflict() -> None:
    metadata = TableMetadata(with_history(2, 2))
    at_head = {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 2}
    uuid = {"type": "assert-table-uuid", "uuid": metadata.uuid}
    check_requirements(metadata, [uuid, at_head, {**at_head, "ref": "none", "snapshot-id": None}])
    check_requirements(TableMetadata(with_history(1, 2)), [at_head])  # a document of v1 without refs
    for broken in (
        {"type": "assert-table-uuid", "uuid": "other"},
        {**at_head, "snapshot-id": 1},
        {**at_head, "snapshot-id": None},
        {**at_head, "ref": "none", "snapshot-id": 1},
    ):
        with pytest.raises(CommitConflict):
            check_requirements(metadata, [broken])


@pytest.mark.parametrize("compress", [False, True])
def test_a_rendered_document_parses_to_itself(compress: bool) -> None:
    document = with_history(3)
    data = render_document(TableMetadata(document), compress=compress)
    assert (data[:2] == b"\x1f\x8b") is compress
    assert parse_document(data, "m").document == document


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", gzip.compress(json.dumps({}).encode(), mtime=0)[:-4]])
def test_damaged_documents_are_unreadable_and_named(data: bytes) -> None:
    with pytest.raises(MetadataUnreadable, match="s3://b/m"):
        parse_document(data, "s3://b/m")


# No file is written to a location that depends on the machine that writes it.

AT_S3 = "s3://bucket/t"


def table_with(location: str, properties: dict[str, str]) -> TableMetadata:
    return TableMetadata({"format-version": 2, "location": location, "properties": properties})


@pytest.mark.parametrize(
    ("location", "key", "value"),
    [
        (AT_S3, "write.data.path", "bucket/t/data"),
        (AT_S3, "write.data.path", "/data"),
        (AT_S3, "write.metadata.path", "file:///metadata"),
        (AT_S3, "write.object-storage.path", "./data"),
        ("file:///t", "write.folder-storage.path", "data"),
        ("/t", "write.metadata.path", "metadata"),
    ],
)
def test_a_property_with_a_location_relative_to_the_machine_is_refused(location: str, key: str, value: str) -> None:
    with pytest.raises(TableUnsupported, match=f"table property {key} is '{value}', .*; set it to an absolute address"):
        require_writable(table_with(location, {key: value}))


@pytest.mark.parametrize(
    ("location", "properties"),
    [
        (AT_S3, {}),
        (AT_S3, {"write.data.path": "s3a://other/data/", "write.metadata.path": "gs://other/metadata"}),
        (AT_S3, {"write.data.path": "s3://other", "write.object-storage.path": "not/asked"}),
        (AT_S3, {"write.data.path": ""}),
        ("file:///t", {"write.data.path": "/data", "write.metadata.path": "file:/metadata"}),
        ("/t", {"write.data.path": "s3://other/data"}),
    ],
)
def test_absolute_locations_are_accepted(location: str, properties: dict[str, str]) -> None:
    require_writable(table_with(location, properties))


def test_no_rows_are_written_to_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers elsewhere would look for them in their own working directory."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    with maintained_table(tmp_path) as table:
        table.create()
        table.fill(2)
        table.rewrite_document(lambda document: document["properties"].update({"write.data.path": "t/data"}))
        outcome = table.run(Operation.COMPACT)
        assert outcome.status is Status.REFUSED
        assert list(here.iterdir()) == []
        assert table.readers_agree() == [0, 1, 10, 11]


def test_a_null_field_reads_as_an_absent_field() -> None:
    """Iceberg-Java does so for ids of schemas and partition fields, sources of fields, and types of refs."""
    field = {"name": "p", "transform": "identity", "field-id": None, "source-id": None, "source-ids": [1]}
    left_out = {"name": "p", "transform": "identity", "source-ids": [1]}
    found = [
        parse_document(
            json.dumps(
                {
                    **new_document("s3://b/t", 2),
                    "schemas": [{"fields": [], **id_of_schema}],
                    "partition-specs": [{"spec-id": 0, "fields": [partition_field]}],
                    "refs": {"b": {"snapshot-id": 1, **kind}},
                }
            ).encode(),
            "m.json",
        )
        for id_of_schema, partition_field, kind in (({}, left_out, {}), ({"schema-id": None}, field, {"type": None}))
    ]
    for metadata in found:
        assert (metadata.current_schema_id, list(metadata.schemas)) == (0, [0])
        (made,) = metadata.specs[0]["fields"]
        assert (made["field-id"], made["source-id"], made["transform"]) == (1000, 1, "identity")
        assert metadata.refs["b"].type == "branch"


def test_the_only_spec_of_a_v1_document_is_the_default() -> None:
    document = {**new_document("s3://b/t", 1), "default-spec-id": 14}
    del document["partition-specs"]
    metadata = parse_document(json.dumps(document).encode(), "m.json")
    assert (metadata.default_spec_id, metadata.specs) == (0, {0: {"spec-id": 0, "fields": []}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"snapshots": [{"snapshot-id": 1, "timestamp-ms": "x"}]},
            r"snapshots\[0\].timestamp-ms is 'x'; input should be",
        ),
        ({"snapshots": [{"snapshot-id": 1, "timestamp-ms": 10**18}]}, r"snapshots\[0\].timestamp-ms is 10{18}; "),
        ({"snapshots": {}}, r"snapshots is \{\}; input should be a valid list"),
        ({"schemas": []}, "schemas is missing"),
        (
            {"schemas": [{"fields": [{"id": 1, "name": "a", "required": False}]}]},
            r"schemas\[0\].fields\[0\].type is missing",
        ),
        (
            {"schemas": [{"fields": [{"id": 1, "name": "a", "required": False, "type": {"type": "list"}}]}]},
            r"schemas\[0\].fields\[0\].type.element-id is missing",
        ),
        ({"current-schema-id": 7}, "current-schema-id is 7, but the document has no such schema"),
        ({"default-spec-id": 7}, "default-spec-id is 7, but the document has no such partition spec"),
        (
            {"partition-specs": [{"spec-id": 0, "fields": [{"name": "p", "transform": "identity"}]}]},
            "partition field p has no source-id",
        ),
        (
            {"sort-orders": [{"order-id": 3, "fields": [{"transform": "void", "direction": "asc", "null-order": ""}]}]},
            "a field of sort order 3 has no source-id",
        ),
        ({"refs": {"main": {"type": "branch"}}}, "refs.main.snapshot-id is missing"),
        ({"properties": {"a": 1}}, "properties.a is 1; input should be a valid string"),
        ({"format-version": True}, "format-version is True; input should be a valid integer"),
    ],
    ids=str,
)
def test_an_invalid_document_is_refused_and_the_error_names_the_field(change: dict[str, Any], message: str) -> None:
    sound = new_document("s3://b/t", 2)
    assert parse_document(json.dumps(sound).encode(), "m.json").document == sound
    with pytest.raises(
        MetadataUnreadable, match=f"^metadata file m.json is not valid Iceberg table metadata: {message}"
    ):
        parse_document(json.dumps({**sound, **change}).encode(), "m.json")


def test_a_document_with_problems_that_verify_reports_is_parsed() -> None:
    """Java rejects such a table; verify lists all its problems."""
    odd = {"snapshot-id": 1, "timestamp-ms": 2, "sequence-number": 9, "summary": {"operation": "append", "n": 1}}
    changed = {**new_document("s3://b/t", 2), "snapshots": [odd], "refs": {"x": {"snapshot-id": 5}}, "unknown": [1]}
    summary: Mapping[str, Any] = parse_document(json.dumps(changed).encode(), "m.json").snapshots[1].summary
    assert summary["n"] == 1
