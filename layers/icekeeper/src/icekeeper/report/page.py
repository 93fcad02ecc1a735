"""Makes a page of a catalog's tables that a browser shows by itself: no script, no other file, no network (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from icekeeper.amounts import size_text
from icekeeper.clock import iso_utc
from icekeeper.report.plain_words import in_plain_words

__all__ = ["Page", "TableOnPage", "render_page"]

Element = ElementTree.Element

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --bar: #3b82c4; --work: #c4763b; --bad: #c43b4e; }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.when { opacity: .7; margin: .2rem 0 1.2rem; }
ul.totals { display: flex; flex-wrap: wrap; gap: .8rem; list-style: none; padding: 0; }
ul.totals li { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; min-width: 7rem; }
ul.totals b { display: block; font-size: 1.3rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem .35rem 0; vertical-align: top; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.bar { min-width: 8rem; } td.bar span { background: var(--bar); display: block; height: .7rem; margin-top: .35rem; }
td.bar span.work { background: var(--work); } .warning { color: var(--bad); } .idle { opacity: .6; }
"""


@dataclass(frozen=True, slots=True)
class TableOnPage:
    """What the page tells of one table."""

    name: str
    counters: Mapping[str, int | float] = field(default_factory=dict)
    """By metric name (``lake_data_files``, …), as of the last look."""
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Why it needs work; empty: it needs none."""
    priority: float = 0.0
    left_alone: str = ""
    """Why it is not proposed, where it is not healthy for sure."""
    last_pass: str = ""
    """When the last pass over it ended, and what it did."""


@dataclass(frozen=True, slots=True)
class Page:
    """A catalog at one moment."""

    catalog: str
    now_ms: int
    """Epoch milliseconds."""
    totals: Mapping[str, int | float]
    """Of all tables, as :func:`icekeeper.health.totals.lake_totals` adds them up."""
    tables: Sequence[TableOnPage]


def render_page(page: Page) -> str:
    """The page as HTML; what tables are called and what was said of them stays text, whatever it holds."""
    html = Element("html", lang="en")
    head = ElementTree.SubElement(html, "head")
    ElementTree.SubElement(head, "meta", charset="utf-8")
    _add(head, "title", f"Icekeeper: {page.catalog}")
    _add(head, "style", _STYLE)
    body = ElementTree.SubElement(html, "body")
    _add(body, "h1", f"Tables of {page.catalog}")
    _add(body, "p", f"as of {iso_utc(page.now_ms)}", {"class": "when"})
    _add_totals(body, page)
    urgent = sorted((one for one in page.tables if one.reasons), key=lambda one: (-one.priority, one.name))
    _add_work(body, urgent)
    _add_tables(body, page.tables)
    return "<!doctype html>\n" + ElementTree.tostring(html, encoding="unicode", method="html") + "\n"


def _add_totals(body: Element, page: Page) -> None:
    totals = page.totals
    shown = {
        "tables": f"{len(page.tables):,}",
        "need work": f"{sum(bool(one.reasons) for one in page.tables):,}",
        "with warnings": f"{sum(bool(one.warnings) for one in page.tables):,}",
        "data files": _count(totals, "lake_data_files"),
        "stored": _size(totals, "lake_bytes"),
        "average file": _size(totals, "lake_average_file_bytes"),
        "snapshots": _count(totals, "lake_snapshots"),
    }
    listing = ElementTree.SubElement(body, "ul", {"class": "totals"})
    for what, amount in shown.items():
        item = ElementTree.SubElement(listing, "li")
        _add(item, "b", amount)
        _add(item, "span", what)


def _add_work(body: Element, urgent: Sequence[TableOnPage]) -> None:
    _add(body, "h2", "What needs work")
    if not urgent:
        _add(body, "p", "Nothing: every table is as its settings want it.", {"class": "idle"})
        return
    rows = _add_table(body, ("table", "urgency", "why"))
    for one in urgent:
        row = ElementTree.SubElement(rows, "tr")
        _add(row, "td", one.name)
        _add_bar(row, one.priority, is_work=True)
        _add_lines(row, one.reasons)


def _add_tables(body: Element, tables: Sequence[TableOnPage]) -> None:
    _add(body, "h2", "All tables, by the number of data files")
    rows = _add_table(
        body, ("table", "data files", "", "average file", "stored", "delete files", "snapshots", "what is known")
    )
    most = max((one.counters.get("lake_data_files", 0) for one in tables), default=0)
    for one in sorted(tables, key=lambda one: (-one.counters.get("lake_data_files", -1), one.name)):
        row = ElementTree.SubElement(rows, "tr")
        _add(row, "td", one.name)
        _add(row, "td", _count(one.counters, "lake_data_files"), {"class": "number"})
        _add_bar(row, one.counters.get("lake_data_files", 0) / max(1, most), is_work=bool(one.reasons))
        for text in (_size(one.counters, "lake_average_file_bytes"), _size(one.counters, "lake_bytes")):
            _add(row, "td", text, {"class": "number"})
        for name in ("lake_delete_files", "lake_snapshots"):
            _add(row, "td", _count(one.counters, name), {"class": "number"})
        told = _add_lines(row, (*one.warnings,), {"class": "warning"})
        for text in filter(None, (one.left_alone, one.last_pass)):
            _add(told, "div", text, {"class": "idle"})


def _add_table(body: Element, headings: Iterable[str]) -> Element:
    table = ElementTree.SubElement(body, "table")
    row = ElementTree.SubElement(ElementTree.SubElement(table, "thead"), "tr")
    for heading in headings:
        _add(row, "th", heading)
    return ElementTree.SubElement(table, "tbody")


def _add_bar(row: Element, share: float, *, is_work: bool) -> None:
    cell = ElementTree.SubElement(row, "td", {"class": "bar"})
    width = f"width: {100 * min(1.0, max(0.0, share)):.1f}%"
    ElementTree.SubElement(cell, "span", {"style": width, **({"class": "work"} if is_work else {})})


def _add_lines(row: Element, lines: Iterable[str], attributes: Mapping[str, str] | None = None) -> Element:
    cell = ElementTree.SubElement(row, "td")
    for line in lines:
        _add(cell, "div", in_plain_words(line), attributes)
    return cell


def _add(parent: Element, tag: str, text: str, attributes: Mapping[str, str] | None = None) -> None:
    # What no XML may hold, such as a control character of a table's name, is shown as a question mark.
    legal = "".join(one if one.isprintable() or one in "\n\t" else "?" for one in text)
    ElementTree.SubElement(parent, tag, dict(attributes or {})).text = legal


def _count(counters: Mapping[str, int | float], name: str) -> str:
    return f"{counters[name]:,.0f}" if name in counters else "–"


def _size(counters: Mapping[str, int | float], name: str) -> str:
    return size_text(counters[name]) if name in counters else "–"
