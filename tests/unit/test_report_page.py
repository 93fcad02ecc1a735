"""The page of a catalog: what it tells, and that names and sentences on it stay text."""

from __future__ import annotations

from html.parser import HTMLParser

from icekeeper.report.page import Page, TableOnPage, render_page

HOSTILE = "ns.<script>alert('&')</script>\x07"
COUNTERS = {"lake_data_files": 60, "lake_bytes": 3 * 2**20, "lake_average_file_bytes": 50 * 2**10, "lake_snapshots": 9}


class Outline(HTMLParser):
    """The tags of a page, the texts in it, and the widths of its bars."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.bars: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href"}, "the page needs nothing else"
        self.bars += [value or "" for name, value in attrs if name == "style"]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(*tables: TableOnPage) -> Outline:
    totals = {"lake_data_files": 72, "lake_bytes": 3 * 2**20}
    return Outline(render_page(Page("lake", 1_700_000_000_000, totals, tables)))


def test_the_page_tells_what_needs_work_the_most_urgent_first() -> None:
    page = page_of(
        TableOnPage("shop.calm", {"lake_data_files": 12}, last_pass="2026-11-22T10:00:00Z succeeded: compact: done"),
        TableOnPage("shop.orders", COUNTERS, ("it has 9 snapshots",), ("60 small files",), 0.5),
        TableOnPage("shop.late", {}, (), ("too many manifests",), 0.75, "is maintained now"),
    )
    work = page.texts[page.texts.index("What needs work") : page.texts.index("All tables, by the number of data files")]
    assert [text for text in work if text.startswith("shop.")] == ["shop.late", "shop.orders"]
    assert {"60 small files", "too many manifests"} < set(work)
    everything = page.texts[page.texts.index("All tables, by the number of data files") :]
    assert [text for text in everything if text.startswith("shop.")] == ["shop.orders", "shop.calm", "shop.late"]
    assert {"60", "50 KB", "3 MB", "it has 9 snapshots", "is maintained now"} < set(everything)
    assert "2026-11-22T10:00:00Z succeeded: compact: done" in everything
    assert page.bars == [f"width: {share}%" for share in ("75.0", "50.0", "100.0", "20.0", "0.0")]
    assert page.texts[page.texts.index("need work") - 1] == "2"


def test_a_name_is_text_and_no_script() -> None:
    page = page_of(TableOnPage(HOSTILE, reasons=(HOSTILE,), left_alone=HOSTILE, last_pass=HOSTILE, warnings=(HOSTILE,)))
    assert "script" not in page.tags
    assert page.texts.count("ns.<script>alert('&')</script>?") == 6


def test_where_nothing_needs_work_the_page_says_so() -> None:
    assert "Nothing: every table is as its settings want it." in page_of(TableOnPage("ns.t")).texts
