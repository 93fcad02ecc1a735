"""Where a step runs: in a function up to the deployment's limits, else as a Glue job, if it has one."""

from __future__ import annotations

import pytest

from icekeeper.operation_facts import STEP_FACTS, Limit
from icekeeper.pipeline.plan_table import route, table_size

LIMITS = {Limit.COMPACTION_BYTES: 100, Limit.MANIFEST_ENTRIES: 10, Limit.ORPHAN_REFERENCES: 20}
HAVE_JOBS = {"compact", "rewrite_position_deletes", "remove_orphans", "rewrite_manifests", "compute_statistics"}


def in_glue(bytes_to_compact: int = 0, *outgrown: str, **counters: int) -> set[str]:
    """The steps that run as jobs; ``files=2`` is ``total-data-files`` of the head's summary."""
    keys = {"files": "total-data-files", "deletes": "total-delete-files", "size": "total-files-size"}
    summary = {keys[name]: str(count) for name, count in counters.items()}
    size = table_size(summary, bytes_to_compact)
    routes = {step.name: route(step, size, LIMITS, outgrown) for step in STEP_FACTS}
    assert set(routes.values()) <= {"function", "glue"}
    return {name for name, found in routes.items() if found == "glue"}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ({"files": 8, "deletes": 2, "size": 100}, set()),
        ({"files": 9, "deletes": 2, "size": 100}, {"rewrite_manifests"}),
        ({"files": 19, "deletes": 2, "size": 100}, {"rewrite_manifests", "remove_orphans"}),
        ({"files": 8, "deletes": 2, "size": 101}, {"compute_statistics"}),
        ({"files": 8, "deletes": 2, "size": 1600}, {"compute_statistics"}),
        ({"files": 8, "deletes": 2, "size": 1601}, {"compute_statistics", "rewrite_position_deletes"}),
        ({"files": 8, "deletes": 0, "size": 1601}, {"compute_statistics"}),
    ],
)
def test_each_goes_by_what_makes_its_work(size: dict[str, int], expected: set[str]) -> None:
    assert in_glue(**size) == expected


def test_compaction_goes_by_what_its_plan_rewrites() -> None:
    assert in_glue(100, files=1, deletes=0, size=10**9) == {"compute_statistics"}
    assert in_glue(101, files=1, deletes=0, size=1) == {"compact"}


def test_what_is_unknown_counts_as_much() -> None:
    assert in_glue() == HAVE_JOBS - {"compact"}
    assert in_glue(deletes=0) == HAVE_JOBS - {"compact", "rewrite_position_deletes"}


def test_what_a_function_did_not_come_to_an_end_of_is_a_jobs_if_it_has_one() -> None:
    every = ("expire_partitions", "expire_snapshots", "clean_staged", *HAVE_JOBS)
    assert in_glue(0, *every, files=1, deletes=0, size=1) == HAVE_JOBS
