"""Benchmarks that must hold: a table bucket, and a year of layout under default settings."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers.environment import PeersEnvironment
from benchmarks.peers.rest_catalog import RestCatalogServer
from benchmarks.report import as_json, contest_table
from benchmarks.run_rows import Ways
from benchmarks.run_store_rows import run_store_row
from benchmarks.suite import rows_named
from benchmarks.tables.datasets import WARM_UP

# The suite's rows on a table bucket: SeaweedFS's own worker and ours on the same store, each proven by DuckDB.


def test_the_stores_own_worker_is_a_contestant_and_is_proven(tmp_path: Path) -> None:
    (row,) = rows_named(["seaweedfs_worker"])
    rest = RestCatalogServer(tmp_path / "rest")
    try:
        ways = Ways(tmp_path, PeersEnvironment(Path(sys.executable), {}), rest, 1, frozenset(), lambda line: None)
        found = run_store_row(dataclasses.replace(row, dataset=WARM_UP), 1.0, ways)
    finally:
        rest.close()

    told = as_json(found)
    for entrant in told["entrants"].values():
        assert entrant.get("proof") == "DuckDB: 8,000 rows, checksum as before; 1 data file(s)"
        assert entrant["median"]["cpu_s"] > 0
        assert 0.1 < entrant["median"]["output_ratio"] < 2
    assert [target["measured"] for target in told["targets"]] == [pytest.approx(v) for v in _expected(told)]
    assert any("output ratio" in line for line in contest_table(told))
    assert not (tmp_path / "scratch").exists(), "the next row would find what this one left"


def _expected(told: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[float]:
    ours, theirs = (told["entrants"][name]["median"] for name in ("icekeeper", "seaweedfs"))
    return [round(ours["wall_s"] / theirs["wall_s"], 3), ours["output_ratio"]]


# Under default settings append-only tables are rewritten at most three times, and their small files stay few.

ROOT = Path(__file__).resolve().parents[2]


def test_the_simulated_tables_keep_their_claims() -> None:
    """Forty days of each (rule: bounded-merge-rewrites); the year takes ten minutes."""
    done = subprocess.run(
        [sys.executable, "benchmarks/layout_year.py", "--days", "40"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "every claim holds"
