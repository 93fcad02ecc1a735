"""Writers commit while passes are killed: a short ``make chaos``, with another seed in every run.

``make nightly`` also kills SeaweedFS and restarts it, behind a proxy that cuts and doubles requests.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.chaos import chaos

SECONDS = 2.5


@pytest.mark.slow
def test_the_table_holds_exactly_the_acknowledged_rows(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m support.chaos --store sql --version 3 --seed {seed}")  # shown if the test fails
    with chaos(tmp_path, "sql", 3, seed) as run:
        figures = run.run(SECONDS)
    assert figures.commits.total() >= 5
    assert figures.passes.total() >= 2
