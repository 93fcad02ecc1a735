"""A commit whose answer was lost, while others built on it and expired it before anybody could look."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import CommitConflict, CommitStateUnknown
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.passes import outcome_of
from support.sabotage import SabotagedTable, sabotaged_table

SCHEMA = pa.schema([pa.field("id", pa.int64())])


@pytest.fixture
def table(tmp_path: Path) -> Iterator[SabotagedTable]:
    with sabotaged_table(tmp_path) as made:
        made.create(SCHEMA)
        for number in range(4):
            made.table().append(pa.table({"id": [number]}, schema=SCHEMA))
        yield made


@pytest.mark.parametrize("answer", [CommitStateUnknown, CommitConflict])
@pytest.mark.parametrize("operation", [Operation.COMPACT, Operation.REWRITE_MANIFESTS])
def test_what_landed_unseen_and_was_built_upon_is_not_taken_for_lost(
    table: SabotagedTable, operation: Operation, answer: type[Exception]
) -> None:
    """A writer appends to our snapshot, and an engine that knows no pins expires it, before we look."""

    def lost_answer(base: LoadedTable, requirements: Any, updates: Any) -> LoadedTable:
        landed = table.catalog.inner.commit(base, requirements, updates)
        table.catalog.commit_instead = None
        ours = landed.metadata.current_snapshot
        assert ours is not None
        table.table().append(pa.table({"id": [99]}, schema=SCHEMA))
        table.table().maintenance.expire_snapshots().by_id(ours.snapshot_id).commit()
        raise answer("no answer came")

    table.catalog.commit_instead = lost_answer
    outcome = outcome_of(table.maintain(operations=operation.value), operation)
    table.assert_sound()
    assert [dict(row)["id"] for row in table.rows()] == ["0", "1", "2", "3", "99"]
    assert outcome.status is Status.FAILED
    assert "cannot be told, because snapshots that came after its base have expired" in outcome.summary
