"""Writers at work while passes are killed: short turns of ``make chaos``, with other moments in every run."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from support.chaos import chaos

SECONDS = 2.5


@pytest.mark.slow
@pytest.mark.parametrize(("store", "version"), [("sql", 3), ("seaweedfs", 2)])
def test_every_acknowledged_row_is_there_and_no_other(store: str, version: int, tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"python -m support.chaos --store {store} --version {version} --seed {seed}")  # shown where the test fails
    with chaos(tmp_path, store, version, seed) as run:
        figures = run.run(SECONDS)
    assert figures.commits.total() >= 5
    assert figures.passes.total() >= 2
    assert figures.troubles["restarts"] == (store == "seaweedfs")
