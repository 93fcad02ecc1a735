"""Eight committers and passes on one table: commits are linearizable on every catalog, and passes land."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from icekeeper.policy import Operation
from icekeeper.report.outcome import Status
from support.contention import STORES, arena_of, contend
from support.examples import NIGHTLY
from support.linearizable import Outcome

COMMITS = 504 if NIGHTLY else 28
TRIED = STORES if NIGHTLY else STORES[:3]  # moto, as S3 Tables, takes longer than the others together


@pytest.mark.slow
@pytest.mark.parametrize("store", TRIED)
def test_commits_are_linearizable_and_passes_land(store: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    seed = random.SystemRandom().randrange(10**6)
    with arena_of(store, tmp_path, seed, request.getfixturevalue) as arena:
        contest = contend(arena, COMMITS)
    print(f"{store}, seed {seed}: {contest}")  # shown where the test fails
    assert contest.count(Outcome.ACKNOWLEDGED) == COMMITS
    landed = {outcome.operation for outcome in contest.operations if outcome.status is Status.SUCCEEDED}
    assert landed == {Operation.COMPACT, Operation.REWRITE_MANIFESTS}
