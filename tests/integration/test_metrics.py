"""Metrics for Prometheus, and the health endpoint of ``icekeeper run``."""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Event
from unittest import mock

import pytest
import yaml
from prometheus_client import parser

from icekeeper.cycle import metrics_server
from icekeeper.cycle.metrics_server import CycleHealth, ServedPage, served
from icekeeper.cycle.pass_process import PassEnd
from icekeeper.cycle.service import Service
from icekeeper.errors import PolicyError, StorageError
from icekeeper.health.table_state import TableState
from icekeeper.model import CatalogId, TableName
from icekeeper.operation_facts import Operation
from icekeeper.report import metrics
from icekeeper.report.metrics import METRICS, StateMetrics, amounts_of
from icekeeper.report.outcome import PassOutcome, refused
from icekeeper.state.findings import Verdict
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.open import open_state
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.text import escaped
from support.command import CATALOG, LOCAL, Command, local_path, one_sentence

ROOT = Path(__file__).resolve().parents[2]
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    """Every sample by its name and labels, as Prometheus' own library parses them."""
    found = [item for family in parser.text_string_to_metric_families(text) for item in family.samples]
    assert len({(item.name, *sorted(item.labels.items())) for item in found}) == len(found)
    return {(item.name, tuple(sorted(item.labels.items()))): item.value for item in found}


def value(found: Samples, name: str, **labels: str) -> float:
    return found[f"icekeeper_{name}", tuple(sorted({"catalog": "C", **labels}.items()))]


def test_gauges_show_the_last_scan_and_counters_all_passes(command: Command) -> None:
    table = command.table(appends=6)
    command("detect")
    before = samples(command("metrics", catalog=None).out)
    assert value(before, "catalog_tables") == 1
    assert value(before, "table_data_files", table="ns.t") == 6
    assert (value(before, "scans_total"), value(before, "files_merged_total")) == (1, 0)
    first = command("maintain", "ns.t", *LOCAL, "--json").json
    for _ in range(6):
        table.refresh()
        table.append(table.scan(limit=1).to_arrow())
    second = command("maintain", "ns.t", *LOCAL, "--json").json
    command("detect")
    now = samples(command("metrics", "--catalog", "C", catalog=None).out)
    merged = sum(item["metrics"]["compact.files_merged"] for item in (first, second))
    assert value(now, "files_merged_total") == merged == 12
    assert value(now, "table_data_files", table="ns.t") == 2
    assert value(now, "passes_total", status="succeeded") == 2
    assert value(now, "operations_total", operation="compact", status="succeeded") == 2
    assert value(now, "scans_total") == 2
    assert value(now, "table_records", table="ns.t") == value(now, "catalog_records") == 24


def test_series_begin_with_zero_and_states_count_every_table(command: Command) -> None:
    """An alert sees the first failure of a new catalog, and a table that was never read."""
    state = open_state(command.environment())
    assert StateMetrics(state).text() == ""
    before = samples(StateMetrics(state, ["C"]).text())
    assert {value for _, value in before.items()} == {0}
    assert ("icekeeper_passes_total", (("catalog", "C"), ("status", "failed"))) in before
    assert value(before, "operations_total", operation="compact", status="refused") == 0
    assert value(before, "last_scan_timestamp_seconds") == 0
    of_patterns = samples(StateMetrics(state, ["C"], awaits_scan=False).text())
    assert before.keys() - of_patterns.keys() == {("icekeeper_last_scan_timestamp_seconds", (("catalog", "C"),))}

    for name, appends in (("ns.paused", 8), ("ns.quiet", 1), ("ns.broken", 1), ("ns.work", 8), ("ns.hole", 1)):
        command.table(name, appends=appends)
    command.register("file:///nowhere/metadata.json", "ns.never")
    began_s = time.time()
    assert command("run", "ns.quiet", "--once", *LOCAL).code == 0
    assert value(samples(command("metrics").out), "last_scan_timestamp_seconds") == 0  # not of the whole catalog
    assert command("detect").code == 1
    assert command("pause", "ns.paused", "--until", "1h").code == 0
    local_path(command.catalog.load_table("ns.broken").metadata_location).write_text("{")
    next(local_path(command.catalog.load_table("ns.hole").location()).glob("data/*.parquet")).unlink()
    assert command("verify", "ns.hole").code == 1
    assert command("detect").code == 1
    found = samples(command("metrics").out)
    assert began_s <= value(found, "last_scan_timestamp_seconds") <= time.time()
    states = {state: value(found, "catalog_tables_in_state", state=state) for state in TableState}
    assert states == {"unreadable": 2, "damaged": 1, "trouble": 0, "work": 1, "paused": 1, "well": 1}
    shown = [dict(labels) for name, labels in found if name == "icekeeper_table_state"]
    assert [(item["table"], item["state"]) for item in shown] == [
        ("ns.broken", "unreadable"), ("ns.never", "unreadable"),
        ("ns.hole", "damaged"), ("ns.work", "work"), ("ns.paused", "paused"),
    ]  # fmt: skip
    assert value(found, "catalog_tables") == 6
    assert value(found, "table_data_files", table="ns.broken") == 1  # by the scan that read it


def test_a_deletion_that_waits_for_another_table_is_no_refusal() -> None:
    outcomes = (
        refused(Operation.EXPIRE_SNAPSHOTS, "its history is damaged"),
        refused(Operation.REMOVE_ORPHANS, "ns.never cannot be read", waits=True),
    )
    outcome = PassOutcome(table="ns.t", catalog="C", run_id="r", dry_run=False, operations=outcomes)
    assert amounts_of(outcome, 1) == {"passes.partial": 1, "pass_ms": 1, "operations.expire_snapshots.refused": 1}


@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_failed_pass_without_a_record_of_its_own_is_counted(command: Command, *, is_recorded: bool) -> None:
    command.table(appends=6)
    state = open_state(os.environ)
    end = PassEnd("failed", "the process that runs passes does not start", is_recorded=is_recorded)
    broken = Service(state, lambda order, stop: end, lambda line: None, catalogs=[CATALOG], environment=os.environ)
    assert not broken.run(once=True)
    found = samples(StateMetrics(state).text())
    assert value(found, "passes_total", status="failed") == (0 if is_recorded else 1)


SUMS = {name for name, facts in METRICS.items() if facts.meaning.startswith("over all tables: ")}


def test_every_metric_is_documented() -> None:
    """Dashboard and alerts read no others; each counter of health is a metric, except one that only the command has."""
    page = (ROOT / "docs/metrics.md").read_text().partition("## Reference")[2]
    rows = re.findall(r"^\| `(icekeeper_\w+)`((?:, `\w+`)*) \| (.+) \|$", page, re.M)

    def of_all(name: str) -> tuple[str, ...]:
        return ("catalog", "table") if name.startswith("icekeeper_table_") else ("catalog",)

    expected = {
        (name, "".join(f", `{label}`" for label in facts.labels[len(of_all(name)) :]), facts.meaning)
        for name, facts in METRICS.items()
        if name not in SUMS
    }
    assert (len(rows), {*rows}) == (len(expected), expected)
    assert all(facts.labels[: len(of_all(name))] == of_all(name) for name, facts in METRICS.items())
    counters_at = page.index("\nCounters")
    assert all((page.index(f"`{name}`") > counters_at) == (METRICS[name].kind == "counter") for name, *_ in rows)
    # The page states that these gauges of a table also exist over all tables.
    tables = [name for name, *_ in rows if name.startswith("icekeeper_table_")]
    assert {name.replace("icekeeper_table_", "icekeeper_catalog_") for name in tables[:-3]} == SUMS
    for name in SUMS:
        item = METRICS[name.replace("icekeeper_catalog_", "icekeeper_table_")]
        assert METRICS[name].meaning == f"over all tables: {item.meaning}"
    source = (ROOT / "layers/icekeeper/src/icekeeper/health/examine.py").read_text()
    counters = set(re.findall(r'"(lake_\w+)"', source)) - {"lake_tables", "lake_tables_warned"}
    assert counters - set(metrics._LAKE) == {"lake_delete_manifests"}
    document = json.loads((ROOT / "docs/examples/grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    rules = yaml.safe_load((ROOT / "docs/examples/alerts.yml").read_text())["groups"][0]["rules"]
    for of_file in (expressions, [rule["expr"] for rule in rules]):
        queried = {name for item in of_file for name in re.findall(r"icekeeper_\w+", item)}
        assert queried
        assert queried - set(METRICS) == set()
    named = {
        state for rule in rules for found in re.findall(r'state=~?"(.*?)"', rule["expr"]) for state in found.split("|")
    }
    assert named == {TableState.UNREADABLE, TableState.DAMAGED, TableState.TROUBLE}


def a_state(folder: Path, tables: int) -> SqliteStateStore:
    state = SqliteStateStore(folder / "state.db")
    state.totals.add(CatalogId("C", "file:///w"), {"scans": 1})
    for number in range(tables):
        identity = TableIdentity(CatalogId("C", "file:///w"), TableName(("ns",), f"t{number:04}"), f"u{number}", "")
        warnings = {"small_files": "…"} if number == tables - 1 else {}
        counters = {"lake_bytes": number, "lake_data_files": 1}
        state.lake_stats.record(
            LakeStats(identity=identity, observed_ms=1_500, snapshot_id=1, counters=counters, warnings=warnings)
        )
    return state


def test_tables_beyond_the_limit_count_only_in_the_totals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_TABLES", 2)
    state = a_state(tmp_path, 5)
    found = samples(exposed(state))
    assert value(found, "catalog_data_files") == 5
    assert value(found, "catalog_tables_left_out") == 3
    shown = [dict(labels)["table"] for name, labels in found if name == "icekeeper_table_bytes"]
    assert shown == ["ns.t0004", "ns.t0003"]
    assert value(found, "table_warning", table="ns.t0004", kind="small_files") == 1
    assert value(found, "table_observed_timestamp_seconds", table="ns.t0003") == 1.5

    # A table in a worse state goes before all tables of catalogs that are earlier by name.
    bad = TableIdentity(CatalogId("Z", "w"), TableName(("ns",), "bad"), "")
    state.totals.add(bad.catalog, {"scans": 1})
    unread = Verdict(is_unread=True)
    state.lake_stats.record(LakeStats(identity=bad, observed_ms=1, snapshot_id=None, counters={}, verdict=unread))
    found = samples(exposed(state))
    assert value(found, "table_state", catalog="Z", table="ns.bad", state="unreadable") == 1
    assert [dict(labels)["table"] for name, labels in found if name == "icekeeper_table_bytes"] == ["ns.t0004"]
    assert value(found, "catalog_tables_left_out") == 4

    now_s = [0.0]
    read = StateMetrics(state, monotonic_s=lambda: now_s[0])
    seen = []
    for at_s in (0.0, 60.0, 61.0):
        now_s[0] = at_s
        seen.append(value(samples(read.text()), "scans_total"))
        state.totals.add(CatalogId("C", "file:///w"), {"scans": 1})
    assert seen == [1, 1, 3]


def exposed(state: SqliteStateStore) -> str:
    return StateMetrics(state).text()


def test_a_hostile_name_is_one_label(tmp_path: Path) -> None:
    state = SqliteStateStore(tmp_path / "state.db")
    name = TableName(("ns",), 'a"} 1\nicekeeper_up 1\u202e\x00')
    state.totals.add(CatalogId('C"\n', "w"), {"scans": 1})
    identity = TableIdentity(CatalogId('C"\n', "w"), name, "u", "")
    state.lake_stats.record(LakeStats(identity=identity, observed_ms=1, snapshot_id=1, counters={"lake_bytes": 1}))
    found = samples(exposed(state))
    assert {name for name, _ in found} <= set(METRICS)
    assert value(found, "table_bytes", catalog=escaped('C"\n'), table=escaped(str(name))) == 1


def get(url: str) -> tuple[int, str, str]:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_the_server_answers_in_prometheus_format_and_reports_the_health_of_cycles(tmp_path: Path) -> None:
    now_s = [0.0]
    state = a_state(tmp_path, 2)
    health = CycleHealth(60, lambda: now_s[0])
    read = StateMetrics(state, monotonic_s=lambda: now_s[0])
    with served("127.0.0.1", 0, read, health) as url:
        assert get(f"{url}/metrics") == (200, "text/plain; version=0.0.4; charset=utf-8", exposed(state))
        assert get(f"{url}/healthz")[::2] == (200, "ok\n")
        health.note(600, has_ended=True)
        now_s[0] = 1500.0
        assert get(f"{url}/healthz")[0] == 200
        now_s[0] = 1501.0
        assert get(f"{url}/healthz")[::2] == (503, "no cycle has ended for 1501 s, of at most 1500 s\n")
        health.note(600, has_ended=False)
        assert get(f"{url}/healthz")[0] == 503
        health.note(600, has_ended=True)
        assert get(f"{url}/healthz")[0] == 200
        assert get(f"{url}/")[0] == 404
        now_s[0] = 2000.0
        with mock.patch.object(type(state.totals), "all", side_effect=StorageError("the state is gone")):
            assert get(f"{url}/metrics")[::2] == (503, "the state is gone\n")
        port = int(url.rpartition(":")[2])
        reported = f"port {port} of 127.0.0.1 cannot be used: Address already in use"
        with pytest.raises(PolicyError, match=reported), served("127.0.0.1", port, read, health):
            pass


def eventually(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def asked(url: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=named), timeout=10) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def test_the_page_is_served_as_written_and_to_readers_only(tmp_path: Path) -> None:
    """A page that cannot be written leaves the last page."""
    texts: list[str | Exception] = [StorageError("no scan"), "<p>é</p>", StorageError("the state is gone"), "<p>2</p>"]
    written = Event()

    def write() -> str:
        text = texts.pop(0)
        written.set()
        if isinstance(text, Exception):
            raise text
        return text

    page = ServedPage(write, "default-src 'none'")
    read = StateMetrics(a_state(tmp_path, 1))
    with (
        mock.patch.object(metrics_server, "_LEAST_PAUSE_S", 0.0),
        served("127.0.0.1", 0, read, CycleHealth(60), page) as url,
        page.kept_current(),
    ):
        assert written.wait(10)
        assert asked(f"{url}/")[::2] == (503, b"the page follows the first scan: reload it then\n")

        def change() -> None:
            written.clear()
            page.note_change()
            assert written.wait(10)

        change()
        eventually(lambda: asked(f"{url}/")[0] == 200)
        status, headers, body = asked(f"{url}/")
        assert (status, body.decode()) == (200, "<p>é</p>")
        tag = headers.pop("ETag")
        assert {key: value for key, value in headers.items() if key not in ("Date", "Server")} == {
            "Cache-Control": "no-cache",
            "Content-Length": "9",
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
            "Content-Type": "text/html; charset=utf-8",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        status, headers, body = asked(f"{url}/", "HEAD")
        assert (status, headers["Content-Length"], headers["ETag"], body) == (200, "9", tag, b"")
        for known in (tag, f'"other", W/{tag}'):
            status, headers, body = asked(f"{url}/", If_None_Match=known)
            assert (status, headers["ETag"], headers["Content-Length"], body) == (304, tag, "9", b"")
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            for path in ("/", "/metrics", "/healthz"):
                status, headers, _ = asked(url + path, method)
                assert (status, headers["Allow"]) == (405, "GET, HEAD")
        assert asked(f"{url}/index.html")[::2] == (404, b"there are /, /metrics and /healthz\n")
        assert asked(f"{url}/", Host="evil.example")[0] == 421
        change()
        assert asked(f"{url}/", If_None_Match=tag)[0] == 304
        change()
        eventually(lambda: asked(f"{url}/", If_None_Match=tag)[2] == b"<p>2</p>")


def test_a_slow_or_silent_client_blocks_no_other_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics_server._Handler, "timeout", 0.2)
    monkeypatch.setattr(metrics_server, "_DEADLINE_S", 0.5)
    with ExitStack() as stack:
        url = stack.enter_context(served("127.0.0.1", 0, StateMetrics(a_state(tmp_path, 1)), CycleHealth(60)))
        address = "127.0.0.1", int(url.rpartition(":")[2])
        silent, slow = (stack.enter_context(socket.create_connection(address, timeout=10)) for _ in range(2))
        started_s = time.monotonic()
        with suppress(OSError):  # a reset or a broken pipe
            while time.monotonic() - started_s < 8:
                slow.sendall(b"G")
                time.sleep(0.05)
        assert 0.4 < time.monotonic() - started_s < 8
        assert get(f"{url}/healthz")[0] == 200
        assert silent.recv(1) == b""
    assert capsys.readouterr().err == ""


def status_for_host(url: str, host: str) -> int:
    request = urllib.request.Request(f"{url}/healthz", headers={"Host": host})
    try:
        return int(urllib.request.urlopen(request, timeout=10).status)
    except urllib.error.HTTPError as error:
        return error.code


def test_a_request_with_a_foreign_host_name_is_refused_on_loopback(tmp_path: Path) -> None:
    """This prevents DNS rebinding; at other addresses a server has names that only its clients know."""
    read = StateMetrics(a_state(tmp_path, 1))
    for address, expected in (("127.0.0.1", 421), ("0.0.0.0", 200)):
        with served(address, 0, read, CycleHealth(60)) as url:
            url = url.replace("0.0.0.0", "127.0.0.1")
            port = url.rpartition(":")[2]
            for host in (f"127.0.0.1:{port}", "localhost", f"LOCALHOST:{port}", f"[::1]:{port}"):
                assert status_for_host(url, host) == 200, host
            for host in (f"evil.example:{port}", "127.0.0.1.evil.example", "evil.example", "[", ""):
                assert status_for_host(url, host) == expected, host


def test_no_more_than_sixteen_clients_are_served_at_once(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = stack.enter_context(served("127.0.0.1", 0, StateMetrics(a_state(tmp_path, 1)), CycleHealth(60)))
        address = "127.0.0.1", int(url.rpartition(":")[2])
        held = [stack.enter_context(socket.create_connection(address, timeout=5)) for _ in range(16)]
        seventeenth = stack.enter_context(socket.create_connection(address, timeout=5))
        assert seventeenth.recv(1) == b""
        for item in held:
            item.close()
        eventually(lambda: status_or_closed(f"{url}/healthz") == 200)


def status_or_closed(url: str) -> int:
    try:
        return get(url)[0]
    except OSError:
        return 0


def test_the_file_for_collectors_is_written_as_a_whole(command: Command) -> None:
    command.table(appends=2)
    command("detect")
    path = command.folder / "icekeeper.prom"
    path.write_text("old")
    assert command("metrics", "--output", str(path), catalog=None).code == 0
    assert value(samples(path.read_text()), "catalog_tables") == 1
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444, "node_exporter runs as another user"
    assert [item.name for item in command.folder.glob("*.prom*")] == ["icekeeper.prom"]
    answer = command("metrics", "--output", str(command.folder / "none" / "x"), catalog=None)
    assert answer.code == 2
    assert one_sentence(answer.err).endswith("cannot be written: No such file or directory; choose another file")


def test_wrong_options_and_unknown_catalogs_are_wrong_calls(command: Command) -> None:
    for options, reported in (
        (["--http-address", "::1"], "--http-address has no effect without --http; add --http PORT"),
        (["--http", "1", "--once"], "--once and --http exclude each other; icekeeper metrics and report write files"),
        (["--http-page"], "--http-page has no effect without --http; add --http PORT"),
    ):
        answer = command("run", *LOCAL, *options)
        assert (answer.code, one_sentence(answer.err)) == (2, reported)
    answer = command("metrics", catalog="nope")
    assert (answer.code, answer.out) == (2, "")
    assert one_sentence(answer.err).startswith("there is no catalog 'nope' (configured: c); add it")
    # A catalog counts if it is configured, or in the state of another deployment; a table bucket by its name there.
    bucket = "arn:aws:s3tables:us-east-1:111122223333:bucket/bucket"
    open_state(os.environ).totals.add(CatalogId("bucket", bucket), {"scans": 3})
    for name, scans in ((CATALOG, 0), ("bucket", 3), (bucket, 3)):
        answer = command("metrics", catalog=name)
        assert answer.code == 0
        recorded = samples(answer.out)["icekeeper_scans_total", (("catalog", "C" if name == CATALOG else "bucket"),)]
        assert recorded == scans


def test_a_run_prints_its_lines_as_json(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEKEEPER_LOG_FORMAT", "json")
    command.table(appends=6)
    answer = command("run", *LOCAL, "--once")
    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert [(item["event"], item["level"], item.get("table"), item.get("status")) for item in lines] == [
        ("run", "INFO", None, None),
        ("table_result", "INFO", "ns.t", "succeeded"),
    ]
    assert (lines[0]["tables"], lines[0]["proposals"], lines[0]["errors"]) == (1, 1, 0)
    assert lines[1]["message"].startswith("compact: compacted 6 files into 1")
    monkeypatch.setenv("ICEKEEPER_LOG_FORMAT", "xml")
    answer = command("run", *LOCAL, "--once")
    reported = "environment variable ICEKEEPER_LOG_FORMAT cannot be 'xml'; formats are text and json"
    assert (answer.code, one_sentence(answer.err)) == (2, reported)


def test_the_state_has_the_totals_of_all_processes(command: Command) -> None:
    """As after a restart, a new object reads the sum of both."""
    for _ in range(2):
        open_state(command.environment()).totals.add(CatalogId("C", "w"), {"files_merged": 2, "passes.failed": 1})
    ((catalog, amounts),) = open_state(command.environment()).totals.all()
    assert (catalog, dict(amounts)) == (CatalogId("C", "w"), {"files_merged": 4, "passes.failed": 2})
