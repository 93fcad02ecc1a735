"""Files that were copied before footers spoke with one voice are found, and get a new footer (rule 201)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.model import DataFile
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status
from icekeeper.row_group_copy import new_row_groups
from icekeeper.row_group_copy.footer import Footer, read_footer
from icekeeper.row_group_copy.footer_structs import RowGroup
from icekeeper.row_group_copy.mixed_footers import may_be_mixed
from icekeeper.row_group_copy.thrift_bytes import write_struct
from icekeeper.verification.findings import Problem, ProblemKind
from support.copied import STORAGE
from support.maintained_table import NAME, MaintainedTable, new_table

LEAST = {"min_row_group_copy_bytes": "1000"}
MIXED = "its footer mixes habits of several writers: ordinals of some row groups"


def without_some_ordinals(value: Any) -> bytes:
    if isinstance(value, RowGroup) and value.ordinal is not None and value.ordinal % 2:
        value.ordinal = None
    return write_struct(value)


def ordinals(file: DataFile) -> list[int | None]:
    footer = read_footer(file.file_path, STORAGE)
    assert isinstance(footer, Footer), footer
    return [group.ordinal for group in footer.metadata().row_groups]


def compact(table: MaintainedTable, **settings: str) -> OperationOutcome:
    return table.run(Operation.COMPACT, **(LEAST | settings))


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """A table with one file of four row groups, of which two have no ordinal."""
    table = new_table(local_catalog, tmp_path)
    for number in range(4):
        table.append(*range(500 * number, 500 * number + 500))
    with monkeypatch.context() as patch:
        patch.setattr(new_row_groups, "write_struct", without_some_ordinals)
        outcome = compact(table)
    assert outcome.metrics["compact.bytes_copied"], outcome
    (file,) = table.data_files()
    assert may_be_mixed(file)
    assert ordinals(file) == [0, None, 2, None]
    return table


def test_a_mixed_footer_is_found_and_written_anew_with_the_bytes_copied(table: MaintainedTable) -> None:
    (mixed,) = table.data_files()
    before = table.rows()
    problem = Problem(ProblemKind.MIXED_FOOTER, mixed.file_path, MIXED)
    assert table.verify().problems == (problem,)
    assert table.runtime.health(NAME).warnings["mixed_footers"] == (
        "1 of 1 files that Icekeeper made by copying, and that were looked at, have a footer that readers in Rust "
        "refuse or misread; one pass with rewrite_reason=footer writes new ones and copies the rows"
    )
    assert compact(table).status is Status.SKIPPED

    outcome = compact(table, rewrite_reason="footer")

    assert (outcome.status, outcome.summary) == (Status.SUCCEEDED, "compacted 1 files into 1 (across 1 bins)")
    (mended,) = table.data_files()
    assert ordinals(mended) == [0, 1, 2, 3]
    assert outcome.metrics["compact.bytes_copied"] > 0.8 * mixed.file_size_in_bytes
    assert table.rows() == before
    assert table.verify().problems == ()
    assert "mixed_footers" not in table.runtime.health(NAME).warnings
    assert compact(table, rewrite_reason="footer").status is Status.SKIPPED


def test_a_dry_run_names_what_a_rewrite_would_mend(table: MaintainedTable) -> None:
    outcome = table.run(Operation.COMPACT, dry_run=True, **LEAST)
    assert outcome.plan is not None
    (found,) = outcome.plan["settings"]
    assert (found["reason"], found["lacking"], found["how"]) == ("footer", 1, "rewrite_reason=footer")


def test_a_file_that_is_not_to_be_copied_is_decoded(table: MaintainedTable) -> None:
    before = table.rows()
    outcome = compact(table, rewrite_reason="footer", min_row_group_copy_bytes="none")
    assert (outcome.status, outcome.metrics["compact.bytes_copied"]) == (Status.SUCCEEDED, 0)
    assert table.rows() == before
    assert table.verify().problems == ()
