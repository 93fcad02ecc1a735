"""Outcomes as JSON, on a terminal, and on the report page."""

from __future__ import annotations

import io
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console
from rich.text import Text

from icekeeper.errors import StorageError
from icekeeper.health.table_state import blocker_sentence
from icekeeper.maintenance.pass_steps import with_warnings
from icekeeper.model import CatalogId, TableName
from icekeeper.policy import Layer, Operation, resolve
from icekeeper.report.outcome import (
    BucketOutcome,
    OperationOutcome,
    PassOutcome,
    PassStatus,
    failed,
    listing_in,
    order_json,
    refused,
    replanned_sentence,
    skipped,
    succeeded,
)
from icekeeper.report.page import CatalogFacts, catalog_document, recorded_facts, render_page, within
from icekeeper.report.terminal import (
    print_bucket,
    print_changes,
    print_detection,
    print_line,
    print_outcome,
    print_passes,
    print_policy,
    print_rows,
    trouble,
)
from icekeeper.state.claims import CatalogLook, UnseenEntry
from icekeeper.state.findings import CatalogScan, Part, TableLayout, Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import PassRecord
from icekeeper.state.trends import TrendRow
from icekeeper.text import size_text, usd_text


def test_a_bucket_sweep_does_not_repeat_a_sentence_of_the_table_above() -> None:
    removed = {"ns.a": 0, "ns.b": 0, "ns.c": 2}
    tables = {
        name: succeeded(Operation.REMOVE_ORPHANS, f"removed {count} orphan file(s)") for name, count in removed.items()
    }
    outcome = BucketOutcome(
        catalog="C", bucket="b", run_id="r", dry_run=False, tables=tables, outside={"files": 0, "bytes": 0}, foreign=()
    )
    stream = io.StringIO()
    print_bucket(Console(file=stream, width=200), outcome)
    assert stream.getvalue().splitlines() == [
        "b: succeeded",
        "ns.a  succeeded  removed 0 orphan files",
        "ns.b  succeeded  as above",
        "ns.c  succeeded  removed 2 orphan files",
    ]


# Outcomes, and their JSON for programs.

COMPACTED = succeeded(
    Operation.COMPACT,
    "compacted 15 files into 3 (across 3 bins)",
    snapshot_ids=[11, 12],
    metrics={"compact.files_merged": 15, "compact.files_written": 3, "compact.bins": 3},
    files_planned=["s3://b/data/1.parquet", "s3://b/data/2.parquet"],
)
EXPIRED = succeeded(
    Operation.EXPIRE_SNAPSHOTS,
    "expired 2 snapshot(s), deleted 1 unreferenced file(s)",
    metrics={"expire_snapshots.snapshots_expired": 2},
    files_planned=["s3://b/data/0.parquet"],
    files_deleted=["s3://b/data/0.parquet"],
)
SKIPPED = skipped(Operation.REWRITE_MANIFESTS, "only 1 data manifests, below threshold of 5")
SWEPT = succeeded(Operation.REMOVE_ORPHANS, "removed 0 orphan file(s)", metrics={"remove_orphans.orphans_removed": 0})
EXPIRED_WITHOUT_FILES = succeeded(Operation.EXPIRE_SNAPSHOTS, "expired 1 snapshot(s), deleted 0 unreferenced file(s)")
FAILED = failed(Operation.COMPACT, "the bucket did not answer")
REFUSED = refused(Operation.COMPACT, "the table has delete files")


def make_pass(*operations: OperationOutcome, dry_run: bool = False) -> PassOutcome:
    return PassOutcome(table="ns.t", catalog="C", run_id="run-1", dry_run=dry_run, operations=operations)


def no_listing(name: str, files: object) -> str:
    raise AssertionError("nothing here is long enough for a listing")


@pytest.mark.parametrize(
    ("operations", "status", "idle"),
    [
        ([], "succeeded", True),
        ([SKIPPED], "succeeded", True),
        ([SKIPPED, SWEPT], "succeeded", True),
        ([COMPACTED, SKIPPED], "succeeded", False),
        ([EXPIRED], "succeeded", False),
        ([EXPIRED_WITHOUT_FILES], "succeeded", False),
        ([FAILED], "failed", False),
        ([FAILED, SKIPPED], "failed", False),
        ([FAILED, EXPIRED], "partial", False),
        ([FAILED, REFUSED], "partial", False),
        ([REFUSED], "partial", True),
        ([SKIPPED, REFUSED], "partial", True),
        ([REFUSED, EXPIRED], "partial", False),
    ],
)
def test_the_status_of_a_pass(operations: list[OperationOutcome], status: str, idle: bool) -> None:
    """Failed if all attempted operations failed; partial if any failed or was refused; skipped counts as success.
    Idle if nothing changed and nothing failed."""
    found = make_pass(*operations)
    assert (found.status.value, found.is_idle) == (status, idle)


def test_more_than_ten_thousand_paths_are_written_to_a_listing_file(tmp_path: Path) -> None:
    paths = [f"f{n}" for n in range(10_001)]
    at_limit = succeeded(Operation.REMOVE_ORPHANS, "removed", files_planned=paths[1:], files_deleted=paths[1:])
    assert at_limit.to_json("r", no_listing)["files"] == {"planned": paths[1:], "deleted": paths[1:]}
    outcome = succeeded(Operation.REMOVE_ORPHANS, "removed", files_planned=paths, files_deleted=paths[:3])
    listing = tmp_path / "new" / "r-remove_orphans.files.json"
    assert outcome.to_json("r", listing_in(tmp_path / "new"))["files"] == {
        "listing": str(listing),
        "planned_count": 10_001,
        "deleted_count": 3,
    }
    assert json.loads(listing.read_text()) == {"planned": paths, "deleted": paths[:3]}
    with pytest.raises(StorageError, match=r"^the list of files cannot be written to .*/x\.files\.json: "):
        listing_in(listing)("x", {})


def test_a_listing_is_private_and_inside_its_folder(tmp_path: Path) -> None:
    """Even if a table's name is a path (rule: state-is-private)."""
    folder, before = tmp_path / "state" / "listings", os.umask(0o022)
    try:
        written = Path(listing_in(folder)(f"{tmp_path}/ns.t-staged", {"staged": ["f"]}))
    finally:
        os.umask(before)
    assert [*tmp_path.rglob("*")] == [folder.parent, folder, written]
    modes = [stat.filemode(path.stat().st_mode) for path in (folder.parent, folder, written)]
    assert modes == ["drwx------", "drwx------", "-rw-------"]


def test_a_wrong_clock_is_one_warning_with_the_largest_difference() -> None:
    parts = [
        succeeded(Operation.EXPIRE_SNAPSHOTS, "s", metrics={"clock.skew_s": 61}),
        replace(refused(Operation.REMOVE_ORPHANS, "r"), metrics={"clock.skew_s": -172_800}),
        skipped(Operation.COMPACT, "c"),
    ]
    (warning,) = with_warnings(make_pass(*parts)).warnings
    assert warning == (
        "this machine's clock is 172800 s behind the clock of the table's store, which decides ages; correct this "
        "machine's clock"
    )
    assert with_warnings(make_pass(parts[2])).warnings == ()


# The report page: its document, and its escaping.

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
HOSTILE = "ns.<script>alert('&')</script>\x07"
COUNTERS = {"lake_data_files": 60, "lake_bytes": 3 * 2**20, "lake_delete_files": 0, "lake_snapshots": 9}


def identity(name: str, uuid: str = "u") -> TableIdentity:
    return TableIdentity(CatalogId("lake", "w"), TableName.parse(name), uuid, f"s3://b/{name}" if uuid else "")


def seen(name: str, verdict: Verdict | None = None, **more: Any) -> LakeStats:
    record = {"observed_ms": NOW_MS - HOUR_MS, "snapshot_id": 1, "counters": COUNTERS, **more}
    return LakeStats(identity=identity(name), verdict=verdict or Verdict(left_alone="no sign of work"), **record)


def unread(name: str, why: str) -> LakeStats:
    gone = Verdict(left_alone=why, is_unread=True)
    return LakeStats(identity=identity(name, ""), observed_ms=NOW_MS, snapshot_id=None, counters={}, verdict=gone)


def last_pass(name: str, status: str, summary: str, hours_ago: int = 2, **metrics: int) -> PassRecord:
    ended_ms = NOW_MS - hours_ago * HOUR_MS
    return PassRecord(
        identity=identity(name),
        run_id="r",
        started_ms=ended_ms - 1500,
        finished_ms=ended_ms,
        status=status,
        summary=summary,
        metrics={key.replace("__", "."): value for key, value in metrics.items()},
        engine="local",
    )


def document_of(*lake: LakeStats, passes: Sequence[PassRecord] = (), layouts: Sequence[TableLayout] = ()) -> Any:
    by_copy: dict[tuple[str, str], list[PassRecord]] = {}
    for item in passes:
        by_copy.setdefault(item.identity.copy, []).append(item)
    scan = CatalogScan(catalog=CatalogId("lake", "w"), scanned_ms=NOW_MS - HOUR_MS, listed=3, scanned=2)
    facts = CatalogFacts(catalog="lake", scan=scan, lake=lake, layouts=layouts, passes=by_copy)
    return catalog_document(facts, NOW_MS)


def test_the_trend_of_a_table_ends_with_its_newest_state() -> None:
    lake = [seen("shop.a", counters={"lake_data_files": 5, "lake_bytes": 70})]
    copy, day = identity("shop.a").copy, 24 * HOUR_MS
    rows = [TrendRow(observed_ms=lake[0].observed_ms - n * day, data_files=n, bytes=10 * n) for n in (2, 1)]
    facts = CatalogFacts(catalog="lake", scan=None, lake=lake, trends={copy: rows})
    (table,) = catalog_document(facts, NOW_MS)["tables"]
    newest = lake[0].observed_ms // 1000
    assert table["trend"] == [[newest - 2 * 86_400, 2, None, 20], [newest - 86_400, 1, None, 10], [newest, 5, None, 70]]
    (table,) = catalog_document(replace(facts, trends={}), NOW_MS)["tables"]
    assert "trend" not in table


def test_the_trend_of_the_fleet_has_the_last_state_of_each_table_by_each_day() -> None:
    """A table counts from its first known state on; what a day does not say is as before."""
    hour, day = NOW_MS - HOUR_MS, 24 * HOUR_MS
    lake = [seen("a.old"), seen("a.new", counters={"lake_data_files": 5, "lake_bytes": 70})]
    rows = [TrendRow(observed_ms=hour - n * day, data_files=n, delete_files=d) for n, d in ((3, 4), (1, None))]
    trends = {identity("a.new").copy: rows, identity("a.old").copy: [TrendRow(observed_ms=0, bytes=9)]}
    layouts = [
        TableLayout(identity=identity(name), observed_ms=hour, part=Part.FILES, facts={"sizes": sizes})
        for name, sizes in (("a.old", [[20, 3, 0], [21, 1, 0]]), ("a.new", [[20, 4, 0]]))
    ]
    document = catalog_document(
        CatalogFacts(catalog="lake", scan=None, lake=lake, layouts=layouts, trends=trends), NOW_MS
    )
    now_s, day_s = NOW_MS // 1000, 86_400
    assert document["trend"][-5:] == [
        [now_s - 4 * day_s, 1, 0, 0, 9],
        [now_s - 3 * day_s, 2, 3, 4, 9],
        [now_s - 2 * day_s, 2, 3, 4, 9],
        [now_s - day_s, 2, 1, 4, 9],
        [now_s, 2, 65, 4, 3 * 2**20 + 70],
    ]
    assert (len(document["trend"]), document["sizes"]) == (60, {"tables": 2, "files": [[20, 7], [21, 1]]})


def test_a_trend_begins_with_the_state_before_its_first_day(tmp_path: Path) -> None:
    """A table that changed before and within the 59 days is not new."""
    state, day = SqliteStateStore(tmp_path / "state.db"), 24 * HOUR_MS
    state.lake_stats.record(seen("a.b"))
    state.trends.record(
        (identity("a.b"), TrendRow(observed_ms=NOW_MS - days * day, data_files=days), None) for days in (90, 75, 10)
    )
    (rows,) = recorded_facts(state, CatalogId("lake", "w"), NOW_MS).trends.values()
    assert [(row.observed_ms, row.data_files) for row in rows] == [(NOW_MS - 59 * day, 75), (NOW_MS - 10 * day, 10)]


def test_a_paused_table_is_counted_as_waiting_and_asks_for_nothing() -> None:
    paused = {"paused_until": {"source": "icekeeper pause", "value": "2026-12-01"}}
    page = render_page([document_of(seen("a.b", DUE, policy=paused))], NOW_MS)
    assert '<p class="said">1 has work due or waiting, of 1 table.</p>' in page
    assert '<section class="first' not in page


def test_a_long_reason_is_cut_between_words() -> None:
    page = render_page([document_of(seen("a.b", Verdict(reasons=("files " * 60,))))], NOW_MS)
    assert f"<p>{'files ' * 39}files\N{NO-BREAK SPACE}…</p>" in page


def test_the_page_counts_tables_that_were_never_verified() -> None:
    day = 24 * HOUR_MS
    lake = [seen("a.b", verified_ms=NOW_MS - 9 * day), seen("a.c", verified_ms=NOW_MS - 3 * day)]
    note = '<dd class="faint">{}</dd>'.format
    assert note("all verified within 9 days") in render_page([document_of(*lake)], NOW_MS)
    page = render_page([document_of(*lake, seen("a.d"), seen("a.e"))], NOW_MS)
    assert note("2 never verified, 2 verified within 9 days") in page


DUE = Verdict(reasons=("60 small files",), priority=0.5, sweep_due_ms=NOW_MS + HOUR_MS)


def test_the_document_of_a_table_has_the_records_of_scans_and_passes() -> None:
    done = last_pass("shop.a b", "succeeded", "compact: done; expire_snapshots: done", remove_orphans__bytes_left=7)
    facts = {"sizes": [[20, 3, 3 << 20]]}
    layout = TableLayout(identity=identity("shop.a b"), observed_ms=NOW_MS, part=Part.FILES, facts=facts)
    policy = {"min_input_files": {"source": "this call", "value": 3}}
    stats = seen("shop.a b", DUE, warnings={"small_files": "MetadataUnreadable: small"}, policy=policy)
    document = document_of(stats, passes=[done], layouts=[layout])
    assert document["tables"] == [
        {
            "name": "shop.a b",
            "state": "work",
            "priority": 0.5,
            "observed_ms": NOW_MS - HOUR_MS,
            "counters": {**COUNTERS, "lake_orphan_bytes": 7},
            "command": "icekeeper maintain 'shop.a b' --catalog lake",
            "warnings": {"small_files": "small"},
            "reasons": ["60 small files"],
            "sweep_due_ms": NOW_MS + HOUR_MS,
            "policy": {"min_input_files": [3, "this call"]},
            "last_pass": {
                "finished_ms": NOW_MS - 2 * HOUR_MS,
                "seconds": 1.5,
                "status": "succeeded",
                "engine": "local",
                "lines": ["compact: done", "expire_snapshots: as above"],
            },
            "layout": {"files": {"observed_ms": NOW_MS, "sizes": [[20, 3, 3 << 20]]}},
        }
    ]
    assert document["totals"]["lake_orphan_bytes"] == 7
    assert document["scan"] == {"scanned_ms": NOW_MS - HOUR_MS, "listed": 3, "scanned": 2}


def test_a_blocker_is_named_once_and_waiting_tables_keep_their_states() -> None:
    unseen = [UnseenEntry(table=TableName(("crm",), f"lost{number}"), reason="gone") for number in range(5)]
    look = CatalogLook(catalog=CatalogId("lake", "w"), unseen=tuple(unseen))
    assert blocker_sentence([look], 0) == blocker_sentence([], 3) == ""
    one = replace(look, unseen=(*unseen[:1], replace(unseen[1], is_known=True), replace(unseen[2], is_gone=True)))
    assert blocker_sentence([one], 30) == (
        "crm.lost0 cannot be read; deletions wait in 30 tables; repair it, or exclude it with "
        "icekeeper claims exclude crm.lost0 --catalog lake"
    )
    assert blocker_sentence([look], 1).startswith("crm.lost0, crm.lost1, crm.lost2 and 2 more cannot be read; ")
    waits = {"pass__deletions_wait": 2}
    passes = [last_pass(name, "partial", "remove_orphans: why", **waits) for name in ("shop.calm", "shop.due")]
    lake = [seen("shop.calm"), seen("shop.due", DUE), seen("shop.torn", warnings={"unreadable_files": "torn"})]
    by_copy = {item.identity.copy: [item] for item in passes}
    facts = CatalogFacts(catalog="lake", scan=None, lake=lake, passes=by_copy, looks=[look])
    document = catalog_document(facts, NOW_MS)
    assert [(item["name"], item["state"]) for item in document["tables"]] == [
        ("shop.torn", "damaged"),
        ("shop.due", "work"),
        ("shop.calm", "well"),
    ]
    assert document["blocker"] == blocker_sentence([look], 2)
    assert render_page([document], NOW_MS).count(f"<p>{document['blocker']}</p>") == 1


def test_damage_begins_with_a_planned_repair() -> None:
    (table,) = document_of(seen("shop.a b", warnings={"damaged": "1 file is missing"}))["tables"]
    assert table["command"] == "icekeeper repair 'shop.a b' --catalog lake --dry-run"


def test_tables_in_trouble_come_first_then_tables_with_work() -> None:
    wrong = {"wrong_settings": "the table's settings are wrong"}
    document = document_of(
        seen("shop.calm"),
        seen("shop.due", DUE),
        seen("shop.lost", DUE),
        unread("shop.lost", "StorageError: v9.json is missing"),
        seen("shop.torn", DUE),
        seen("shop.wrong", warnings=wrong),
        passes=[last_pass("shop.torn", "partial", "compact: m.avro is gone"), last_pass("shop.torn", "succeeded", "")],
    )
    rows = [(item["name"], item["state"], item.get("trouble"), item.get("command")) for item in document["tables"]]
    catalog = "--catalog lake"
    assert rows == [
        ("shop.lost", "unreadable", "cannot be read: v9.json is missing", f"icekeeper verify shop.lost {catalog}"),
        (
            "shop.torn",
            "trouble",
            "last pass partial: compact: m.avro is gone",
            f"icekeeper maintain shop.torn {catalog}",
        ),
        ("shop.wrong", "trouble", "the table's settings are wrong", f"icekeeper policy show shop.wrong {catalog}"),
        ("shop.due", "work", None, f"icekeeper maintain shop.due {catalog}"),
        ("shop.calm", "well", None, None),
    ]
    assert document["states"] == {"unreadable": 1, "damaged": 0, "trouble": 2, "work": 1, "paused": 0, "well": 1}
    assert document["totals"]["lake_tables"] == 5  # a record of an unread table is not counted
    page = render_page([document], NOW_MS)
    verdict = "1 of 5 tables cannot be read in full; 3 have work due or waiting. First look at shop.lost: "
    assert f'<p class="said">{verdict}<span class="command">' in page
    assert "<code>icekeeper verify shop.lost --catalog lake</code>" in page
    assert "2 wait for a person" in page
    assert "scanned 1 hour ago, 2 of 3 tables" in page


def test_achievements_are_sums_over_the_passes_of_a_month() -> None:
    metrics = {
        "compact__files_merged": 60,
        "compact__files_written": 2,
        "expire_snapshots__snapshots_expired": 5,
        "remove_orphans__orphans_removed": 3,
        "expire_snapshots__bytes_freed": 60 * 2**30,
        "remove_orphans__bytes_freed": 40 * 2**30,
    }
    passes = [last_pass("a.b", "succeeded", "", hours, **metrics) for hours in (1, 29 * 24, 31 * 24)]
    document = document_of(seen("a.b"), passes=passes)
    assert "<dd>$4.60 <small>a month</small></dd>" in render_page([document], NOW_MS)
    assert "<dd>$9.20 <small>a month</small></dd>" in render_page([document, document], NOW_MS)
    assert document["achieved"] == {
        "days": 30,
        "passes": 2,
        "files_merged": 120,
        "files_written": 4,
        "snapshots_expired": 10,
        "orphans_removed": 6,
        "bytes_freed": 200 * 2**30,
        "usd_per_month": 4.6,
    }


def test_the_page_names_one_command_to_run() -> None:
    due, calm = document_of(seen("a.b", DUE)), document_of(seen("a.b"))
    assert "<code>icekeeper run --catalog lake --once</code>" in render_page([due], NOW_MS)
    assert "1 has work due or waiting, of 1 table." in render_page([due], NOW_MS)
    old = render_page([calm], NOW_MS + 72 * HOUR_MS)
    assert "<code>icekeeper detect --catalog lake</code>" in old
    well = render_page([calm], NOW_MS)
    assert "All well: none of 1 table needs work." in well
    assert "<code>" not in well
    assert "There are no tables." in render_page([document_of()], NOW_MS)


def test_text_of_a_table_is_escaped_on_the_page() -> None:
    last = last_pass("ns.t", HOSTILE, HOSTILE)
    page = render_page([document_of(seen(HOSTILE, DUE), passes=[last])], NOW_MS)
    for address, part in re.findall(r"<a class=\"title\" href=\"(.*?)\">(.*?)</a>", page):
        assert unquote(unescape(address)) == f"#lake/{HOSTILE}".replace("\x07", "\\x07")
        assert unescape(part.replace("<wbr>", "")) == HOSTILE.replace("\x07", "\\x07")
    outline = Outline(page)
    assert outline.tags.count("script") == 4  # the data, the page's script, D3 and Plot
    assert "\x07" not in page
    data = json.loads(page.split(' id="data">')[1].split("</script>")[0])
    assert data["catalogs"][0]["tables"][0]["name"] == HOSTILE.replace("\x07", "\\x07")


def test_a_page_above_its_size_limit_omits_details() -> None:
    """It keeps the details of tables whose manifests were read, then of tables with a higher priority."""
    line = {"from_ms": 1, "seconds": [0] * 100, "operations": "a" * 100, "refs": []}
    layout = TableLayout(identity=identity("a.well"), observed_ms=NOW_MS, part=Part.HOLDERS, facts={"refs": []})
    document = document_of(
        seen("a.well", timeline=line),
        seen("a.due", DUE, timeline=line),
        seen("a.fine", timeline=line),
        layouts=[layout],
    )
    whole = len(json.dumps([document], separators=(",", ":")))
    assert within([document], whole) == [document]
    tables = within([document], whole - 1)[0]["tables"]
    assert [(item["name"], "timeline" in item, item.get("left_out", False)) for item in tables] == [
        ("a.due", True, False),
        ("a.fine", False, True),
        ("a.well", True, False),
    ]
    assert "layout" in tables[2]


class Outline(HTMLParser):
    """The tags of a page, which must not refer to anything outside of it."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        within = {name for name, value in attrs if value == "data:," or (name == "href" and (value or "")[:1] == "#")}
        assert not {name for name, _ in attrs} - within & {"src", "href", "style"}


# Output for people; colours only on a terminal.


def console(*, terminal: bool = False, width: int = 120) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    colours: Any = "standard" if terminal else None
    return Console(file=stream, width=width, force_terminal=terminal, color_system=colours), stream


def lines(stream: io.StringIO) -> list[str]:
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def printed_outcome(outcome: PassOutcome) -> list[str]:
    target, stream = console(width=200)
    print_outcome(target, outcome)
    return [" ".join(line.split()) for line in lines(stream)]


OUTCOME = PassOutcome(
    table="ns.[red]t",
    catalog="C",
    run_id="r",
    dry_run=True,
    operations=(
        failed(Operation.COMPACT, "s3://b/[x].parquet is missing"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
    ),
)


def test_a_pass_prints_every_operation_without_parsing_markup() -> None:
    target, stream = console()
    print_outcome(target, OUTCOME)
    assert lines(stream) == [
        "ns.[red]t: failed (dry run: nothing was changed)",
        "compact           failed   s3://b/[x].parquet is missing",
        "expire_snapshots  skipped  no snapshots to expire",
    ]


def test_operations_with_the_same_reason_share_a_sentence() -> None:
    parts = (
        failed(Operation.COMPACT, "m.avro is truncated"),
        refused(Operation.EXPIRE_SNAPSHOTS, "m.avro is truncated"),
        skipped(Operation.REMOVE_ORPHANS, "nothing of interest"),
        failed(Operation.REWRITE_MANIFESTS, "the disk is full"),
    )
    outcome = PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=False, operations=parts)
    assert trouble(outcome) == (
        "ns.t: compact failed, expire_snapshots refused: m.avro is truncated; "
        "rewrite_manifests failed: the disk is full"
    )


def test_colours_appear_on_a_terminal_only() -> None:
    target, stream = console(terminal=True)
    print_outcome(target, OUTCOME)
    skipped = [{"table": "ns.a", "reason": "gone", "error": True}, {"table": "ns.b", "reason": "no sign of work"}]
    print_detection(target, {"scanned": 1, "proposals": [], "skipped": skipped}, show_all=True)
    for coloured in ("\x1b[31mfailed\x1b[0m", "\x1b[31mns.a\x1b[0m", "\x1b[31mgone\x1b[0m", "\x1b[2mns.b\x1b[0m"):
        assert coloured in stream.getvalue()


@pytest.mark.parametrize(
    ("proposed", "beyond", "expected"),
    [
        (1, {}, "1 needs work"),
        (2, {"beyond_limit": 8}, "10 need work, 8 of them beyond max_jobs_per_detection"),
        (0, {"beyond_limit": 0}, "0 need work"),
    ],
)
def test_detection_prints_proposals_then_skipped_tables(proposed: int, beyond: dict[str, int], expected: str) -> None:
    target, stream = console()
    proposals = [{"table": "ns.a", "reasons": ["one", "two"], "priority": 0.8936}] * proposed
    skipped = [{"table": "ns.bb", "reason": "no sign of work"}]
    print_detection(
        target, {"catalog": "C", "scanned": 12, "proposals": proposals, "skipped": skipped, **beyond}, show_all=True
    )
    assert lines(stream) == [
        f"12 tables scanned, {expected}",
        *["ns.a   priority 0.89  one; two"] * proposed,
        "ns.bb                 no sign of work" if proposed else "ns.bb    no sign of work",
    ]


# Tables fit the terminal; without a terminal a row is one line.

LONG = "sort_order names column 'idd', which does not exist in the table or cannot be sorted; its columns are id, name"
PATH = "s3://bucket/" + "x" * 120 + ".parquet"


def printed(rows: Sequence[tuple[str, ...]], width: int, *, terminal: bool = True, one_line: bool = False) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, force_terminal=terminal, color_system=None)
    print_rows(console, [tuple(map(Text, row)) for row in rows], one_line=one_line)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_long_sentence_wraps_within_its_column(width: int) -> None:
    lines = printed([("ns.orders", "failed", LONG), ("ns.t", "failed", "short")], width)
    assert max(map(len, lines)) <= width
    assert lines[-1] == "ns.t       failed  short"
    assert all(line.startswith(" " * 19) for line in lines[1:-1])
    assert " ".join(line[19:] for line in lines[:-1]) == LONG


def test_a_column_without_room_begins_on_a_new_line() -> None:
    lines = printed([("n" * 40, "failed", LONG), ("ns.t", "failed", "short")], 60)
    assert lines.pop() == f"{'ns.t':40}  failed  short"
    assert lines[0] == "n" * 40 + "  failed"
    assert [line[:4] for line in lines[1:]] == ["    "] * (len(lines) - 1)
    assert max(map(len, lines)) <= 60


def test_a_path_is_not_broken_and_without_a_terminal_a_row_is_one_line() -> None:
    assert PATH in printed([("ns.t", f"missing {PATH} of a snapshot")], 60)[1]
    assert printed([("ns.t", LONG)], 60, terminal=False) == [f"ns.t  {LONG}"]


def test_a_policy_fits_a_terminal_of_80_columns() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    rows = resolve([Layer("this call", {"min_input_files": "3"})]).rows()
    print_policy(console, rows)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "min_input_files = 3  (this call)" in [line.rstrip() for line in lines]
    assert next(line for line in lines if line[:4].strip()).startswith("maintenance_enabled = true")


def test_a_change_and_the_line_of_a_pass_wrap_between_words() -> None:
    stream = io.StringIO()
    console = Console(file=stream, width=80, force_terminal=True, color_system=None)
    source = f"policy file /home/somebody/.config/icekeeper/{'folder/' * 3}icekeeper.yaml rule 1 (*/*/*)"
    sides = {"before": {"value": 4, "source": source}, "after": {"value": 7, "source": "this call"}}
    print_changes(console, "shop.orders", [{"key": "min_input_files", **sides}])
    print_line(console, "shop." + "n" * 50, PassStatus.FAILED, LONG)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert " ".join(map(str.strip, lines)) == (
        f"shop.orders: min_input_files: 4 ({source}) → 7 (this call) shop.{'n' * 50}  failed  {LONG}"
    )


def test_a_line_for_each_row_cuts_the_first_and_the_last_column() -> None:
    rows = [(f"ns.{'n' * 60}_by_country", "work", LONG), ("ns.t", "well", "short")]
    assert printed(rows, 80, one_line=True) == [
        f"ns.{'n' * 23}…{'n' * 14}_by_country  work  sort_order names co…",
        f"ns.t{' ' * 48}  well  short",
    ]
    assert printed(rows[1:], 30, one_line=True) == ["ns.t  well  short"]
    assert printed(rows, 80, one_line=True, terminal=False)[0] == "  ".join(rows[0])


def test_a_very_long_name_does_not_widen_other_lines() -> None:
    long = "n" * 1_000_000
    lines = printed([(long, "failed", "x"), *(("ns.t", "failed", "y") for _ in range(100))], 80, terminal=False)
    assert lines[0] == f"{long}  failed  x"
    assert set(lines[1:]) == {f"{'ns.t':200}  failed  y"}


# Outcomes for people: no class names, no repeated sentences, and the limits of a dry run.


def outcome_of(*parts: OperationOutcome, dry_run: bool = False) -> PassOutcome:
    return PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=dry_run, operations=parts)


def test_output_for_people_has_no_class_names() -> None:
    broken = outcome_of(failed(Operation.COMPACT, "1 bin(s) failed: StorageError: the disk is full"))
    assert printed_outcome(broken)[1] == "compact failed 1 file group failed: the disk is full"
    assert trouble(broken) == "ns.t: compact failed: 1 file group failed: the disk is full"
    assert broken.summary == "compact: 1 bin(s) failed: StorageError: the disk is full"
    stream = io.StringIO()
    entry = {"started_ms": 0, "duration_ms": 1, "status": "failed", "summary": "compact: CommitConflict: moved"}
    none = {"bytes_freed": 0, "files_before": 0, "files_after": 0, "requests_saved": 0, "cost_usd": 0}
    print_passes(
        Console(file=stream, width=200), [{**entry, **none}], {"passes": 1, "failed": 1, **none}, is_of_fleet=False
    )
    assert stream.getvalue().endswith("failed  nothing freed; compact: moved\n1 pass, 1 not succeeded: nothing freed\n")


def test_the_history_of_a_fleet_leaves_out_operations_that_changed_nothing() -> None:
    none = {"bytes_freed": 0, "files_before": 0, "files_after": 0, "requests_saved": 0, "cost_usd": 0}
    entry = {"catalog": "lake", "table": "ns.t", "started_ms": 0, "duration_ms": 1, **none}
    summary = "compact: compacted 4 files into 1; expire_snapshots: no snapshots to expire"
    metrics = {
        "compact.files_merged": 4,
        "expire_snapshots.duration_ms": 8,
        "expire_snapshots.snapshots_kept_for_writers": 0,
    }
    pause = {"status": "succeeded", "summary": "pause: somebody paused the table", "metrics": {}}

    def shown(past: dict[str, Any], *, is_of_fleet: bool) -> str:
        stream = io.StringIO()
        totals = {"passes": 1, "failed": 0, **none}
        print_passes(Console(file=stream, width=400), [{**entry, **past}], totals, is_of_fleet=is_of_fleet)
        return stream.getvalue().splitlines()[0].partition("nothing freed; ")[2]

    for status, is_of_fleet, expected in (
        ("succeeded", True, "compact: compacted 4 files into 1"),
        ("succeeded", False, summary),
        ("partial", True, summary),
    ):
        past = {"status": status, "summary": summary, "metrics": metrics}
        assert shown(past, is_of_fleet=is_of_fleet) == expected
    assert shown(pause, is_of_fleet=True) == pause["summary"]


def test_a_pass_does_not_repeat_a_sentence_of_the_line_above() -> None:
    disabled = "maintenance is disabled (this call)"
    parts = [skipped(operation, disabled) for operation in list(Operation)[:3]]
    assert printed_outcome(outcome_of(*parts, refused(Operation.REMOVE_ORPHANS, "x is missing")))[1:] == [
        f"expire_partitions skipped {disabled}",
        "compact skipped as above",
        "rewrite_position_deletes skipped as above",
        "remove_orphans refused x is missing",
    ]
    separated = (
        failed(Operation.COMPACT, "x is missing"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
        refused(Operation.REMOVE_ORPHANS, "StorageError: x is missing"),
    )
    assert printed_outcome(outcome_of(*separated))[3] == "remove_orphans refused as compact"


def test_a_dry_run_names_the_operations_that_the_pass_plans_again() -> None:
    parts = (
        succeeded(Operation.COMPACT, "would compact 36 files into 1"),
        skipped(Operation.EXPIRE_SNAPSHOTS, "no snapshots to expire"),
        succeeded(Operation.REMOVE_ORPHANS, "would remove 0 orphan file(s)"),
        succeeded(Operation.REWRITE_MANIFESTS, "would rewrite 36 manifests into 1"),
    )
    sentence = "planned on the current table; the pass plans again after compact: expire_snapshots, rewrite_manifests"
    assert printed_outcome(outcome_of(*parts, dry_run=True))[-1] == sentence
    assert replanned_sentence(parts) == sentence
    assert sentence not in printed_outcome(outcome_of(*parts))
    assert order_json(parts) == {"expire_snapshots": ["compact"], "rewrite_manifests": ["compact"]}
    unchanged = (skipped(Operation.COMPACT, "no files eligible for compaction"), *parts[2:])
    assert (replanned_sentence(unchanged), order_json(unchanged)) == (None, {})


def test_bins_are_printed_as_file_groups() -> None:
    """The summary in JSON is unchanged; a single group is not printed."""
    item = outcome_of(succeeded(Operation.COMPACT, "compacted 6 files into 1 (across 1 bins)"))
    three = outcome_of(
        succeeded(Operation.COMPACT, "compacted 15 files into 4 (across 3 bins); left 1 file(s) unchanged")
    )
    assert printed_outcome(item)[1] == "compact succeeded compacted 6 files into 1"
    assert (
        printed_outcome(three)[1]
        == "compact succeeded compacted 15 files into 4 in 3 file groups; left 1 file unchanged"
    )
    assert item.summary == "compact: compacted 6 files into 1 (across 1 bins)"


def test_sizes_have_the_largest_unit_and_small_amounts_are_not_zero() -> None:
    sizes = (925, 2048, 192 * 2**20, 5 * 2**30, 3.2 * 2**40)
    assert [size_text(size) for size in sizes] == ["925 B", "2 KB", "192 MB", "5 GB", "3.2 TB"]
    assert [usd_text(amount) for amount in (0, 0.00002, 1.25)] == ["$0", "less than $0.0001", "$1.2500"]
