"""Data files that are damaged: their group is rewritten without them, and the damage is told."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.clustered_tables import column
from support.copied import flipped, pages
from support.maintained_table import MaintainedTable, new_table

TWO_OF_SIX = (1, 4)


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MaintainedTable:
    """Its writer takes checksums of pages, as parquet-mr does."""
    monkeypatch.setattr(pq, "ParquetWriter", partial(pq.ParquetWriter, write_page_checksum=True))
    made = new_table(local_catalog, tmp_path)
    made.fill(6)
    monkeypatch.undo()
    return made


def break_header(path: str) -> None:
    """Break the first page's header; the footer stays as it is."""
    file = Path(path.removeprefix("file://"))
    data = bytearray(file.read_bytes())
    data[4:12] = b"\xff" * 8
    file.write_bytes(bytes(data))


def flip_a_bit(path: str) -> None:
    """The last one of the first page: its values still decode, for all that the codec knows."""
    file = Path(path.removeprefix("file://"))
    header, _, end = next(pages(file))
    assert header.crc is not None
    flipped(file, file, end * 8 - 1)


@pytest.mark.parametrize("damage", [break_header, flip_a_bit])
@pytest.mark.parametrize("copied", ["1", "none"], ids=["copied", "decoded"])
def test_a_damaged_file_does_not_stop_the_others(
    table: MaintainedTable, copied: str, damage: Callable[[str], None]
) -> None:
    """Four of six files are merged; both damaged ones stay in the table, and the pass fails with the path of one."""
    files = sorted(table.data_files(), key=lambda file: column(file)[0])
    damaged = [files[number].file_path for number in TWO_OF_SIX]
    for path in damaged:
        damage(path)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes=copied)
    assert outcome.status is Status.FAILED
    assert (outcome.reason or "").startswith("left 2 file(s) out: file file://")
    assert outcome.summary == f"compacted 4 files into 1 (across 1 bins); {outcome.reason}"
    assert outcome.metrics["compact.bins_failed"] == 0
    left = {file.file_path: file for file in table.data_files()}
    assert set(damaged) < set(left)
    (merged,) = (file for path, file in left.items() if path not in damaged)
    assert sorted(column(merged)) == [0, 1, 20, 21, 30, 31, 50, 51]
    assert len([path for path in table.files() if path.endswith(".parquet")]) == 7  # nothing of the failed attempts


def test_wrong_checksums_are_admitted_where_the_policy_says_so(table: MaintainedTable) -> None:
    for file in table.data_files():
        flip_a_bit(file.file_path)
    outcome = table.run(Operation.COMPACT, min_row_group_copy_bytes="1", verify_page_checksums="false")
    assert outcome.summary == "compacted 6 files into 1 (across 1 bins)"
    assert outcome.metrics["compact.bytes_unread"] == 0
