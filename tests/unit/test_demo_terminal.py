"""What the demonstration shows stays whole on the narrowest usual terminal, and a change is told."""

from __future__ import annotations

import io

from rich.console import Console

from icekeeper.demo.measure import Contents, Figures, TableChecksum
from icekeeper.demo.run import print_contents, print_figures
from icekeeper.demo.tables import MessyTable

BEFORE, AFTER = Figures(60, 2950 * 1024, 60, 60, 15, 62), Figures(1, 1748 * 1024, 1, 1, 0, 3)
ROWS = TableChecksum(240_000, "1d499a644a6413764f1a5")
FEWER = TableChecksum(239_999, "2e5aab755b7524875a2b6")


def test_figures_and_verdicts_fit_eighty_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    events = MessyTable("events", "", tag="quarter-close")
    print_figures(console, [(MessyTable("customers", ""), BEFORE, AFTER)])
    print_contents(console, [(events, Contents(ROWS, ROWS), Contents(ROWS, FEWER))])
    told = [" ".join(line.split()) for line in stream.getvalue().splitlines()]
    assert "shop.customers 60 → 1 2,950 → 1,748 60 → 1 60 → 1 15 → 0 62 → 3" in told
    assert told[-3:] == [
        f"shop.events 240000 {ROWS.checksum} same",
        f"shop.events @ quarter-close 240000 {ROWS.checksum} before",
        f"239999 {FEWER.checksum} after: CHANGED",
    ]
