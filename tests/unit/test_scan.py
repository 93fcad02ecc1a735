"""Scans of many catalogs: order, budget, requests, and the report."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain, count
from pathlib import Path
from threading import Event, Lock, Semaphore, get_ident
from typing import Any

import pytest

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.detection.assess import assess_table
from icekeeper.detection.detect import detect
from icekeeper.detection.list_tables import CatalogSource, FleetTable, round_robin, selects_bucket, selects_table
from icekeeper.detection.priority import urgency, waited_ms
from icekeeper.detection.proposal import FleetReport, Proposal, Skip
from icekeeper.errors import MetadataUnreadable, PolicyError, StorageError
from icekeeper.machine.clock import HOUR_MS, within_budget
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.table_policy import TablePolicies
from icekeeper.policy import resolve
from icekeeper.runtime import Runtime
from icekeeper.state import lake_stats as gathered
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import Gathered
from icekeeper.state.requests import UNSERVED_MS, MaintenanceRequest
from icekeeper.state.sqlite.store import SqliteFile, SqliteStateStore
from icekeeper.state.store import Pin
from icekeeper.state.sweeps import SweepKind
from support.scans import (
    FILES,
    IDLE,
    CountedState,
    PreparedCatalog,
    names,
    request,
    scanned,
    scanner_of,
    source,
    with_uuid,
)
from support.settings import MB, NOW_MS, policy, resolved, small_files, table
from support.state_stores import look, remember

# A scan of many catalogs: round robin, one metadata read and one state read per table, filters, leases, the report.


@pytest.fixture
def state(tmp_path: Path) -> CountedState:
    return CountedState(tmp_path / "state.db")


def test_proposals_of_all_catalogs_are_ordered_by_need(state: CountedState) -> None:
    first = PreparedCatalog({"ns.few": table(small_files(10, MB)), "ns.quiet": table()})
    second = PreparedCatalog({"ns.many": table(small_files(1000, MB))}, name="D", warehouse="s3://other/")
    report = scanned(state, first, second, max_jobs_per_detection=1)
    reasons = (FILES.format(1000),)
    many = Proposal("ns.many", reasons, 0.995, location="s3://b/t", catalog="D", warehouse="s3://other/")
    assert report == FleetReport(
        scanned=3,
        listed=3,
        proposals=(many,),
        skipped=(Skip("ns.few", "beyond max_jobs_per_detection 1", catalog="C"), Skip("ns.quiet", IDLE, catalog="C")),
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


def test_a_scan_reads_metadata_and_state_once_per_table(state: CountedState) -> None:
    tables = {f"ns.t{n:03d}": with_uuid(table(small_files(n + 5, MB), snapshots=3), f"u{n}") for n in range(300)}
    catalog = PreparedCatalog(tables)
    state.requests.file(request("ns.t007", "u7"))
    report = scanned(state, catalog)
    assert report.scanned == 300
    assert Counter(catalog.loads) == dict.fromkeys(tables, 1)
    assert len(state.glances) == 300
    assert set(state.glances.values()) == {1}
    assert sorted(state.stats_written) == sorted(tables)
    # Nothing changed, so nothing is written again.
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
def test_turns_follow_the_cursor_and_wrap_around(cursor: tuple[str, str] | None, expected: Sequence[str]) -> None:
    entries = [FleetTable(c, t, TableName.parse(t)) for c, t in (("D", "a.a"), ("C", "a.c"), ("C", "a.b"))]
    assert [" ".join(entry.cursor) for entry in round_robin(entries, cursor)] == expected


def test_scans_with_a_small_budget_reach_every_table_while_tables_come_and_go(state: CountedState) -> None:
    """Each load takes a second of ten, and no load begins in the last second: a scan reads nine tables."""
    clock_s = [0.0]

    def tick() -> None:
        clock_s[0] += 1

    first = PreparedCatalog({f"ns.t{n:02d}": table() for n in range(20)}, on_load=tick)
    second = PreparedCatalog({f"ns.t{n:02d}": table() for n in range(20)}, name="D", on_load=tick)
    cursor = None
    for number in range(5):
        clock_s[0] = 0.0
        scanner = scanner_of(policy(detection_timeout_s=10).policy, state, monotonic_s=lambda: clock_s[0])
        report = scanner.scan([source(first), source(second)], cursor)
        cursor = report.cursor
        assert report.scanned == 9
        late = [s for s in report.skipped if s.reason == "not reached within detection_timeout_s 10"]
        assert len(late) == report.listed - 9
        if number == 0:
            assert cursor == ("C", "ns.t08")
            del first.tables["ns.t08"]  # the last table of this scan
            second.tables["ns.t005"] = table()
    # 41 tables, nine per scan: five scans read every table once and the first four twice.
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
    """So is a table with entries in two catalogs: both entries would share the run's lease in concurrent passes."""

    class Repeating(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            return chain(super().list_tables(), super().list_tables())

    files = with_uuid(table(small_files(1000, MB)), "u1")
    report = scanned(state, Repeating({"ns.t": files}))
    assert (names(report), report.listed, report.scanned) == (["ns.t"], 1, 1)
    report = scanned(state, PreparedCatalog({"ns.t": files}), PreparedCatalog({"ns.t2": files}, name="D"))
    assert names(report) == ["ns.t"]
    assert report.skipped == (Skip("ns.t2", "it is the same table as ns.t of catalog C", catalog="D"),)


def test_a_copied_uuid_delays_no_other_table(state: CountedState) -> None:
    """The lease and the request of a copy do not apply to the original (rule: table-identity-is-its-uuid); detection
    proposes both."""
    victim = with_uuid(table(small_files(1000, MB)), "u1")
    copy = TableMetadata({**victim.document, "location": "s3://b/copy"})
    leased = TableIdentity(CatalogId("C", "s3://prod-lake/"), TableName.parse("ns.copy"), "u1", "s3://b/copy")
    state.requests.file(MaintenanceRequest(identity=leased, requested_ms=1))
    catalog = PreparedCatalog({"ns.copy": copy, "ns.victim": victim})
    assert [(proposal.table, proposal.is_requested) for proposal in scanned(state, catalog).proposals] == [
        ("ns.copy", True),
        ("ns.victim", False),
    ]
    state.leases.acquire(leased.lease_key, "hostile", now_ms=NOW_MS, ttl_ms=1000)
    assert names(scanned(state, catalog)) == ["ns.victim"]


def test_a_table_with_a_running_pass_is_skipped_and_the_next_is_proposed(
    state: CountedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {name: with_uuid(table(small_files(count, MB)), name) for name, count in (("ns.a", 900), ("ns.b", 90))}
    catalog = PreparedCatalog({**tables, "ns.c": table(), "ns.d": table(small_files(9, MB))})
    key = TableIdentity(CatalogId("C", "s3://prod-lake/"), TableName.parse("ns.a"), "ns.a", "s3://b/t").lease_key
    state.leases.acquire(key, "run-7", now_ms=NOW_MS - 1000, ttl_ms=2000)
    read_keys: list[str] = []
    current = state.leases.current

    def counting(key: str, *, now_ms: int) -> Any:
        read_keys.append(key)
        return current(key, now_ms=now_ms)

    monkeypatch.setattr(state.leases, "current", counting)
    report = scanned(state, catalog, max_jobs_per_detection=1)
    assert names(report) == ["ns.b"]
    assert report.skipped[0] == Skip("ns.a", "being maintained by run-7", catalog="C")
    assert len(read_keys) == 2  # neither the quiet table nor the table beyond the limit


def test_a_scan_logs_its_start_and_its_end_with_counts(state: CountedState, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "icekeeper.activity")
    catalog = PreparedCatalog({"ns.a": table(small_files(9, MB)), "ns.b": table(), "ns.c": StorageError("no")})
    scanned(state, catalog)
    started, finished = (vars(record) for record in caplog.records if record.name == "icekeeper.activity")
    assert (started["event"], started["catalogs"]) == ("scan_started", 1)
    counts = {key: finished[key] for key in ("event", "listed", "tables", "proposals", "skipped", "errors")}
    assert counts == {"event": "scan_finished", "listed": 3, "tables": 3, "proposals": 1, "skipped": 2, "errors": 1}
    assert finished["seconds"] >= 0


def test_detection_reads_filters_and_thresholds_from_the_environment(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": table(small_files(9, MB)), "x.t": table(small_files(9, MB))})
    environment = {"ICEKEEPER_NAMESPACE_FILTER": "ns", "ICEKEEPER_MIN_INPUT_FILES": "9"}
    report = detect([source(catalog)], state, TablePolicies(environment), clock=lambda: NOW_MS)
    assert names(report) == ["ns.t"]
    policies = TablePolicies({"ICEKEEPER_MIN_INPUT_FILES": "10"})
    assert names(detect([source(catalog)], state, policies, clock=lambda: NOW_MS)) == []


# Tables with a recent pass do not crowd out tables that wait for a pass, whatever their need.

DAY_MS = 24 * HOUR_MS


def passed(state: CountedState, name: str, ago_ms: int) -> None:
    """Record a pass that ended ``ago_ms`` before now and left work."""
    identity = TableIdentity(CatalogId("C", "s3://prod-lake/"), TableName.parse(f"ns.{name}"), name, "s3://b/t")
    remember(state, identity, look(NOW_MS - ago_ms, is_done=False, snapshot_id=None))


def test_hopeless_tables_of_great_need_do_not_crowd_out_the_others(state: CountedState) -> None:
    """Each hour three tables have a pass, and their need does not shrink."""
    hopeless = {f"h{n}": small_files(1000, MB) for n in range(3)}
    catalog = PreparedCatalog(
        {
            f"ns.{name}": with_uuid(table(files), name)
            for name, files in {**hopeless, "needy": small_files(6, MB)}.items()
        }
    )
    for name in hopeless:
        passed(state, name, HOUR_MS)
    passed(state, "needy", 30 * HOUR_MS)
    assert names(scanned(state, catalog, max_jobs_per_detection=3)) == ["ns.h0", "ns.h1", "ns.needy"]  # by need
    assert names(scanned(state, catalog, max_jobs_per_detection=1)) == ["ns.needy"]
    assert names(scanned(state, catalog)) == ["ns.h0", "ns.h1", "ns.h2", "ns.needy"]
    passed(state, "needy", 2 * HOUR_MS)
    assert names(scanned(state, catalog, max_jobs_per_detection=3)) == ["ns.h0", "ns.h1", "ns.h2"]


def test_a_day_of_waiting_outweighs_every_need_and_at_most_a_week_counts() -> None:
    assert urgency(0.0, DAY_MS) > urgency(0.9999, 0)
    assert urgency(0.2, 23 * HOUR_MS) < urgency(0.9999, HOUR_MS * 6)
    assert urgency(0.5, 7 * DAY_MS) == urgency(0.5, 700 * DAY_MS)
    metadata = table(small_files(6, MB))
    (first_ms,) = {snapshot.timestamp_ms for snapshot in metadata.snapshots.values()}
    assert waited_ms(metadata, (), NOW_MS) == NOW_MS - first_ms, "without a pass since the oldest snapshot"
    assert waited_ms(metadata, (NOW_MS - 7, NOW_MS - 5), NOW_MS) == 5
    assert waited_ms(metadata, (NOW_MS + 5,), NOW_MS) == 0


# The scan of one catalog by `icekeeper detect`; filters; what an assessment considers.


def detected(catalog: PreparedCatalog, state: CountedState, **settings: str) -> FleetReport:
    """Report what ``icekeeper detect`` finds."""
    return Runtime(catalog, state, environment={}, clock=lambda: NOW_MS).detect(settings)


def test_a_catalog_that_cannot_be_listed_fails_the_scan(state: CountedState) -> None:
    class Unreachable(PreparedCatalog):
        def list_tables(self) -> Iterator[TableName]:
            raise StorageError("it does not answer")

    with pytest.raises(StorageError, match=r"^C: the catalog cannot be scanned: it does not answer$"):
        detected(Unreachable({}), state)


def test_an_assessment_joins_policy_memory_pins_and_the_expiry_plan(tmp_path: Path) -> None:
    """A pin suppresses the reasons of expiry, an idle pass those of the summary, and the table's property all."""
    store = SqliteStateStore(tmp_path / "state.db")
    metadata = table(small_files(400, MB), snapshots=60, age_hours=200)
    loaded = LoadedTable(TableName(("ns",), "t"), metadata, "m", "m", {})
    identity = TableIdentity(CatalogId("C", "w"), loaded.name, "", "s3://b/t")

    def assessed(table: LoadedTable = loaded) -> Proposal | Skip:
        settings = resolved(table.metadata.properties, orphan_sweep_interval_hours="0")
        memory = store.glance(identity, now_ms=NOW_MS)
        return assess_table(table, identity, settings, memory, now_ms=NOW_MS, plan_sweep=store.sweeps.record)

    snapshots = "60 snapshots exceed max_snapshots_to_keep 5"
    old = "60 snapshots are older than snapshot_retention_hours 168"
    files = "400 data files of 1 MB on average are below 192 MB"
    first = assessed()
    assert isinstance(first, Proposal)
    assert first.reasons == (snapshots, old, files)

    left_to_nessie = assessed(replace(loaded, versioned_by="Nessie"))
    assert isinstance(left_to_nessie, Proposal)
    assert left_to_nessie.reasons == (files,)

    store.add_pin(Pin(identity=identity, name="p", snapshot_id=1, metadata_location="m", expires_ms=NOW_MS + 1))
    pinned = assessed()
    assert isinstance(pinned, Proposal)
    assert pinned.reasons == (files,)

    remember(store, identity, look(NOW_MS, snapshot_id=60), resolve([]).digest_over(metadata))
    assert assessed() == Skip("ns.t", "nothing came since the last pass", catalog="C")

    disabled = TableMetadata({**metadata.document, "properties": {"icekeeper.maintenance_enabled": "false"}})
    assert assessed(LoadedTable(loaded.name, disabled, "m", "m", {})) == Skip(
        "ns.t", "maintenance is disabled (table property icekeeper.maintenance_enabled)", catalog="C"
    )


def test_only_star_and_question_mark_are_wildcards_and_a_bucket_is_matched_by_its_name() -> None:
    settings = policy(namespace_filter="a.b?", table_filter="t[1]*", bucket_filter="prod-*").policy
    assert selects_table(settings, TableName(("a", "bc"), "t[1]x"))
    assert not selects_table(settings, TableName(("a", "bc"), "t1x"))
    assert not selects_table(settings, TableName(("a",), "t[1]"))
    for warehouse, selected in {
        "s3://prod-lake/": True,
        "s3://prod-lake/deep/prefix": True,
        "arn:aws:s3tables:eu-west-1:123456789012:bucket/prod-lake": True,
        "/data/prod-lake": True,
        "s3://lake/prod-x": False,
        "s3://Prod-lake": False,
    }.items():
        assert selects_bucket(settings, warehouse) is selected, warehouse


# Items in several threads within a time budget: which items begin, which end in time, and which end too late.


def test_every_item_is_done_once_and_never_more_at_a_time_than_threads() -> None:
    lock, at_once, most = Lock(), 0, 0
    three_at_once = Event()

    def work(item: int) -> int:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
            if most == 3:
                three_at_once.set()
        assert three_at_once.wait(10)
        with lock:
            at_once -= 1
        return -item

    reached = within_budget(work, range(50), threads=3, budget_s=60, name="test", monotonic_s=time.monotonic)
    assert sorted(reached.done) == [(item, -item) for item in range(50)]
    assert (reached.begun, most) == (50, 3)


def test_each_thread_enters_its_surroundings_once() -> None:
    entered: list[int] = []
    left: list[int] = []

    @contextmanager
    def around() -> Iterator[None]:
        entered.append(get_ident())
        yield
        left.append(get_ident())

    def work(_: int) -> bool:
        return get_ident() in entered and get_ident() not in left

    reached = within_budget(
        work, range(50), threads=3, budget_s=60, name="test", monotonic_s=time.monotonic, around=around
    )
    assert [inside for _, inside in reached.done] == [True] * 50
    assert len(entered) == len(left) <= 3


def test_nothing_is_begun_in_the_last_tenth() -> None:
    ticks = count()  # each reading of the clock takes a second: at the start, before each item, before waiting
    reached = within_budget(
        str, range(100), threads=1, budget_s=20, name="test", monotonic_s=lambda: float(next(ticks))
    )
    assert reached.begun < 20
    assert [item for item, _ in reached.done] == list(range(reached.begun))


@pytest.mark.parametrize(("share", "least", "most"), [(1.0, 1, 1), (0.7, 1, 1), (0.5, 6, 8), (0.0, 6, 8)])
def test_more_threads_begin_only_while_little_is_computed(share: float, least: int, most: int) -> None:
    """Threads that compute wait for each other: for tables on the local disk, sixteen took 1.7 times as long as one."""
    threads: set[int] = set()

    def work(item: int) -> None:
        threads.add(get_ident())
        time.sleep(0.03)

    within_budget(
        work,
        range(60),
        threads=8,
        budget_s=60,
        name="test",
        monotonic_s=time.monotonic,
        cpu_s=lambda: share * time.monotonic(),
    )
    assert least <= len(threads) <= most


def test_threads_end_while_the_process_computes_and_begin_again() -> None:
    """The process waits for the first 0.3 s, computes until 0.8 s, and waits again."""
    here, now, used = time.monotonic(), 0.0, 0.0
    at_once: dict[str, set[int]] = {"waits": set(), "computes": set(), "waits again": set()}

    def cpu_s() -> float:
        nonlocal now, used
        passed, now = time.monotonic() - here - now, time.monotonic() - here
        used += passed if 0.3 <= now < 0.8 else 0.0
        return used

    def work(_: int) -> None:
        began_s = time.monotonic() - here
        time.sleep(0.02)
        for stage, begins_s, ends_s in (("waits", 0, 0.3), ("computes", 0.6, 0.75), ("waits again", 1.1, 9)):
            if begins_s <= began_s < ends_s:
                at_once[stage].add(get_ident())

    within_budget(work, range(300), threads=8, budget_s=60, name="test", monotonic_s=time.monotonic, cpu_s=cpu_s)
    assert [len(found) > 1 for found in at_once.values()] == [True, False, True]


def test_a_hanging_item_is_abandoned_and_its_late_result_discarded() -> None:
    may_end, has_ended, others = Event(), Event(), Semaphore(0)
    looks = count()
    here = get_ident()

    def work(item: int) -> int:
        if item == 0:
            assert may_end.wait(10)
            has_ended.set()
        else:
            others.release()
        return item

    def clock() -> float:
        """The budget ends once the other items are done."""
        if get_ident() != here or next(looks) < 2:
            return 0.0
        assert all(others.acquire(timeout=10) for _ in range(2))
        time.sleep(0.05)  # until the second item has stored its result
        return 100.0

    reached = within_budget(work, range(3), threads=2, budget_s=100, name="test", monotonic_s=clock)
    before = sorted(reached.done)
    may_end.set()
    assert has_ended.wait(10)
    time.sleep(0.01)
    assert (before, sorted(reached.done), reached.begun) == ([(1, 1), (2, 2)], [(1, 1), (2, 2)], 3)


def test_an_error_of_the_work_is_raised_and_no_further_item_begins() -> None:
    begun: list[int] = []

    def work(item: int) -> None:
        begun.append(item)
        raise ValueError(f"item {item}")

    with pytest.raises(ValueError, match="item 0"):
        within_budget(work, range(100), threads=1, budget_s=60, name="test", monotonic_s=time.monotonic)
    assert begun == [0]
    reached = within_budget(work, range(0), threads=4, budget_s=60, name="test", monotonic_s=time.monotonic)
    assert (reached.done, reached.begun) == ([], 0)


# A scan gathers the records of many tables and writes them in batches, in its threads or at its end.

TABLES = 60


@pytest.fixture
def fleet() -> PreparedCatalog:
    """Young tables, whose first sweep is due later."""
    return PreparedCatalog({f"ns.t{n:02}": with_uuid(table(small_files(9, MB)), f"u{n}") for n in range(TABLES)})


def scan(state: CountedState, fleet: PreparedCatalog) -> FleetReport:
    return detect([source(fleet)], state, TablePolicies({}), clock=lambda: NOW_MS, threads=4)


def remembered(state: CountedState) -> tuple[int, int]:
    """How many tables have lake stats, and how many a time of their first sweep."""
    known = [stats.identity for stats in state.lake_stats.of_catalog(CatalogId("C", "s3://prod-lake/"))]
    sweeps = [SweepKind.FIRST in state.sweeps.of_table(identity) for identity in known]
    return len(known), sum(sweeps)


def test_every_record_is_written_once_and_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "_AT_ONCE", 10)
    written: list[list[int]] = []
    records = Gathered[int](lambda batch: written.append([*batch]))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(records.add, range(995)))
    assert len(written) <= 99
    assert sum(map(len, written)) > 985  # fewer than ten are left
    records.write_rest()
    records.write_rest()
    assert sorted(number for batch in written for number in batch) == [*range(995)]
    assert all(written)


def test_a_scan_records_many_tables_in_few_transactions(
    state: CountedState, fleet: PreparedCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records that protect a table are written before the caller continues (rule: protection-is-written-at-once)."""
    begun = []
    transaction = SqliteFile.transaction

    @contextmanager
    def counted(file: SqliteFile, *, to_read: bool = False) -> Iterator[sqlite3.Connection]:
        if file._joined() is None:
            begun.append(file)
        with transaction(file, to_read=to_read) as connection:
            yield connection

    monkeypatch.setattr(gathered, "_AT_ONCE", TABLES // 2)
    monkeypatch.setattr(SqliteFile, "transaction", counted)
    scan(state, fleet)
    assert remembered(state) == (TABLES, TABLES)
    assert 2 <= len(begun) <= 8
    begun.clear()
    scan(state, fleet)  # only the time of the scan is new
    assert len(begun) == 2


def test_the_next_scan_writes_records_that_a_failed_store_lost(
    state: CountedState, fleet: PreparedCatalog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:

    def lost(*_: object) -> Any:
        raise StorageError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(state.lake_stats, "record", lost)
        patch.setattr(state.sweeps, "record_all", lost)
        report = scan(state, fleet)
    assert sorted(caplog.messages) == [
        "lake stats cannot be written, so this scan leaves them: the disk is full",
        "the times of first sweeps could not be recorded; the next scan decides them again: the disk is full",
    ]
    assert remembered(state) == (0, 0)
    assert names(scan(state, fleet)) == names(report)
    assert remembered(state) == (TABLES, TABLES)


def test_an_invalid_row_fails_all_rows_of_its_write(state: CountedState) -> None:
    """The message names the file."""
    with pytest.raises(StorageError, match=r"state\.db cannot be used: "):
        state.table.put_all([{"pk": "a", "sk": "s"}, {"pk": "b", "sk": None}])
    assert state.table.get("a", "s") is None


# A scan proposes requested tables first, under any name of the table, and refuses or keeps a request for a reason.


def test_requested_passes_come_first_also_past_the_filters(state: CountedState) -> None:
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
        Proposal(
            "ns.quiet",
            ("requested by a person",),
            1.0,
            "u2",
            "s3://b/t",
            catalog="C",
            warehouse="s3://prod-lake/",
            is_requested=True,
        ),
        Proposal(
            "other.t",
            ("requested by a person", FILES.format(10)),
            1.0,
            "u3",
            "s3://b/t",
            catalog="C",
            warehouse="s3://prod-lake/",
            is_requested=True,
            settings={"operations": "compact"},
        ),
    )
    assert report.skipped == (Skip("ns.urgent", "beyond max_jobs_per_detection 2", catalog="C"),)
    # Detection claims no request; the run does.
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
def test_a_request_is_found_under_any_name_of_its_table(
    state: CountedState, catalog: str, warehouse: str, name: str
) -> None:
    """The UUID identifies the table; the name is only the first place to look."""
    identity = TableIdentity(CatalogId(catalog, warehouse), TableName.parse(name), "U1", "s3://b/t")
    state.requests.file(MaintenanceRequest(identity=identity, requested_ms=1, settings={"operations": "compact"}))
    tables = {"ns.t": with_uuid(table(), "u1"), "ns.urgent": with_uuid(table(small_files(1000, MB)), "u2")}
    report = scanned(state, PreparedCatalog({**tables, "ns.formerly": PolicyError("there is no such table")}))
    proposed = {item.table: (item.is_requested, dict(item.settings)) for item in report.proposals}
    assert proposed == {"ns.t": (True, {"operations": "compact"}), "ns.urgent": (False, {})}
    assert len(state.requests.pending()) == 1, "it is for the run to claim"


@pytest.mark.parametrize(
    ("requested_ms", "name", "stays"),
    [
        (NOW_MS - UNSERVED_MS - 1, "ns.nobody", False),
        (NOW_MS - UNSERVED_MS, "ns.nobody", True),
        (NOW_MS + HOUR_MS + 1, "ns.nobody", False),
        (NOW_MS - UNSERVED_MS - 1, "NS.T", True),
    ],
    ids=["old", "young", "of the future", "perhaps for our table"],
)
def test_a_request_that_no_catalog_can_serve_is_dropped_after_eight_days(
    state: CountedState, requested_ms: int, name: str, stays: bool
) -> None:
    """A caller can file requests for catalogs that do not exist."""
    identity = TableIdentity(CatalogId("nowhere", "s3://none/"), TableName.parse(name), "u9", "s3://none/t")
    state.requests.file(MaintenanceRequest(identity=identity, requested_ms=requested_ms))
    catalog, scanner = PreparedCatalog({"ns.t": with_uuid(table(), "u1")}), scanner_of(policy().policy, state)
    scanner.scan([source(catalog), CatalogSource("D", lambda: 1 / 0)])  # type: ignore[arg-type,return-value]
    assert len(state.requests.pending()) == 1, "it may be for a catalog that does not answer now"
    report = scanner.scan([source(catalog)])
    assert len(state.requests.pending()) == stays
    sentence = "1 request dropped: for 8 days no catalog here had the table, such as ns.nobody of catalog nowhere"
    assert report.warnings == (() if stays else (sentence,))


def test_a_table_requested_under_another_name_is_loaded_first(state: CountedState) -> None:
    alias = TableIdentity(CatalogId("alias", "s3://prod-lake/"), TableName.parse("OTHER.T"), "u3", "s3://b/t")
    state.requests.file(MaintenanceRequest(identity=alias, requested_ms=1))
    catalog = PreparedCatalog({"ns.a": with_uuid(table(), "u1"), "other.t": with_uuid(table(), "u3")})
    report = scanned(state, catalog, threads=1, namespace_filter="ns")
    assert names(report) == ["other.t"], "also past the filters"
    assert catalog.loads == ["other.t", "ns.a"]


def test_a_deployment_that_forbids_maintenance_refuses_requests_and_a_table_does_not(state: CountedState) -> None:
    disabled = TableMetadata({**table().document, "properties": {"icekeeper.maintenance_enabled": "false"}})
    catalog = PreparedCatalog({"ns.t": disabled})
    state.requests.file(request("ns.t"))
    assert names(scanned(state, catalog)) == ["ns.t"]
    report = scanned(state, catalog, environment={"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"})
    # The deployment's bound overrides the table's property, also if both are false.
    assert names(report) == []
    assert report.skipped[0].reason.startswith("requested by a person, but maintenance is disabled (")


def test_a_request_for_a_recreated_table_does_not_apply_to_the_new_table(state: CountedState) -> None:
    catalog = PreparedCatalog({"ns.t": with_uuid(table(small_files(10, MB)), "new")})
    state.requests.file(request("ns.t", "old"))
    (item,) = scanned(state, catalog).proposals
    assert (item.is_requested, item.reasons) == (False, (FILES.format(10),))
    assert state.requests.pending() == ()  # no pass will ever serve it
    state.requests.file(request("ns.t", "old"))
    assert scanned(state, catalog, table_filter="x").skipped == (
        Skip("ns.t", "a pass was requested for a table of this name that is gone", catalog="C"),
    )
    state.requests.file(request("ns.t", "new", requested_ms=5))
    assert [item.is_requested for item in scanned(state, catalog).proposals] == [True]


def test_a_request_is_kept_while_its_table_is_unreadable_and_dropped_once_it_is_gone(state: CountedState) -> None:
    state.requests.file(request("ns.t"))
    for trouble in (StorageError("no answer"), MetadataUnreadable("damaged")):
        assert scanned(state, PreparedCatalog({"ns.t": trouble})).errors == 1
    wrong = TableMetadata({**table().document, "properties": {"icekeeper.min_input_files": "few"}})
    assert scanned(state, PreparedCatalog({"ns.t": wrong})).errors == 1
    assert len(state.requests.pending()) == 1
    gone = PreparedCatalog({"ns.t": PolicyError("there is no table ns.t in catalog C")})
    message = Skip("ns.t", "there is no table ns.t in catalog C", is_error=True, catalog="C")
    assert scanned(state, gone).skipped == (message,)
    assert scanned(state, PreparedCatalog({})).skipped == ()  # reported once
