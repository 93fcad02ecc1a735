"""Merged files shrink: a pass plans by the size that comes out, as the table has shown it (rule 236)."""

from __future__ import annotations

import hashlib
import random
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.operations.compaction.candidates import SIZES_KEY
from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.maintained_table import ID_AND_PART, MaintainedTable, new_table

TARGET = 100_000
SETTINGS = {"target_file_size_mb": str(TARGET / 2**20), "min_input_files": "5"}
# Every file has all of these texts, so that of a merged file they take no more than of one.
TEXTS = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(300)]


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> MaintainedTable:
    return new_table(local_catalog, tmp_path)


def write(table: MaintainedTable, files: int, *, first: int = 0) -> None:
    """Files of a fifth of the target, of which half are the texts."""
    chance = random.Random(first)
    for _ in range(files):
        ids = [chance.getrandbits(62) for _ in range(1000)]
        table.table.append(pa.table({"id": ids, "part": [TEXTS[i % 300] for i in range(1000)]}, ID_AND_PART))


def sizes(table: MaintainedTable) -> list[int]:
    return sorted(file.file_size_in_bytes for file in table.data_files())


def head_summary(table: MaintainedTable) -> dict[str, str]:
    head = table.metadata.current_snapshot
    assert head is not None
    return dict(head.summary)


def test_a_second_pass_finds_nothing_and_later_ones_fill_files_at_once(table: MaintainedTable) -> None:
    """Of 30 files 9 became, and 4 in a second pass."""
    write(table, 25)
    before = table.rows()
    assert {0.2 * TARGET < size < 0.25 * TARGET for size in sizes(table)} == {True}

    first = table.run(Operation.COMPACT, **SETTINGS)

    assert first.summary == "compacted 25 files into 5 (across 5 bins)"  # nothing was known
    assert {0.5 * TARGET < size < 0.6 * TARGET for size in sizes(table)} == {True}
    assert re.fullmatch(r"0\.4[0-9]{2} planned 1\.000 of 2[0-9]{4}", head_summary(table)[SIZES_KEY])
    assert table.run(Operation.COMPACT, **SETTINGS).status is Status.SKIPPED
    assert table.rows() == before

    write(table, 18, first=25)
    second = table.run(Operation.COMPACT, **SETTINGS)
    assert second.summary == "compacted 18 files into 2 (across 2 bins)"
    assert {0.8 * TARGET < size < TARGET for size in sizes(table)[-2:]} == {True}
    assert re.fullmatch(r"0\.4[0-9]{2} planned 0\.4[0-9]{2} of 2[0-9]{4}", head_summary(table)[SIZES_KEY])
    assert table.run(Operation.COMPACT, **SETTINGS).status is Status.SKIPPED
    table.assert_sound()


def test_copied_files_keep_their_size(table: MaintainedTable) -> None:
    """Five fill a file although decoded ones have shrunk to half."""
    write(table, 5)
    table.run(Operation.COMPACT, **SETTINGS)
    known = head_summary(table)[SIZES_KEY]
    write(table, 10, first=5)
    outcome = table.run(Operation.COMPACT, **SETTINGS, min_row_group_copy_bytes="10000")
    assert outcome.summary == "compacted 10 files into 2 (across 2 bins)"
    assert outcome.metrics["compact.bytes_copied"] > 0
    assert {size > TARGET for size in sizes(table)[-2:]} == {True}
    ratio, _, file_bytes = known.split(" ", 1)[0], "", known.rpartition(" ")[2]
    assert head_summary(table)[SIZES_KEY] == f"{ratio} planned {ratio} of {file_bytes}"  # it stays known
    assert table.run(Operation.COMPACT, **SETTINGS, min_row_group_copy_bytes="10000").status is Status.SKIPPED
