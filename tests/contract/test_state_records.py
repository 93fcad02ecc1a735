"""Every state store: statistics, sweeps, requests, usage, and the other records of passes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.policy.sweep_rhythm import SweepMemory
from icekeeper.state.claims import CutOff, CutWork, cut_again, forget_cut, waiting_cuts
from icekeeper.state.findings import (
    MOST_PROBLEMS,
    RETRY_MS,
    CatalogScan,
    FileFinding,
    Part,
    RefusedExpiry,
    TableLayout,
    Verdict,
    Verified,
)
from icekeeper.state.identity import Entry, TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.store import SeenTable, StateStore, hour_of
from icekeeper.state.sweeps import SweepKind, SweepRecord
from icekeeper.state.table_memory import TableMemory
from local_stack.moto_server import MotoServer
from support.examples import examples
from support.state_stores import (
    CALLED,
    COPY,
    IDENTITY,
    OTHERS,
    WITHOUT_UUID,
    OpenStore,
    a_table,
    look,
    looks,
    remember,
    sweep,
)

# Records of tables whose pass exceeded its time limit, and how long those tables wait.

ENTRY = Entry(CatalogId("C", "s3://bucket/"), "ns.ä b")
PASS, LOOK = CutWork.PASS, CutWork.LOOK


def cut_off(times: int, cut_ms: int = 5, work: CutWork = PASS, entry: Entry = ENTRY) -> CutOff:
    return CutOff(entry=entry, work=work, times=times, cut_ms=cut_ms, why="it took longer than job_timeout_s 60")


def test_cut_offs_are_counted_until_the_work_ends_in_time(open_store: OpenStore) -> None:
    store = open_store().cut_offs
    assert list(store.of_catalog(ENTRY.catalog)) == []
    why = cut_off(1).why
    assert [cut_again(store, ENTRY, PASS, why, now_ms=at).times for at in (3, 4, 5)] == [1, 2, 3]
    assert list(open_store().cut_offs.of_catalog(ENTRY.catalog)) == [cut_off(3)]
    forget_cut(store, ENTRY, LOOK)
    assert list(store.of_catalog(ENTRY.catalog)) == [cut_off(3)]
    forget_cut(store, ENTRY, PASS)
    assert list(store.of_catalog(ENTRY.catalog)) == []
    assert cut_again(store, ENTRY, PASS, why, now_ms=9) == cut_off(1, 9)


def test_each_entry_and_kind_of_work_has_its_own_cut_off(open_store: OpenStore) -> None:
    """The key is the catalog's name for the table: writers choose a table's UUID."""
    store = open_store().cut_offs
    others = [
        Entry(CatalogId("C", "s3://other/"), "ns.t"),
        Entry(CatalogId("D", "s3://bucket/"), "ns.t"),
        Entry(CatalogId("C", "s3://bucket/"), "ns.u"),
    ]
    cuts = [cut_off(n, entry=entry, work=work) for n, entry in enumerate((ENTRY, *others), 1) for work in (LOOK, PASS)]
    for cut in cuts:
        store.record(cut)
    assert list(store.of_catalog(CatalogId("C", "s3://bucket/"))) == [*cuts[6:], *cuts[:2]]
    assert list(store.of_catalog(CatalogId("D", "s3://bucket/"))) == cuts[4:6]
    store.forget(ENTRY, LOOK)
    assert list(store.of_catalog(CatalogId("C", "s3://bucket/"))) == [*cuts[6:], cuts[1]]


@given(times=st.integers(1, 2**31), cut_ms=st.integers(0, 2**42))
@settings(max_examples=examples(100))
def test_each_further_cut_off_doubles_the_wait_up_to_a_week(times: int, cut_ms: int) -> None:
    cut = cut_off(times, cut_ms)
    waits_ms = cut.until_ms - cut_ms
    hours = {1: 3, 2: 6, 3: 12, 4: 24, 5: 48, 6: 96}.get(times, 7 * 24)
    assert waits_ms == hours * HOUR_MS
    assert [cut.waits(at) for at in (cut_ms - 1, cut.until_ms)] == [False, False]
    assert [cut.waits(at) for at in (cut_ms, cut.until_ms - 1)] == [True, True]
    assert waiting_cuts([cut, replace(cut, work=LOOK)], PASS, cut_ms) == {ENTRY.table: cut}


# What the last passes saw, for each digest of settings and operations.


def test_each_digest_has_a_separate_record(open_store: OpenStore) -> None:
    hourly, nightly = look(9, snapshot_id=2**63 - 1), look(5, is_done=False, snapshot_id=None)
    remember(open_store(), IDENTITY, hourly, "hourly")
    remember(open_store(), IDENTITY, nightly, "nightly")
    found = open_store().seen(IDENTITY)
    assert found == SeenTable(passes={"hourly": hourly, "nightly": nightly})
    assert open_store().glance(IDENTITY, now_ms=0).seen == found
    assert found is not None
    assert (found.finished_ms, found.under("nightly"), found.under("other")) == (9, nightly, None)
    remember(open_store(), IDENTITY, look(10), "nightly")
    assert open_store().seen(IDENTITY) == SeenTable(passes={"hourly": hourly, "nightly": look(10)})


def test_the_newest_eight_digests_are_kept(open_store: OpenStore) -> None:
    for number in range(12):
        remember(open_store(), IDENTITY, look(100 + number), f"d{number}")
    remember(open_store(), IDENTITY, look(1), "late")  # a late report is also recorded
    found = open_store().seen(IDENTITY)
    assert found is not None
    assert found.passes.keys() == {*(f"d{number}" for number in range(4, 12)), "late"}


def test_failures_are_counted_by_operation_across_digests(open_store: OpenStore) -> None:
    def fail(finished_ms: int, digest: str = "d", **failed: bool) -> dict[str, int]:
        seen = look(finished_ms)
        return dict(open_store().remember(IDENTITY, digest, seen, started_ms=finished_ms - 5, failed=failed))

    assert fail(10, compact=True, expire_snapshots=False) == {"compact": 1}
    assert fail(11, compact=True) == {"compact": 1}  # the same pass, reported again
    assert fail(20, "other", rewrite_manifests=True) == {"rewrite_manifests": 1}
    assert fail(30, compact=True) == {"compact": 2}
    found = open_store().seen(IDENTITY)
    assert found is not None
    assert found.failures == {"compact": 2, "rewrite_manifests": 1}
    assert fail(40, compact=False) == {}
    assert fail(50, "other", compact=True, rewrite_manifests=False) == {"compact": 1}


# Lake stats.

LISTED = (
    replace(IDENTITY, catalog=IDENTITY.catalog._replace(name="D")),
    replace(IDENTITY, catalog=IDENTITY.catalog._replace(warehouse="s3://other/")),
    replace(IDENTITY, table=TableName(("ns",), "t")),
    replace(IDENTITY, uuid="uuid-2"),
)
"""Health is reported by catalog: two catalogs that list one table have two entries."""


def some_stats(identity: TableIdentity = IDENTITY, observed_ms: int = 1_767_225_600_000) -> LakeStats:
    return LakeStats(
        identity=identity,
        observed_ms=observed_ms,
        snapshot_id=2**63 - 1,
        counters={"lake_data_files": 15, "lake_bytes": 2**60 + 1, "lake_small_share": 0.1},
        warnings={"delete_debt": "deletes of 3 files wait to be applied — 40 % of its rows"},
        policy={"target_file_size_mb": {"source": "table property", "value": 128}},
        verdict=Verdict(reasons=("60 — files",), priority=0.25, left_alone="ä", is_unread=True, sweep_due_ms=2**50),
        timeline={"from_ms": 2**41, "seconds": [0, 3], "operations": "ar", "refs": [["main", "branch", 2**41]]},
    )


def test_stats_are_kept_until_they_are_replaced_or_forgotten(open_store: OpenStore) -> None:
    """A record replaces all earlier warnings."""
    empty = LakeStats(identity=IDENTITY, observed_ms=7, snapshot_id=None, counters={})
    for recorded in (some_stats(), empty):
        open_store().lake_stats.record(recorded)
        assert open_store().lake_stats.of_table(IDENTITY) == recorded
        assert list(open_store().lake_stats.of_catalog(IDENTITY.catalog)) == [recorded]
    open_store().lake_stats.forget(IDENTITY)
    assert open_store().lake_stats.of_table(IDENTITY) is None
    assert list(open_store().lake_stats.of_catalog(IDENTITY.catalog)) == []


def test_the_last_scan_of_a_catalog_and_its_layouts_are_kept(open_store: OpenStore) -> None:
    store, place = open_store(), IDENTITY.catalog
    assert store.scans.of_catalog(place) is None
    assert list(store.layouts.of_catalog(place)) == []
    for scanned in (3, 2):
        scan = CatalogScan(catalog=place, scanned_ms=2**41, listed=3, scanned=scanned)
        store.scans.record(scan)
        facts = {"sizes": [[20, scanned, 2**60 + 1]], "partitions": [["day=ä", 1, 2, 3]]}
        layout = TableLayout(identity=IDENTITY, observed_ms=2**41, part=Part.FILES, facts=facts)
        store.layouts.record(layout)
    holders = replace(layout, part=Part.HOLDERS, observed_ms=7, facts={})
    other = replace(layout, identity=replace(IDENTITY, catalog=place._replace(name="other")))
    store.layouts.record(holders, other)
    elsewhere = CatalogScan(catalog=place._replace(name="A"), scanned_ms=1, listed=0, scanned=0)
    store.scans.record(elsewhere)
    assert open_store().scans.of_catalog(place) == scan
    assert store.scans.all() == (elsewhere, scan)
    assert list(open_store().layouts.of_catalog(place)) == [layout, holders]
    assert list(store.layouts.of_catalog(place._replace(name="other"))) == [other]


def test_each_entry_of_a_catalog_has_its_own_stats(open_store: OpenStore) -> None:
    stats = open_store().lake_stats
    stats.record(some_stats())
    for other in LISTED:
        assert stats.of_table(other) is None
        stats.forget(other)
        assert stats.of_table(IDENTITY) == some_stats()
        stats.record(some_stats(other, observed_ms=9))
    assert stats.of_table(IDENTITY) == some_stats()
    assert [stats.of_table(other) for other in LISTED] == [some_stats(other, observed_ms=9) for other in LISTED]


def test_stats_of_a_catalog_are_sorted_by_table_name(open_store: OpenStore) -> None:
    """The stats exceed the megabyte that DynamoDB returns per page."""
    stats = open_store().lake_stats
    names = [f"t{number:02d}" for number in range(24)] + ["t", "t02-b", "t02_b", "tä"]
    recorded = [
        replace(some_stats(replace(IDENTITY, table=TableName(("ns",), name))), policy={"where": "x" * 50_000})
        for name in names
    ]
    for each in reversed(recorded):
        stats.record(each)
    stats.record(some_stats(replace(IDENTITY, catalog=IDENTITY.catalog._replace(name="D"))))
    stats.record(some_stats(replace(IDENTITY, catalog=IDENTITY.catalog._replace(warehouse="s3://other/"))))
    found = list(open_store().lake_stats.of_catalog(IDENTITY.catalog))
    assert found == sorted(recorded, key=lambda each: str(each.identity.table))


# Batches that exceed one DynamoDB request and contain a key twice.

MANY = [replace(IDENTITY, table=TableName(("ns",), f"t{n:02d}"), uuid=f"uuid-{n:02d}") for n in range(60)]


def due(due_ms: int) -> SweepRecord:
    return SweepRecord(kind=SweepKind.FIRST, counted_ms=due_ms)


SWEEPS = [
    (MANY[0], due(0)),
    (replace(MANY[0], catalog=IDENTITY.catalog._replace(name="other")), due(99)),  # a table that two catalogs list
    (MANY[1], sweep(SweepKind.SWEPT, 7)),
    *((identity, due(n)) for n, identity in enumerate(MANY[1:], 1)),
]
STATS = [
    LakeStats(identity=identity, observed_ms=n, snapshot_id=n, counters={"lake_refs": n})
    for n, identity in enumerate(MANY)
]


def test_stats_and_sweeps_of_many_tables_are_recorded_in_one_call(open_store: OpenStore) -> None:
    """Records that protect a table are written before the call returns (rule: protection-is-written-at-once)."""
    first, *others = STATS
    later = replace(first, observed_ms=99)
    open_store().lake_stats.record(first, later, *others)
    open_store().lake_stats.record()
    assert [*open_store().lake_stats.of_catalog(IDENTITY.catalog)] == [later, *others]
    open_store().sweeps.record_all(SWEEPS)
    open_store().sweeps.record_all([])
    assert [open_store().sweeps.of_table(MANY[n]) for n in (0, 1, 30, 59)] == [
        {SweepKind.FIRST: due(99)},
        {SweepKind.FIRST: due(1), SweepKind.SWEPT: sweep(SweepKind.SWEPT, 7)},
        {SweepKind.FIRST: due(30)},
        {SweepKind.FIRST: due(59)},
    ]


def test_a_dynamodb_request_has_at_most_25_records_with_distinct_keys(moto_dynamodb: MotoServer) -> None:
    """DynamoDB refuses a request that names a key twice; moto refuses only two equal items
    (rule: protection-is-written-at-once)."""
    table = a_table(moto_dynamodb)
    store, sent_keys = StateStore(table), []

    def note(params: dict[str, Any], **_: object) -> None:
        sent_keys.append(
            [
                (item["PutRequest"]["Item"]["pk"]["S"], item["PutRequest"]["Item"]["sk"]["S"])
                for item in params["RequestItems"][table.name]
            ]
        )

    event = "provide-client-params.dynamodb.BatchWriteItem"
    table.client.meta.events.register(event, note)
    try:
        store.lake_stats.record(STATS[0], *STATS)
        store.sweeps.record_all(SWEEPS)
    finally:
        table.client.meta.events.unregister(event, note)  # other tests use the client
    assert [len(set(keys)) for keys in sent_keys] == [25, 25, 10, 25, 25, 11]


# Requests: a table has at most one pending request, a repeat replaces it, and a claim removes it.


def a_request(requested_ms: int, identity: TableIdentity = IDENTITY, **settings: str) -> MaintenanceRequest:
    return MaintenanceRequest(identity=identity, requested_ms=requested_ms, settings=settings)


def test_a_request_waits_until_it_is_claimed_once(open_store: OpenStore) -> None:
    """The order of its settings does not matter; a request after the claim is new."""
    requests, request = open_store().requests, a_request(5, operations="compact", where="city = 'Zürich'")
    requests.file(request)
    assert open_store().requests.pending() == (request,)
    assert requests.claim(a_request(5, where="city = 'Zürich'", operations="compact")) is True
    assert requests.pending() == ()
    assert requests.claim(request) is False
    requests.file(a_request(6))
    assert requests.claim(a_request(5)) is False
    assert requests.pending() == (a_request(6),)


def test_a_repeated_request_replaces_the_earlier_request(open_store: OpenStore) -> None:
    """A reader of the old request cannot claim the newer request, which is later or has other settings."""
    requests, old = open_store().requests, a_request(5, operations="compact")
    for newer in (a_request(9, operations="compact"), a_request(9), a_request(5, operations="all")):
        requests.file(old)
        requests.file(newer)
        assert requests.claim(old) is False
        assert requests.pending() == (newer,)
        assert requests.claim(newer) is True


def test_pending_requests_are_sorted_by_time_and_name(open_store: OpenStore) -> None:
    requests = open_store().requests
    made = [
        a_request(requested_ms, replace(IDENTITY, table=TableName(("ns",), name), uuid=name))
        for name, requested_ms in (("b", 20), ("c", 10), ("a", 20), ("d", 1_000))
    ]
    for request in made:
        requests.file(request)
    assert [str(request.identity.table) for request in requests.pending()] == ["ns.c", "ns.a", "ns.b", "ns.d"]
    assert requests.pending() == (made[1], made[2], made[0], made[3])


@pytest.mark.parametrize(
    ("most", "bound"), [({"MOST_READ": 3}, "3, or 4 MB"), ({"MOST_BYTES": 4_000}, "1,000, or 0 MB")]
)
def test_pending_requests_are_read_up_to_a_bound(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch, most: dict[str, int], bound: str
) -> None:
    requests, messages = open_store().requests, list[str]()
    for name, value in most.items():
        monkeypatch.setattr(f"icekeeper.state.requests.{name}", value)
    filed = [a_request(9 - number, replace(IDENTITY, uuid=f"u{number}"), where="x" * 1000) for number in range(9)]
    for request in filed[:3]:
        requests.file(request)
    assert requests.pending(messages.append) == (filed[2], filed[1], filed[0])
    assert messages == []
    for request in filed[3:]:
        requests.file(request)
    assert requests.pending(messages.append) == (filed[2], filed[1], filed[0])
    assert messages == [
        f"more requests are filed than are read at once ({bound}): the others wait; withdraw those that are not needed "
        "(icekeeper request list)"
    ]
    assert requests.of_table(filed[8].identity) == filed[8]
    assert requests.claim(filed[8]) is True
    assert requests.of_table(filed[8].identity) is None


@pytest.mark.parametrize("other", [COPY, *OTHERS.values()], ids=["a copy", *OTHERS])
def test_copies_and_other_tables_have_separate_records(open_store: OpenStore, other: TableIdentity) -> None:
    store, requests = open_store(), open_store().requests
    requests.file(a_request(5))
    assert requests.claim(a_request(5, other)) is False
    assert requests.of_table(other) is None
    requests.file(a_request(6, other))
    assert requests.pending() == (a_request(5), a_request(6, other))
    assert requests.claim(a_request(6, other)) is True
    assert requests.pending() == (a_request(5),)
    store.sweeps.record(IDENTITY, SWEPT)
    store.findings.record(IDENTITY, [GONE])
    assert (store.sweeps.of_table(other), store.findings.of_table(other)) == ({}, {})
    glance = store.glance(other, now_ms=0)
    assert (glance.sweeps, glance.findings) == ({}, {})


def test_records_are_found_by_any_name_of_the_table(open_store: OpenStore) -> None:
    """A request has the table name of its latest repeat."""
    store, requests, renamed = open_store(), open_store().requests, CALLED
    requests.file(a_request(5, operations="compact"))
    requests.file(a_request(6, renamed))
    assert requests.pending() == (a_request(6, renamed),)
    assert requests.of_table(IDENTITY) == a_request(6, renamed)
    assert requests.claim(a_request(6)) is True
    assert requests.pending() == ()
    store.sweeps.record(IDENTITY, SWEPT)
    assert store.sweeps.of_table(renamed) == {SweepKind.SWEPT: SWEPT}
    store.findings.record(IDENTITY, [GONE])
    assert store.findings.of_table(renamed) == {GONE.path: GONE}
    store.findings.forget(renamed, [GONE.path])
    assert store.findings.of_table(IDENTITY) == {}


def test_exactly_one_of_many_racing_claims_succeeds(open_store: OpenStore) -> None:
    open_store().requests.file(a_request(5, operations="compact"))
    start = Barrier(8)

    def claim(_: int) -> bool:
        requests = open_store().requests
        start.wait()
        return requests.claim(a_request(5, operations="compact"))

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(claim, range(8))) == [False] * 7 + [True]


# Sweeps.

SWEPT = SweepRecord(kind=SweepKind.SWEPT, counted_ms=1_767_225_600_000, finished_ms=1_767_225_700_000)
TRIED = replace(SWEPT, kind=SweepKind.TRIED, is_impossible=True, has_former_table=True)


@pytest.mark.parametrize("identity", [IDENTITY, WITHOUT_UUID], ids=["with a UUID", "without one"])
def test_a_sweep_record_replaces_its_kind_even_if_an_earlier_clock_was_ahead(
    open_store: OpenStore, identity: TableIdentity
) -> None:
    store = open_store()
    remember(store, identity, look(9))
    store.sweeps.record(identity, replace(SWEPT, counted_ms=2**45, finished_ms=2**45))
    for item in (SWEPT, TRIED):
        store.sweeps.record(identity, item)
    expected = {SweepKind.SWEPT: SWEPT, SweepKind.TRIED: TRIED}
    glance = open_store().glance(identity, now_ms=0)
    assert open_store().sweeps.of_table(identity) == glance.sweeps == expected
    assert (glance.seen, glance.pins, glance.loads) == (looks(look(9)), (), ())
    memory = SweepMemory.of(glance.sweeps)
    times = {"swept_ms": SWEPT.counted_ms, "first_ms": None, "tried_ms": TRIED.finished_ms}
    assert memory == SweepMemory(**times, is_impossible=True)


# Unreadable files (rule: leave-out-unreadable-files).

GONE = FileFinding(path="s3://b/t/data/ä.parquet", why="it does not exist", schema_digest="d1", tried_ms=2**42)
TORN = FileFinding(path="s3://b/t/data/b.parquet", why="it is damaged", schema_digest="d2", tried_ms=7)


@pytest.mark.parametrize("identity", [IDENTITY, WITHOUT_UUID], ids=["with a UUID", "without one"])
def test_unreadable_files_are_replaced_and_forgotten_by_path(open_store: OpenStore, identity: TableIdentity) -> None:
    store = open_store().findings
    store.record(identity, [GONE, TORN])
    found = open_store().findings.of_table(identity)
    assert list(found.items()) == [(TORN.path, TORN), (GONE.path, GONE)]
    assert open_store().glance(identity, now_ms=0).findings == found
    again = replace(TORN, why="it is gone", schema_digest="d3", tried_ms=8)
    store.record(identity, [again])
    assert store.of_table(identity) == {GONE.path: GONE, TORN.path: again}
    store.forget(identity, [GONE.path, "never known"])
    assert store.of_table(identity) == {TORN.path: again}


def test_many_unreadable_files_are_written_in_batches(open_store: OpenStore) -> None:
    """DynamoDB takes 25 at a time."""
    files = [replace(TORN, path=f"s3://b/t/{number:03d}") for number in range(60)]
    open_store().findings.record(IDENTITY, files)
    assert list(open_store().findings.of_table(IDENTITY).values()) == files
    open_store().findings.forget(IDENTITY, [item.path for item in files[1:]])
    assert list(open_store().findings.of_table(IDENTITY)) == ["s3://b/t/000"]


def test_verify_replaces_its_findings_and_keeps_what_a_pass_could_not_decode(open_store: OpenStore) -> None:
    """A restored file and a file that no snapshot references any more are forgotten."""
    memory = TableMemory(open_store(), IDENTITY, lambda: 7)
    gone, torn, old, count = (f"s3://b/t/{name}" for name in ("gone", "torn", "old", "count"))
    memory.remember_verified(
        {gone: ("missing_file", "g", False), count: ("wrong_count", "c", False)}, 3, {gone, torn, old, count}
    )
    assert open_store().glance(IDENTITY, now_ms=0).verified == Verified(at_ms=7, problems=3)
    memory.remember_unreadable({gone: f"{gone} does not exist", torn: "t", old: "o"}, "d")
    found = memory.store.findings.of_table(IDENTITY)
    kinds = {gone: "missing_file", count: "wrong_count", torn: "unreadable_file", old: "unreadable_file"}
    assert {path: file.kind for path, file in found.items()} == kinds
    assert set(memory.waiting_unreadable("d")) == {gone, torn, old}
    memory.forget_read([gone, count])  # only a verify or the expiry of its last snapshot ends what verify found
    assert memory.store.findings.of_table(IDENTITY) == found
    memory.remember_verified({}, 0, {gone, torn, count})
    assert set(memory.store.findings.of_table(IDENTITY)) == {torn}
    memory.remember_unreadable({gone: f"{gone} does not exist"}, "d")
    memory.remember_verified({}, 0, {gone, torn, count})
    assert set(memory.store.findings.of_table(IDENTITY)) == {torn}
    memory.forget_freed([torn])
    assert open_store().glance(IDENTITY, now_ms=0).findings == {}


def test_what_content_has_shown_stays_until_the_content_is_read_again(open_store: OpenStore) -> None:
    memory = TableMemory(open_store(), IDENTITY, lambda: 7)
    bounds, vector = (f"s3://b/t/{name}" for name in ("bounds", "vector"))
    referenced, read = {bounds, vector}, {bounds, vector}
    found = {bounds: ("wrong_metrics", "b", True), vector: ("deletion_vector", "v", True)}
    memory.remember_verified(found, 2, referenced, read)
    memory.remember_verified({}, 0, referenced)
    assert set(memory.store.findings.of_table(IDENTITY)) == {bounds, vector}
    memory.remember_verified({}, 0, referenced, {vector})
    assert set(memory.store.findings.of_table(IDENTITY)) == {bounds}
    memory.remember_verified({}, 0, {vector})
    assert memory.store.findings.of_table(IDENTITY) == {}


def test_findings_of_a_verify_are_bounded_in_number_and_length(open_store: OpenStore) -> None:
    memory = TableMemory(open_store(), IDENTITY, lambda: 7)
    problems = {f"s3://b/t/{number:04d}": ("missing_file", "w" * 2_000, False) for number in range(MOST_PROBLEMS + 5)}
    memory.remember_verified({"p" * 5_000: ("missing_file", "w", False), **problems}, 1_006, set())
    found = memory.store.findings.of_table(IDENTITY)
    assert list(found) == list(problems)[:MOST_PROBLEMS]
    assert {len(file.why) for file in found.values()} == {1_000}


@pytest.mark.parametrize(
    ("digest", "later_ms", "waits"),
    [("d2", 0, True), ("d2", RETRY_MS - 1, True), ("d2", RETRY_MS, False), ("d1", 0, False), ("d2", -1, False)],
)
def test_a_file_waits_for_a_week_or_until_the_schema_changes(digest: str, later_ms: int, *, waits: bool) -> None:
    """A record from a clock that was ahead does not make its file wait."""
    assert TORN.waits(digest, TORN.tried_ms + later_ms) is waits
    refused = RefusedExpiry(why="w", needed_by=(1,), history="d2", tried_ms=TORN.tried_ms)
    assert refused.waits(digest, TORN.tried_ms + later_ms) is waits


def test_a_refused_expiry_applies_to_one_copy_until_it_is_forgotten(open_store: OpenStore) -> None:
    refused = RefusedExpiry(why="ä", needed_by=(2**62, 3), history="d", tried_ms=2**42)
    store = open_store().refused_expiries
    store.record(IDENTITY, replace(refused, why="earlier"))
    store.record(IDENTITY, refused)
    for identity, known in ((IDENTITY, refused), (COPY, None)):
        assert open_store().refused_expiries.of_table(identity) == known
        assert open_store().glance(identity, now_ms=0).refused_expiry == known
    open_store().refused_expiries.forget(IDENTITY)
    open_store().refused_expiries.forget(IDENTITY)
    assert store.of_table(IDENTITY) is None
    assert open_store().glance(IDENTITY, now_ms=0).refused_expiry is None


def test_hours_are_named_in_utc() -> None:
    assert hour_of(1_795_361_459_999) == "2026-11-22T15"
    assert hour_of(1_795_359_600_000 - 1) == "2026-11-22T14"
