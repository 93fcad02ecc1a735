"""The report page: a JSON document per catalog, of what scans and passes recorded, and the HTML file that shows it.

Building the document is pure.  The page is one file that needs no network, which its content security policy forbids:
every script and style in it is allowed by its hash.  Text of tables is escaped for people, as everywhere, and data are
JSON without ``<``, so that no name can end the element that contains them (rule: escape-at-the-edge).
"""

from __future__ import annotations

import json
import re
import shlex
from base64 import b64encode
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from typing import Any, TypeAlias
from urllib.parse import quote

from icekeeper.errors import StorageError
from icekeeper.health.examine import lake_totals
from icekeeper.health.table_state import TableState, WarningKind, blocker_sentence, state_of
from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import CatalogId, TableName
from icekeeper.policy import resolve
from icekeeper.report.outcome import FREED, in_plain_words, lines_of
from icekeeper.report.prices import STORED_GB_MONTH_USD
from icekeeper.state.claims import CatalogLook
from icekeeper.state.findings import CatalogScan, TableLayout
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.state.trends import TrendRow
from icekeeper.text import age_text, escaped, escaped_document, size_text

ORPHANS = "lake_orphan_bytes"
"""The counter of orphans that the last sweep kept, because they were too young."""
_LEFT = "remove_orphans.bytes_left"

DAYS = 30
"""Achievements are summed over the passes that ended within this many days."""
PASSES = 10
"""At most this many passes of each table are read, the newest first."""

_AT_ONCE = 16
_DAY_MS = 24 * HOUR_MS
_GB = 2**30
_STALE_MS = 2 * _DAY_MS
_TREND_DAYS = 59
_SERVED_MS = 7 * _DAY_MS
_ACHIEVED = {
    "files_merged": ("compact.files_merged",),
    "files_written": ("compact.files_written",),
    "snapshots_expired": ("expire_snapshots.snapshots_expired",),
    "orphans_removed": ("remove_orphans.orphans_removed",),
    "bytes_freed": FREED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogFacts:
    """The records of one catalog in the state."""

    catalog: str
    scan: CatalogScan | None
    lake: Sequence[LakeStats]
    layouts: Sequence[TableLayout] = ()
    passes: Mapping[tuple[str, str], Sequence[PassRecord]] = field(default_factory=dict)
    """By copy of a table: its newest passes, newest first."""
    trends: Mapping[tuple[str, str], Sequence[TrendRow]] = field(default_factory=dict)
    """By copy of a table: its state 59 days ago and a row for each day on which a scan saw a change, oldest first."""
    looks: Sequence[CatalogLook] = ()
    """The last look at each catalog that shares the state."""


def recorded_facts(state: StateStore, catalog: CatalogId, now_ms: int) -> CatalogFacts:
    """Read the records of a catalog in the state; no catalog, table or manifest is read.

    Raises:
        StorageError: the state cannot be read, or knows neither a scan nor a table of the catalog.
    """
    with state.kept_open():
        scan, lake = state.scans.of_catalog(catalog), list(state.lake_stats.of_catalog(catalog))
        if scan is None and not lake:
            raise StorageError(
                f"no scan of catalog {catalog} is recorded: run icekeeper detect --catalog {shlex.quote(catalog.name)} "
                "first, or set ICEKEEPER_STATE to the state of the deployment that maintains it"
            )
        identities = {stats.identity.copy: stats.identity for stats in lake if stats.identity.location}
        return CatalogFacts(
            catalog=catalog.name,
            scan=scan,
            lake=lake,
            layouts=list(state.layouts.of_catalog(catalog)),
            passes=dict(_passes_of(state, identities)),
            trends=_trends_of(state, identities.values(), now_ms),
            looks=state.claims.looks(),
        )


def _trends_of(
    state: StateStore, identities: Collection[TableIdentity], now_ms: int
) -> dict[tuple[str, str], Sequence[TrendRow]]:
    """By copy of a table: its rows of 59 days; before these the last known older row, as its state when they begin."""
    since_ms = now_ms - _TREND_DAYS * _DAY_MS
    found = dict[tuple[str, str], Sequence[TrendRow]]()
    for identity, rows in state.trends.of_catalog(identities).items():
        earlier = [row for row in rows if row.observed_ms < since_ms]
        before = [replace(row, observed_ms=since_ms) for row in earlier[-1:]]
        found[identity.copy] = [*before, *rows[len(earlier) :]]
    return found


def recorded_page(state: StateStore, now_ms: int, catalogs: Collection[str] = ()) -> str:
    """The page of all catalogs, or of those with these names, that were scanned within a week of ``now_ms``; no catalog
    is opened.

    Raises:
        StorageError: the state cannot be read, or none of ``catalogs`` was scanned.
    """
    scans = [scan for scan in state.scans.all() if scan.scanned_ms > now_ms - _SERVED_MS]
    scans = [scan for scan in scans if not catalogs or scan.catalog.name in catalogs]
    if catalogs and not scans:
        raise StorageError(f"no scan of {', '.join(catalogs)} in the last week is recorded")
    facts = (recorded_facts(state, scan.catalog, now_ms) for scan in scans)
    return render_page([catalog_document(catalog, now_ms) for catalog in facts], now_ms)


def _passes_of(
    state: StateStore, identities: Mapping[tuple[str, str], TableIdentity]
) -> Iterator[tuple[tuple[str, str], Sequence[PassRecord]]]:
    """The newest passes by copy of a table; requests to DynamoDB mostly wait, so several are sent at once."""
    if state.table.is_local:
        yield from ((copy, state.history(identity, limit=PASSES)) for copy, identity in identities.items())
        return
    with WorkThreads(_AT_ONCE, thread_name_prefix="icekeeper-page") as threads:
        found = threads.map(lambda identity: state.history(identity, limit=PASSES), identities.values())
        yield from zip(identities, found, strict=True)


def catalog_document(facts: CatalogFacts, now_ms: int) -> dict[str, Any]:
    """The document of a catalog; ``now_ms`` is in epoch milliseconds.

    Tables are ordered by state, the most urgent first, then by priority and name.
    """
    layouts: dict[tuple[TableName, str], dict[str, Any]] = {}
    for stored in facts.layouts:
        parts = layouts.setdefault((stored.identity.table, stored.identity.uuid), {})
        parts[stored.part.value] = {"observed_ms": stored.observed_ms, **stored.facts}
    tables, changes = [], list[Sequence[_Point]]()
    for name, records in _by_name(facts.lake).items():
        unread = next((stats for stats in records if stats.verdict.is_unread), None)
        stats = max(
            (stats for stats in records if stats is not unread), key=lambda stats: stats.observed_ms, default=None
        )
        known = stats or unread
        assert known is not None
        passes = facts.passes.get(known.identity.copy, ())
        layout = layouts.get((known.identity.table, known.identity.uuid), {})
        points = _points(facts.trends.get(known.identity.copy, ()), stats)
        changes.append(points)
        # A single state is no trend.
        trend = {"trend": points} if len(points) > 1 else {}
        tables.append({**_table(facts.catalog, name, stats, unread, passes, layout), **trend})
    order = list(TableState)
    tables.sort(key=lambda table: (order.index(table["state"]), -table["priority"], table["name"]))
    blocker = blocker_sentence(facts.looks, sum("waits" in table for table in tables))
    states = Counter(table["state"] for table in tables)
    orphans = [table["counters"][ORPHANS] for table in tables if ORPHANS in table["counters"]]
    scan = facts.scan
    document = {
        "catalog": facts.catalog,
        "scan": None
        if scan is None
        else {"scanned_ms": scan.scanned_ms, "listed": scan.listed, "scanned": scan.scanned},
        "states": {state.value: states[state] for state in order},
        **({"blocker": blocker} if blocker else {}),
        "totals": {**lake_totals(facts.lake), **({ORPHANS: sum(orphans)} if orphans else {})},
        "achieved": _achieved(facts.passes.values(), now_ms),
        "trend": _fleet_trend(changes, now_ms),
        "sizes": _fleet_sizes(layout["files"] for layout in layouts.values() if "files" in layout),
        "tables": tables,
    }
    found: dict[str, Any] = escaped_document(document)
    return found


def _by_name(lake: Iterable[LakeStats]) -> dict[str, list[LakeStats]]:
    found: dict[str, list[LakeStats]] = {}
    for stats in lake:
        found.setdefault(str(stats.identity.table), []).append(stats)
    return found


def _table(
    catalog: str,
    name: str,
    stats: LakeStats | None,
    unread: LakeStats | None,
    passes: Sequence[PassRecord],
    layout: Mapping[str, Any],
) -> dict[str, Any]:
    """The document of one table, without empty and unknown values, because a page may have ten thousand tables."""
    known = stats or unread
    assert known is not None
    verdict, last = known.verdict, passes[0] if passes else None
    recorded: Mapping[str, Any] = known.policy
    left = next((passed.metrics[_LEFT] for passed in passes if _LEFT in passed.metrics), None)
    state, kind = state_of(stats, unread, last)
    trouble, command = _trouble(state, kind, unread or known, last)
    argument = f"{shlex.quote(name)} --catalog {shlex.quote(catalog)}"
    may_be_empty = {
        "trouble": trouble,
        "waits": WarningKind.DELETIONS_WAIT in known.warnings or (last is not None and last.only_waits),
        "verified_ms": known.verified_ms,
        "command": f"icekeeper {command} {argument}{' --dry-run' if command == 'repair' else ''}" if command else "",
        "warnings": {kind: in_plain_words(sentence) for kind, sentence in known.warnings.items()},
        "reasons": [in_plain_words(reason) for reason in verdict.reasons],
        "left_alone": "" if trouble else in_plain_words(verdict.left_alone),
        "sweep_due_ms": verdict.sweep_due_ms,
        "policy": {key: [setting["value"], setting["source"]] for key, setting in recorded.items()},
        "timeline": dict(known.timeline),
        "last_pass": {} if last is None else _pass(last),
        "layout": dict(layout),
    }
    return {
        "name": name,
        "state": state.value,
        "priority": verdict.priority,
        "observed_ms": known.observed_ms,
        "counters": {**known.counters, **({} if left is None else {ORPHANS: left})},
        **{key: value for key, value in may_be_empty.items() if value},
    }


_Point: TypeAlias = list[int | float | None]
"""``[epoch seconds, data files, delete files, bytes]``"""


def _points(rows: Sequence[TrendRow], stats: LakeStats | None) -> list[_Point]:
    """A point for each day on which the table had changed, and its newest state."""
    points: list[_Point] = [[row.observed_ms // 1000, row.data_files, row.delete_files, row.bytes] for row in rows]
    if stats is not None and (not rows or stats.observed_ms > rows[-1].observed_ms):
        newest = (stats.counters.get(key) for key in ("lake_data_files", "lake_delete_files", "lake_bytes"))
        points.append([stats.observed_ms // 1000, *newest])
    return points


def _fleet_trend(tables: Iterable[Sequence[_Point]], now_ms: int) -> list[list[int | float]]:
    """``[epoch seconds, tables, data files, delete files, bytes]`` of all tables, at the end of each of 60 days until
    ``now_ms``, without days before the first scan; a table has its last state until it changes."""
    now_s, day_s = now_ms // 1000, _DAY_MS // 1000
    changes = [[0.0] * 4 for _ in range(_TREND_DAYS + 1)]
    for points in tables:
        before: Sequence[float] = (0, 0, 0, 0)
        for at_s, *values in points:
            day = _TREND_DAYS - max(0, min(_TREND_DAYS, (now_s - (at_s or 0)) // day_s))
            now = (1, *(value if value is not None else old for value, old in zip(values, before[1:], strict=True)))
            for place, (value, old) in enumerate(zip(now, before, strict=True)):
                changes[int(day)][place] += value - old
            before = now
    sums, found = [0.0] * 4, list[list[int | float]]()
    for day, change in enumerate(changes):
        sums = [value + more for value, more in zip(sums, change, strict=True)]
        if sums[0]:
            found.append([now_s - (_TREND_DAYS - day) * day_s, *map(round, sums)])
    return found if len(found) > 1 else []


def _fleet_sizes(layouts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many tables have recorded sizes of data files, and ``[exponent of two, files]`` over all of them."""
    files, tables = Counter[int](), 0
    for layout in layouts:
        tables += 1
        for power, number, *_ in layout.get("sizes", ()):
            files[power] += number
    return {"tables": tables, "files": sorted(files.items())}


_COMMANDS = {WarningKind.WRONG_SETTINGS: "policy show", WarningKind.DAMAGED: "repair"}


def _trouble(
    state: TableState, kind: WarningKind | None, record: LakeStats, last: PassRecord | None
) -> tuple[str, str]:
    """Why a person must look at a table in this state (empty: no reason), and the command that shows more or tries
    again; ``record`` is of the failed scan if the table is unreadable."""
    if state is TableState.UNREADABLE:
        return f"cannot be read: {in_plain_words(record.verdict.left_alone)}", "verify"
    if kind is not None:
        return in_plain_words(record.warnings[kind]), _COMMANDS.get(kind, "verify")
    if state is TableState.TROUBLE and last is not None:
        return f"last pass {last.status}: {'; '.join(lines_of(last.summary))}", "maintain"
    return "", "maintain" if state is TableState.WORK else ""


def _pass(record: PassRecord) -> dict[str, Any]:
    return {
        "finished_ms": record.finished_ms,
        "seconds": round((record.finished_ms - record.started_ms) / 1000, 1),
        "status": record.status,
        "engine": record.engine,
        "lines": lines_of(record.summary),
    }


def _achieved(passes: Iterable[Sequence[PassRecord]], now_ms: int) -> dict[str, int | float]:
    """Sums over the passes of the last :data:`DAYS`, and what the freed bytes would cost each month."""
    recent = [passed for of_table in passes for passed in of_table if passed.finished_ms > now_ms - DAYS * _DAY_MS]
    sums: dict[str, int | float] = {"days": DAYS, "passes": len(recent)}
    for name, metrics in _ACHIEVED.items():
        sums[name] = round(sum(passed.metrics.get(metric, 0) for passed in recent for metric in metrics))
    return {**sums, "usd_per_month": round(sums["bytes_freed"] / _GB * STORED_GB_MONTH_USD, 4)}


# The page.

_HERE = "icekeeper.report"
_VENDOR = ("d3.min.js", "plot.umd.min.js")
_PLOT_STYLE = """:where(.plot) {
  --plot-background: white;
  display: block;
  height: auto;
  height: intrinsic;
  max-width: 100%;
}
:where(.plot text),
:where(.plot tspan) {
  white-space: pre;
}"""
"""The style element that Plot adds to every chart of class ``plot``."""
MOST_BYTES = 14_000_000
"""The most bytes of data on a page.  A larger page leaves out details of tables: the tables whose manifests were read
last keep theirs first, then the tables with more need."""
_DETAILS = ("timeline", "layout", "trend")
_NEVER = {"observed_ms": 0}
_AT_FIRST = 6
"""At most this many tables that are damaged, and as many with work, are listed at the top."""


def render_page(documents: Sequence[Mapping[str, Any]], now_ms: int) -> str:
    """The page of these catalogs as HTML; ``now_ms`` is in epoch milliseconds."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    scripts, styles = _parts()
    data = {
        "now_ms": now_ms,
        "defaults": {key: setting["value"] for key, setting in resolve([]).documents().items()},
        "catalogs": within(documents, MOST_BYTES),
    }
    environment = Environment(
        loader=PackageLoader(_HERE, ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"size": size_text, "usd": _usd, "count": _count, "brief": _brief, "breakable": _breakable}
    environment.filters["component"] = partial(quote, safe=_UNQUOTED)
    return environment.get_template("page.html").render(
        title=", ".join(str(document["catalog"]) for document in documents),
        now=_moment(now_ms),
        policy=security_policy(),
        style=Markup(styles[0]),  # ours
        scripts=[Markup(script) for script in scripts],
        data=Markup(_inert(data)),
        price=STORED_GB_MONTH_USD,
        **_summary(documents, now_ms),
    )


def within(documents: Sequence[Mapping[str, Any]], most: int) -> Sequence[Mapping[str, Any]]:
    """The documents, without details of some tables if all together have more than ``most`` bytes as JSON."""
    left = most - len(_inert(documents))
    if left >= 0:
        return documents
    tables = [table for document in documents for table in document["tables"]]
    details = [{key: table[key] for key in _DETAILS if key in table} for table in tables]
    sizes = [len(_inert(detail)) for detail in details]
    left += sum(sizes)
    kept = set[int]()
    for at in sorted(
        range(len(tables)), key=lambda at: -details[at].get("layout", {}).get("holders", _NEVER)["observed_ms"]
    ):
        if sizes[at] <= left:
            left -= sizes[at]
            kept.add(at)
    plain = iter(
        table if at in kept else {**{key: table[key] for key in table if key not in _DETAILS}, "left_out": True}
        for at, table in enumerate(tables)
    )
    return [{**document, "tables": [next(plain) for _ in document["tables"]]} for document in documents]


def _inert(data: object) -> str:
    """JSON that no HTML parser takes for markup."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"))
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


@cache
def _parts() -> tuple[Sequence[str], Sequence[str]]:
    """The scripts and styles of every page; a chart adds the last style."""
    folder = files(_HERE)
    own, style = (folder.joinpath(name).read_text("utf-8") for name in ("page.js", "page.css"))
    return [*(folder.joinpath("vendor", name).read_text("utf-8") for name in _VENDOR), own], [style, _PLOT_STYLE]


@cache
def security_policy() -> str:
    """The content security policy of every page: it allows only the page's scripts and styles, and loads nothing."""
    allowed = zip(("script-src", "style-src"), _parts(), strict=True)
    parts = [f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed]
    return "; ".join(["default-src 'none'", *parts, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _kind(table: Mapping[str, Any]) -> str:
    """``damaged``: something of the table cannot be read; ``work``: work is due, or waits for a person; or ``well``."""
    if table["state"] in (TableState.UNREADABLE, TableState.DAMAGED):
        return "damaged"
    return "well" if table["state"] == TableState.WELL else "work"


def _summary(documents: Sequence[Mapping[str, Any]], now_ms: int) -> dict[str, Any]:
    """The top of the page."""
    tables = [(document["catalog"], table) for document in documents for table in document["tables"]]
    kinds = Counter(_kind(table) for _, table in tables)
    # A paused table waits for its time, not for a person.
    first = {kind: [(c, t) for c, t in tables if _kind(t) == kind and "command" in t] for kind in ("damaged", "work")}
    first["work"].sort(key=lambda row: ("trouble" not in row[1], -row[1]["priority"]))
    waiting = sum("trouble" in table for _, table in first["work"])
    verified = [table.get("verified_ms", 0) for _, table in tables if _kind(table) == "well"]
    achieved: Counter[str] = Counter(dict.fromkeys(("passes", *_ACHIEVED, "usd_per_month"), 0))
    totals: Counter[str] = Counter()
    for document in documents:
        achieved.update({key: value for key, value in document["achieved"].items() if key != "days"})
        totals.update({key: value for key, value in document["totals"].items() if key in _SUMS})
    return {
        "verdict": _verdict(len(tables), kinds),
        "blockers": list(dict.fromkeys(document["blocker"] for document in documents if "blocker" in document)),
        "advice": _next_step(documents, first, now_ms),
        "kinds": {kind: kinds[kind] for kind in ("damaged", "work", "well")},
        "notes": {
            "damaged": "",
            "work": f"{_count(waiting)} {'waits' if waiting == 1 else 'wait'} for a person" if waiting else "",
            "well": _verified(verified, now_ms),
        },
        "first": {kind: rows[:_AT_FIRST] for kind, rows in first.items()},
        "more": {kind: max(0, len(rows) - _AT_FIRST) for kind, rows in first.items()},
        "achieved": {"days": DAYS, **achieved},
        "totals": [(what, totals[key], kind) for key, (what, kind) in _SUMS.items() if totals[key]],
        "scans": [(document["catalog"], _scanned(document["scan"], now_ms)) for document in documents],
    }


_SUMS = {
    "lake_data_files": ("data files", "count"),
    "lake_bytes": ("live", "size"),
    "lake_history_bytes": ("history", "size"),
    ORPHANS: ("orphans", "size"),
    "lake_delete_files": ("delete files", "count"),
    "lake_snapshots": ("snapshots", "count"),
}


def _verified(moments: Sequence[int], now_ms: int) -> str:
    """How many tables were never verified, and within which time all others were; ``moments``: 0 for never."""
    known = [moment_ms for moment_ms in moments if moment_ms]
    never = len(moments) - len(known)
    parts = [f"{_count(never)} never verified"] if never else []
    if known:
        within = age_text(max(0, now_ms - min(known)))
        parts.append(f"{_count(len(known)) if never else 'all'} verified within {within}")
    return ", ".join(parts)


def _verdict(tables: int, kinds: Mapping[str, int]) -> str:
    if not tables:
        return "There are no tables."
    damaged, work = kinds.get("damaged", 0), kinds.get("work", 0)
    if not damaged and not work:
        return f"All well: none of {_tables(tables)} needs work."
    need = f"{_count(work)} {'has' if work == 1 else 'have'} work due or waiting"
    if not damaged:
        return f"{need}, of {_tables(tables)}."
    return f"{_count(damaged)} of {_tables(tables)} cannot be read in full{f'; {need}' if work else ''}."


def _next_step(
    documents: Sequence[Mapping[str, Any]], first: Mapping[str, Sequence[tuple[str, Mapping[str, Any]]]], now_ms: int
) -> tuple[str, str]:
    """The next thing to do, and its command; empty: nothing."""
    urgent = [table for rows in first.values() for _, table in rows if "trouble" in table]
    if urgent:
        return f"First look at {urgent[0]['name']}", str(urgent[0]["command"])
    for document in documents:
        scan = document["scan"]
        if scan is None or now_ms - scan["scanned_ms"] > _STALE_MS:
            command = f"icekeeper detect --catalog {shlex.quote(document['catalog'])}"
            return "Scan the tables again: this page shows old records", command
    if first["work"]:
        catalogs = " ".join(f"--catalog {shlex.quote(name)}" for name in {name: 0 for name, _ in first["work"]})
        return "Maintain what needs work, once", f"icekeeper run {catalogs} --once"
    return "", ""


def _scanned(scan: Mapping[str, int] | None, now_ms: int) -> str:
    if scan is None:
        return "no scan is recorded"
    some = "" if scan["scanned"] == scan["listed"] else f", {_count(scan['scanned'])} of {_tables(scan['listed'])}"
    return f"scanned {age_text(max(0, now_ms - scan['scanned_ms']))} ago{some}"


def _usd(amount: float) -> str:
    return f"${amount:,.2f}"


def _moment(moment_ms: int) -> str:
    return escaped(iso_utc(moment_ms)[:16].replace("T", " ") + " UTC")


def _count(number: float) -> str:
    return f"{number:,.0f}"


def _tables(number: int) -> str:
    return f"{_count(number)} {'table' if number == 1 else 'tables'}"


_LONGEST = 240
_UNQUOTED = "!'()*"  # as JavaScript's encodeURIComponent
_ADDRESS = re.compile(r"\b[a-z][a-z0-9+.-]*://\S*/([^\s/]*[^\s/:;,])", re.IGNORECASE)
_LONGEST_FILE = 36


def _file_only(found: re.Match[str]) -> str:
    name = found[1]
    return f"…/{name}" if len(name) <= _LONGEST_FILE else f"…/{name[:14]}…{name[-14:]}"


def _brief(text: str) -> str:
    """The text with the names of files for their addresses, cut after a word if it is long."""
    text = _ADDRESS.sub(_file_only, text)
    if len(text) <= _LONGEST:
        return text
    head = text[:_LONGEST]
    return f"{head.rpartition(' ')[0] or head}\N{NO-BREAK SPACE}…"


def _breakable(text: str, after: str = r"(?<=[._])") -> str:
    """A text that a line may break where the pattern matches: in a name after a dot or an underscore."""
    from markupsafe import Markup

    return Markup("<wbr>").join(re.split(after, text))
