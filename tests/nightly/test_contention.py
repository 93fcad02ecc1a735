"""Eight committers make 500 commits beside passes, on every catalog: linearizable, and passes land."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from icekeeper.report.outcome import Status
from support.contention import STORES, arena_of, contend
from support.linearizable import Outcome

COMMITS = 504


@pytest.mark.parametrize("store", STORES)
def test_five_hundred_commits_are_linearizable(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with arena_of(store, tmp_path, seed, request.getfixturevalue) as arena:
        contest = contend(arena, COMMITS)
    print(f"{store}, seed {seed}: {contest}")
    assert contest.count(Outcome.ACKNOWLEDGED) == COMMITS
    assert any(one.status is Status.SUCCEEDED for one in contest.operations)
