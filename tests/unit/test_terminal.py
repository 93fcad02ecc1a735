"""What people see; colours only on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from icekeeper.policy import Layer, Operation, resolve
from icekeeper.report.outcome import PassOutcome, failed, refused, skipped
from icekeeper.report.terminal import (
    print_detection,
    print_loads,
    print_outcome,
    print_pins,
    print_policy,
    print_problems,
    trouble,
)


def console(*, terminal: bool = False, width: int = 120) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(
        file=stream, width=width, force_terminal=terminal, color_system="standard" if terminal else None
    ), stream


def lines(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().splitlines()]


OUTCOME = PassOutcome(
    table="ns.[red]t",
    catalog="C",
    run_id="r",
    dry_run=True,
    operations=(
        failed(Operation.COMPACT, "s3://b/[x].parquet is missing"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
    ),
)


def test_a_pass_shows_every_operation_and_takes_nothing_for_markup() -> None:
    target, stream = console()
    print_outcome(target, OUTCOME)
    assert lines(stream) == [
        "ns.[red]t: failed (dry run: nothing was changed)",
        "compact           failed   s3://b/[x].parquet is missing",
        "expire_snapshots  skipped  no snapshots to expire",
    ]


def test_operations_that_share_a_reason_share_a_sentence() -> None:
    parts = (
        failed(Operation.COMPACT, "m.avro is truncated"),
        refused(Operation.EXPIRE_SNAPSHOTS, "m.avro is truncated"),
        skipped(Operation.REMOVE_ORPHANS, "nothing of interest"),
        failed(Operation.REWRITE_MANIFESTS, "the disk is full"),
    )
    outcome = PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=False, operations=parts)
    assert trouble(outcome) == (
        "ns.t: compact failed, expire_snapshots refused: m.avro is truncated; "
        "rewrite_manifests failed: the disk is full"
    )


def test_colours_appear_on_a_terminal_only() -> None:
    target, stream = console(terminal=True)
    print_outcome(target, OUTCOME)
    assert "\x1b[31mfailed\x1b[0m" in stream.getvalue()


def test_detection_shows_proposals_then_what_was_left_out() -> None:
    target, stream = console()
    print_detection(
        target,
        {
            "catalog": "C",
            "scanned": 2,
            "proposals": [{"table": "ns.a", "reasons": ["one", "two"], "priority": 0.8936}],
            "skipped": [{"table": "ns.bb", "reason": "no sign of work"}],
        },
    )
    assert lines(stream) == [
        "2 tables scanned, 1 needs work",
        "ns.a   priority 0.89  one; two",
        "ns.bb                 no sign of work",
    ]


@pytest.mark.parametrize(
    ("proposed", "beyond", "told"),
    [(2, 8, "10 need work, 8 of them beyond max_jobs_per_detection"), (0, 0, "0 need work")],
)
def test_detection_counts_the_tables_beyond_the_limit_too(proposed: int, beyond: int, told: str) -> None:
    target, stream = console()
    proposals = [{"table": f"ns.t{n}", "reasons": ["one"], "priority": 0.5} for n in range(proposed)]
    print_detection(target, {"scanned": 12, "proposals": proposals, "skipped": [], "beyond_limit": beyond})
    assert lines(stream)[0] == f"12 tables scanned, {told}"


def test_verification_shows_what_was_checked_and_every_problem() -> None:
    target, stream = console()
    problem = {"kind": "missing_file", "path": "s3://b/f", "detail": "referenced by snapshot 1"}
    checked = {"snapshots": 3, "files": 120}
    print_problems(target, {"table": "ns.t", "ok": False, "problems": [problem], "checked": checked})
    print_problems(target, {"table": "ns.t", "ok": True, "problems": [], "checked": checked})
    assert lines(stream) == [
        "ns.t: damaged (3 snapshots, 120 files)",
        "  missing_file s3://b/f: referenced by snapshot 1",
        "ns.t: ok (3 snapshots, 120 files)",
    ]


def test_where_nothing_is_held_that_is_said() -> None:
    target, stream = console()
    print_pins(target, [])
    print_loads(target, [])
    assert lines(stream) == ["no pin holds this table", "no staged load is recorded for this table"]


def test_a_policy_shows_value_and_source_of_every_key() -> None:
    target, stream = console(width=250)
    rows = resolve([Layer("--set", {"min_input_files": "3"})]).rows()
    print_policy(target, rows)
    shown = lines(stream)
    assert len(shown) == 1 + len(rows)
    assert next(line for line in shown if line.startswith("min_input_files")).split()[:3] == [
        "min_input_files",
        "3",
        "--set",
    ]
