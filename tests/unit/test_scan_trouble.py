"""A scan continues past catalogs and tables that fail, hang, or list nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.stub import Stubber

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog, add_found, named_catalogs
from icekeeper.catalogs.glue import GlueCatalog
from icekeeper.detection import scan
from icekeeper.detection.detect import detect, detect_catalog
from icekeeper.detection.list_tables import CatalogSource
from icekeeper.detection.proposal import FleetReport, Skip, detection_json
from icekeeper.errors import MetadataUnreadable, PartlyListed, PolicyError, StorageError
from icekeeper.health.table_state import TableState, WarningKind, state_of
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.runtime import Runtime
from icekeeper.state.claims import CutOff, CutWork
from icekeeper.state.identity import Entry
from support.scans import IDLE, CountedState, PreparedCatalog, names, request, scanned, scanner_of, source, with_uuid
from support.settings import MB, NOW_MS, policy, small_files, table

# Catalogs that fail, tables whose assessment fails or hangs, an unavailable state store.


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def test_the_next_scan_starts_after_a_table_that_hangs(state: CountedState) -> None:
    clock_s = [0.0]

    def hang() -> None:
        clock_s[0] = 100.0

    catalog = PreparedCatalog({"ns.a": StorageError("slow"), "ns.b": table()}, on_load=hang)
    scanner = scanner_of(policy(detection_timeout_s=10).policy, state, monotonic_s=lambda: clock_s[0])
    report = scanner.scan([source(catalog)])
    assert report.cursor == ("C", "ns.a")


def test_a_catalog_that_fails_is_reported_and_the_others_are_scanned(state: CountedState) -> None:
    def unreachable() -> PreparedCatalog:
        raise StorageError("it does not answer")

    def broken() -> PreparedCatalog:
        raise RuntimeError("a bug of a client")

    fine, twin = PreparedCatalog({"ns.t": table()}), PreparedCatalog({"ns.u": table()})
    report = scanned(state, CatalogSource("A", unreachable), CatalogSource("B", broken), fine, twin, threads=1)
    assert report.skipped == (
        Skip("", "the catalog cannot be scanned: it does not answer", is_error=True, catalog="A"),
        Skip("", "the catalog cannot be scanned: RuntimeError a bug of a client", is_error=True, catalog="B"),
        Skip("", "another catalog has the same name", is_error=True, catalog="C"),
        Skip("ns.t", IDLE, catalog="C"),
    )
    assert (report.scanned, report.errors) == (1, 3)


@pytest.mark.parametrize(
    ("odd", "reason"),
    [
        *(
            (error, f"the table cannot be assessed: {type(error).__name__} {error}")
            for error in (RecursionError("too deep"), OverflowError("infinite"), RuntimeError("a client's"))
        ),
        (KeyError("snapshot-id"), "the metadata does not follow the specification: KeyError 'snapshot-id'"),
        (MetadataUnreadable("metadata file m ends early"), "metadata file m ends early"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_in_the_assessment_of_a_table_does_not_stop_the_scan(
    state: CountedState, odd: Exception, reason: str
) -> None:
    report = scanned(state, PreparedCatalog({"ns.a": odd, "ns.t": table()}))
    assert (report.scanned, report.errors) == (2, 1)
    assert detection_json("C", report)["skipped"] == [
        {"table": "ns.a", "reason": reason, "error": True},
        {"table": "ns.t", "reason": IDLE},
    ]


def test_a_catalog_with_a_slow_listing_does_not_delay_the_others(state: CountedState) -> None:
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
        Skip("", "not reached within detection_timeout_s 1", is_error=True, catalog="A"),
        Skip("ns.u", IDLE, catalog="C"),
    )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"min_input_files": "few"}, "policy key min_input_files cannot be 'few'"),
        ({"branch": "audit"}, "policy key branch names 'audit', which is not a branch of this table"),
        ({"strategy": "sort", "sort_order": "nope"}, "sort_order names column 'nope', which does not exist"),
        ({"where": "nope > 3"}, "policy key where cannot be 'nope > 3': the table has no column 'nope'"),
    ],
)
def test_a_table_with_wrong_settings_is_an_error_and_a_warning(
    settings: dict[str, str], why: str, state: CountedState
) -> None:
    """Detection and ``list`` agree: the table gets no pass, so it is not well."""
    own = {f"icekeeper.{key}": value for key, value in settings.items()}
    report = scanned(state, PreparedCatalog({"ns.t": TableMetadata({**table().document, "properties": own})}))
    (skip,) = report.skipped
    assert skip.is_error
    assert skip.reason.startswith(why)
    (stats,) = state.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))
    assert list(stats.warnings) == ["wrong_settings"]
    assert state_of(stats) == (TableState.TROUBLE, WarningKind.WRONG_SETTINGS)


def test_a_scan_survives_lost_leases_and_lake_stats_but_not_lost_requests(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run acquires the lease itself; requests must not be skipped silently."""
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


def test_a_table_that_hangs_is_recorded_and_skipped_for_a_while(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each scan reports it as an error, but only the first waits for it; the other tables are assessed."""
    monkeypatch.setattr(scan, "LEAST_LIMIT_S", 0)
    release = threading.Event()

    class Hanging(PreparedCatalog):
        def load(self, table: TableName) -> LoadedTable:
            if str(table) == "ns.hang":
                release.wait(30)
            return super().load(table)

    catalog = Hanging({"ns.hang": table(), "ns.t": table()})
    entry = Entry(catalog.id, "ns.hang")
    why = "reading it did not end within detection_timeout_s 1"
    cut = CutOff(entry=entry, work=CutWork.LOOK, times=1, cut_ms=NOW_MS, why=why)
    try:
        report = scanned(state, catalog, detection_timeout_s=1)
        assert (report.scanned, report.errors) == (1, 1)
        assert report.skipped == (Skip("ns.hang", why, is_error=True, catalog="C"), Skip("ns.t", IDLE, catalog="C"))
        assert list(state.cut_offs.of_catalog(entry.catalog)) == [cut]
        again = scanned(state, catalog, detection_timeout_s=1)
        reason = "not looked at: " + why + "; it is tried again after "
        assert [(skip.table, skip.is_error) for skip in again.skipped] == [("ns.hang", True), ("ns.t", False)]
        assert again.skipped[0].reason.startswith(reason)
        assert (catalog.loads, list(state.cut_offs.of_catalog(entry.catalog))) == (["ns.t", "ns.t"], [cut])
        health = Runtime(catalog, state, environment={}, clock=lambda: NOW_MS).afresh.health(TableName.parse("ns.hang"))
        assert list(health.warnings) == ["cut_off"]
    finally:
        release.set()
    state.cut_offs.record(replace(cut, cut_ms=NOW_MS - 3 * HOUR_MS))
    assert scanned(state, catalog).errors == 0
    assert list(state.cut_offs.of_catalog(entry.catalog)) == []


def test_a_timeout_of_a_scan_with_a_short_budget_is_not_recorded(state: CountedState) -> None:
    """A caller may set the budget of a scan; a short budget must not make tables wait for hours."""
    release = threading.Event()
    catalog = PreparedCatalog({"ns.t": table()}, on_load=lambda: release.wait(30))
    try:
        assert scanned(state, catalog, detection_timeout_s=1).errors == 1
    finally:
        release.set()
    assert list(state.cut_offs.of_catalog(catalog.id)) == []


def test_a_table_whose_passes_were_cut_off_waits_and_health_reports_it(state: CountedState) -> None:
    """A request does not end the wait; otherwise a caller could occupy a worker forever."""
    catalog = PreparedCatalog({"ns.slow": table(small_files(1000, MB)), "ns.t": table(small_files(9, MB))})
    entry = Entry(catalog.id, "ns.slow")
    why = "its pass did not end within 1.25 times job_timeout_s 60"
    state.cut_offs.record(CutOff(entry=entry, work=CutWork.PASS, times=2, cut_ms=NOW_MS, why=why))
    state.requests.file(request("ns.slow"))
    report = scanned(state, catalog)
    assert names(report) == ["ns.t"]
    (skip,) = report.skipped
    assert skip.reason.startswith(f"not maintained: {why}, 2 times in a row; it is tried again after ")
    found = {str(stats.identity.table): stats.warnings for stats in state.lake_stats.of_catalog(entry.catalog)}
    assert found["ns.slow"]["cut_off"] == f"the table is {skip.reason}"
    assert "cut_off" not in found["ns.t"]


def test_a_uuid_at_two_locations_is_a_warning_for_both(state: CountedState) -> None:
    """This includes tables of two catalogs; two entries of the same table share its location and cause no warning."""
    original = with_uuid(table(), "u1")
    copy = TableMetadata({**original.document, "location": "s3a://b/copy/"})
    first = PreparedCatalog({"ns.t": original, "ns.same": original, "ns.other": with_uuid(table(), "u2")})
    second = PreparedCatalog({"ns.copy": copy}, name="D", warehouse="s3://other/")
    for _ in range(2):  # the first scan does not compare a table with later tables; the second does
        scanned(state, first, second)
    lake = [*state.lake_stats.of_catalog(first.id), *state.lake_stats.of_catalog(second.id)]
    warnings = {str(stats.identity.table): stats.warnings.get("uuid_twice", "") for stats in lake}
    assert sorted(name for name, sentence in warnings.items() if sentence) == ["ns.copy", "ns.same", "ns.t"]
    assert "also that of ns.copy of catalog D at s3://b/copy: " in warnings["ns.t"]
    assert " of catalog C at s3://b/t: pins and staged loads" in warnings["ns.copy"]


# Catalogs that list no table, or may not list all tables: their warnings, and the tables that are maintained.

ARN = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"
NONE = (
    "catalog C lists no tables; if it has any, the right to list them is missing, such as an AWS Lake Formation grant"
)
PROPERTIES = {"glue.region": "eu-west-1", "glue.access-key-id": "a", "glue.secret-access-key": "b"}


class HalfListed(PreparedCatalog):
    """A catalog that may not list all of its tables."""

    def list_tables(self) -> Iterator[TableName]:
        yield from super().list_tables()
        raise PartlyListed("catalog C: the tables of 1 database(s) must not be listed (hr)")


def scanned_catalog(state: CountedState, catalog: PreparedCatalog, **source: Any) -> FleetReport:
    return detect([CatalogSource(catalog.id.name, lambda: catalog, **source)], state, TablePolicies({}))


def test_a_configured_catalog_without_tables_is_a_warning(state: CountedState) -> None:
    """Under Lake Formation, a listing has only tables with a grant: without grants it is empty and succeeds
    (rule: partial-listings-delete-nothing)."""
    report = scanned_catalog(state, PreparedCatalog({}))
    assert (report.warnings, report.empty_catalogs, report.errors) == ((NONE,), 1, 0)


def test_a_discovered_table_bucket_may_be_empty(state: CountedState) -> None:
    report = scanned_catalog(state, PreparedCatalog({}), may_be_empty=True)
    assert (report.warnings, report.empty_catalogs) == ((), 0)
    (named,) = named_catalogs({"ICEKEEPER_TABLE_BUCKETS": ARN}, {})
    (found,) = add_found((), [ARN], {})
    assert (named.is_found, found.is_found) == (False, True)
    assert [catalog.is_found for catalog in add_found([named], [ARN], {})] == [False]


def test_listed_tables_are_maintained_and_a_warning_reports_the_unlisted(state: CountedState) -> None:
    few, other = (with_uuid(table(small_files(10, MB)), uuid) for uuid in ("u1", "u2"))
    whole = scanned_catalog(state, PreparedCatalog({"ns.few": few, "hr.few": other}))
    assert {item.table for item in whole.proposals} == {"ns.few", "hr.few"}
    half = HalfListed({"ns.few": few})
    report = scanned_catalog(state, half)
    assert [item.table for item in report.proposals] == ["ns.few"]
    assert report.warnings == ("catalog C: the tables of 1 database(s) must not be listed (hr)",)
    assert (report.errors, report.empty_catalogs) == (0, 0)
    # The lake stats of tables that are not listed now are kept.
    assert {str(item.identity.table) for item in state.lake_stats.of_catalog(half.id)} == {"ns.few", "hr.few"}
    found = detect_catalog(half, state, TablePolicies({}))
    assert (found.note, found.scanned) == (report.warnings[0], 1)


Stub = tuple[str, Mapping[str, Any], Mapping[str, Any] | str]


def glue(*answers: Stub, **properties: str) -> GlueCatalog:
    """A catalog whose client expects these requests in this order; a text is an error code."""
    catalog = GlueCatalog(ConfiguredCatalog("lake", CatalogKind.GLUE, {**PROPERTIES, **properties}))
    stubber = Stubber(catalog._clients.repeating)
    for operation, expected, answer in answers:
        if isinstance(answer, str):
            stubber.add_client_error(operation, answer, http_status_code=400, expected_params=dict(expected))
        else:
            stubber.add_response(operation, dict(answer), dict(expected))
    stubber.activate()
    return catalog


def of(name: str) -> Mapping[str, Any]:
    return {"TableList": [{"Name": name, "Parameters": {"table_type": "ICEBERG"}}]}


DATABASES = {"DatabaseList": [{"Name": "hr"}, {"Name": "sales"}]}


def test_a_database_without_access_does_not_hide_the_others() -> None:
    catalog = glue(
        ("get_databases", {}, DATABASES),
        ("get_tables", {"DatabaseName": "hr"}, "AccessDeniedException"),
        ("get_tables", {"DatabaseName": "sales"}, of("orders")),
    )
    listed: list[TableName] = []
    with pytest.raises(PartlyListed) as caught:
        listed.extend(catalog.list_tables())
    assert listed == [TableName(("sales",), "orders")]
    assert str(caught.value) == (
        "catalog lake (Glue Data Catalog): access to the tables of 1 database(s) is denied (hr); allow glue:GetTables "
        "on them if they may share files with maintained tables"
    )


@pytest.mark.parametrize("code", ["ThrottlingException", "InternalServiceException", "OperationTimeoutException"])
def test_a_database_that_fails_temporarily_fails_the_listing(code: str) -> None:
    catalog = glue(("get_databases", {}, DATABASES), ("get_tables", {"DatabaseName": "hr"}, code))
    with pytest.raises(StorageError, match=code) as caught:
        list(catalog.list_tables())
    assert not isinstance(caught.value, PartlyListed)


@pytest.mark.parametrize("catalog_id", ["111122223333:s3tablescatalog/lake", "s3tablescatalog"])
def test_table_buckets_behind_glue_must_be_opened_as_table_buckets(catalog_id: str) -> None:
    with pytest.raises(PolicyError) as caught:
        glue(**{"glue.id": catalog_id})
    assert str(caught.value) == (
        f"catalog lake: glue.id '{catalog_id}' names S3 table buckets; open each as a catalog of type s3tables, with "
        "its ARN as warehouse"
    )
