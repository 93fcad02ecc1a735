"""The page of a catalog: what it tells, and that names and sentences on it stay text."""

from __future__ import annotations

from html.parser import HTMLParser

from icekeeper.report.page import LastPass, Page, TableOnPage, render_page

NOW_MS = 1_700_000_000_000
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
    return Outline(render_page(Page("lake", NOW_MS, totals, tables)))


def test_the_page_tells_what_needs_work_the_most_urgent_first() -> None:
    page = page_of(
        TableOnPage("shop.calm", {"lake_data_files": 12}, last_pass=LastPass(NOW_MS, "succeeded", "compact: done")),
        TableOnPage("shop.orders", COUNTERS, ("it has 9 snapshots", "60 small files"), ("60 small files",), 0.5),
        TableOnPage("shop.late", {}, (), ("too many manifests",), 0.75, "is maintained now"),
    )
    assert "2 of 3 tables need work." in page.texts
    assert "What is in trouble" not in page.texts
    work = page.texts[page.texts.index("What needs work") : page.texts.index("All tables, by the number of data files")]
    assert [text for text in work if text.startswith("shop.")] == ["shop.late", "shop.orders"]
    assert {"60 small files", "too many manifests", "icekeeper maintain NAMESPACE.TABLE --catalog lake"} < set(work)
    everything = page.texts[page.texts.index("All tables, by the number of data files") :]
    told = {"shop.orders": "needs work", "shop.calm": "no work due", "shop.late": "needs work"}
    assert [(text, everything[at + 1]) for at, text in enumerate(everything) if text in told] == [*told.items()]
    assert {"60", "50 KB", "3 MB", "it has 9 snapshots", "is maintained now"} < set(everything)
    assert "60 small files" not in everything  # it stands further up
    last = everything.index("last pass 2023-11-14 22:13:20 UTC: succeeded")
    assert everything[last + 1] == "compact: done"
    assert page.bars == [f"width: {share}%" for share in ("75.0", "50.0", "100.0", "20.0", "0.0")]


def test_what_is_in_trouble_stands_first_and_is_said_once() -> None:
    gone = "m.avro is gone; restore it"
    summary = f"compact: {gone}; expire_snapshots: no snapshots to expire; remove_orphans: {gone}"
    page = page_of(
        TableOnPage("shop.torn", COUNTERS, (), ("60 small files",), 0.5, last_pass=LastPass(0, "partial", summary)),
        TableOnPage("shop.lost", left_alone="metadata file x cannot be read", is_unread=True),
        TableOnPage("shop.calm"),
    )
    assert "2 of 3 tables are in trouble, 1 needs work." in page.texts
    trouble = page.texts[page.texts.index("What is in trouble") : page.texts.index("What needs work")]
    at = trouble.index("shop.torn")
    assert trouble[at:] == [
        "shop.torn",
        "last pass partial",
        "compact: m.avro is gone; restore it",
        "expire_snapshots: no snapshots to expire",
        "remove_orphans: as compact",
        "shop.lost",
        "cannot be read",
        "metadata file x cannot be read",
    ]


def test_a_name_is_text_and_no_script() -> None:
    last = LastPass(0, HOSTILE, HOSTILE)
    page = page_of(TableOnPage(HOSTILE, {}, (HOSTILE,), ("due",), left_alone=HOSTILE, last_pass=last))
    assert "script" not in page.tags
    plain = "ns.<script>alert('&')</script>\\x07"
    # Its name in all three tables, a warning, why it is left alone, and its pass, which is told twice.
    assert page.texts.count(plain) == 7
    assert page.texts.count(f"last pass {plain}") == 2


def test_where_nothing_needs_work_the_page_says_so() -> None:
    page = page_of(TableOnPage("ns.t"))
    assert "0 of 1 table need work." in page.texts
    assert "Nothing: every table that can be read is as its settings want it." in page.texts
    assert "This catalog has no tables." in page_of().texts
