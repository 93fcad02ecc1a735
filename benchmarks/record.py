"""The dated results that the repository keeps: ``docs/performance.json``, and the page and pictures made from it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.chart import chart, ratios
from benchmarks.growth import exponents
from benchmarks.report import page_tables, run_line

_DOCS = Path(__file__).parents[1] / "docs"
_JSON, _PAGE, _CHART = _DOCS / "performance.json", _DOCS / "performance.md", _DOCS / "performance.svg"
_RATIOS = _DOCS / "ratios.svg"
_BEGIN, _END = "<!-- measured: written by python -m benchmarks --record -->", "<!-- end of measured -->"


def last_results(mode: str) -> dict[str, Any]:
    """Rows by key, of the last run of that mode that was recorded."""
    kept: dict[str, Any] = json.loads(_JSON.read_text()) if _JSON.exists() else {}
    found: dict[str, Any] = kept.get(mode, {})
    return found


def record(mode: str, rows: Mapping[str, Any]) -> None:
    """Put these rows in the place of what was recorded of them; write page and pictures anew from all records."""
    kept = {name: last_results(name) for name in ("full", "quick", "growth")}
    kept[mode] |= json.loads(json.dumps(dict(rows)))
    _JSON.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    shown = kept["quick"] | kept["full"]
    _CHART.write_text(chart(shown))
    _RATIOS.write_text(ratios(kept["full"]))
    before, _, rest = _PAGE.read_text().partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(before + "\n".join([_BEGIN, "", *page_part(shown, kept["growth"]), _END]) + after)


def page_part(rows: Mapping[str, Any], growth: Mapping[str, Any]) -> Iterator[str]:
    """Every row with its contestants, met targets, growth; small tables if no full tables were measured."""
    yield run_line(rows)
    yield ""
    yield from page_tables(rows)
    yield ""
    judged = [target["met"] for row in rows.values() for target in row["targets"] if target["met"] is not None]
    yield f"{sum(judged)} of {len(judged)} targets are met; performance.json has them all."
    yield ""
    if growth:
        yield exponents(growth)
        yield ""
