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

# Rows of the suite on a table bucket: SeaweedFS's worker and Icekeeper on the same store; DuckDB checks both results.


def test_the_worker_of_seaweedfs_is_measured_and_its_result_is_checked(tmp_path: Path) -> None:
    (row,) = rows_named(["seaweedfs_worker"])
    rest = RestCatalogServer(tmp_path / "rest")
    try:
        ways = Ways(tmp_path, PeersEnvironment(Path(sys.executable), {}), rest, 1, frozenset(), None, lambda line: None)
        found = run_store_row(dataclasses.replace(row, dataset=WARM_UP), 1.0, ways)
    finally:
        rest.close()

    document = as_json(found)
    for entrant in document["entrants"].values():
        assert entrant.get("proof") == "DuckDB: 8,000 rows, checksum as before; 1 data file(s)"
        assert entrant["median"]["cpu_s"] > 0
        assert 0.1 < entrant["median"]["output_ratio"] < 2
    assert [target["measured"] for target in document["targets"]] == [pytest.approx(v) for v in _expected(document)]
    assert any("output ratio" in line for line in contest_table(document))
    assert not (tmp_path / "scratch").exists(), "the next row would find what this one left"


def _expected(document: dict[str, dict[str, dict[str, dict[str, float]]]]) -> list[float]:
    ours, theirs = (document["entrants"][name]["median"] for name in ("icekeeper", "seaweedfs"))
    return [round(ours["wall_s"] / theirs["wall_s"], 3), ours["output_ratio"]]


# Under default settings append-only tables are rewritten at most three times, and their small files stay few.

ROOT = Path(__file__).resolve().parents[2]


def test_forty_simulated_days_keep_every_claim() -> None:
    """A whole year takes ten minutes (rule: bounded-merge-rewrites)."""
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
