"""A scan goes on: catalogs that fail, tables that break their assessment or hang, a state that is lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.catalogs import CatalogSource
from icekeeper.detection.proposal import FleetSkip
from icekeeper.detection.scan import Scanner
from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from support.prepared_catalog import PreparedCatalog
from support.scans import IDLE, CountedState, names, scanned, source
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
