"""What people read of an outcome: no names of our classes, no sentence line after line, what a dry run cannot know."""

from __future__ import annotations

import io

from rich.console import Console

from icekeeper.policy import Operation
from icekeeper.report.outcome import (
    OperationOutcome,
    PassOutcome,
    failed,
    order_json,
    refused,
    skipped,
    succeeded,
    told_anew,
)
from icekeeper.report.terminal import print_outcome, print_passes, trouble


def outcome_of(*parts: OperationOutcome, dry_run: bool = False) -> PassOutcome:
    return PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=dry_run, operations=parts)


def printed(outcome: PassOutcome) -> list[str]:
    stream = io.StringIO()
    print_outcome(Console(file=stream, width=200), outcome)
    return [" ".join(line.split()) for line in stream.getvalue().splitlines()]


def test_our_class_names_are_left_to_programs() -> None:
    broken = outcome_of(failed(Operation.COMPACT, "1 bin(s) failed: StorageError: the disk is full"))
    assert printed(broken)[1] == "compact failed 1 file group(s) failed: the disk is full"
    assert trouble(broken) == "ns.t: compact failed: 1 file group(s) failed: the disk is full"
    assert broken.summary == "compact: 1 bin(s) failed: StorageError: the disk is full"
    stream = io.StringIO()
    entry = {"started_ms": 0, "duration_ms": 1, "status": "failed", "summary": "compact: CommitConflict: moved"}
    print_passes(Console(file=stream, width=200), [entry])
    assert stream.getvalue().endswith("failed  compact: moved\n")


def test_a_sentence_is_not_repeated_line_by_line() -> None:
    disabled = "maintenance is disabled (--set)"
    parts = [skipped(operation, disabled) for operation in list(Operation)[:3]]
    assert printed(outcome_of(*parts, refused(Operation.REMOVE_ORPHANS, "x is missing")))[1:] == [
        f"expire_partitions skipped {disabled}",
        "compact skipped as above",
        "rewrite_position_deletes skipped as above",
        "remove_orphans refused x is missing",
    ]
    apart = (
        failed(Operation.COMPACT, "x is missing"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
        refused(Operation.REMOVE_ORPHANS, "StorageError: x is missing"),
    )
    assert printed(outcome_of(*apart))[3] == "remove_orphans refused as compact"


def test_a_dry_run_says_what_the_pass_will_plan_anew() -> None:
    parts = (
        succeeded(Operation.COMPACT, "would compact 36 files into 1"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
        succeeded(Operation.REMOVE_ORPHANS, "would remove 0 orphan file(s)"),
        succeeded(Operation.REWRITE_MANIFESTS, "would rewrite 36 manifests into 1"),
    )
    told = "planned here on the table as it is; the pass plans anew after compact: expire_snapshots, rewrite_manifests"
    assert printed(outcome_of(*parts, dry_run=True))[-1] == told
    assert told_anew(parts) == told
    assert told not in printed(outcome_of(*parts))
    assert order_json(parts) == {"expire_snapshots": ["compact"], "rewrite_manifests": ["compact"]}


def test_what_no_operation_changes_first_is_planned_for_good() -> None:
    parts = (
        skipped(Operation.COMPACT, "no files eligible for compaction"),
        succeeded(Operation.REMOVE_ORPHANS, "would remove 3 orphan file(s)"),
        succeeded(Operation.REWRITE_MANIFESTS, "would rewrite 36 manifests into 1"),
    )
    assert (told_anew(parts), order_json(parts)) == (None, {})


def test_bins_are_file_groups_to_people() -> None:
    """The summary keeps the sentence that the contract fixes; one group is not worth telling."""
    one = outcome_of(succeeded(Operation.COMPACT, "compacted 6 files into 1 (across 1 bins)"))
    three = outcome_of(succeeded(Operation.COMPACT, "compacted 15 files into 4 (across 3 bins); left 1 file(s) alone"))
    assert printed(one)[1] == "compact succeeded compacted 6 files into 1"
    assert printed(three)[1] == "compact succeeded compacted 15 files into 4 in 3 file groups; left 1 file(s) alone"
    assert one.summary == "compact: compacted 6 files into 1 (across 1 bins)"
