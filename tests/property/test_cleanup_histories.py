"""Expiry and orphan removal of tables with random histories: branches, tags, rewrites, rollbacks, crashes.

Iceberg-Java writes the tables, reads every snapshot before and after, and says which files are needed.  Twenty cases in
every run, always the same ones; two thousand new ones with ``make nightly``.
"""

from __future__ import annotations

import shutil

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings

from support.cleanup_histories import CleanupHistory, CleanupRun, cleanup_histories
from support.examples import NIGHTLY, examples
from support.java_writer import JavaTables


@settings(
    derandomize=not NIGHTLY,
    database=None,
    max_examples=examples(20),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a history is one number: there is nothing to shrink
)
@given(history=cleanup_histories())
def test_what_is_retained_reads_as_before_and_nothing_else_is_left(
    history: CleanupHistory, java_tables: JavaTables, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Every retained snapshot and ref; nothing reachable is gone, nothing unreachable stays."""
    folder = tmp_path_factory.mktemp("cleanup")
    run = CleanupRun(history, java_tables, folder)
    note("\n".join(["", *run.trace]))
    refs, snapshots = run.refs, run.snapshots
    problems = run.table.problems()  # Java lists a file twice when its snapshot is published again after its expiry
    told = len(run.trace)
    run.clean(history.cleaning)
    run.sweep()
    note("\n".join(["cleaned", *run.trace[told:]]))
    assert run.changed_snapshots() == {}
    assert run.reachable <= run.on_disk
    assert run.left_over() == set()
    assert run.snapshots <= snapshots
    assert run.snapshots >= set(run.refs.values()) | run.pinned
    assert {name: i for name, i in run.refs.items() if refs[name] != i} == {}
    assert refs.keys() - run.refs.keys() <= run.aging
    assert not run.table.problems() - problems
    shutil.rmtree(folder)
