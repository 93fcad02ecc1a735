"""A table name that a catalog does not have: near names are offered, and a listing that fails changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from icekeeper.catalogs import catalog as room
from icekeeper.catalogs.catalog import missing_table
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.model import TableName
from support.command import Command, one_sentence
from support.scans import PreparedCatalog

ABSENT = "there is no table sales.order in catalog C"
CALLS = (
    ("maintain", "sales.order", "--engine", "local"),
    ("policy", "show", "sales.order"),
    ("pin", "list", "sales.order"),
    ("stage", "failed", "sales.order", "--name", "L"),
)


class Listed(PreparedCatalog):
    """A catalog that fails after its tables are listed."""

    def __init__(self, *names: str, failure: Exception | None = None) -> None:
        super().__init__(dict.fromkeys(names, StorageError("not loaded here")))
        self.failure, self.given = failure, 0

    def list_tables(self) -> Iterator[TableName]:
        for name in super().list_tables():
            self.given += 1
            yield name
        if self.failure is not None:
            raise self.failure


def hint(catalog: PreparedCatalog, name: str = "sales.order") -> str:
    return missing_table(catalog, TableName.parse(name)).hint()


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_every_command_offers_near_names(as_json: bool, command: Command) -> None:
    command.catalog.create_namespace("sales")
    command.table("sales.orders", appends=0)
    told = f"{ABSENT} (did you mean 'sales.orders'?)"
    for call in CALLS:
        answer = command(*call, *(["--json"] if as_json else []))
        assert (answer.code, one_sentence(answer.err)) == (2, told), call
        if as_json:
            assert answer.json == {"error": {"type": "PolicyError", "message": told}}, call


def test_a_failed_listing_changes_neither_sentence_nor_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SqlCatalog) -> Iterator[TableName]:
        raise StorageError("catalog C must not be listed")

    monkeypatch.setattr(SqlCatalog, "list_tables", fail)
    answer = command(*CALLS[0])
    assert (answer.code, one_sentence(answer.err)) == (2, ABSENT)


def test_which_names_are_near() -> None:
    assert hint(Listed("sales.customers", "ns.t")) == ""
    assert hint(Listed("Sales.Order", "ns.t")) == " (did you mean 'Sales.Order'?)"
    assert hint(Listed("sales.customers", "a_long_namespace.order")) == " (did you mean 'a_long_namespace.order'?)"
    near = Listed("sales.orders3", "sales.orders", "sales.orders22", "sales.orders2")
    assert hint(near) == " (did you mean 'sales.orders' or 'sales.orders3' or 'sales.orders2'?)"


def test_what_may_be_listed_is_offered() -> None:
    partly = Listed("sales.orders", failure=PartlyListed("others must not be listed"))
    assert hint(partly) == " (did you mean 'sales.orders'?)"


def test_a_long_listing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 1.0, 4.0))
    monkeypatch.setattr(room, "steady_s", lambda: next(seconds))
    catalog = Listed("sales.orders", "ns.a", "ns.b")
    assert (hint(catalog), catalog.given) == (" (did you mean 'sales.orders'?)", 2)
