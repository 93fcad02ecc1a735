"""Writers commit while passes are killed: a short ``make chaos``, with another seed in every run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.chaos import chaos

SECONDS = 2.5


@pytest.mark.slow
@pytest.mark.parametrize(("store", "version"), [("sql", 3), ("seaweedfs", 2)])
def test_the_table_holds_exactly_the_acknowledged_rows(store: str, version: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m support.chaos --store {store} --version {version} --seed {seed}")  # shown if the test fails
    with chaos(tmp_path, store, version, seed) as run:
        figures = run.run(SECONDS)
    assert figures.commits.total() >= 5
    assert figures.passes.total() >= 2
    assert figures.troubles["restarts"] == (store == "seaweedfs")
