"""What every store of claims does: an owner finds whoever may have files in its folders, in any catalog."""

from __future__ import annotations

import pytest

from icekeeper.model import TableName
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry
from icekeeper.state.dynamodb.items import Item
from icekeeper.state.dynamodb.table import DynamoTable
from support.state_stores import OpenStore


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
        catalog=catalog,
        warehouse=warehouse,
        table=TableName.parse(table),
        uuid=uuid,
        location=location,
        folders=frozenset(folders),
        data_roots=frozenset(data_roots),
        seen_sequence_number=2**40,
        seen_ms=1_767_225_600_000,
    )


OWNER = claims("ns.owner", "s3://b/wh/owner", data_roots=("s3://b/wh/owner/data", "s3://b/wh/owner/imported"))
GUEST = claims("ns.guest", "s3://b/wh/guest", ("s3://b/wh/owner/data", "s3://other/x"), catalog="other")
NESTED = claims("ns.nested", "s3://b/wh/owner/below/nested")
AROUND = claims("ns.around", "s3://b/wh")
NEIGHBOUR = claims("ns.neighbour", "s3://b/wh/owner2")


def found(open_store: OpenStore, folder: str) -> list[str]:
    return [str(one.table) for one in open_store().claims.touching(folder)]


def test_nothing_is_known_at_first(open_store: OpenStore) -> None:
    store = open_store().claims
    assert store.of_entry(OWNER.entry) is None
    assert list(store.touching("s3://b/wh")) == []
    assert list(store.of_catalog("lake", "s3://wh")) == []
    store.forget(OWNER.entry)


def test_what_was_recorded_comes_back_as_it_was(open_store: OpenStore) -> None:
    open_store().claims.record(OWNER)
    open_store().claims.record(GUEST)
    assert open_store().claims.of_entry(OWNER.entry) == OWNER
    assert list(open_store().claims.of_catalog("lake", "s3://wh")) == [OWNER]
    assert list(open_store().claims.of_catalog("other", "s3://wh")) == [GUEST]


def test_an_owner_finds_those_around_inside_and_below_its_location(open_store: OpenStore) -> None:
    for one in (OWNER, GUEST, NESTED, AROUND, NEIGHBOUR):
        open_store().claims.record(one)
    assert sorted(found(open_store, OWNER.location)) == ["ns.around", "ns.guest", "ns.nested", "ns.owner"]
    assert sorted(found(open_store, NEIGHBOUR.location)) == ["ns.around", "ns.neighbour"]
    assert found(open_store, "s3://other/x/y") == ["ns.guest"]
    assert found(open_store, "s3://other") == ["ns.guest"]
    assert found(open_store, "s3://nobody/x") == []


def test_local_folders_are_found_too(open_store: OpenStore) -> None:
    open_store().claims.record(claims("ns.t", "/wh/t"))
    assert found(open_store, "/wh/t") == found(open_store, "/wh") == found(open_store, "/") == ["ns.t"]
    assert found(open_store, "/wh/t/data") == ["ns.t"]
    assert found(open_store, "/wh/t2") == []


def test_what_is_recorded_later_replaces_everything(open_store: OpenStore) -> None:
    open_store().claims.record(GUEST)
    moved = claims("ns.guest", "s3://b/new", ("s3://other/z",), catalog="other")
    open_store().claims.record(moved)
    assert open_store().claims.of_entry(GUEST.entry) == moved
    assert found(open_store, "s3://b/wh/owner") == []
    assert found(open_store, "s3://other/z") == found(open_store, "s3://b/new/data") == ["ns.guest"]


def test_what_the_caller_knows_is_not_read_again(open_store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pass over every table records something, and has just read the entry."""
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


def test_an_entry_that_is_gone_is_forgotten(open_store: OpenStore) -> None:
    open_store().claims.record(GUEST)
    open_store().claims.record(OWNER)
    open_store().claims.forget(GUEST.entry)
    assert open_store().claims.of_entry(GUEST.entry) is None
    assert found(open_store, "s3://b/wh/owner") == ["ns.owner"]


@pytest.mark.parametrize("length", [1_000, 3_000])
def test_folders_of_any_length_are_found(open_store: OpenStore, length: int) -> None:
    long = f"s3://b/{'x' * length}"
    open_store().claims.record(claims("ns.t", long, (f"s3://c/{'y' * length}/z",)))
    assert found(open_store, long) == found(open_store, f"{long}/data") == ["ns.t"]
    assert found(open_store, f"s3://c/{'y' * length}") == ["ns.t"]
    assert found(open_store, f"s3://b/{'x' * (length - 1)}") == []


def test_the_last_look_at_each_catalog_is_known(open_store: OpenStore) -> None:
    """A catalog is known from the first claims on; a look stays until the next one (rule 220)."""
    assert list(open_store().claims.looks()) == []
    open_store().claims.record(GUEST)
    open_store().claims.record_first_looks([OWNER, NESTED])
    never = [CatalogLook(catalog=name, warehouse="s3://wh") for name in ("lake", "other")]
    assert list(open_store().claims.looks()) == never
    assert sorted(found(open_store, OWNER.location)) == ["ns.guest", "ns.nested", "ns.owner"]
    unseen = UnseenEntry(table=TableName.parse("ns.lost"), reason="why", location="s3://b/wh/lost", is_gone=True)
    looked = CatalogLook(
        catalog="lake", warehouse="s3://wh", run="r1", looked_ms=7, unseen=(unseen,), failure="because"
    )
    open_store().claims.record_look(looked)
    open_store().claims.record(AROUND)
    assert list(open_store().claims.looks()) == [looked, never[1]]
