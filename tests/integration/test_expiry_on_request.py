"""What an expiry does on request: named snapshots, and specs and schemas that nothing uses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import PolicyError, StorageError
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.expiries import EXPIRE, expired, six_appends
from support.maintained_table import MaintainedTable, outcome_of
from support.readers import canonical, duckdb_rows
from support.scripted_catalog import once


@pytest.fixture
def table(tmp_path: Path) -> Iterator[MaintainedTable]:
    with six_appends(tmp_path) as made:
        yield made


def test_named_snapshots_go_and_the_retention_has_no_say(table: MaintainedTable) -> None:
    ids = [s.snapshot_id for s in table.table.snapshots()]
    outcome = expired(table, snapshot_expire_ids=f"{ids[3]},{ids[1]}", snapshot_retention_hours="168")
    assert outcome.summary == "expired 2 snapshot(s), deleted 2 unreferenced file(s)"
    assert set(table.loaded.metadata.snapshots) == set(ids) - {ids[1], ids[3]}
    table.assert_sound()
    before = table.loaded.metadata_location
    for named, what in ((ids[1], "no snapshot of this table"), (ids[5], "the head of branch 'main'")):
        with pytest.raises(PolicyError, match=what):
            table.maintain(operations="compact,expire_snapshots", snapshot_expire_ids=str(named))
    assert table.loaded.metadata_location == before, "nothing ran"


def test_a_named_snapshot_that_somebody_else_expired_meanwhile_is_fine(table: MaintainedTable) -> None:
    ids = [s.snapshot_id for s in table.table.snapshots()]

    def theirs() -> None:
        table.catalog.inner.commit(table.loaded, [], [{"action": "remove-snapshots", "snapshot-ids": [ids[0]]}])

    table.catalog.before_commit = once(theirs)
    outcome = expired(table, snapshot_expire_ids=f"{ids[0]},{ids[1]}")
    assert outcome.summary == "expired 1 snapshot(s), deleted 1 unreferenced file(s)"
    assert set(table.loaded.metadata.snapshots) == set(ids[2:])


def _evolved(table: MaintainedTable) -> None:
    with table.table.update_schema() as update:
        update.add_column("note", StringType())
    with table.table.update_spec() as spec:
        spec.add_field("id", IdentityTransform(), "part")
    table.table.overwrite(pa.table({"id": [1, 2, 3], "note": ["a", "b", "c"]}))


def test_unused_specs_and_schemas_go_on_request(table: MaintainedTable) -> None:
    _evolved(table)
    before = table.rows()
    metadata = table.loaded.metadata
    assert (set(metadata.schemas), set(metadata.specs)) == ({0, 1}, {0, 1})
    preview = outcome_of(
        table.maintain(dry_run=True, **EXPIRE, clean_expired_metadata="true"), Operation.EXPIRE_SNAPSHOTS
    )
    assert preview.summary.endswith("; would remove 1 partition spec(s) and 1 schema(s) that nothing uses")
    outcome = expired(table, clean_expired_metadata="true")
    assert outcome.summary.endswith("; removed 1 partition spec(s) and 1 schema(s) that nothing uses")
    assert outcome.metrics["expire_snapshots.specs_removed"] == 1
    assert outcome.metrics["expire_snapshots.schemas_removed"] == 1
    metadata = table.loaded.metadata
    assert (set(metadata.schemas), set(metadata.specs)) == ({1}, {1})
    assert canonical(duckdb_rows(table.loaded.metadata_location)) == table.rows() == before
    table.assert_sound()


def test_without_being_asked_they_stay(table: MaintainedTable) -> None:
    _evolved(table)
    expired(table)
    metadata = table.loaded.metadata
    assert (set(metadata.schemas), set(metadata.specs)) == ({0, 1}, {0, 1})


def test_a_catalog_that_does_not_take_them_out_still_expires(table: MaintainedTable) -> None:
    _evolved(table)

    def old_fashioned(base: LoadedTable, requirements: Sequence[Any], updates: Sequence[Any]) -> LoadedTable:
        if any(update["action"] == "remove-schemas" for update in updates):
            raise StorageError("catalog answered HTTP 400 about ns.t: unknown update action: remove-schemas")
        return table.catalog.inner.commit(base, requirements, updates)

    table.catalog.commit_instead = old_fashioned
    outcome = expired(table, clean_expired_metadata="true")
    assert outcome.status is Status.SUCCEEDED
    assert outcome.summary.endswith("; the catalog refused to remove unused partition specs and schemas")
    assert outcome.metrics["expire_snapshots.schemas_removed"] == 0
    assert len(table.loaded.metadata.snapshots) == 1
    assert table.unreferenced() == set()
    table.assert_sound()
