"""The benchmark suite counts only results that DuckDB confirms, and its rows name existing contestants and tables."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.chart import chart, ratios
from benchmarks.contestants import CONTESTANTS
from benchmarks.proof import Expected, NotProven, expected_upserts, prove
from benchmarks.record import last_results
from benchmarks.suite import ROWS
from benchmarks.tables.datasets import DATASETS
from benchmarks.tables.deleted_rows import make_cdc
from icekeeper.policy.keys import POLICY_KEYS


def test_a_result_with_wrong_rows_or_too_many_files_does_not_count(tmp_path: Path) -> None:
    """The expected rows of upserts come from the files: DuckDB's join of the files equals its Iceberg reader."""
    make_cdc(tmp_path, 2, 400, 3, 50)
    files = [str(path) for path in (tmp_path / "data").iterdir()]
    expected = Expected(expected_upserts(files), 100, most_files=1)

    with pytest.raises(NotProven, match="5 data files are left, 1 are wanted"):  # the rows are right
        prove("table", {"metadata_location": str(tmp_path / "metadata" / "v1.metadata.json")}, expected)
    with pytest.raises(NotProven, match="DuckDB reads other rows: 400 instead of 800"):
        prove("files", {"files": [str(tmp_path / "data" / "00000.parquet")]}, expected)
    with pytest.raises(NotProven, match="DuckDB cannot read it"):
        prove("files", {"files": [str(tmp_path / "nothing.parquet")]}, expected)
    with pytest.raises(NotProven, match="1 bytes instead of 100"):
        prove("bytes", {"bytes": 1}, expected)


def test_rows_name_existing_contestants_tables_and_keys() -> None:
    for row in ROWS:
        assert set(row.entrants) <= set(CONTESTANTS)
        assert {row.dataset, row.warm_up[0]} <= set(DATASETS)
        assert set(row.settings) <= set(POLICY_KEYS)
        contestants = {target.ours for target in row.targets} | {target.against for target in row.targets} - {None}
        assert contestants <= set(row.entrants)
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_the_pictures_show_what_was_recorded() -> None:
    """README's text for those who do not see the picture has its factors."""
    root = Path(__file__).parents[2]
    full = last_results("full")
    picture = (root / "docs" / "ratios.svg").read_text()
    assert picture == ratios(full)
    assert (root / "docs" / "performance.svg").read_text() == chart(last_results("quick") | full)
    text = re.search(r'alt="[^"]*two cores: ([^"]*)"', (root / "README.md").read_text())
    assert text is not None
    assert re.findall(r"\d+(?:\.\d)?", text[1]) == re.findall(r'class="factor">([\d.]+) ×', picture)
