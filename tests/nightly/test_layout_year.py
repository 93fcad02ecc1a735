"""Under default settings append-only tables are rewritten at most three times, and their small files stay few."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_simulated_tables_keep_their_claims() -> None:
    """Forty days of each (rule 50, rule 125); the year takes ten minutes."""
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
