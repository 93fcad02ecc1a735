"""Prints the results of the demonstration for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from icekeeper.demo.measure import Contents, Figures
from icekeeper.demo.tables import NAMESPACE, MessyTable

__all__ = ["print_contents", "print_figures"]


def print_figures(console: Console, stories: Sequence[tuple[MessyTable, Figures, Figures]]) -> None:
    """Print files, bytes, snapshots, manifests, orphans and planning requests, before → after, in 80 columns."""
    console.print()
    console.print("before → after")
    table = _columns()
    stored, requests = Group("stored,", "KB"), Group("planning", "requests")
    for heading in ("files", stored, "snapshots", "manifests", "orphans", requests):
        table.add_column(heading, justify="right", no_wrap=True)
    for messy, before, after in stories:
        pairs = (
            (before.data_files, after.data_files),
            (before.stored_bytes // 1024, after.stored_bytes // 1024),
            (before.snapshots, after.snapshots),
            (before.manifests, after.manifests),
            (before.orphans, after.orphans),
            (before.planning_requests, after.planning_requests),
        )
        table.add_row(f"{NAMESPACE}.{messy.name}", *(f"{was:,} → {is_now:,}" for was, is_now in pairs))
    console.print(table)
    console.print("planning requests: the objects that a query opens before it reads data")


def print_contents(console: Console, stories: Sequence[tuple[MessyTable, Contents, Contents]]) -> None:
    """Print rows and checksum, as DuckDB reads them, at the head and at the tag: once where they stayed the same."""
    console.print()
    console.print("rows as DuckDB reads them, before and after")
    table = _columns()
    for heading in ("rows", "checksum", ""):
        table.add_column(heading, no_wrap=True)
    for messy, before, after in stories:
        name = f"{NAMESPACE}.{messy.name}"
        pairs = [(name, before.head, after.head)]
        if before.tagged is not None and after.tagged is not None:
            pairs.append((f"{name} @ {messy.tag}", before.tagged, after.tagged))
        for label, was, is_now in pairs:
            if was == is_now:
                table.add_row(label, str(was.rows), was.checksum, Text("same", style="green"))
            else:
                table.add_row(label, str(was.rows), was.checksum, Text("before", style="red"))
                table.add_row("", str(is_now.rows), is_now.checksum, Text("after: CHANGED", style="red"))
    console.print(table)


def _columns() -> Table:
    """A table whose first column is a table's name, without lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 1))
    table.add_column("table", no_wrap=True)
    return table
