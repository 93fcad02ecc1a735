"""A scan goes on: catalogs that fail, tables that break their assessment or hang, a state that is lost."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection import scan
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetSkip
from icekeeper.detection.scan import Scanner
from icekeeper.errors import StorageError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.runtime import Runtime
from icekeeper.state.claims import CutOff, CutWork
from support.scans import IDLE, CountedState, PreparedCatalog, names, request, scanned, source, with_uuid
from support.settings import MB, NOW_MS, policy, small_files, table


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def test_a_table_that_hangs_does_not_keep_the_next_scan_at_its_place(state: CountedState) -> None:
    clock_s = [0.0]

    def hang() -> None:
        clock_s[0] = 100.0

    catalog = PreparedCatalog({"ns.a": StorageError("slow"), "ns.b": table()}, on_load=hang)
    scanner = Scanner(policy(detection_timeout_s=10).policy, state, NOW_MS, 1, lambda: clock_s[0])
    report = scanner.scan(
        [source(catalog)],
        lambda catalog, observe: lambda loaded, is_requested=False, fleet=1: pytest.fail("not reached"),
    )
    assert report.cursor == ("C", "ns.a")


def test_a_catalog_that_fails_is_reported_and_the_others_are_scanned(state: CountedState) -> None:
    def unreachable() -> PreparedCatalog:
        raise StorageError("it does not answer")

    def broken() -> PreparedCatalog:
        raise RuntimeError("a bug of a client")

    fine, twin = PreparedCatalog({"ns.t": table()}), PreparedCatalog({"ns.u": table()})
    report = scanned(state, CatalogSource("A", unreachable), CatalogSource("B", broken), fine, twin, threads=1)
    assert report.skipped == (
        FleetSkip("A", "", "the catalog cannot be scanned: it does not answer", True),
        FleetSkip("B", "", "the catalog cannot be scanned: RuntimeError a bug of a client", True),
        FleetSkip("C", "", "another catalog has the same name", True),
        FleetSkip("C", "ns.t", IDLE),
    )
    assert (report.scanned, report.errors) == (1, 3)


@pytest.mark.parametrize("odd", [RecursionError("too deep"), OverflowError("infinite"), RuntimeError("a client's")])
def test_a_table_that_breaks_its_assessment_does_not_stop_the_scan(state: CountedState, odd: Exception) -> None:
    report = scanned(state, PreparedCatalog({"ns.a": odd, "ns.t": table()}))
    assert (report.scanned, report.errors) == (2, 1)
    assert report.skipped[0].reason == f"the table cannot be assessed: {type(odd).__name__} {odd}"


def test_a_catalog_that_is_slow_to_list_leaves_the_others_their_time(state: CountedState) -> None:
    release = threading.Event()

    def slow() -> PreparedCatalog:
        release.wait(30)
        return PreparedCatalog({"ns.t": table()}, name="A")

    try:
        report = scanned(
            state, CatalogSource("A", slow), PreparedCatalog({"ns.u": table()}), threads=4, detection_timeout_s=1
        )
    finally:
        release.set()
    assert report.scanned == 1
    assert report.skipped == (
        FleetSkip("A", "", "not reached within detection_timeout_s 1", True),
        FleetSkip("C", "ns.u", IDLE),
    )


def test_a_table_with_wrong_settings_is_an_error_and_a_warning(state: CountedState) -> None:
    wrong = TableMetadata({**table().document, "properties": {"icekeeper.min_input_files": "few"}})
    report = scanned(state, PreparedCatalog({"ns.t": wrong}))
    (skip,) = report.skipped
    assert skip.is_error
    assert skip.reason.startswith("policy key min_input_files cannot be 'few'")
    (stats,) = state.lake_stats.of_catalog("C", "s3://prod-lake/")
    assert list(stats.warnings) == ["wrong_settings"]


def test_a_lost_state_costs_the_scan_and_not_the_proposals(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds the lease is asked again by the run; requests must not be passed over in silence."""
    catalog = PreparedCatalog({"ns.t": table(small_files(9, MB))})

    def lost(*_: object, **__: object) -> Any:
        raise StorageError("the state does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(state.leases, "current", lost)
        patch.setattr(state.lake_stats, "of_catalog", lost)
        assert names(scanned(state, catalog)) == ["ns.t"]

    def of_another_version(*_: object) -> Any:
        raise KeyError("policy")

    with monkeypatch.context() as patch:
        patch.setattr(state.lake_stats, "of_catalog", of_another_version)
        assert names(scanned(state, catalog)) == ["ns.t"]
    monkeypatch.setattr(state.requests, "pending", lost)
    with pytest.raises(StorageError, match=r"^the state does not answer$"):
        scanned(state, catalog)


def test_a_table_that_hangs_is_remembered_and_left_alone_for_a_while(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule 271: it is an error of each scan, and costs its time but once; others are looked at meanwhile."""
    monkeypatch.setattr(scan, "LEAST_LIMIT_S", 0)
    release = threading.Event()

    class Hanging(PreparedCatalog):
        def load(self, table: TableName) -> LoadedTable:
            if str(table) == "ns.hang":
                release.wait(30)
            return super().load(table)

    catalog = Hanging({"ns.hang": table(), "ns.t": table()})
    entry = "C", catalog.warehouse, "ns.hang"
    why = "looking at it did not end within detection_timeout_s 1"
    cut = CutOff(entry=entry, work=CutWork.LOOK, times=1, cut_ms=NOW_MS, why=why)
    try:
        report = scanned(state, catalog, detection_timeout_s=1)
        assert (report.scanned, report.errors) == (1, 1)
        assert report.skipped == (FleetSkip("C", "ns.hang", why, True), FleetSkip("C", "ns.t", IDLE))
        assert list(state.cut_offs.of_catalog(*entry[:2])) == [cut]
        again = scanned(state, catalog, detection_timeout_s=1)
        told = "not looked at: " + why + "; it is tried again after "
        assert [(skip.table, skip.is_error) for skip in again.skipped] == [("ns.hang", True), ("ns.t", False)]
        assert again.skipped[0].reason.startswith(told)
        assert (catalog.loads, list(state.cut_offs.of_catalog(*entry[:2]))) == (["ns.t", "ns.t"], [cut])
        health = Runtime(catalog, state, environment={}, clock=lambda: NOW_MS).health(TableName.parse("ns.hang"))
        assert list(health.warnings) == ["cut_off"]
    finally:
        release.set()
    state.cut_offs.record(replace(cut, cut_ms=NOW_MS - 3 * HOUR_MS))
    assert scanned(state, catalog).errors == 0
    assert list(state.cut_offs.of_catalog(*entry[:2])) == []


def test_a_short_scan_that_somebody_asks_for_is_no_evidence(state: CountedState) -> None:
    """Whoever may ask for a scan may set its time; that must not make tables wait for hours."""
    release = threading.Event()
    catalog = PreparedCatalog({"ns.t": table()}, on_load=lambda: release.wait(30))
    try:
        assert scanned(state, catalog, detection_timeout_s=1).errors == 1
    finally:
        release.set()
    assert list(state.cut_offs.of_catalog("C", catalog.warehouse)) == []


def test_a_table_whose_passes_were_cut_off_waits_and_health_says_so(state: CountedState) -> None:
    """People who ask for a pass do not end the wait: whoever may ask could hold a worker for ever."""
    catalog = PreparedCatalog({"ns.slow": table(small_files(1000, MB)), "ns.t": table(small_files(9, MB))})
    entry = "C", catalog.warehouse, "ns.slow"
    why = "its pass did not end within 1.25 times job_timeout_s 60"
    state.cut_offs.record(CutOff(entry=entry, work=CutWork.PASS, times=2, cut_ms=NOW_MS, why=why))
    state.requests.file(request("ns.slow"))
    report = scanned(state, catalog)
    assert names(report) == ["ns.t"]
    (skip,) = report.skipped
    assert skip.reason.startswith(f"not maintained: {why}, 2 times in a row; it is tried again after ")
    found = {str(one.identity.table): one.warnings for one in state.lake_stats.of_catalog(*entry[:2])}
    assert found["ns.slow"]["cut_off"] == f"the table is {skip.reason}"
    assert "cut_off" not in found["ns.t"]


def test_a_uuid_that_is_seen_at_two_locations_is_told_of_both(state: CountedState) -> None:
    """Rule 118: also across catalogs; two entries of one table have one location."""
    one = with_uuid(table(), "u1")
    copy = TableMetadata({**one.document, "location": "s3a://b/copy/"})
    first = PreparedCatalog({"ns.t": one, "ns.same": one, "ns.other": with_uuid(table(), "u2")})
    second = PreparedCatalog({"ns.copy": copy}, name="D", warehouse="s3://other/")
    for _ in range(2):  # what comes later in a scan, the next one knows
        scanned(state, first, second)
    lake = [*state.lake_stats.of_catalog("C", first.warehouse), *state.lake_stats.of_catalog("D", second.warehouse)]
    told = {str(stats.identity.table): stats.warnings.get("uuid_twice", "") for stats in lake}
    assert sorted(name for name, sentence in told.items() if sentence) == ["ns.copy", "ns.same", "ns.t"]
    assert "also that of ns.copy of catalog D at s3://b/copy: " in told["ns.t"]
    assert " of catalog C at s3://b/t: pins and staged loads" in told["ns.copy"]
