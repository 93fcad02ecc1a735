"""Tables fit the terminal; where a program reads, a row stays one line."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from icekeeper.policy import Layer, resolve
from icekeeper.report.terminal import print_policy, print_rows

LONG = "sort_order names column 'idd', which the table does not have or which has no order; its columns are id, name"
PATH = "s3://bucket/" + "x" * 120 + ".parquet"


def printed(rows: list[tuple[str, ...]], width: int, *, terminal: bool = True) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    print_rows(console, [tuple(map(Text, row)) for row in rows])
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_sentence_is_continued_below_itself(width: int) -> None:
    lines = printed([("ns.orders", "failed", LONG), ("ns.t", "failed", "short")], width)
    assert max(map(len, lines)) <= width
    assert lines[-1] == "ns.t       failed  short"
    assert all(line.startswith(" " * 19) for line in lines[1:-1])
    assert " ".join(line[19:] for line in lines[:-1]) == LONG


def test_a_column_without_room_begins_on_its_own_line() -> None:
    lines = printed([("n" * 40, "failed", LONG), ("ns.t", "failed", "short")], 60)
    assert lines.pop() == f"{'ns.t':40}  failed  short"
    assert lines[0] == "n" * 40 + "  failed"
    assert [line[:4] for line in lines[1:]] == ["    "] * (len(lines) - 1)
    assert max(map(len, lines)) <= 60


def test_a_path_stays_one_word() -> None:
    assert PATH in printed([("ns.t", f"missing {PATH} of a snapshot")], 60)[1]


def test_where_no_terminal_is_a_row_is_one_line() -> None:
    assert printed([("ns.t", LONG)], 60, terminal=False) == [f"ns.t  {LONG}"]


def test_a_policy_fits_a_terminal_of_80_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    rows = resolve([Layer("--set", {"min_input_files": "3"})]).rows()
    print_policy(console, rows)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "min_input_files = 3  (--set)" in [line.rstrip() for line in lines]
    assert next(line for line in lines if line[:4].strip()).startswith("maintenance_enabled = true")


def test_a_name_of_a_megabyte_fills_no_other_line() -> None:
    long = "n" * 1_000_000
    lines = printed([(long, "failed", "x"), *(("ns.t", "failed", "y") for _ in range(100))], 80, terminal=False)
    assert lines[0] == f"{long}  failed  x"
    assert set(lines[1:]) == {f"{'ns.t':200}  failed  y"}
