"""Metadata that readers interpret differently (rule: refuse-ambiguous-tables)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest

from icekeeper.engines.local_engine import LocalEngine
from icekeeper.errors import MetadataUnreadable
from icekeeper.operations.orphans import remove_orphans as compare_listing
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from icekeeper.storage.paths import normalise
from support.maintained_table import MaintainedTable, maintained_table

Document = dict[str, Any]


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    """A table of three files; only the head has all rows."""
    with maintained_table(tmp_path) as made:
        made.create()
        made.fill(3)
        assert made.ids() == [0, 1, 10, 11, 20, 21]
        yield made


def _duplicate_snapshot_id(document: Document) -> None:
    document["snapshots"].append(
        {**document["snapshots"][0], "snapshot-id": document["current-snapshot-id"], "timestamp-ms": 1}
    )


def _duplicate_schema_id(document: Document) -> None:
    other = copy.deepcopy(document["schemas"][0])
    other["fields"][0]["id"] = 77
    document["schemas"].append(other)


def _duplicate_spec_id(document: Document) -> None:
    field = {"name": "part", "transform": "identity", "source-id": 2, "field-id": 1000}
    document["partition-specs"].append({"spec-id": 0, "fields": [field]})


def _negative_column(document: Document) -> None:
    document["schemas"][0]["fields"][1]["id"] = -1


@pytest.mark.parametrize(
    ("forge", "message"),
    [
        (_duplicate_snapshot_id, "two different snapshots have the id"),
        (_duplicate_schema_id, "two different schemas have the id 0"),
        (_duplicate_spec_id, "two different partition specs have the id 0"),
        (_negative_column, "schemas[0].fields[1].id is -1"),
    ],
)
def test_a_table_with_ambiguous_ids_is_not_changed(
    table: MaintainedTable, forge: Callable[[Document], None], message: str
) -> None:
    """Of two objects with one id, PyIceberg uses the first, other readers the last, and Java neither."""
    before = table.files()
    table.rewrite_document(forge)
    rows, home = table.table.scan().to_arrow(), Path(normalise(table.table.location()))
    with pytest.raises(MetadataUnreadable, match=re.escape(message)):
        table.maintain()
    assert {str(path) for path in home.rglob("*") if path.is_file()} == before
    assert table.table.scan().to_arrow().equals(rows)


def test_equal_duplicates_in_metadata_are_harmless(table: MaintainedTable) -> None:
    def twice(document: Document) -> None:
        for key in ("snapshots", "schemas", "partition-specs"):
            document[key].append(copy.deepcopy(document[key][0]))

    table.rewrite_document(twice)
    assert {part.status for part in table.maintain().operations} <= {Status.SUCCEEDED, Status.SKIPPED}
    assert table.ids() == [0, 1, 10, 11, 20, 21]


def _main_behind(document: Document) -> None:
    """Move main back, and make the head the oldest snapshot by its time."""
    document["refs"]["main"]["snapshot-id"] = document["snapshots"][0]["snapshot-id"]
    document["snapshots"][-1]["timestamp-ms"] = 1


def _no_current_snapshot(document: Document) -> None:
    del document["current-snapshot-id"]


@pytest.mark.parametrize("forge", [_main_behind, _no_current_snapshot])
def test_a_table_whose_main_is_not_the_current_snapshot_is_refused(
    table: MaintainedTable, forge: Callable[[Document], None]
) -> None:
    """PyIceberg reads one of them, DuckDB the other, and Java neither."""
    table.rewrite_document(forge)
    before, rows = table.files(), table.table.scan().to_arrow()
    outcomes = table.maintain(statistics_columns="id").operations
    assert {part.status for part in outcomes} == {Status.REFUSED}
    assert all("ref 'main' points at" in str(part.reason) for part in outcomes)
    assert table.files() == before
    assert table.table.scan().to_arrow().equals(rows)


def test_compaction_refuses_a_table_without_a_next_sequence_number(table: MaintainedTable) -> None:
    table.rewrite_document(lambda document: document.update({"last-sequence-number": 2**63 - 1}))
    outcomes = {part.operation.value: part for part in table.maintain().operations}
    assert outcomes["compact"].status is Status.REFUSED
    assert "last-sequence-number is 9223372036854775807, which is the largest possible" in str(
        outcomes["compact"].reason
    )
    assert table.ids() == [0, 1, 10, 11, 20, 21]


def _edit(path: str, change: Callable[[Document], object]) -> int:
    """Change the first record of an Avro file in place; return its new length."""
    local = Path(normalise(path))
    with local.open("rb") as file:
        reader = fastavro.reader(file)
        records: list[Any] = list(reader)
        header = {key: value for key, value in reader.metadata.items() if not key.startswith("avro.")}
    change(records[0])
    with local.open("wb") as file:
        fastavro.writer(file, reader.writer_schema or {}, records, metadata=header)
        return file.tell()


def _forge_list(table: MaintainedTable, change: Callable[[Document], object]) -> None:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    _edit(str(snapshot.manifest_list), change)


def _forge_entry(table: MaintainedTable, change: Callable[[Document], object]) -> None:
    snapshot = table.table.current_snapshot()
    assert snapshot is not None
    length = _edit(table.reader.manifests(table.metadata.snapshots[snapshot.snapshot_id])[0].manifest_path, change)
    _forge_list(table, lambda listed: listed.update(manifest_length=length))


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"content": 1}, "has content POSITION_DELETES"),
        ({"content": 2, "equality_ids": [1]}, "has content EQUALITY_DELETES"),
        ({"file_size_in_bytes": -(2**63)}, "-9223372036854775808 bytes"),
    ],
)
def test_an_entry_that_does_not_fit_its_manifest_is_not_read(
    table: MaintainedTable, what: Document, message: str
) -> None:
    """Some readers trust the entry, others the manifest."""
    _forge_entry(table, lambda entry: entry["data_file"].update(what))
    before = table.metadata_location
    outcome = table.run(Operation.COMPACT)
    assert outcome.status is Status.FAILED
    assert message in str(outcome.reason)
    assert "has an entry that does not fit" in str(outcome.reason)
    assert [problem.kind for problem in table.verify().problems if message in problem.detail] != []
    assert table.metadata_location == before


def test_a_manifest_with_an_unknown_spec_fails_by_name(table: MaintainedTable) -> None:
    _forge_list(table, lambda listed: listed.update(partition_spec_id=7))
    for operation in (Operation.COMPACT, Operation.REWRITE_MANIFESTS):
        assert "uses partition spec 7, which the table does not have" in str(table.run(operation).reason)


class CountedParts(LocalEngine):
    """Counts the parts of an exchange."""

    parts = 0

    def exchange(self, split: Any, tasks: Any, merge: Any, parts: Any, on_done: Any) -> Any:
        self.parts = len(parts)
        return super().exchange(split, tasks, merge, parts[:40], on_done)


def test_a_forged_count_of_files_is_capped(table: MaintainedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part of the comparison is a task: 10¹² files would be four million tasks."""
    monkeypatch.setattr(compare_listing, "_MOST_PARTS", 40)
    _forge_list(table, lambda listed: listed.update(added_files_count=2**63 - 1))
    orphan, engine = table.plant("data/orphan.parquet"), CountedParts(1)
    swept = table.run(Operation.REMOVE_ORPHANS, engine=engine)
    assert swept.status is Status.SUCCEEDED, swept.reason
    assert engine.parts == 40
    assert not Path(orphan).exists()
    assert table.ids() == [0, 1, 10, 11, 20, 21]
