"""Prints the results of the demonstration for people."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from icekeeper.demo.measure import Contents, Figures
from icekeeper.demo.tables import NAMESPACE, MessyTable

__all__ = ["print_contents", "print_figures"]


def print_figures(console: Console, stories: Sequence[tuple[MessyTable, Figures, Figures]]) -> None:
    """Print files, bytes, snapshots, manifests, orphans and planning requests, before → after."""
    console.print("\nbefore → after")
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    table.add_column("table", no_wrap=True)
    for heading in ("files", "stored", "snapshots", "manifests", "orphans", "planning\nrequests"):
        table.add_column(heading, justify="right", no_wrap=True)
    for messy, before, after in stories:
        table.add_row(
            f"{NAMESPACE}.{messy.name}",
            f"{before.data_files} → {after.data_files}",
            f"{_size(before.stored_bytes)} → {_size(after.stored_bytes)}",
            f"{before.snapshots} → {after.snapshots}",
            f"{before.manifests} → {after.manifests}",
            f"{before.orphans} → {after.orphans}",
            f"{before.planning_requests} → {after.planning_requests}",
        )
    console.print(table)
    console.print("planning requests: the objects that a query opens before it reads data")


def print_contents(console: Console, stories: Sequence[tuple[MessyTable, Contents, Contents]]) -> None:
    """Print rows and checksum before and after, as DuckDB reads them, at the head and at the tag."""
    console.print("\nrows as DuckDB reads them")
    table = Table(box=None, pad_edge=False, padding=(0, 2))
    for heading in ("table", "rows before", "rows after", "checksum before", "checksum after", ""):
        table.add_column(heading, no_wrap=True)
    for messy, before, after in stories:
        name = f"{NAMESPACE}.{messy.name}"
        pairs = [(name, before.head, after.head)]
        if before.tagged is not None and after.tagged is not None:
            pairs.append((f"{name} @ {messy.tag}", before.tagged, after.tagged))
        for label, was, is_now in pairs:
            same = was == is_now
            verdict = Text("same" if same else "CHANGED", style="green" if same else "red")
            table.add_row(label, str(was.rows), str(is_now.rows), was.checksum, is_now.checksum, verdict)
    console.print(table)


def _size(count: int) -> str:
    return f"{count / 1024:,.0f} KB" if count < 10 * 1024 * 1024 else f"{count / 1024 / 1024:,.1f} MB"
