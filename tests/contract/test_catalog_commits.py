"""A commit to every catalog lands once and whole, or is a conflict: of two on one base exactly one lands."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest

from icekeeper.errors import (
    CommitConflict,
    CommitRefused,
    PolicyError,
    StorageError,
)
from support.catalog_lakes import CATALOGS, POINTERS, VERSIONS, Lake, append, main_at, metadata_files, set_property


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_commit_lands_and_everybody_reads_it(lake: Lake, version: int) -> None:
    table, catalog = lake.table(version), lake.open()
    base = catalog.load(table)
    requirements = [{"type": "assert-table-uuid", "uuid": base.metadata.uuid}, main_at(None)]
    after = catalog.commit(base, requirements, [set_property("owner", "me"), *append(base, 7)])
    assert after.metadata.properties["owner"] == "me"
    again = catalog.load(table)
    assert again.metadata.document == after.metadata.document
    assert (again.metadata_location, again.token) == (after.metadata_location, after.token)
    assert again.token != base.token
    head = again.metadata.current_snapshot
    assert head is not None
    assert head.snapshot_id == 7
    assert again.metadata.last_sequence_number == (0 if version == 1 else 1)
    if version == 3:
        assert again.metadata.document["next-row-id"] == 3
    if lake.client is not None:
        seen = lake.client.load_table(("ns", table.name))
        assert seen.metadata_location == after.metadata_location
        assert seen.properties["owner"] == "me"
        assert seen.metadata.current_snapshot_id == 7
    tagged = catalog.commit(
        again, [], [{"action": "set-snapshot-ref", "ref-name": "v1", "type": "tag", "snapshot-id": 7}]
    )
    assert tagged.metadata.refs["v1"].snapshot_id == 7


@pytest.mark.parametrize("lake", POINTERS, indirect=True)
def test_unknown_fields_of_the_document_survive(lake: Lake) -> None:
    table, catalog = lake.table(2, **{"zz-future": {"kept": [1, 2]}}), lake.open()
    base = catalog.load(table)
    catalog.commit(base, [], [set_property("a", "b"), *append(base, 7)])
    assert catalog.load(table).metadata.document["zz-future"] == {"kept": [1, 2]}


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_of_two_commits_on_one_base_exactly_one_lands(lake: Lake) -> None:
    table, first, second = lake.table(), lake.open(), lake.open()
    base = first.load(table)
    assert second.load(table).token == base.token
    landed = first.commit(base, [main_at(None)], append(base, 1))
    # A table bucket neither lists nor deletes; there the bucket itself removes what nothing references.
    files = metadata_files(landed) if lake.name != "s3tables_lake" else set()
    with pytest.raises(CommitConflict):
        second.commit(base, [main_at(None)], append(base, 2))
    now = second.load(table)
    assert now.metadata.document == landed.metadata.document
    if files:
        assert metadata_files(now) == files, "the loser's document must be gone"


@pytest.mark.parametrize("lake", POINTERS, indirect=True)
def test_a_moved_pointer_is_a_conflict_even_without_requirements(lake: Lake) -> None:
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    catalog.commit(base, [], [set_property("a", "1")])
    with pytest.raises(CommitConflict, match="another writer committed first"):
        catalog.commit(base, [], [set_property("b", "2")])
    assert "b" not in catalog.load(table).metadata.properties


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_racing_writers_all_land(lake: Lake, version: int) -> None:
    """Three writers, four snapshots each, every lost race tried again: twelve snapshots, numbered without a gap."""
    table = lake.table(version)
    errors: list[BaseException] = []

    def write(number: int) -> None:
        try:
            catalog = lake.open()
            for i in range(4):
                while True:
                    base = catalog.load(table)
                    head = base.metadata.current_snapshot
                    try:
                        catalog.commit(
                            base, [main_at(head.snapshot_id if head else None)], append(base, 100 * number + i + 1)
                        )
                        break
                    except CommitConflict:
                        continue
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []
    metadata = lake.open().load(table).metadata
    assert sorted(metadata.snapshots) == sorted(100 * n + i + 1 for n in range(3) for i in range(4))
    assert sorted(s.sequence_number for s in metadata.snapshots.values()) == list(range(1, 13))
    head = metadata.current_snapshot
    assert head is not None
    assert len(list(metadata.ancestors(head.snapshot_id))) == 12
    if version == 3:
        assert sorted(s.raw["first-row-id"] for s in metadata.snapshots.values()) == list(range(0, 36, 3))


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_another_uuid_is_a_conflict(lake: Lake) -> None:
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    with pytest.raises(CommitConflict):
        catalog.commit(base, [{"type": "assert-table-uuid", "uuid": str(uuid.uuid4())}], [set_property("a", "b")])
    assert catalog.load(table).token == base.token


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
def test_a_table_replaced_under_its_name_is_a_conflict_without_asking(lake: Lake) -> None:
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    assert lake.client is not None
    lake.client.drop_table(("ns", table.name))
    lake.create(table.name, 2, {})
    with pytest.raises(CommitConflict, match="UUID"):
        catalog.commit(base, [], [set_property("a", "b")])


@pytest.mark.parametrize("lake", ["rest"], indirect=True)
@pytest.mark.parametrize("version", [2, 3])
def test_an_overtaken_sequence_number_or_row_id_is_a_conflict(lake: Lake, version: int) -> None:
    """Without a requirement that would tell, SeaweedFS answers 400, not 409."""
    table, catalog = lake.table(version), lake.open()
    base = catalog.load(table)
    base = catalog.commit(base, [], append(base, 1))
    catalog.commit(base, [], append(base, 2))
    stale = append(base, 3)
    with pytest.raises(CommitConflict):
        catalog.commit(base, [], stale)
    if version == 3:
        stale[0]["snapshot"]["sequence-number"] += 1
        with pytest.raises(CommitConflict, match="next-row-id"):
            catalog.commit(base, [], stale)


@pytest.mark.parametrize("lake", CATALOGS, indirect=True)
def test_committing_to_a_dropped_table_fails(lake: Lake) -> None:
    table, catalog = lake.table(), lake.open()
    base = catalog.load(table)
    if lake.client is not None:
        lake.client.drop_table(("ns", table.name))
    else:
        client: Any = catalog
        client._clients.repeating.delete_table(
            tableBucketARN=lake.properties["warehouse"], namespace="ns", name=table.name
        )
    # refused in its words; or without a pointer at its base; or its storage is gone with it; or unknown by now
    error = {
        "rest_lake": CommitRefused,
        "sql_lake": CommitConflict,
        "s3tables_lake": StorageError,
        "glue_lake": PolicyError,
    }[lake.name]
    with pytest.raises(error):
        catalog.commit(base, [], [set_property("a", "b")])
