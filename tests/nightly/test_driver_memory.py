"""The driver's memory for a table of millions of small files with ten columns: planned on workers, then committed.

Ten million files are reckoned from the growth between one and two million.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from icekeeper.pipeline.wave import driver_need

ROOT = Path(__file__).resolve().parents[2]
SIZES = (500_000, 1_000_000, 2_000_000)
MOST_MB = 2048
LINE = re.compile(r"committing .* CPU +(\d+) MB   (\d+) files in \d+ groups and (\d+) commits")


def test_ten_million_files_are_planned_and_committed_within_two_gigabytes(tmp_path: Path) -> None:
    options = ["--files", ",".join(map(str, SIZES)), "--small", "1", "--parts", "committing", "--rounds", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planning", *options, "--folder", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
    )
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [tuple(map(int, groups)) for groups in LINE.findall(done.stdout)]
    assert [files > 0.99 * size for (_, files, _), size in zip(found, SIZES, strict=True)] == [True] * len(SIZES)
    (_, _, few), (before_mb, _, _), (after_mb, _, many) = found
    assert few < many, "more files make more commits, not larger ones"
    assert after_mb + 8 * max(0, after_mb - before_mb) <= MOST_MB
    for (peak_mb, _, _), size in zip(found, SIZES, strict=True):
        manifests = (tmp_path / f"{size}-1.0-10" / "metadata").glob("m-*.avro")
        assert peak_mb <= 200 + driver_need(sum(path.stat().st_size for path in manifests)) // 2**20
