"""Wrong calls and damaged inputs: one error sentence, the right exit code, and no change."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from icekeeper.catalogs import catalog as room
from icekeeper.catalogs.catalog import missing_table
from icekeeper.catalogs.sql import SqlCatalog
from icekeeper.errors import PartlyListed, StorageError
from icekeeper.model import TableName
from support.command import CATALOG, EVERYTHING_IS_OLD, Command, local_path, one_sentence
from support.scans import PreparedCatalog

MAINTAIN = ("maintain", "ns.t", "--engine", "local")
THOROUGH = (*MAINTAIN, *EVERYTHING_IS_OLD)

# Beside those of ``test_mistakes.py``.
WRONG_CALLS: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown namespace": (("verify", "nope.t"), "there is no table nope.t in catalog C"),
    "empty part": (("maintain", "ns..t"), "'ns..t' is not a table name"),
    "number out of range": ((*MAINTAIN, "--set", "min_input_files=1"), "greater than or equal to 2"),
    "malformed switch": ((*MAINTAIN, "--set", "rewrite_all=yes"), "write true or false"),
    "no key": ((*MAINTAIN, "--set", "=3"), "a setting is KEY=VALUE, not '=3'"),
    "two values": (
        (*MAINTAIN, "--set", "min_input_files=3", "--set", "min_input_files=4"),
        "min_input_files is set twice, to '3' and to '4'",
    ),
    "contradiction": (
        (*MAINTAIN, "--set", "snapshot_retain_max=2"),
        "snapshot_retain_max 2 (from this call) contradicts max_snapshots_to_keep 5 (from default)",
    ),
    "unknown owner": ((*MAINTAIN, "--set", "ownership=nobody"), "ownership"),
    "no operation": ((*MAINTAIN, "--operations", ""), "write all, or a comma-separated list of operations"),
    "unknown engine": (("maintain", "ns.t", "--engine", "flink"), "'flink' is not one of 'auto', 'spark', 'local'"),
    "unknown command": (("tidy",), "No such command 'tidy'"),
    "too many arguments": (("show", "ns.t", "ns.u"), "unexpected extra argument"),
    "no table": (("verify",), "name a table or a pattern such as 'shop.*', or '*' for all"),
    "neither a table nor all": (("maintain",), "name a table, a pattern such as 'shop.*', or --all"),
    "policy of an unknown table": (("policy", "show", "ns.nope"), "there is no table ns.nope in catalog C"),
    "detect with an unknown key": (("detect", "--set", "nope=1"), "unknown policy key 'nope'"),
}


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_wrong_call_is_one_error_sentence(as_json: bool, command: Command) -> None:
    """All calls share one table, and no call may change it."""
    command.table()
    before = command.contents()
    for wrong, (arguments, expected) in WRONG_CALLS.items():
        answer = command(*arguments, *(["--json"] if as_json else []))
        assert answer.code == 2, wrong
        message = one_sentence(answer.err)
        assert expected in message, wrong
        assert command.contents() == before, wrong
        if as_json:
            assert list(answer.json) == ["error"], wrong
            error = answer.json["error"]
            named = {"there is no table": "TableNotFound", "unknown policy key": "UnknownSetting"}
            kinds = [kind for start, kind in named.items() if message.startswith(start)]
            assert error["type"] in (kinds or ("PolicyError", "UsageError")), wrong
            page = f" (icekeeper docs {error['docs']})" if "docs" in error else ""
            assert f"{error['message']}{page}" == message, wrong
        else:
            assert answer.out == "", wrong


def test_an_unknown_catalog_is_an_error_with_the_configured_catalogs(command: Command) -> None:
    answer = command("maintain", "ns.t", "--json", catalog="nope")
    assert answer.code == 2
    assert (answer.json["error"]["type"], answer.json["error"]["docs"]) == ("CatalogNotFound", "catalogs")
    assert one_sentence(answer.err).startswith("there is no catalog 'nope' (configured: c)")
    assert answer.err.endswith(" (icekeeper docs catalogs)\n")


def test_a_call_must_name_the_catalog_if_several_are_configured(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__SECOND__TYPE", "sql")
    answer = command("maintain", "ns.t", catalog=None)
    assert answer.code == 2
    assert one_sentence(answer.err) == "name the catalog with --catalog or ICEKEEPER_CATALOG: there are c, second"


def test_a_wrong_table_property_is_an_error(command: Command) -> None:
    command.table(properties={"icekeeper.min_input_files": "many"})
    before = command.contents()
    answer = command(*THOROUGH)
    assert answer.code == 2
    assert "(from table property icekeeper.min_input_files)" in one_sentence(answer.err)
    assert command.contents() == before


def test_a_damaged_or_missing_metadata_file_is_an_error(command: Command) -> None:
    path = local_path(command.table().metadata_location)
    for content in (b"", b"{", b"[]", b"not json"):
        path.write_bytes(content)
        before = command.contents()
        for arguments in (THOROUGH, ("verify", "ns.t"), ("policy", "show", "ns.t")):
            answer = command(*arguments, "--json")
            assert answer.code == 1
            assert answer.json["error"]["type"] == "MetadataUnreadable"
            assert path.name in one_sentence(answer.err)
        assert command.contents() == before
    path.unlink()
    before = command.contents()
    answer = command(*THOROUGH, "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "MetadataUnreadable"
    assert one_sentence(answer.err).endswith("does not exist (icekeeper docs recovery)")
    assert command.contents() == before


@pytest.mark.parametrize("damaged", ["manifest", "manifest list"])
def test_nothing_is_deleted_if_a_manifest_is_unreadable(damaged: str, command: Command) -> None:
    """The file is cut in its header, middle or end, empty, or missing."""
    table = command.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    is_list = damaged == "manifest list"
    path = local_path(snapshot.manifest_list if is_list else snapshot.manifests(table.io)[0].manifest_path)
    data = path.read_bytes()
    # The table has no delete manifests that this operation would read.
    skipped = [] if is_list else ["rewrite_position_deletes"]
    for share in (0.0, 0.02, 0.5, 0.99, None):
        path.unlink() if share is None else path.write_bytes(data[: int(len(data) * share)])
        for remembered in command.state.parent.iterdir():
            remembered.unlink()
        before = command.contents()
        answer = command(*THOROUGH, "--json")
        assert answer.code == 1
        assert command.contents() == before
        concerned = [part for part in answer.json["operations"] if part["operation"] not in skipped]
        assert {part["operation"]: part["status"] for part in concerned} == {
            "compact": "failed",
            **({"rewrite_position_deletes": "failed"} if is_list else {}),
            "expire_snapshots": "refused",
            "remove_orphans": "refused",
            "rewrite_manifests": "failed",
        }
        assert answer.json["status"] == "partial"
        assert all(path.name in part["reason"] and "\n" not in part["reason"] for part in concerned)
        assert path.name in answer.err.splitlines()[-1]


def test_a_state_that_cannot_be_used_stops_a_pass_before_it_changes_anything(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is below a file or in a missing folder, is text, or is a database of another tool or a later version."""
    command.table()
    in_the_way, text, theirs, future = (
        command.folder / name for name in ("file", "notes.txt", "theirs.db", "future.db")
    )
    in_the_way.write_text("in the way")
    text.write_text("not a database " * 100)
    for database, statement in ((theirs, "CREATE TABLE recipes (name TEXT)"), (future, "PRAGMA user_version = 99")):
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute(statement)
    for path in (in_the_way / "state.db", command.folder / "volume" / "state.db", text, theirs, future):
        monkeypatch.setenv("ICEKEEPER_STATE", str(path))
        kept = path.read_bytes() if path.is_file() else None
        before = command.contents()
        for arguments in (THOROUGH, ("detect",)):
            answer = command(*arguments, "--json")
            assert answer.code == 1
            assert answer.json["error"]["type"] == "StorageError"
            assert str(path) in one_sentence(answer.err)
        assert command.contents() == before
        assert (path.read_bytes() if path.is_file() else None) == kept
        assert not (command.folder / "volume").exists()


# Empty catalogs and filters without a match name what is near; a missing database is not created.


def test_an_error_names_the_spelling_of_the_catalog_in_its_database(command: Command) -> None:
    command.table(appends=1)
    for call in (("detect",), ("maintain", "ns.t")):
        answer = command(*call, catalog=CATALOG.lower())
        assert (answer.code, answer.out) == (2, "")
        assert one_sentence(answer.err) == (
            "the database of catalog c spells its name 'C', and names of SQL catalogs are case-sensitive; "
            "write --catalog C"
        )


def test_a_missing_database_is_not_created(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    path = command.folder / "catalogg.db"
    monkeypatch.setenv(f"PYICEBERG_CATALOG__{CATALOG}__URI", f"sqlite:///{path}")
    answer = command("detect", "--json")
    assert answer.code == 1
    found = f"the database of catalog C cannot be used: unable to open {path}: the file does not exist"
    found += " (did you mean 'catalog.db'?)"
    assert one_sentence(answer.err) == found
    assert answer.json == {"error": {"type": "StorageError", "message": found}}
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
        "table_filter ordes* (from this call) does not match any of the 3 table(s) of catalog C; "
        "the nearest: orders, clicks, t"
    ),
    "namespace_filter=shopp": (
        "namespace_filter shopp (from this call) does not match a namespace of the 3 table(s) of catalog C; "
        "the nearest: shop, ns"
    ),
    "bucket_filter=lake": "bucket_filter lake (from this call) does not match warehouse warehouse",
}


def test_a_filter_without_a_match_names_the_nearest_tables(command: Command) -> None:
    assert command("detect").out.splitlines() == ["0 tables scanned, 0 need work", "catalog C has no tables"]
    command.catalog.create_namespace("shop")
    for name in ("shop.orders", "shop.clicks", "ns.t"):
        command.table(name, appends=0)
    for setting, note in EMPTY.items():
        answer = command("detect", "--json", "--set", setting)
        assert (answer.code, answer.json["scanned"], answer.json["note"]) == (0, 0, note)
        assert answer.err.splitlines() == ["0 tables scanned, 0 need work", note]
    assert "note" not in command("detect", "--json", "--set", "table_filter=t").json


# The command as a process: its output is closed or full, or an argument is not text.

ICEKEEPER = f"{Path(sys.executable).parent}/icekeeper"


def called(arguments: str, output: str, **environment: str) -> tuple[int, str]:
    """Return exit code and standard error; ``output`` is the shell's redirection of standard output."""
    done = subprocess.run(
        ["bash", "-c", f"{ICEKEEPER} {arguments} {output}"],
        env={"PATH": os.environ["PATH"], **environment},
        stderr=subprocess.PIPE,
        check=False,
    )
    return done.returncode, done.stderr.decode()


def test_a_closed_output_is_one_error_sentence(tmp_path: Path) -> None:
    found = called("history ns.t --catalog nowhere --json", ">&-", HOME=str(tmp_path))
    assert found == (1, "error: standard output cannot be written to: it is closed\n")


def test_an_argument_that_the_locale_cannot_decode_is_a_wrong_call(tmp_path: Path) -> None:
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code, found = called("history ns.tä --catalog nowhere", "", HOME=str(tmp_path), **locale)
    assert code == 2
    assert found.startswith(r"error: argument 'ns.t\udcc3\udca4' is not text in this locale")
    assert len(found.splitlines()) == 1


# The error about a missing table offers near names; a listing that fails does not change it.

ABSENT = "there is no table sales.order in catalog C"
CALLS = (
    ("maintain", "sales.order", "--engine", "local"),
    ("policy", "show", "sales.order"),
    ("pin", "list", "sales.order"),
    ("stage", "failed", "sales.order", "--name", "L"),
)


class Listed(PreparedCatalog):
    """A catalog that raises ``failure`` after it has listed its tables."""

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
    found = f"{ABSENT} (did you mean 'sales.orders'?)"
    for call in CALLS:
        answer = command(*call, *(["--json"] if as_json else []))
        assert (answer.code, one_sentence(answer.err)) == (2, found), call
        if as_json:
            assert answer.json == {"error": {"type": "TableNotFound", "message": found}}, call


def test_a_failed_listing_changes_neither_sentence_nor_exit_code(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: SqlCatalog) -> Iterator[TableName]:
        raise StorageError("catalog C must not be listed")

    monkeypatch.setattr(SqlCatalog, "list_tables", fail)
    answer = command(*CALLS[0])
    assert (answer.code, one_sentence(answer.err)) == (2, ABSENT)


def test_a_hint_names_the_nearest_tables() -> None:
    assert hint(Listed("sales.customers", "ns.t")) == ""
    assert hint(Listed("Sales.Order", "ns.t")) == " (did you mean 'Sales.Order'?)"
    assert hint(Listed("sales.customers", "a_long_namespace.order")) == " (did you mean 'a_long_namespace.order'?)"
    near = Listed("sales.orders3", "sales.orders", "sales.orders22", "sales.orders2")
    assert hint(near) == " (did you mean 'sales.orders' or 'sales.orders3' or 'sales.orders2'?)"


def test_a_partial_listing_still_offers_names() -> None:
    partly = Listed("sales.orders", failure=PartlyListed("others must not be listed"))
    assert hint(partly) == " (did you mean 'sales.orders'?)"


def test_a_slow_listing_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = iter((0.0, 1.0, 4.0))
    monkeypatch.setattr(room, "steady_s", lambda: next(seconds))
    catalog = Listed("sales.orders", "ns.a", "ns.b")
    assert (hint(catalog), catalog.given) == (" (did you mean 'sales.orders'?)", 2)
