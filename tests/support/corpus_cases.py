"""What the corpus says of its tables: which readers agree, what Iceberg-Java made of them, which passes they allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from icekeeper.policy import Operation
from icekeeper.report.outcome import PassOutcome, PassStatus, Status
from support.corpus import (
    corpus_params,
    corpus_root,
    expected,
)
from support.maintained_table import MaintainedTable, outcome_of
from support.readers import duckdb_rows, pyiceberg_rows

Digest = tuple[int, str] | None
Rows = Callable[[str, int | None], list[dict[str, Any]]]
IN_PROCESS: dict[str, Rows] = {"pyiceberg": pyiceberg_rows, "duckdb": duckdb_rows}

# Digests of so many rows take a second and more per reader: DuckDB's own checksum speaks for them.
MANY_ROWS = 20_000


def answer(name: str) -> Digest:
    return expected(name)["rows"], expected(name)["sha"]


def agreeing(name: str) -> list[str]:
    """The in-process readers that read the untouched table as the corpus says."""
    return [engine for engine in IN_PROCESS if any(said.startswith(engine) for said in expected(name)["agree"])]


def corpus_where(holds: Callable[[str], bool]) -> list[Any]:
    """Table names for ``parametrize``; without a corpus one parameter that skips."""
    return [name for name in corpus_params() if corpus_root() is None or holds(name)]


def has_deletes(name: str) -> bool:
    return not {"eqdel", "posdel", "dv"}.isdisjoint(expected(name)["live"])


def is_v3(name: str) -> bool:
    return bool(expected(name)["format_version"] == 3)


def read_by_java(name: str) -> bool:
    return any(said.startswith("java") for said in expected(name)["agree"])


# Its writers went on from v4 twice, to v7 and, later, to v4.1, which the corpus calls the newest.
TWO_HEADS = "dk_name_mapping_t1"


def assert_done(name: str, outcome: PassOutcome) -> None:
    """Of a table with two heads nothing is deleted, because the other one may be somebody's."""
    if name != TWO_HEADS:
        assert outcome.status is PassStatus.SUCCEEDED, outcome.summary
        return
    refused = [part for part in outcome.operations if part.status is Status.REFUSED]
    assert refused
    for part in refused:
        assert part.operation in (Operation.EXPIRE_SNAPSHOTS, Operation.REMOVE_ORPHANS)
        assert "has a newer head of the table" in str(part.reason)
        assert part.files_deleted == ()
    no_crash(outcome)


def no_crash(outcome: PassOutcome) -> None:
    """Whatever an operation could not do, it says so on purpose."""
    assert not [part for part in outcome.operations if part.status is Status.FAILED]
    assert all(part.reason for part in outcome.operations if part.status is not Status.SUCCEEDED)


def idle_afterwards(table: MaintainedTable, first: PassOutcome) -> None:
    """A second pass finds only what the first one's last step left: the snapshot that its new manifests replaced, and
    old metadata files that were younger than it (rule 97)."""
    second = table.maintain()
    superseded = outcome_of(first, Operation.REWRITE_MANIFESTS).status is Status.SUCCEEDED
    for part in second.operations:
        if part.operation is Operation.EXPIRE_SNAPSHOTS and superseded and part.status is Status.SUCCEEDED:
            assert part.metrics["expire_snapshots.snapshots_expired"] == 1
        elif part.operation is Operation.REMOVE_ORPHANS and part.status is Status.SUCCEEDED:
            assert all(superseded and path.endswith(".metadata.json") for path in part.files_deleted)
        else:
            assert part.status in (Status.SKIPPED, Status.REFUSED), part
    assert table.maintain().is_idle
