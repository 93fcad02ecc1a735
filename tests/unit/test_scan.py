"""A scan over many catalogs: round robin, one read and one glance per table, filters, leases, and what it says."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from icekeeper.detection.assessor import Assessor, Observer, assessor
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import FleetTable, round_robin
from icekeeper.detection.proposal import FleetProposal, FleetReport, FleetSkip, Proposal
from icekeeper.detection.scan import Scanner
from icekeeper.errors import StorageError
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import MaintenanceRequest
from support.scans import FILES, IDLE, CountedState, PreparedCatalog, names, request, scanned, source, with_uuid
from support.settings import MB, NOW_MS, policy, resolved, small_files, table


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


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
        beyond_limit=1,
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


def test_filters_apply_to_every_catalog(state: CountedState) -> None:
    first = PreparedCatalog({"ns.clicks": table(), "other.clicks": table(), "ns.orders": table()})
    second = PreparedCatalog({"ns.clicks": table()}, name="D", warehouse="s3://staging/")
    report = scanned(state, first, second, namespace_filter="ns", table_filter="cl*", bucket_filter="prod-*")
    assert (report.listed, first.loads, second.loads) == (1, ["ns.clicks"], [])


def test_a_table_that_is_listed_twice_is_proposed_once(state: CountedState) -> None:
    class Repeating(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            return chain(super().list_tables(), super().list_tables())

    report = scanned(state, Repeating({"ns.t": table(small_files(1000, MB))}))
    assert (names(report), report.listed, report.scanned) == (["ns.t"], 1, 1)


def test_one_table_in_two_catalogs_is_proposed_once(state: CountedState) -> None:
    """Both entries would have the run's lease, and be maintained at once."""
    files = with_uuid(table(small_files(1000, MB)), "u1")
    report = scanned(state, PreparedCatalog({"ns.t": files}), PreparedCatalog({"ns.t2": files}, name="D"))
    assert names(report) == ["ns.t"]
    assert report.skipped == (FleetSkip("D", "ns.t2", "it is the same table as ns.t of catalog C"),)


def test_a_copied_uuid_holds_up_nobody(state: CountedState) -> None:
    """Rule 270: neither the lease of a copy nor its request is the other table's; it is proposed beside it."""
    victim = with_uuid(table(small_files(1000, MB)), "u1")
    copy = TableMetadata({**victim.document, "location": "s3://b/copy"})
    leased = TableIdentity("C", "s3://prod-lake/", TableName.parse("ns.copy"), "u1", "s3://b/copy")
    state.requests.file(MaintenanceRequest(identity=leased, requested_ms=1))
    catalog = PreparedCatalog({"ns.copy": copy, "ns.victim": victim})
    assert [(one.proposal.table, one.is_requested) for one in scanned(state, catalog).proposals] == [
        ("ns.copy", True),
        ("ns.victim", False),
    ]
    state.leases.acquire(leased.lease_key, "hostile", now_ms=NOW_MS, ttl_ms=1000)
    assert names(scanned(state, catalog)) == ["ns.victim"]


def test_a_table_that_is_being_maintained_is_left_out_and_others_move_up(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {name: with_uuid(table(small_files(count, MB)), name) for name, count in (("ns.a", 900), ("ns.b", 90))}
    catalog = PreparedCatalog({**tables, "ns.c": table(), "ns.d": table(small_files(9, MB))})
    key = TableIdentity("C", "s3://prod-lake/", TableName.parse("ns.a"), "ns.a", "s3://b/t").lease_key
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
    policies = TablePolicies({"ICEKEEPER_MIN_INPUT_FILES": "10"})
    assert names(detect([source(catalog)], state, policies, clock=lambda: NOW_MS)) == []
