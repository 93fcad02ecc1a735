"""Which table it is: by its UUID, without one by its location; copies are told apart, spellings are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.metadata.document import TableMetadata
from icekeeper.model import TableName
from icekeeper.state.identity import TableIdentity
from support.scans import PreparedCatalog


def identity(
    location: str, uuid: str | None = "0E5F", name: str = "ns.t", catalog: str = "C", warehouse: str = "w"
) -> TableIdentity:
    metadata = TableMetadata(
        {"format-version": 2, "location": location, **({} if uuid is None else {"table-uuid": uuid})}
    )
    loaded = LoadedTable(TableName.parse(name), metadata, "m", "m", {})
    return identity_of(PreparedCatalog({}, name=catalog, warehouse=warehouse), loaded)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("s3://b/ns/t", "s3a://b/ns/t/"),
        ("s3://b/ns/t", "s3://b//ns/t"),
        ("/w/ns/t", "file:///w/ns/t/"),
        ("file:/w/ns/t", "file:///w//ns/t"),
    ],
)
def test_spellings_of_a_location_are_one_place(one: str, other: str) -> None:
    assert identity(one).place == identity(other).place
    assert identity(one, None).key == identity(other, None, "ns.other", "D", "x").key


def test_a_symbolic_link_is_the_place_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert identity(f"file://{tmp_path}/link/ns/t").place == identity(f"{tmp_path}/real/ns/t").place


def test_a_uuid_is_the_same_in_every_case_and_under_every_name() -> None:
    one, other = identity("s3://b/t"), identity("s3://elsewhere/t", "0e5f", "NS.T", "D", "x")
    assert (one.key, one.is_same_table(other)) == (other.key, True)
    assert one.place != other.place
    assert not one.is_same_table(identity("s3://b/t", "other"))
    assert not one.is_same_table(identity("s3://b/t", None))


NAMES = [
    TableName(("a", "b"), "c"),
    TableName(("a.b",), "c"),
    TableName(("a",), "b.c"),
    TableName((), "a.b.c"),
    TableName(("a", ""), "c"),
    TableName(("a.",), "c"),
    TableName((), "c"),
    TableName(("",), ""),
    TableName(('["a',), 'b", "c"]'),
    TableName(("[",), "["),
    TableName((), "[]"),
    TableName(("[a]",), "b"),
    TableName(("a\ud800.",), "b"),
]


def test_no_two_names_share_a_key() -> None:
    """Whatever catalogs call tables: records of one are found by that name alone (rule 294)."""
    assert [TableName.recorded(name.key) for name in NAMES] == NAMES
    assert len({name.key for name in NAMES}) == len(NAMES)
    assert TableName(("a", "b"), "c").key == "a.b.c"


@pytest.mark.parametrize("text", ["", "a", "[", "[]", "[1]", '["a", 1]', f"{'[' * 100_000}", "{}.x"])
def test_any_text_is_a_recorded_name(text: str) -> None:
    assert str(TableName.recorded(text)) == text
