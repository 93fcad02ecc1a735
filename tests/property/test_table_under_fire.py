"""A table whose writers and two maintainers interleave at any step, crash, and get bad answers (support.model)."""

from __future__ import annotations

import re
from collections import defaultdict
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icekeeper.commit import conflict_detection
from support.duckdb_session import DuckDB
from support.examples import NIGHTLY, examples
from support.model.actions import Step, Verb
from support.model.history import VERBS, History, HistoryRun, random_history, run_history
from support.model.run import Counts, temporary_folder

steps = st.builds(Step, verb=st.sampled_from(VERBS), seed=st.integers(0, 65535))
histories = st.builds(
    History,
    format_version=st.sampled_from([2, 3]),
    by_requirements=st.booleans(),
    leases=st.booleans(),
    steps=st.lists(steps, min_size=6, max_size=18).map(lambda drawn: (Step(Verb.APPEND, 1), *drawn)),
)

FOUND = {
    "planning never ended where a cap divided two small groups into two small groups again": History(
        format_version=2,
        by_requirements=False,
        leases=False,
        steps=(*(Step(Verb.APPEND, seed) for seed in range(6)), Step(Verb.MAINTAIN, 872)),
    )
}
"""Histories that once failed."""


# ``make nightly`` also runs thousands with ``python -m support.model``, which counts them.
@settings(
    derandomize=not NIGHTLY, database=None, max_examples=min(examples(12), 200), suppress_health_check=list(HealthCheck)
)
@given(history=histories)
def test_every_snapshot_and_ref_holds_the_rows_of_the_model(history: History, duckdb: DuckDB) -> None:
    """After each step, an independent reader and DuckDB check the rows; no reachable file is missing."""
    run_history(history, duckdb, Counts())


@pytest.mark.parametrize("history", FOUND.values(), ids=FOUND)
def test_histories_that_once_failed_hold_the_rows_of_the_model(history: History, duckdb: DuckDB) -> None:
    run_history(history, duckdb, Counts())


def test_a_seed_repeats_the_whole_interleaving() -> None:
    """Its trace has the steps of all processes, faults, answers in their order, and times; only random names differ."""

    def trace(seed: str) -> list[str]:
        with temporary_folder() as folder:
            run = HistoryRun(random_history(seed), folder, None, Counts())
            run.run()
            return [re.sub(r"[0-9a-f-]{6,}", "#", line.replace(str(folder), "")) for line in run.trace]

    traces = ((seed, trace(seed)) for seed in map(str, range(50)))
    # A pass that waits for a lease writes a line with a time.
    seed, first = next((seed, found) for seed, found in traces if any("is leased by" in line for line in found))
    assert trace(seed) == first


def test_the_model_finds_a_row_whose_delete_is_overlooked(duckdb: DuckDB) -> None:
    """A writer deletes a row while a pass pauses before its commit, and the test disables conflict detection."""
    begin = (Step(Verb.APPEND, 29714), Step(Verb.APPEND, 48550), Step(Verb.APPEND, 49200), Step(Verb.MAINTAIN, 16558))
    history = History(2, False, False, (*begin, Step(Verb.POSITIONS, 25312), Step(Verb.MAINTAIN, 5738)))
    run_history(history, duckdb, Counts())
    blind = mock.patch.object(
        conflict_detection, "_hits_of_new_deletes", side_effect=lambda *_: (defaultdict(list), {})
    )
    with blind, pytest.raises(AssertionError, match=r"twice=\[\], missing=\[\], extra=\[1\]"):
        run_history(history, duckdb, Counts())
