"""Dry runs beside the passes that follow them: both must tell the same figures."""

from __future__ import annotations

import re
from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, PassOutcome, in_turn
from support.maintained_table import MaintainedTable


def figures(outcome: OperationOutcome) -> list[str]:
    """The numbers of the sentence that a dry run tells, too: of statistics how many columns, no count of entries."""
    found = re.findall(r"\d+", re.sub(r"\(\d+ entries\)", "", outcome.summary))
    return found[:1] if outcome.operation is Operation.COMPUTE_STATISTICS else found


def dry_run(made: MaintainedTable, operations: str = "all", **settings: Any) -> PassOutcome:
    """A dry run in turn, which changes neither the table nor its files."""
    before = made.files(), made.metadata_location
    outcome = made.maintain(operations, dry_run=True, **settings)
    assert (made.files(), made.metadata_location) == before
    return in_turn(outcome)


def assert_agree(would: PassOutcome, did: PassOutcome) -> None:
    """The same operations ended alike with the same figures; the files that a dry run names are the pass's, too.

    A sentence of the pass may go on with figures that only the work tells.
    """
    assert [one.operation for one in would.operations] == [one.operation for one in did.operations]
    for planned, done in zip(would.operations, did.operations, strict=True):
        told = f"{planned.operation.value}: {planned.summary} / {done.summary}"
        assert planned.status == done.status, told
        assert figures(planned) == figures(done)[: len(figures(planned))], told
        assert set(planned.files_planned) <= set(done.files_planned), told
