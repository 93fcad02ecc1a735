"""Sweeps of a table for orphans."""

from __future__ import annotations

import json
from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from support.maintained_table import MaintainedTable

ORPHANS = Operation.REMOVE_ORPHANS
SETTINGS = {"orphan_older_than_hours": "72"}


def sweep(table: MaintainedTable, **more: Any) -> OperationOutcome:
    return table.run(ORPHANS, **{**SETTINGS, **more})


def metadata_of(table: MaintainedTable, **changes: Any) -> bytes:
    return json.dumps({**table.metadata.document, **changes}).encode()


def assert_refused(table: MaintainedTable, *words: str, **more: Any) -> None:
    """Refused, naming these words, and every file is still there."""
    table.plant("data/bait.parquet")
    before = table.files()
    outcome = sweep(table, **more)
    assert outcome.status is Status.REFUSED, outcome
    assert outcome.files_deleted == ()
    for word in words:
        assert word in (outcome.reason or ""), outcome.reason
    assert table.files() >= before
