"""A scan over many catalogs: round robin, one read and one glance per table, requests first, leases and trouble."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.assessor import Assessor, Observer, assessor
from icekeeper.detection.catalogs import CatalogSource
from icekeeper.detection.detect import detect
from icekeeper.detection.proposal import FleetProposal, FleetReport, FleetSkip, Proposal
from icekeeper.detection.scan import Scanner
from icekeeper.detection.scan_order import FleetTable, round_robin
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteStateStore
from icekeeper.state.store import Glance
from icekeeper.table_policy import TablePolicies
from support.prepared_catalog import PreparedCatalog
from support.settings import MB, NOW_MS, policy, resolved, small_files, table

FILES = "{} data files of 1 MB on average are below 192 MB"
IDLE = "no sign of work"


class CountedState(SqliteStateStore):
    """Counts what a scan asks for."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.glances: Counter[TableIdentity] = Counter()
        self.stats_written: list[str] = []
        record = self.lake_stats.record

        def counting(stats: Any) -> None:
            self.stats_written.append(str(stats.identity.table))
            record(stats)

        self.lake_stats.record = counting  # type: ignore[method-assign]

    def glance(self, identity: TableIdentity, *, now_ms: int) -> Glance:
        self.glances[identity] += 1
        return super().glance(identity, now_ms=now_ms)


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def source(catalog: PreparedCatalog) -> CatalogSource:
    return CatalogSource(catalog.name, lambda: catalog)


def with_uuid(metadata: TableMetadata, uuid: str) -> TableMetadata:
    return TableMetadata({**metadata.document, "table-uuid": uuid})


def scanned(
    state: SqliteStateStore,
    *catalogs: PreparedCatalog | CatalogSource,
    environment: Mapping[str, str] | None = None,
    cursor: tuple[str, str] | None = None,
    threads: int = 2,
    **values: object,
) -> FleetReport:
    """A scan with these deployment settings; ``environment`` reaches the tables' policies."""

    def assessor_of(catalog: Any, observe: Observer) -> Assessor:
        return assessor(
            catalog,
            resolve_policy=lambda loaded: resolved(loaded.metadata.properties, environment or {}),
            store=state,
            now_ms=NOW_MS,
            observe=observe,
        )

    sources = [source(c) if isinstance(c, PreparedCatalog) else c for c in catalogs]
    settings = policy(**values).policy
    return Scanner(settings, state, NOW_MS, threads).scan(sources, assessor_of, cursor)


def request(name: str, uuid: str = "", requested_ms: int = 1, **settings: str) -> MaintenanceRequest:
    identity = TableIdentity("C", "s3://prod-lake/", TableName.parse(name), uuid)
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=settings)


def names(report: FleetReport) -> list[str]:
    return [item.proposal.table for item in report.proposals]


def test_proposals_of_all_catalogs_are_ordered_by_need(state: CountedState) -> None:
    first = PreparedCatalog({"ns.few": table(small_files(10, MB)), "ns.quiet": table()})
    second = PreparedCatalog({"ns.many": table(small_files(1000, MB))}, name="D", warehouse="s3://other/")
    report = scanned(state, first, second, max_jobs_per_detection=1)
    many = Proposal("ns.many", (FILES.format(1000),), 0.995, location="s3://b/t")
    assert report == FleetReport(
        scanned=3,
        listed=3,
        proposals=(FleetProposal("D", "s3://other/", many),),
        skipped=(FleetSkip("C", "ns.few", "beyond max_jobs_per_detection 1"), FleetSkip("C", "ns.quiet", IDLE)),
        cursor=None,
    )
    assert report.proposals[0].to_json() == {
        "catalog": "D",
        "warehouse": "s3://other/",
        "table": "ns.many",
        "uuid": "",
        "location": "s3://b/t",
        "reasons": [FILES.format(1000)],
        "priority": 0.995,
        "forced": False,
        "settings": {},
        "wait": False,
    }


def test_one_metadata_read_and_one_question_to_the_state_per_table(state: CountedState) -> None:
    tables = {f"ns.t{n:03d}": with_uuid(table(small_files(n + 5, MB), snapshots=3), f"u{n}") for n in range(300)}
    catalog = PreparedCatalog(tables)
    state.requests.file(request("ns.t007", "u7"))
    report = scanned(state, catalog)
    assert report.scanned == 300
    assert Counter(catalog.loads) == dict.fromkeys(tables, 1)
    assert len(state.glances) == 300
    assert set(state.glances.values()) == {1}
    assert sorted(state.stats_written) == sorted(tables)
    # Nothing changed: nothing is written again.
    state.stats_written.clear()
    scanned(state, catalog)
    assert state.stats_written == []


@pytest.mark.parametrize(
    ("cursor", "expected"),
    [
        (None, ["C a.b", "C a.c", "D a.a"]),
        (("C", "a.b"), ["C a.c", "D a.a", "C a.b"]),
        (("C", "a.bb"), ["C a.c", "D a.a", "C a.b"]),
        (("D", "a.a"), ["C a.b", "C a.c", "D a.a"]),
        (("Z", ""), ["C a.b", "C a.c", "D a.a"]),
        (("B", "z"), ["C a.b", "C a.c", "D a.a"]),
    ],
)
def test_turns_go_on_after_the_cursor_and_wrap_around(cursor: tuple[str, str] | None, expected: Sequence[str]) -> None:
    entries = [FleetTable(c, t, TableName.parse(t)) for c, t in (("D", "a.a"), ("C", "a.c"), ("C", "a.b"))]
    assert [" ".join(entry.cursor) for entry in round_robin(entries, cursor)] == expected


def test_scans_with_a_small_budget_get_through_the_fleet_while_tables_come_and_go(state: CountedState) -> None:
    """Each load takes a second of ten, and nothing is begun in the last: nine tables a scan."""
    clock_s = [0.0]

    def tick() -> None:
        clock_s[0] += 1

    first = PreparedCatalog({f"ns.t{n:02d}": table() for n in range(20)}, on_load=tick)
    second = PreparedCatalog({f"ns.t{n:02d}": table() for n in range(20)}, name="D", on_load=tick)
    cursor = None
    for number in range(5):
        clock_s[0] = 0.0

        def assessor_of(catalog: Any, observe: Observer) -> Assessor:
            return assessor(
                catalog,
                resolve_policy=lambda loaded: resolved(loaded.metadata.properties),
                store=state,
                now_ms=NOW_MS,
            )

        scanner = Scanner(policy(detection_timeout_s=10).policy, state, NOW_MS, 1, lambda: clock_s[0])
        report = scanner.scan([source(first), source(second)], assessor_of, cursor)
        cursor = report.cursor
        assert report.scanned == 9
        late = [s for s in report.skipped if s.reason == "not reached within detection_timeout_s 10"]
        assert len(late) == report.listed - 9
        if number == 0:
            assert cursor == ("C", "ns.t08")
            del first.tables["ns.t08"]  # where it stopped
            second.tables["ns.t005"] = table()
    # 41 tables, nine a scan: after five scans each had its turn, and the first four a second.
    assert set(first.loads) == {f"ns.t{n:02d}" for n in range(20)}
    assert set(second.loads) == {f"ns.t{n:02d}" for n in range(20)} | {"ns.t005"}
    assert Counter(first.loads)["ns.t00"] == 2
    assert cursor == ("C", "ns.t03")


def test_a_table_that_hangs_does_not_keep_the_next_scan_at_its_place(state: CountedState) -> None:
    clock_s = [0.0]

    def hang() -> None:
        clock_s[0] = 100.0

    catalog = PreparedCatalog({"ns.a": StorageError("slow"), "ns.b": table()}, on_load=hang)
    scanner = Scanner(policy(detection_timeout_s=10).policy, state, NOW_MS, 1, lambda: clock_s[0])
    report = scanner.scan(
        [source(catalog)], lambda catalog, observe: lambda loaded, is_requested=False: pytest.fail("not reached")
    )
    assert report.cursor == ("C", "ns.a")


def test_filters_apply_to_every_catalog(state: CountedState) -> None:
    first = PreparedCatalog({"ns.clicks": table(), "other.clicks": table(), "ns.orders": table()})
    second = PreparedCatalog({"ns.clicks": table()}, name="D", warehouse="s3://staging/")
    report = scanned(state, first, second, namespace_filter="ns", table_filter="cl*", bucket_filter="prod-*")
    assert (report.listed, first.loads, second.loads) == (1, ["ns.clicks"], [])


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


def test_a_table_that_is_listed_twice_is_proposed_once(state: CountedState) -> None:
    class Repeating(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            return chain(super().list_tables(), super().list_tables())

    report = scanned(state, Repeating({"ns.t": table(small_files(1000, MB))}))
    assert (names(report), report.listed, report.scanned) == (["ns.t"], 1, 1)


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


def test_what_a_person_asked_for_comes_first_also_past_the_filters(state: CountedState) -> None:
    catalog = PreparedCatalog(
        {
            "ns.urgent": with_uuid(table(small_files(1000, MB)), "u1"),
            "ns.quiet": with_uuid(table(), "u2"),
            "other.t": with_uuid(table(small_files(10, MB)), "u3"),
        }
    )
    state.requests.file(request("other.t", "u3", requested_ms=2, operations="compact"))
    state.requests.file(request("ns.quiet", "u2", requested_ms=1))
    report = scanned(state, catalog, namespace_filter="ns", max_jobs_per_detection=2)
    assert report.proposals == (
        FleetProposal(
            "C", "s3://prod-lake/", Proposal("ns.quiet", ("requested by a person",), 1.0, "u2", "s3://b/t"), True
        ),
        FleetProposal(
            "C",
            "s3://prod-lake/",
            Proposal("other.t", ("requested by a person", FILES.format(10)), 1.0, "u3", "s3://b/t"),
            True,
            {"operations": "compact"},
        ),
    )
    assert report.skipped == (FleetSkip("C", "ns.urgent", "beyond max_jobs_per_detection 2"),)
    # Detection claims nothing: that is for the run.
    assert len(state.requests.pending()) == 2


@pytest.mark.parametrize(
    ("catalog", "warehouse", "name"),
    [
        ("C", "s3://prod-lake", "ns.t"),
        ("C", "s3://prod-lake/", "ns.formerly"),
        ("alias", "s3://prod-lake/", "ns.t"),
        ("alias", "s3://prod-lake/", "NS.T"),
    ],
    ids=["warehouse", "renamed", "catalog", "case"],
)
def test_a_request_is_found_whatever_the_table_was_called(
    state: CountedState, catalog: str, warehouse: str, name: str
) -> None:
    """Its name says where to look first; which table is meant, its UUID."""
    identity = TableIdentity(catalog, warehouse, TableName.parse(name), "U1")
    state.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={"operations": "compact"}))
    tables = {"ns.t": with_uuid(table(), "u1"), "ns.urgent": with_uuid(table(small_files(1000, MB)), "u2")}
    report = scanned(state, PreparedCatalog({**tables, "ns.formerly": PolicyError("there is no such table")}))
    proposed = {item.proposal.table: (item.is_requested, dict(item.settings)) for item in report.proposals}
    assert proposed == {"ns.t": (True, {"operations": "compact"}), "ns.urgent": (False, {})}
    assert len(state.requests.pending()) == 1, "it is for the run to claim"


def test_a_request_under_another_name_is_looked_for_first(state: CountedState) -> None:
    alias = TableIdentity("alias", "s3://prod-lake/", TableName.parse("OTHER.T"), "u3")
    state.requests.file(MaintenanceRequest(identity=alias, requested_ms=1))
    catalog = PreparedCatalog({"ns.a": with_uuid(table(), "u1"), "other.t": with_uuid(table(), "u3")})
    report = scanned(state, catalog, threads=1, namespace_filter="ns")
    assert names(report) == ["other.t"], "also past the filters"
    assert catalog.loads == ["other.t", "ns.a"]


def test_one_table_in_two_catalogs_is_proposed_once(state: CountedState) -> None:
    """Both entries would have the run's lease, and be maintained at once."""
    files = with_uuid(table(small_files(1000, MB)), "u1")
    report = scanned(state, PreparedCatalog({"ns.t": files}), PreparedCatalog({"ns.t2": files}, name="D"))
    assert names(report) == ["ns.t"]
    assert report.skipped == (FleetSkip("D", "ns.t2", "it is the same table as ns.t of catalog C"),)


def test_a_deployment_that_forbids_maintenance_refuses_requests_and_a_table_does_not(state: CountedState) -> None:
    disabled = TableMetadata({**table().document, "properties": {"icekeeper.maintenance_enabled": "false"}})
    catalog = PreparedCatalog({"ns.t": disabled})
    state.requests.file(request("ns.t"))
    assert names(scanned(state, catalog)) == ["ns.t"]
    report = scanned(state, catalog, environment={"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"})
    # The bound is above what the table says, and it already says false: it is the deployment's that counts.
    assert names(report) == []
    assert report.skipped[0].reason.startswith("requested by a person, but maintenance is disabled (")


def test_a_request_for_a_table_that_was_created_anew_is_not_for_the_new_one(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": with_uuid(table(small_files(10, MB)), "new")})
    state.requests.file(request("ns.t", "old"))
    (item,) = scanned(state, catalog).proposals
    assert (item.is_requested, item.proposal.reasons) == (False, (FILES.format(10),))
    assert state.requests.pending() == ()  # nobody will ever serve it
    state.requests.file(request("ns.t", "old"))
    assert scanned(state, catalog, table_filter="x").skipped == (
        FleetSkip("C", "ns.t", "a pass was requested for a table of this name that is gone"),
    )
    state.requests.file(request("ns.t", "new", requested_ms=5))
    assert [item.is_requested for item in scanned(state, catalog).proposals] == [True]


def test_a_requested_table_that_is_gone_or_cannot_be_assessed_is_an_error(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": PolicyError("there is no table ns.t in catalog C")})
    state.requests.file(request("ns.t"))
    assert scanned(state, catalog).skipped == (FleetSkip("C", "ns.t", "there is no table ns.t in catalog C", True),)
    assert scanned(state, PreparedCatalog({})).skipped == ()  # told once


def test_a_requested_table_that_cannot_be_read_now_keeps_its_request(state: CountedState) -> None:
    state.requests.file(request("ns.t"))
    for trouble in (StorageError("no answer"), MetadataUnreadable("damaged")):
        assert scanned(state, PreparedCatalog({"ns.t": trouble})).errors == 1
    wrong = TableMetadata({**table().document, "properties": {"icekeeper.min_input_files": "few"}})
    assert scanned(state, PreparedCatalog({"ns.t": wrong})).errors == 1
    assert len(state.requests.pending()) == 1


def test_a_table_that_is_being_maintained_is_left_out_and_others_move_up(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {name: with_uuid(table(small_files(count, MB)), name) for name, count in (("ns.a", 900), ("ns.b", 90))}
    catalog = PreparedCatalog({**tables, "ns.c": table(), "ns.d": table(small_files(9, MB))})
    key = TableIdentity("C", "s3://prod-lake/", TableName.parse("ns.a"), "ns.a").key
    state.leases.acquire(key, "run-7", now_ms=NOW_MS - 1000, ttl_ms=2000)
    asked: list[str] = []
    current = state.leases.current

    def counting(key: str, *, now_ms: int) -> Any:
        asked.append(key)
        return current(key, now_ms=now_ms)

    monkeypatch.setattr(state.leases, "current", counting)
    report = scanned(state, catalog, max_jobs_per_detection=1)
    assert names(report) == ["ns.b"]
    assert report.skipped[0] == FleetSkip("C", "ns.a", "being maintained by run-7")
    assert len(asked) == 2  # neither the quiet table nor the one beyond the limit


def test_a_table_with_wrong_settings_is_an_error_and_a_warning(state: CountedState) -> None:
    wrong = TableMetadata({**table().document, "properties": {"icekeeper.min_input_files": "few"}})
    report = scanned(state, PreparedCatalog({"ns.t": wrong}))
    (skip,) = report.skipped
    assert skip.is_error
    assert skip.reason.startswith("policy key min_input_files cannot be 'few'")
    (stats,) = state.lake_stats.of_catalog("C", "s3://prod-lake/")
    assert list(stats.warnings) == ["wrong_settings"]


def test_a_scan_says_when_it_starts_and_ends_with_counts(state: CountedState, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "icekeeper.activity")
    catalog = PreparedCatalog({"ns.a": table(small_files(9, MB)), "ns.b": table(), "ns.c": StorageError("no")})
    scanned(state, catalog)
    started, finished = (vars(record) for record in caplog.records if record.name == "icekeeper.activity")
    assert (started["event"], started["catalogs"]) == ("scan_started", 1)
    counts = {key: finished[key] for key in ("event", "listed", "tables", "proposals", "skipped", "errors")}
    assert counts == {"event": "scan_finished", "listed": 3, "tables": 3, "proposals": 1, "skipped": 2, "errors": 1}
    assert finished["seconds"] >= 0


def test_a_fleet_is_put_together_from_the_environment(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": table(small_files(9, MB)), "x.t": table(small_files(9, MB))})
    environment = {"ICEKEEPER_NAMESPACE_FILTER": "ns", "ICEKEEPER_MIN_INPUT_FILES": "9"}
    report = detect([source(catalog)], state, TablePolicies(environment), clock=lambda: NOW_MS)
    assert names(report) == ["ns.t"]
    assert names(detect([source(catalog)], state, TablePolicies({"ICEKEEPER_MIN_INPUT_FILES": "10"}))) == []


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
