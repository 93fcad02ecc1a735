"""An HTML page about a catalog's tables, without scripts, other files or network access."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from xml.etree import ElementTree

from icekeeper.machine.clock import iso_utc
from icekeeper.report.outcome import PassStatus, in_plain_words, lines_of
from icekeeper.state.store import PassRecord
from icekeeper.text import counted, escaped, size_text

ORPHANS = "lake_orphan_bytes"
"""The counter of orphans that the last sweep kept: too young, or in quarantine."""

Element = ElementTree.Element

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --calm: #3b82c4; --work: #b8681f; --bad: #c43b4e; }
@media (prefers-color-scheme: dark) { :root { --calm: #6aa9e0; --work: #e0985a; --bad: #f07a8a; } }
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.when { opacity: .7; margin: .2rem 0 1.2rem; } p.verdict { font-size: 1.25rem; font-weight: 600; margin: 0 0 1rem; }
ul.totals { display: flex; flex-wrap: wrap; gap: .8rem; list-style: none; padding: 0; }
ul.totals li { border: 1px solid var(--line); border-radius: .5rem; padding: .5rem .9rem; min-width: 6rem; }
ul.totals b { display: block; font-size: 1.3rem; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; white-space: nowrap; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem 1rem .35rem 0; vertical-align: top; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.bar { min-width: 6rem; } .bar span { display: block; height: .7rem; margin-top: .35rem; background: currentColor; }
.bad { color: var(--bad); } .work { color: var(--work); } .calm { color: var(--calm); } .state { white-space: nowrap; }
td:last-child { overflow-wrap: anywhere; }
td:first-child { font-weight: 600; } .idle { opacity: .7; } summary { cursor: pointer; }
@media (max-width: 48rem) {
  thead { display: none; } table, tbody { display: block; }
  tr { display: block; border-bottom: 1px solid var(--line); padding: .5rem 0; }
  td, .number { display: block; border: 0; padding: 0; text-align: left; white-space: normal; }
  td.bar { display: none; } td { overflow-wrap: anywhere; }
  td[title]::before { content: attr(title) ": "; opacity: .7; }
}
"""


@dataclass(frozen=True, slots=True)
class TableOnPage:
    """The facts of one table on the page."""

    name: str
    counters: Mapping[str, int | float] = field(default_factory=dict)
    """By metric name (``lake_data_files``, …), as of the last scan."""
    warnings: Sequence[str] = ()
    reasons: Sequence[str] = ()
    """Why it needs work; empty: it needs none."""
    priority: float = 0.0
    left_alone: str = ""
    """Why it is not proposed; empty: it needs no work."""
    is_unread: bool = False
    """It cannot be read."""
    last_pass: PassRecord | None = None

    @property
    def trouble(self) -> str:
        """Why a person must look at it: it cannot be read, or its last pass did not succeed; else empty."""
        if self.is_unread:
            return "cannot be read"
        if self.last_pass is None or self.last_pass.status == PassStatus.SUCCEEDED.value:
            return ""
        return f"last pass {self.last_pass.status}"


def render_page(catalog: str, now_ms: int, totals: Mapping[str, int | float], tables: Sequence[TableOnPage]) -> str:
    """The page of a catalog as HTML; names and messages are escaped (rule: escape-at-the-edge).

    ``totals`` are of all tables, by :func:`icekeeper.health.examine.lake_totals`; ``now_ms`` is in epoch milliseconds.
    """
    html = Element("html", lang="en")
    head = ElementTree.SubElement(html, "head")
    ElementTree.SubElement(head, "meta", charset="utf-8")
    ElementTree.SubElement(head, "meta", name="viewport", content="width=device-width, initial-scale=1")
    _add(head, "title", f"Icekeeper: {catalog}")
    _add(head, "style", _STYLE)
    body = ElementTree.SubElement(html, "body")
    _add(body, "h1", f"Tables of {catalog}")
    _add(body, "p", f"as of {_moment(now_ms)}", {"class": "when"})
    troubled = [one for one in tables if one.trouble]
    urgent = sorted((one for one in tables if one.reasons), key=lambda one: (-one.priority, one.name))
    _add(body, "p", _verdict(len(tables), len(urgent), len(troubled)), {"class": "verdict"})
    _add_totals(body, totals)
    if troubled:
        _add_trouble(body, troubled, catalog)
    _add_work(body, urgent, catalog)
    _add_tables(body, tables)
    return "<!doctype html>\n" + ElementTree.tostring(html, encoding="unicode", method="html") + "\n"


def _verdict(tables: int, urgent: int, troubled: int) -> str:
    if not tables:
        return "This catalog has no tables."
    need = f"{'needs' if urgent == 1 else 'need'} work"
    of_all = f"of {counted(tables, 'table')}"
    if not troubled:
        return f"{urgent} {of_all} {need}."
    return f"{troubled} {of_all} {'is' if troubled == 1 else 'are'} in trouble, {urgent} {need}."


def _add_totals(body: Element, totals: Mapping[str, int | float]) -> None:
    shown = {
        "data files": _count(totals, "lake_data_files"),
        "live": _size(totals, "lake_bytes"),
        "history": _size(totals, "lake_history_bytes"),
        "orphans": _size(totals, ORPHANS),
        "average file": _size(totals, "lake_average_file_bytes"),
        "snapshots": _count(totals, "lake_snapshots"),
    }
    listing = ElementTree.SubElement(body, "ul", {"class": "totals"})
    for what, amount in shown.items():
        item = ElementTree.SubElement(listing, "li")
        _add(item, "b", amount)
        _add(item, "span", what)
    legend = (
        "live: the files of the current snapshot; history: those that only older snapshots and other branches hold, "
        "until they expire; orphans: unreferenced files that the last sweep left, for they were too young or in "
        "quarantine; metadata files are not counted; – is not known"
    )
    _add(body, "p", legend, {"class": "idle"})


def _add_trouble(body: Element, troubled: Sequence[TableOnPage], catalog: str) -> None:
    _add(body, "h2", "What is in trouble")
    _add_command(body, "To see what is damaged", "verify", catalog)
    rows = _add_table(body, ("table", "trouble", "what was said"))
    for one in troubled:
        row = _add_row(rows, one)
        _add(row, "td", one.trouble, {"class": "bad state"})
        _add_lines(row, [one.left_alone] if one.is_unread or one.last_pass is None else lines_of(one.last_pass.summary))


def _add_work(body: Element, urgent: Sequence[TableOnPage], catalog: str) -> None:
    _add(body, "h2", "What needs work")
    if not urgent:
        _add(body, "p", "Nothing: every table that can be read is as its settings want it.", {"class": "idle"})
        return
    _add_command(body, "To maintain one now", "maintain", catalog)
    rows = _add_table(body, ("table", "priority", "", "why"), numbers=("priority",))
    for one in urgent:
        row = _add_row(rows, one)
        _add(row, "td", f"{one.priority:.2f}", {"class": "number", "title": "priority"})
        _add_bar(row, one.priority, "work")
        _add_lines(row, one.reasons)


def _add_tables(body: Element, tables: Sequence[TableOnPage]) -> None:
    _add(body, "h2", "All tables, by the number of data files")
    numbers = ("data files", "average file", "live", "history", "orphans", "delete files", "snapshots")
    rows = _add_table(body, ("table", "state", numbers[0], "", *numbers[1:], "what is known"), numbers=numbers)
    most = max((one.counters.get("lake_data_files", 0) for one in tables), default=0)
    for one in sorted(tables, key=lambda one: (-one.counters.get("lake_data_files", -1), one.name)):
        row = _add_row(rows, one)
        state, style = ("needs work", "work") if one.reasons else ("no work due", "calm")
        if one.trouble:
            state, style = one.trouble, "bad"
        _add(row, "td", state, {"class": f"{style} state"})
        files = one.counters.get("lake_data_files", 0)
        _add(row, "td", _count(one.counters, "lake_data_files"), {"class": "number", "title": numbers[0]})
        _add_bar(row, files / max(1, most), style)
        texts = (
            _size(one.counters, "lake_average_file_bytes"),
            _size(one.counters, "lake_bytes"),
            _size(one.counters, "lake_history_bytes"),
            _size(one.counters, ORPHANS),
            _count(one.counters, "lake_delete_files"),
            _count(one.counters, "lake_snapshots"),
        )
        for what, text in zip(numbers[1:], texts, strict=True):
            _add(row, "td", text, {"class": "number", "title": what})
        # The reasons for work are in the section above.
        cell = _add_lines(row, [warning for warning in one.warnings if warning not in one.reasons], {"class": "work"})
        if one.left_alone and not one.is_unread:
            _add(cell, "div", in_plain_words(one.left_alone), {"class": "idle"})
        if one.last_pass is not None:
            _add_pass(cell, one.last_pass)


def _add_pass(cell: Element, last: PassRecord) -> None:
    """When the last pass ended and how; a click unfolds the operations."""
    details = ElementTree.SubElement(cell, "details", {"class": "idle"})
    _add(details, "summary", f"last pass {_moment(last.finished_ms)}: {last.status}")
    for line in lines_of(last.summary):
        _add(details, "div", line)


def _add_command(body: Element, purpose: str, command: str, catalog: str) -> None:
    line = ElementTree.SubElement(body, "p", {"class": "idle"})
    line.text = f"{purpose}: "
    _add(line, "code", f"icekeeper {command} NAMESPACE.TABLE --catalog {shlex.quote(catalog)}")


def _add_table(body: Element, headings: Iterable[str], numbers: Sequence[str] = ()) -> Element:
    table = ElementTree.SubElement(body, "table")
    row = ElementTree.SubElement(ElementTree.SubElement(table, "thead"), "tr")
    for heading in headings:
        _add(row, "th", heading, {"class": "number"} if heading in numbers else None)
    return ElementTree.SubElement(table, "tbody")


def _add_row(rows: Element, table: TableOnPage) -> Element:
    row = ElementTree.SubElement(rows, "tr")
    _add(row, "td", table.name)
    return row


def _add_bar(row: Element, share: float, style: str) -> None:
    cell = ElementTree.SubElement(row, "td", {"class": f"bar {style}"})
    ElementTree.SubElement(cell, "span", {"style": f"width: {100 * min(1.0, max(0.0, share)):.1f}%"})


def _add_lines(row: Element, lines: Iterable[str], attributes: Mapping[str, str] | None = None) -> Element:
    cell = ElementTree.SubElement(row, "td")
    for line in lines:
        _add(cell, "div", in_plain_words(line), attributes)
    return cell


def _add(parent: Element, tag: str, text: str, attributes: Mapping[str, str] | None = None) -> None:
    shown = text if tag == "style" else escaped(text)  # the style is ours, and has lines
    ElementTree.SubElement(parent, tag, dict(attributes or {})).text = shown


def _count(counters: Mapping[str, int | float], name: str) -> str:
    return f"{counters[name]:,.0f}" if name in counters else "–"


def _size(counters: Mapping[str, int | float], name: str) -> str:
    return size_text(counters[name]) if name in counters else "–"


def _moment(moment_ms: int) -> str:
    return iso_utc(moment_ms).replace("T", " ").replace("Z", " UTC")
