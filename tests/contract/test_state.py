"""Every state store: tables, staged loads, pending deletions, and claims."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import pytest

from icekeeper.machine.clock import HOUR_MS
from icekeeper.model import CatalogId, TableName
from icekeeper.state.claims import CatalogLook, SeenHead, TableClaims, UnseenEntry
from icekeeper.state.dynamodb.table import DynamoTable
from icekeeper.state.identity import TableIdentity
from icekeeper.state.items import Item
from icekeeper.state.staging import LoadOrigin, LoadState, PendingDeletionStore, StagedLoad, StagingStore
from icekeeper.state.store import UNTIL_REMOVED_MS, Glance, LastSeen, PassRecord, Pin, PinKind, StateStore
from icekeeper.state.table_memory import TableMemory
from support.state_stores import CALLED, COPY, IDENTITY, OTHERS, WITHOUT_UUID, OpenStore, look, looks, remember

BIG_SNAPSHOT_ID = 2**63 - 1


def a_pass(run_id: str, finished_ms: int, identity: TableIdentity = IDENTITY) -> PassRecord:
    return PassRecord(
        identity=identity,
        run_id=run_id,
        started_ms=finished_ms - 5,
        finished_ms=finished_ms,
        status="succeeded",
        summary="compact: compacted 15 files into 3 (across 3 bins)",
        metrics={"compact.files_merged": 15, "compact.ratio": 0.5},
        engine="local",
    )


def a_pin(name: str, expires_ms: int, identity: TableIdentity = IDENTITY) -> Pin:
    return Pin(
        identity=identity,
        name=name,
        snapshot_id=BIG_SNAPSHOT_ID,
        metadata_location="s3://bucket/t/metadata/v1.metadata.json",
        expires_ms=expires_ms,
        kind=PinKind.JOB,
    )


def seen(finished_ms: int, *, is_done: bool = True) -> LastSeen:
    return look(finished_ms, is_done=is_done, snapshot_id=BIG_SNAPSHOT_ID)


def test_the_journal_returns_passes_newest_first(open_store: OpenStore) -> None:
    """A retried report replaces its earlier record."""
    again = replace(a_pass("a", 10), status="partial")
    for record in (a_pass("b", 20), a_pass("c", 30), a_pass("a", 10), again):
        open_store().record_pass(record)
    assert open_store().history(IDENTITY) == (a_pass("c", 30), a_pass("b", 20), again)
    assert open_store().history(IDENTITY, limit=1) == (a_pass("c", 30),)


def test_the_journal_of_all_tables_returns_passes_since_a_time_newest_first(open_store: OpenStore) -> None:
    """It covers every catalog and copy; a pass that is recorded again in a later hour appears once."""
    other = replace(
        IDENTITY, catalog=IDENTITY.catalog._replace(name="D"), table=TableName(("a.b",), "t"), uuid="uuid-2"
    )
    hours = [n * HOUR_MS for n in range(5)]
    store = open_store()
    for record in (a_pass("a", hours[1]), a_pass("a", hours[2], other), a_pass("b", hours[3]), a_pass("b", hours[4])):
        store.record_pass(record)
    found = open_store().passes(hours[1], now_ms=hours[4])
    assert found == (a_pass("b", hours[4]), a_pass("a", hours[2], other), a_pass("a", hours[1]))
    assert open_store().passes(hours[2], now_ms=hours[2] + 1) == (a_pass("b", hours[3]), a_pass("a", hours[2], other))
    assert open_store().passes(hours[4] + 1, now_ms=hours[4] + 1) == ()
    store.record_pass(replace(a_pass("c", hours[4] + 1), summary="ä" * 60_000))
    assert [len(item.summary) for item in store.passes(hours[4] + 1, now_ms=hours[4] + 1)] == [2_000]


def test_pins_hold_until_they_expire_or_are_removed(open_store: OpenStore) -> None:
    """``expires_ms`` is the first millisecond at which a pin no longer holds; adding it again extends it."""
    store = open_store()
    store.add_pin(a_pin("late", 200))
    store.add_pin(a_pin("early", 100))
    assert open_store().pins(IDENTITY, now_ms=99) == (a_pin("early", 100), a_pin("late", 200))
    assert store.pins(IDENTITY, now_ms=100) == (a_pin("late", 200),)
    assert store.pins(IDENTITY, now_ms=200) == ()
    store.add_pin(replace(a_pin("late", 300), tag="p"))
    assert store.pins(IDENTITY, now_ms=100) == (replace(a_pin("late", 300), tag="p"),)
    lost_ref = replace(a_pin("lost:v1 ü@7", UNTIL_REMOVED_MS), kind=PinKind.LOST_REF)
    store.add_pin(lost_ref)
    assert open_store().pins(IDENTITY, now_ms=UNTIL_REMOVED_MS - 1) == (lost_ref,)
    assert [store.remove_pin(IDENTITY, lost_ref.name) for _ in range(2)] == [True, False]
    assert store.pins(IDENTITY, now_ms=UNTIL_REMOVED_MS - 1) == ()


def test_records_of_expired_pins_are_deleted_after_a_week(open_store: OpenStore) -> None:
    """Killed jobs leave pins.  DynamoDB deletes them by TTL; a file needs this call."""
    store, week_ms = open_store(), 7 * 24 * HOUR_MS
    for name, expires_ms in (("killed", 100), ("late", 101), ("held", UNTIL_REMOVED_MS)):
        store.add_pin(a_pin(name, expires_ms))
    store.forget_expired_pins(IDENTITY, now_ms=100 + week_ms)
    left = [pin.name for pin in store.pins(IDENTITY, now_ms=0)]
    assert left == ["held", "late"] if store.table.is_local else ["held", "killed", "late"]


def test_the_last_pass_is_remembered_in_any_order_of_reports(open_store: OpenStore) -> None:
    store = open_store()
    remember(store, IDENTITY, seen(20))
    remember(store, IDENTITY, seen(10, is_done=False))
    assert store.seen(IDENTITY) == looks(seen(20))
    remember(store, IDENTITY, seen(30, is_done=False))
    assert open_store().seen(IDENTITY) == looks(seen(30, is_done=False))
    remember(store, IDENTITY, replace(seen(40), snapshot_id=None))
    assert store.seen(IDENTITY) == looks(replace(seen(40), snapshot_id=None))


def test_clusterings_are_remembered_by_recipe(open_store: OpenStore) -> None:
    """A snapshot may be recorded twice, and under several recipes."""
    store = open_store()
    assert store.clustered_snapshots(IDENTITY, "sort(1)") == frozenset()
    for snapshot_id, recipe in ((BIG_SNAPSHOT_ID, "sort(1)"), (4, "sort(1)"), (4, "sort(1)"), (4, "zorder(1, 2)")):
        store.record_clustering(IDENTITY, snapshot_id, recipe)
    assert open_store().clustered_snapshots(IDENTITY, "sort(1)") == {4, BIG_SNAPSHOT_ID}
    assert open_store().clustered_snapshots(IDENTITY, "zorder(1, 2)") == {4}


def test_a_glance_has_the_pins_passes_and_loads_that_detection_needs(open_store: OpenStore) -> None:
    store = open_store()
    assert store.glance(IDENTITY, now_ms=0) == Glance((), None, ())
    for name, expires_ms in (("z", 300), ("late", 200), ("early", 100)):
        store.add_pin(a_pin(name, expires_ms))
    remember(store, IDENTITY, seen(1))
    loads = tuple(
        store.staging.stage(
            StagedLoad(identity=IDENTITY, name=name, state=state, prefixes=("s3://b/in",), changed_ms=5, expires_ms=9),
            [f"s3://b/{number}" for number in range(count)],
        )
        for name, state, count in (("a", LoadState.FAILED, 3), ("b", LoadState.PENDING, 0))
    )
    store.record_pass(a_pass("run", 10))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    now = Glance((a_pin("late", 200), a_pin("z", 300)), looks(seen(1)), loads)
    assert open_store().glance(IDENTITY, now_ms=100) == now


def test_other_tables_share_nothing(open_store: OpenStore) -> None:
    store = open_store()
    recorded = fill(store)
    for other in OTHERS.values():
        assert store.clustered_snapshots(other, "sort(1)") == frozenset()
        assert (store.history(other), store.seen(other)) == ((), None)
        assert store.glance(other, now_ms=0) == Glance((), None, ())
        assert store.pins(other, now_ms=0) == ()
        assert store.remove_pin(other, "p") is False
        assert paths(store.staging, "L", other) == []
        assert store.staging.forget(replace(recorded, identity=other)) is False
    assert store.pins(IDENTITY, now_ms=0) == (a_pin("p", 100),)
    assert store.staging.loads(IDENTITY) == (recorded,)
    for unrelated in (*OTHERS.values(), COPY):
        assert store.pending_deletions.lists(unrelated) == ()
        store.pending_deletions.forget(unrelated, "a")
    assert paths_of(store.pending_deletions, "a") == ["s3://b/t/1"]


def fill(store: StateStore) -> StagedLoad:
    """Record a pass, a pin, a look, a clustering and a list of deletions; return a staged load."""
    store.record_pass(a_pass("a", 10))
    store.add_pin(a_pin("p", 100))
    remember(store, IDENTITY, seen(1))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    store.pending_deletions.expect(IDENTITY, "a", ["s3://b/t/1"])
    return store.staging.stage(a_load(), ["s3://bucket/t/a"])


def test_a_table_has_the_same_records_under_any_name(open_store: OpenStore) -> None:
    store, renamed = open_store(), CALLED
    load = replace(fill(store), identity=renamed)
    assert store.glance(renamed, now_ms=0) == Glance((a_pin("p", 100, renamed),), looks(seen(1)), (load,))
    assert store.seen(renamed) == looks(seen(1))
    assert store.history(renamed) == (a_pass("a", 10, renamed),)
    assert store.clustered_snapshots(renamed, "sort(1)") == {4}
    store.add_pin(a_pin("p", 200, renamed))
    assert store.pins(IDENTITY, now_ms=0) == (a_pin("p", 200),), "prolonged under the other name"
    assert store.remove_pin(renamed, "p") is True
    assert store.pins(IDENTITY, now_ms=0) == ()
    deletions = store.pending_deletions
    assert (deletions.lists(renamed), paths_of(deletions, "a", renamed)) == (("a",), ["s3://b/t/1"])
    deletions.expect(renamed, "a", ["s3://b/t/2"])
    assert paths_of(deletions, "a") == ["s3://b/t/2"]
    deletions.forget(renamed, "a")
    assert deletions.lists(IDENTITY) == ()


def test_a_copy_shares_pins_but_no_records_of_passes(open_store: OpenStore) -> None:
    """A copy may be the table itself, moved, so that pins must protect it too."""
    store = open_store()
    store.record_pass(a_pass("a", 10))
    store.add_pin(a_pin("p", 100))
    remember(store, IDENTITY, seen(1))
    store.record_clustering(IDENTITY, 4, "sort(1)")
    assert store.glance(COPY, now_ms=0) == Glance((a_pin("p", 100, COPY),), None, ())
    assert store.pins(COPY, now_ms=0) == (a_pin("p", 100, COPY),)
    assert (store.history(COPY), store.seen(COPY)) == ((), None)
    assert store.clustered_snapshots(COPY, "sort(1)") == frozenset()
    remember(store, COPY, seen(9, is_done=False))
    assert (store.seen(IDENTITY), store.seen(COPY)) == (looks(seen(1)), looks(seen(9, is_done=False)))


def test_a_table_without_a_uuid_is_identified_by_its_location(open_store: OpenStore) -> None:
    store = open_store()
    store.add_pin(a_pin("p", 100, WITHOUT_UUID))
    remember(store, WITHOUT_UUID, seen(1))
    renamed = replace(WITHOUT_UUID, catalog=CatalogId("D", "w"), table=TableName(("ns",), "renamed"))
    assert store.glance(renamed, now_ms=0) == Glance((a_pin("p", 100, renamed),), looks(seen(1)), ())
    elsewhere = replace(WITHOUT_UUID, location="s3://bucket/elsewhere", catalog=WITHOUT_UUID.catalog._replace(name="D"))
    assert store.glance(elsewhere, now_ms=0) == Glance((), None, ())


def test_many_writers_at_once_lose_nothing(open_store: OpenStore) -> None:
    def write(number: int) -> None:
        open_store().record_pass(a_pass(f"run-{number}", number))
        open_store().staging.stage(a_load(), [f"s3://bucket/t/{number}-{i}" for i in range(5)])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(16)))
    assert [record.finished_ms for record in open_store().history(IDENTITY)] == list(range(15, -1, -1))
    store = open_store().staging
    assert sorted(paths(store)) == sorted(f"s3://bucket/t/{number}-{i}" for number in range(16) for i in range(5))
    assert store.loads(IDENTITY)[0].file_count == 80


# Claims: a table's owner finds all tables of any catalog that may have files in its folders.


def claims(
    table: str,
    location: str,
    folders: tuple[str, ...] = (),
    *,
    catalog: str = "lake",
    warehouse: str = "s3://wh",
    uuid: str = "0b9e3b1c",
    data_roots: tuple[str, ...] = (),
) -> TableClaims:
    return TableClaims(
        catalog=CatalogId(catalog, warehouse),
        table=TableName.parse(table),
        uuid=uuid,
        location=location,
        folders=frozenset(folders),
        data_roots=frozenset(data_roots),
        seen=SeenHead(
            metadata_file=f"{location}/metadata/v1.metadata.json",
            updated_ms=1_767_225_600_000,
            sequence_number=2**40,
            snapshots=frozenset((1, 2**63 - 1)),
        ),
    )


OWNER = claims("ns.owner", "s3://b/wh/owner", data_roots=("s3://b/wh/owner/data", "s3://b/wh/owner/imported"))
GUEST = claims("ns.guest", "s3://b/wh/guest", ("s3://b/wh/owner/data", "s3://other/x"), catalog="other")
NESTED = claims("ns.nested", "s3://b/wh/owner/below/nested")
AROUND = claims("ns.around", "s3://b/wh")
NEIGHBOUR = claims("ns.neighbour", "s3://b/wh/owner2")


def found(open_store: OpenStore, folder: str) -> list[str]:
    return [str(item.table) for item in open_store().claims.touching(folder)]


def test_claims_are_kept_until_they_are_replaced_or_forgotten(open_store: OpenStore) -> None:
    open_store().claims.record(OWNER)
    open_store().claims.record(GUEST)
    assert open_store().claims.of_entry(OWNER.entry) == OWNER
    assert list(open_store().claims.of_catalog(CatalogId("lake", "s3://wh"))) == [OWNER]
    assert list(open_store().claims.of_catalog(CatalogId("other", "s3://wh"))) == [GUEST]
    moved = claims("ns.guest", "s3://b/new", ("s3://other/z",), catalog="other")
    open_store().claims.record(moved)
    assert open_store().claims.of_entry(GUEST.entry) == moved
    assert found(open_store, "s3://b/wh/owner") == ["ns.owner"]
    assert found(open_store, "s3://other/z") == found(open_store, "s3://b/new/data") == ["ns.guest"]
    for _ in range(2):  # also if nothing is recorded
        open_store().claims.forget(GUEST.entry)
    assert open_store().claims.of_entry(GUEST.entry) is None
    assert found(open_store, "s3://other/z") == []


def test_an_owner_finds_tables_around_in_and_below_its_location(open_store: OpenStore) -> None:
    for item in (OWNER, GUEST, NESTED, AROUND, NEIGHBOUR, claims("ns.local", "/wh/t")):
        open_store().claims.record(item)
    assert sorted(found(open_store, OWNER.location)) == ["ns.around", "ns.guest", "ns.nested", "ns.owner"]
    assert sorted(found(open_store, NEIGHBOUR.location)) == ["ns.around", "ns.neighbour"]
    assert found(open_store, "s3://other/x/y") == found(open_store, "s3://other") == ["ns.guest"]
    assert found(open_store, "s3://nobody/x") == found(open_store, "/wh/t2") == []
    for folder in ("/wh/t", "/wh", "/", "/wh/t/data"):
        assert found(open_store, folder) == ["ns.local"]


def test_claims_that_the_caller_read_are_not_read_again(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass records the claims of its table, which it has just read."""
    open_store().claims.record(GUEST)
    moved = claims("ns.guest", "s3://b/new", ("s3://other/z",), catalog="other")
    reads: list[str] = []
    read = DynamoTable.get

    def get(table: DynamoTable, pk: str, sk: str) -> Item | None:
        reads.append(pk)
        return read(table, pk, sk)

    with monkeypatch.context() as patch:
        patch.setattr(DynamoTable, "get", get)
        open_store().claims.record(moved, replaces=GUEST)
    assert reads == []
    assert open_store().claims.of_entry(GUEST.entry) == moved
    assert found(open_store, "s3://b/wh/owner") == []
    assert found(open_store, "s3://other/z") == ["ns.guest"]


def test_folders_of_any_length_are_found(open_store: OpenStore) -> None:
    length = 3_000
    long = f"s3://b/{'x' * length}"
    open_store().claims.record(claims("ns.t", long, (f"s3://c/{'y' * length}/z",)))
    assert found(open_store, long) == found(open_store, f"{long}/data") == ["ns.t"]
    assert found(open_store, f"s3://c/{'y' * length}") == ["ns.t"]
    assert found(open_store, f"s3://b/{'x' * (length - 1)}") == []


def test_the_last_look_at_each_catalog_is_kept(open_store: OpenStore) -> None:
    """A catalog is listed from its first claims on; a look replaces the earlier look
    (rule: look-at-every-served-table)."""
    assert list(open_store().claims.looks()) == []
    open_store().claims.record(GUEST)
    open_store().claims.record_first_looks([OWNER, NESTED])
    never = [CatalogLook(catalog=CatalogId(name, "s3://wh")) for name in ("lake", "other")]
    assert list(open_store().claims.looks()) == never
    assert sorted(found(open_store, OWNER.location)) == ["ns.guest", "ns.nested", "ns.owner"]
    unseen = UnseenEntry(table=TableName.parse("ns.lost"), reason="why", location="s3://b/wh/lost", is_gone=True)
    looked = CatalogLook(
        catalog=CatalogId("lake", "s3://wh"), run="r1", looked_ms=7, unseen=(unseen,), failure="because"
    )
    open_store().claims.record_look(looked)
    open_store().claims.record(AROUND)
    assert list(open_store().claims.looks()) == [looked, never[1]]


# Deletions that a run has planned.


def paths_of(store: PendingDeletionStore, name: str, identity: TableIdentity = IDENTITY) -> list[str]:
    return list(chain.from_iterable(store.paths(identity, name)))


def test_lists_of_deletions_are_kept_until_they_are_forgotten(open_store: OpenStore) -> None:
    odd = ["s3://b/t/a b", "s3://b/t/a%20b", "s3://b/t/ü\n,", "file:/x"]
    open_store().pending_deletions.expect(IDENTITY, "run-2", odd)
    open_store().pending_deletions.expect(IDENTITY, "run-1", ["s3://b/t/1"])
    assert open_store().pending_deletions.lists(IDENTITY) == ("run-1", "run-2")
    assert paths_of(open_store().pending_deletions, "run-2") == odd
    open_store().pending_deletions.forget(IDENTITY, "run-2")
    assert open_store().pending_deletions.lists(IDENTITY) == ("run-1",)
    assert paths_of(open_store().pending_deletions, "run-2") == []


def test_a_list_of_deletions_replaces_the_list_of_the_same_name(open_store: OpenStore) -> None:
    many = [f"s3://b/t/{number}" for number in range(2500)]
    open_store().pending_deletions.expect(IDENTITY, "a", iter(many))
    assert paths_of(open_store().pending_deletions, "a") == many
    assert max(map(len, open_store().pending_deletions.paths(IDENTITY, "a"))) < len(many), "some at a time"
    open_store().pending_deletions.expect(IDENTITY, "a", many[-2:])
    assert paths_of(open_store().pending_deletions, "a") == many[-2:]
    open_store().pending_deletions.expect(IDENTITY, "a", [])
    assert open_store().pending_deletions.lists(IDENTITY) == ()


# Staged loads.


def a_load(name: str = "L", identity: TableIdentity = IDENTITY) -> StagedLoad:
    return StagedLoad(identity=identity, name=name, prefixes=("s3://bucket/t/in",), changed_ms=2**40)


def paths(store: StagingStore, name: str = "L", identity: TableIdentity = IDENTITY) -> list[str]:
    return list(chain.from_iterable(store.files(identity, name)))


def test_a_load_keeps_its_files_in_order_and_staging_again_adds_files(open_store: OpenStore) -> None:
    files = ["s3://bucket/t/b", "s3://bucket/t/ä b%20?#", "s3://bucket/t/a"]
    recorded = open_store().staging.stage(a_load(), iter(files))
    assert recorded == replace(a_load(), file_count=3)
    assert open_store().staging.loads(IDENTITY) == (recorded,)
    assert paths(open_store().staging) == files
    later = replace(a_load(), prefixes=(), changed_ms=2**41, origin=LoadOrigin.JOB, expires_ms=2**42)
    assert open_store().staging.stage(later, ["s3://bucket/t/z"]) == replace(later, file_count=4)
    assert open_store().staging.loads(IDENTITY) == (replace(later, file_count=4),)
    assert paths(open_store().staging) == [*files, "s3://bucket/t/z"]
    for name in ("b", "c", "a"):
        open_store().staging.stage(a_load(name), [f"s3://bucket/t/{name}"])
    assert [load.name for load in open_store().staging.loads(IDENTITY)] == ["L", "a", "b", "c"]
    assert paths(open_store().staging, "c") == ["s3://bucket/t/c"]


def test_a_load_is_changed_and_forgotten_only_if_it_is_as_read(open_store: OpenStore) -> None:
    """A decision based on an outdated record must not take effect."""
    store = open_store().staging
    before = store.stage(a_load(), ["s3://bucket/t/a"])
    for stale in (
        replace(before, state=LoadState.FAILED),
        replace(before, changed_ms=5),
        replace(before, expires_ms=5),
        replace(before, file_count=7),
    ):
        assert store.change(stale, replace(stale, state=LoadState.ADOPTED)) is False
        assert store.forget(stale) is False
        assert store.loads(IDENTITY) == (before,)
        assert paths(store) == ["s3://bucket/t/a"]
    after = replace(before, state=LoadState.FAILED, changed_ms=7, expires_ms=9)
    assert store.change(before, after) is True
    assert open_store().staging.loads(IDENTITY) == (after,)
    assert paths(store) == ["s3://bucket/t/a"]
    assert store.forget(after) is True
    assert store.change(after, after) is False
    assert (store.loads(IDENTITY), paths(store)) == ((), [])


def test_thousands_of_files_are_read_in_chunks(open_store: OpenStore) -> None:
    store = open_store().staging
    files = [f"s3://bucket/warehouse/ns/t/data/part={n % 100}/0000{n}-of-load.parquet" for n in range(5_000)]
    store.stage(a_load("other"), files[:10])
    assert store.stage(a_load(), (path for path in files)).file_count == 5_000
    chunks = list(open_store().staging.files(IDENTITY, "L"))
    assert max(map(len, chunks)) <= 1000
    assert list(chain.from_iterable(chunks)) == files
    assert store.forget(replace(a_load(), file_count=5_000)) is True
    assert paths(store) == []
    assert paths(store, "other") == files[:10]


@pytest.mark.parametrize("called", [CALLED, COPY], ids=["called otherwise", "moved"])
def test_a_renamed_or_moved_table_keeps_its_loads(open_store: OpenStore, called: TableIdentity) -> None:
    store = open_store().staging
    before = store.stage(a_load(), ["s3://bucket/t/a"])
    assert store.loads(called) == (replace(before, identity=called),)
    more = store.stage(a_load(identity=called), ["s3://bucket/t/b"])
    assert more.file_count == 2
    assert paths(store) == paths(store, identity=called) == ["s3://bucket/t/a", "s3://bucket/t/b"]
    failed = replace(more, state=LoadState.FAILED)
    assert store.change(more, failed) is True
    assert store.loads(IDENTITY) == (replace(failed, identity=IDENTITY),)
    assert store.forget(failed) is True
    assert (store.loads(IDENTITY), paths(store)) == ((), [])


def test_all_loads_that_have_not_failed_are_protected_even_those_of_dead_jobs(open_store: OpenStore) -> None:
    """A dead job may wake up; only the state FAILED stops it from committing its files."""
    store, now_ms = open_store(), 1_000
    memory = TableMemory(store, IDENTITY, lambda: now_ms)
    for name, state, expires_ms in (
        ("pending", LoadState.PENDING, None),
        ("adopted", LoadState.ADOPTED, None),
        ("failed", LoadState.FAILED, None),
        ("running", LoadState.PENDING, 1_001),
        ("dead", LoadState.PENDING, 1_000),
    ):
        load = replace(a_load(name), prefixes=(f"s3://bucket/t/{name}",), state=state, expires_ms=expires_ms)
        store.staging.stage(load, [f"s3://bucket/t/file-{name}"])
    kept = ("adopted", "dead", "pending", "running")
    assert memory.staged_paths() == tuple(
        path for name in kept for path in (f"s3://bucket/t/{name}", f"s3://bucket/t/file-{name}")
    )
    failures = {load.name: load.failed_since(now_ms) for load in memory.staged_loads()}
    assert failures == {"adopted": None, "dead": 1_000, "failed": 2**40, "pending": None, "running": None}
