"""The report page in a headless Chromium: what it shows, and that hostile names stay text."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

import pytest

from icekeeper.cycle.metrics_server import CycleHealth, ServedPage, served
from icekeeper.report.metrics import StateMetrics
from icekeeper.report.page import catalog_document, render_page, security_policy
from icekeeper.state.findings import Verdict
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.text import escaped, size_text
from support.browser import AXE, Browser, chromium
from support.command import Command
from support.report_fleet import HOSTILE, NOW_MS, fleet

pytestmark = pytest.mark.xdist_group("chromium")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def hostile_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two catalogs with an attacker's names."""
    facts = [fleet(120, hostile=True), fleet(3, f"crm {HOSTILE}")]
    page = tmp_path_factory.mktemp("page") / "page.html"
    page.write_text(render_page([catalog_document(item, NOW_MS) for item in facts], NOW_MS))
    return page


def open_tables(browser: Browser, most: int = 50) -> int:
    """Expand tables and return the number of charts."""
    script = "[...document.querySelectorAll('.name button')].slice(0, arguments[0]).forEach((one) => one.click())"
    browser.run(script, most)
    return int(browser.run("return document.querySelectorAll('figure svg').length"))


def test_the_page_is_drawn_without_an_error_or_a_request(browser: Browser, hostile_page: Path) -> None:
    browser.look()
    browser.console()
    browser.open(hostile_page)
    assert browser.run("return document.querySelectorAll('.rows > tr:not(.detail)').length") == 50
    assert open_tables(browser) > 50
    charts = "return [...document.querySelectorAll('figure svg')].map((one) => one.getAttribute('aria-label'))"
    assert {"Sizes of data files", "Snapshots and refs", "Partitions", "live bytes"} <= set(browser.run(charts))
    assert browser.console() == []
    assert browser.run("return performance.getEntriesByType('resource').map((one) => one.name)") == []
    blocked = "return fetch('http://127.0.0.1:9/').then(() => 'sent', () => 'refused')"
    assert browser.run(blocked) == "refused"
    assert any("Content Security Policy" in line for line in browser.console())


def test_hostile_names_stay_text(browser: Browser, hostile_page: Path) -> None:
    browser.look()
    browser.open(hostile_page)
    opened = "return [...document.querySelectorAll('.name button')].find((one) => one.textContent.startsWith('evil.'))"
    browser.run(f"{opened}.click()".removeprefix("return "))
    assert browser.run("return document.scripts.length") == 4  # the data, the page's own, D3 and Plot
    assert browser.run("return document.title") == f"Icekeeper: lake, crm {escaped(HOSTILE)}"
    shown = browser.run("return document.body.innerText")
    assert "\u202e" not in shown
    plain = escaped(HOSTILE)
    assert browser.run(f"{opened}.textContent") == f"evil.{plain}"
    row = browser.run(f"{opened}.closest('tr').nextSibling.innerText")
    # A reason, a warning, a tag, a setting's source, and the end of the last pass, which is shown twice.
    assert row.count(plain) >= 6
    assert browser.run("return [...document.querySelectorAll('.rows script, .rows img, .rows a')].length") == 0


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1240, False)])
def test_the_page_is_accessible_and_fits_its_width_in_both_colour_schemes(
    browser: Browser, hostile_page: Path, width: int, dark: bool
) -> None:
    browser.look(width=width, dark=dark)
    browser.open(hostile_page)
    open_tables(browser, 3)
    assert browser.violations() == []
    assert browser.run("return document.documentElement.scrollWidth") <= width


def test_the_list_is_searched_filtered_sorted_and_paged(browser: Browser, hostile_page: Path) -> None:
    browser.look()
    browser.open(hostile_page)
    document = catalog_document(fleet(120, hostile=True), NOW_MS)
    damaged = [table["name"] for table in document["tables"] if table["state"] in ("unreadable", "damaged")]
    assert len(damaged) == 1

    def names() -> list[str]:
        found: list[str] = browser.run(
            "return [...document.querySelectorAll('.name button')].map((one) => one.textContent)"
        )
        return found

    def press(text: str) -> None:
        script = (
            "[...document.querySelectorAll('button')].find((one) => one.textContent.startsWith(arguments[0])).click()"
        )
        browser.run(script, text)

    def search(text: str) -> None:
        script = (
            "const one = document.getElementById('search');"
            " one.value = arguments[0]; one.dispatchEvent(new Event('input'))"
        )
        browser.run(script, text)

    press("damaged or unreadable")
    assert names() == damaged
    press("all")
    search("WEB.events_0000")
    assert sorted(names()) == ["web.events_00001", "web.events_00001", "web.events_00005", "web.events_00009"]
    search("")
    press("data files")
    assert browser.run("return document.querySelectorAll('.namespace').length") == 5
    press("iot")
    assert len(names()) == 30
    assert all(name.startswith("iot.") for name in names())
    browser.run(
        "const one = [...document.querySelectorAll('select')].find((one) => one.value === 'iot');"
        " one.value = ''; one.dispatchEvent(new Event('change'))"
    )
    most = sorted((table["counters"]["lake_data_files"] for table in document["tables"]), reverse=True)
    cells = browser.run(
        "return [...document.querySelectorAll('td[data-label=\"data files\"]')].map((one) => one.dataset.value)"
    )
    assert [int(cell) for cell in cells][:3] == most[:3]
    press("Next")
    assert browser.run("return document.querySelector('.pager span').textContent") == "page 2 of 3"


_LINES = """
    const lines = (node) => {
      const range = document.createRange();
      range.selectNodeContents(node);
      return new Set([...range.getClientRects()].map((one) => Math.round(one.top))).size;
    };
    const broken = [];
    for (const holder of document.querySelectorAll('.name button, .title, .command span, .figures td')) {
      if (holder.closest('details:not([open])')) continue;
      for (const node of holder.childNodes) {
        if (node.nodeType === 3 && !/[ -]/.test(node.data) && lines(node) > 1) broken.push(node.data);
      }
    }
    return broken"""
_LABELS = """
    return [...document.querySelectorAll('figure svg')].map((svg) => {
      const box = svg.getBoundingClientRect();
      const ticks = [...svg.querySelectorAll('text')]
        .map((one) => [one.textContent, one.getBoundingClientRect()]);
      return [svg.getAttribute('aria-label'), ticks.map(([text, at]) =>
        [text, at.left >= box.left - 1 && at.right <= box.right + 1 && at.bottom <= box.bottom + 1])];
    })"""


@pytest.mark.parametrize("width", [400, 800, 1400])
def test_names_and_times_are_whole_at_every_width(browser: Browser, tmp_path: Path, width: int) -> None:
    """Also where all snapshots are of a few seconds, and where an amount never changes."""
    facts = fleet(12)
    lake = list(facts.lake)
    lines = ([0, 0, 1, 2, 3], [5], [0, 7000], [0, 400 * 86_400])
    for number, seconds in enumerate(lines):
        line = {**lake[number].timeline, "seconds": seconds, "operations": "a" * len(seconds)}
        lake[number] = replace(lake[number], timeline=line)
    trends = {copy: [replace(row, data_files=0, delete_files=7) for row in rows] for copy, rows in facts.trends.items()}
    page = tmp_path / "page.html"
    page.write_text(render_page([catalog_document(replace(facts, lake=lake, trends=trends), NOW_MS)], NOW_MS))
    browser.look(width=width)
    browser.open(page)
    assert open_tables(browser) > 20
    assert browser.run(_LINES) == []
    wide = "[...document.querySelectorAll('.figures section')].filter((one) => one.scrollWidth > one.clientWidth)"
    assert browser.run(f"return {wide}.map((one) => one.textContent.slice(0, 40))") == []
    charts = browser.run(_LABELS)
    labels = [text for _, ticks in charts for text, _ in ticks]
    assert [text for _, ticks in charts for text, is_inside in ticks if not is_inside] == []
    assert [text for text in labels if "NaN" in text or re.search(r"^[.:]|T.*Z|:.*:.*:", text)] == []


_LISTED = "return [...document.querySelectorAll('.name button')].map((one) => one.textContent)"


def test_a_table_and_a_state_have_a_link(browser: Browser, hostile_page: Path) -> None:
    """A link to a table opens it, whatever is in its name."""
    browser.look()
    browser.open(hostile_page)
    browser.run("document.querySelector('.states a[data-kind=damaged]').click()")
    assert len(browser.run(_LISTED)) == 1
    name = browser.run("const one = document.querySelector('.first .title'); one.click(); return one.textContent")
    opened = "return document.querySelector('.name button[aria-expanded=true]')?.textContent"
    browser.wait_for(f"{opened} === arguments[0]", name)
    assert set(browser.run(_LISTED)) == {name}
    browser.open(hostile_page)
    assert browser.run(opened) is None
    evil = f"evil.{escaped(HOSTILE)}"
    address = quote(f"lake/{evil}", safe="!'()*")
    browser.driver.get("about:blank")  # else it only changes the address
    browser.console()
    browser.driver.get(f"{hostile_page.as_uri()}#{address}")
    browser.wait_for(f"{opened} === arguments[0]", evil)
    headings = browser.run("return [...document.querySelectorAll('.detail h3')].map((one) => one.textContent)")
    assert "Policy in force" in headings
    assert browser.run("return document.querySelectorAll('#fleet svg').length") > 0
    assert browser.console() == []


def test_a_reason_names_files_without_their_folders_and_the_end_of_a_pause(browser: Browser, tmp_path: Path) -> None:
    facts = fleet(2)
    broken = f"verify found damage in 1 file: s3://b/deep/folder/{'0123456789' * 4}.parquet: it does not exist"
    paused = {"paused_until": {"value": "2026-12-01T06:00:00Z", "source": "table property icekeeper.paused_until"}}
    wrong = {"damaged": broken, "wrong_settings": "the table's settings are wrong"}
    lake = [
        replace(facts.lake[0], warnings=wrong, policy={}),
        replace(facts.lake[1], warnings={}, policy=paused, verdict=Verdict(left_alone="the table is paused")),
    ]
    page = tmp_path / "page.html"
    paused_by = replace(
        next(iter(facts.passes.values()))[0], summary="pause: somebody paused it until 2026-12-01T06:00:00Z"
    )
    passes = {lake[1].identity.copy: (paused_by,)}
    page.write_text(render_page([catalog_document(replace(facts, lake=lake, passes=passes), NOW_MS)], NOW_MS))
    browser.look()
    browser.open(page)
    reason = "verify found damage in 1 file: …/01234567890123…456789.parquet: it does not exist"
    assert browser.run("return document.querySelector('.first li p').textContent") == reason
    reasons = browser.run("return [...document.querySelectorAll('td.why')].map((one) => one.textContent)")
    assert reasons == [reason, "paused until 1\u00a0Dec\u00a02026,\u00a006:00\u00a0UTC"]
    open_tables(browser)
    details = browser.run("return [...document.querySelectorAll('.detail')].map((one) => one.textContent)")
    assert [text.count("it does not exist") for text in details] == [1, 0]
    assert "No pass runs: paused until" in details[1]
    assert "somebody paused it until 1\u00a0Dec\u00a02026" in details[1]
    assert "None, because the table's settings are wrong." in details[0]
    assert "settings have their defaults" not in details[0]


def test_a_button_copies_a_command_or_selects_it(browser: Browser, hostile_page: Path) -> None:
    """Without a secure context a browser has no clipboard."""
    browser.look()
    browser.open(hostile_page)
    click = """
        Object.defineProperty(navigator, 'clipboard', {value: arguments[0] ? {writeText: async (text) => {
          window.copied = text;
        }} : undefined, configurable: true});
        const one = document.querySelector('.said .command');
        one.querySelector('button').click();
        return one.querySelector('code').textContent"""
    command = browser.run(click, True)
    assert command == browser.run("return window.copied")
    assert command.startswith("icekeeper verify ")
    assert browser.run("return String(getSelection())") == ""
    assert browser.run(click, False) == browser.run("return String(getSelection())") == command
    assert browser.run("return document.querySelector('.said button').textContent") == "selected"


def test_the_served_page_is_drawn_under_the_policy_of_its_header(browser: Browser, tmp_path: Path) -> None:
    page = ServedPage(lambda: render_page([catalog_document(fleet(3), NOW_MS)], NOW_MS), security_policy())
    metrics = StateMetrics(SqliteStateStore(tmp_path / "state.db"))
    with served("127.0.0.1", 0, metrics, CycleHealth(60), page) as url, page.kept_current():
        deadline_s = time.monotonic() + 20
        while page.answer("")[0] != "200 OK" and time.monotonic() < deadline_s:
            time.sleep(0.02)
        browser.look()
        browser.console()
        browser.driver.get(url)
        assert open_tables(browser) > 5
        assert browser.console() == []


def test_a_page_of_too_many_tables_for_details_is_drawn(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``benchmarks/report_page.py`` measures a page of 10,000 tables, which reaches the real bound."""
    monkeypatch.setattr("icekeeper.report.page.MOST_BYTES", 2_000_000)
    page = tmp_path / "page.html"
    page.write_text(render_page([catalog_document(fleet(1_000), NOW_MS)], NOW_MS))
    assert 2_000_000 < page.stat().st_size < 2_000_000 + 1_000_000  # the libraries of the page are not counted
    browser.look()
    browser.open(page)
    assert open_tables(browser, 1) >= 1


# Every number of a real lake equals that of ``health --json``.


def test_every_number_equals_that_of_health(browser: Browser, command: Command, tmp_path: Path) -> None:
    for name, appends in (("messy", 6), ("calm", 1), ("empty", 0)):
        command.table(f"ns.{name}", appends=appends)
    page = tmp_path / "lake.html"
    assert command("maintain", "ns.messy", "--engine", "local").code == 0
    assert command("report", "--fresh", "*", "--output", str(page)).code == 0
    browser.look()
    browser.console()
    browser.open(page)
    open_tables(browser)
    assert browser.console() == []
    keys = {
        "data files": "lake_data_files",
        "average file": "lake_average_file_bytes",
        "live": "lake_bytes",
        "history": "lake_history_bytes",
        "delete files": "lake_delete_files",
        "snapshots": "lake_snapshots",
    }
    script = """
        return [...document.querySelectorAll('.rows > tr:not(.detail)')].map((row) => [
          row.querySelector('.name button').textContent,
          [...row.querySelectorAll('td.number')].map((c) => [c.dataset.label, c.dataset.value ?? null, c.textContent]),
          [...row.nextSibling.querySelectorAll('td[data-key]')].map((c) => [c.dataset.key, c.dataset.value ?? null]),
        ])"""
    shown = browser.run(script)
    assert sorted(name for name, *_ in shown) == ["ns.calm", "ns.empty", "ns.messy"]
    for name, cells, facts in shown:
        counters = command("health", name, "--json").json["counters"]
        counters.pop("lake_oldest_snapshot_age_hours", None)  # it grows
        for label, value, text in cells:
            if label in keys:
                expected = counters.get(keys[label])
                assert value == (None if expected is None else str(expected)), (name, label)
                is_size = label in ("average file", "live", "history")
                as_text = size_text if is_size else "{:,}".format
                assert text == ("–" if expected is None else as_text(expected) if expected else "")
        reported = {key: value for key, value in facts if key in counters}
        assert reported == {key: str(counters[key]) for key, _ in facts if key in counters}
        assert "lake_data_files" in reported or not counters.get("lake_data_files")


# Vendored libraries.

VENDORED = {
    "d3.min.js": ("7.9.2", "912111098ea99503a6f4967361d2bbdc9dbf58cf9c678c8e27e5b02d1a07f0c1"),
    "plot.umd.min.js": ("0.6.17", "4358086467740777dd788d6b27a95cebdbaefdd50c730a3060117073bd7134cb"),
}


def test_vendored_libraries_equal_the_published_files() -> None:
    folder = files("icekeeper.report").joinpath("vendor")
    for name, (version, checksum) in VENDORED.items():
        data = folder.joinpath(name).read_bytes()
        assert sha256(data).hexdigest() == checksum
        assert version in data[:300].decode()
        assert "Permission to use, copy, modify" in folder.joinpath(f"{name.split('.')[0]}.LICENSE").read_text()
        assert re.search(r"</script|<!--", data.decode(), re.IGNORECASE) is None
    assert sha256(AXE.read_bytes()).hexdigest() == "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"
