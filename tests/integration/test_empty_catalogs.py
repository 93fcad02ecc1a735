"""What has no tables says so, names what is near, and is not created by the asking."""

from __future__ import annotations

import pytest

from support.command import CATALOG, Command, one_sentence


def test_a_catalog_in_another_spelling_is_told_how_the_database_spells_it(command: Command) -> None:
    command.table(appends=1)
    for call in (("detect",), ("maintain", "ns.t")):
        answer = command(*call, catalog=CATALOG.lower())
        assert (answer.code, answer.out) == (2, "")
        assert one_sentence(answer.err) == (
            "the database of catalog c knows it as 'C', and SQL catalogs are told apart by case; write --catalog C"
        )


def test_a_database_that_is_not_there_is_not_created(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command.folder / "catalogg.db"
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG}__URI", f"sqlite:///{path}")
    answer = command("detect", "--json")
    assert answer.code == 1
    told = f"the database of catalog C cannot be used: unable to open {path}: there is no such file"
    told += " (did you mean 'catalog.db'?)"
    assert one_sentence(answer.err) == told
    assert answer.json == {"error": {"type": "StorageError", "message": told}}
    assert not path.exists()


def test_a_database_of_another_application_gets_no_tables(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command.folder / "theirs.db"
    path.touch()
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG}__URI", f"sqlite:///{path}")
    answer = command("maintain", "ns.t")
    assert answer.code == 1
    assert one_sentence(answer.err).startswith("the database of catalog C cannot be used: no such table")
    assert path.read_bytes() == b""


EMPTY = {
    "table_filter=ordes*": (
        "table_filter ordes* (from --set) does not match any of the 3 table(s) of catalog C; "
        "the nearest: orders, clicks, t"
    ),
    "namespace_filter=shopp": (
        "namespace_filter shopp (from --set) does not match a namespace of the 3 table(s) of catalog C; "
        "the nearest: shop, ns"
    ),
    "bucket_filter=lake": "bucket_filter lake (from --set) does not match warehouse warehouse",
}


@pytest.mark.parametrize(("setting", "note"), EMPTY.items(), ids=EMPTY)
def test_a_filter_that_matches_nothing_is_told_with_what_is_nearest(command: Command, setting: str, note: str) -> None:
    command.catalog.create_namespace("shop")
    for name in ("shop.orders", "shop.clicks", "ns.t"):
        command.table(name, appends=0)
    answer = command("detect", "--json", "--set", setting)
    assert (answer.code, answer.json["scanned"], answer.json["note"]) == (0, 0, note)
    assert answer.err.splitlines() == ["0 tables scanned, 0 need work", note]
    assert "note" not in command("detect", "--json", "--set", "table_filter=t").json


def test_a_catalog_without_tables_says_so(command: Command) -> None:
    assert command("detect").out.splitlines() == ["0 tables scanned, 0 need work", "catalog C has no tables"]
