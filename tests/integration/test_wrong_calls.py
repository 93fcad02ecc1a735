"""Bad input of every kind: one sentence on standard error, the right exit code, nothing written, nothing deleted."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from support.command import EVERYTHING_IS_OLD, Command, local_path, one_sentence
from support.proxies import closed_port

MAINTAIN = ("maintain", "ns.t", "--engine", "local")
THOROUGH = (*MAINTAIN, *EVERYTHING_IS_OLD)
ERROR_WITHIN_S = 15

WRONG_CALLS: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown table": (("maintain", "ns.nope"), "there is no table ns.nope in catalog C"),
    "unknown namespace": (("verify", "nope.t"), "there is no table nope.t in catalog C"),
    "no namespace": (("maintain", "t"), "'t' is not a table name; write NAMESPACE.TABLE"),
    "empty part": (("maintain", "ns..t"), "'ns..t' is not a table name"),
    "unknown key": ((*MAINTAIN, "--set", "min_input_file=3"), "(did you mean 'min_input_files'?)"),
    "malformed number": ((*MAINTAIN, "--set", "min_input_files=few"), "policy key min_input_files cannot be 'few'"),
    "number out of range": ((*MAINTAIN, "--set", "min_input_files=1"), "greater than or equal to 2"),
    "malformed switch": ((*MAINTAIN, "--set", "rewrite_all=yes"), "write true or false"),
    "no value": ((*MAINTAIN, "--set", "rewrite_all"), "a setting is KEY=VALUE, not 'rewrite_all'"),
    "no key": ((*MAINTAIN, "--set", "=3"), "a setting is KEY=VALUE, not '=3'"),
    "two values": (
        (*MAINTAIN, "--set", "min_input_files=3", "--set", "min_input_files=4"),
        "min_input_files is set twice, to '3' and to '4'",
    ),
    "contradiction": (
        (*MAINTAIN, "--set", "snapshot_retain_max=2"),
        "snapshot_retain_max 2 (from --set) contradicts max_snapshots_to_keep 5 (from default)",
    ),
    "unknown owner": ((*MAINTAIN, "--set", "ownership=nobody"), "ownership"),
    "unknown operation": ((*MAINTAIN, "--operations", "compact,tidy"), "'tidy' is no operation"),
    "no operation": ((*MAINTAIN, "--operations", ""), "write all, or a comma-separated list of operations"),
    "young orphans": (
        (*MAINTAIN, "--set", "orphan_older_than_hours=23"),
        "orphan_older_than_hours is 23 (from --set), below 24",
    ),
    "unknown engine": (("maintain", "ns.t", "--engine", "flink"), "'flink' is not one of 'auto', 'spark', 'local'"),
    "unknown option": ((*MAINTAIN, "--force"), "No such option: --force"),
    "unknown command": (("tidy",), "No such command 'tidy'"),
    "too many arguments": ((*MAINTAIN, "ns.u"), "unexpected extra argument"),
    "no table": (("maintain",), "Missing argument 'NS.TABLE'"),
    "policy of an unknown table": (("policy", "show", "ns.nope"), "there is no table ns.nope in catalog C"),
    "detect with an unknown key": (("detect", "--set", "nope=1"), "unknown policy key 'nope'"),
}


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_wrong_call_is_told_in_one_sentence(as_json: bool, command: Command) -> None:
    """One table for all of them: none may change it."""
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
            assert list(answer.json["error"]) == ["type", "message"], wrong
            assert answer.json["error"]["type"] in ("PolicyError", "UsageError"), wrong
            assert answer.json["error"]["message"] == message, wrong
        else:
            assert answer.out == "", wrong


def test_an_unknown_catalog_is_told_with_what_is_configured(command: Command) -> None:
    answer = command("maintain", "ns.t", "--json", catalog="nope")
    assert answer.code == 2
    assert answer.json["error"]["type"] == "PolicyError"
    assert one_sentence(answer.err).startswith("there is no catalog 'nope' (configured: c)")


def test_a_call_without_a_catalog_is_wrong(command: Command) -> None:
    answer = command("maintain", "ns.t", catalog=None)
    assert answer.code == 2
    assert one_sentence(answer.err) == "Missing option '--catalog' (icekeeper maintain --help says more)"


def test_the_policy_of_a_table_may_be_wrong(command: Command) -> None:
    command.table(properties={"icekeeper.min_input_files": "many"})
    before = command.contents()
    answer = command(*THOROUGH)
    assert answer.code == 2
    assert "(from table property icekeeper.min_input_files)" in one_sentence(answer.err)
    assert command.contents() == before


@pytest.mark.parametrize(
    "arguments", [MAINTAIN, ("detect",), ("verify", "ns.t"), ("policy", "show", "ns.t")], ids=lambda a: str(a[0])
)
def test_an_endpoint_that_does_not_answer(
    arguments: tuple[str, ...], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closed_port() as uri:
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__FAR__URI", uri)
        started = time.monotonic()
        answer = command(*arguments, "--json", catalog="far")
        assert time.monotonic() - started < ERROR_WITHIN_S
    assert answer.code == 1
    assert answer.json["error"]["type"] == "StorageError"
    assert one_sentence(answer.err) == f"catalog far cannot be reached: nothing answers at {uri}"


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"not json"], ids=repr)
def test_a_damaged_metadata_file(content: bytes, command: Command) -> None:
    path = local_path(command.table().metadata_location)
    path.write_bytes(content)
    before = command.contents()
    for arguments in (THOROUGH, ("verify", "ns.t"), ("policy", "show", "ns.t")):
        answer = command(*arguments, "--json")
        assert answer.code == 1
        assert answer.json["error"]["type"] == "MetadataUnreadable"
        assert path.name in one_sentence(answer.err)
    assert command.contents() == before


def test_a_missing_metadata_file(command: Command) -> None:
    local_path(command.table().metadata_location).unlink()
    before = command.contents()
    answer = command(*THOROUGH, "--json")
    assert answer.code == 1
    assert answer.json["error"]["type"] == "MetadataUnreadable"
    assert one_sentence(answer.err).endswith("does not exist")
    assert command.contents() == before


@pytest.mark.parametrize("share", [None, 0.0, 0.02, 0.5, 0.99], ids=["missing", "empty", "header", "half", "end"])
@pytest.mark.parametrize("damaged", ["manifest", "manifest list"])
def test_what_cannot_be_read_deletes_nothing(damaged: str, share: float | None, command: Command) -> None:
    table = command.table()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    is_list = damaged == "manifest list"
    path = local_path(snapshot.manifest_list if is_list else snapshot.manifests(table.io)[0].manifest_path)
    if share is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    before = command.contents()
    answer = command(*THOROUGH, "--json")
    assert answer.code == 1
    assert command.contents() == before
    # Without delete manifests there is nothing for it to read.
    skipped = [] if is_list else ["rewrite_position_deletes"]
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


def not_a_folder(command: Command) -> Path:
    (command.folder / "file").write_text("in the way")
    return command.folder / "file" / "state.db"


def not_mounted(command: Command) -> Path:
    return command.folder / "volume" / "state.db"


def no_database(command: Command) -> Path:
    path = command.folder / "notes.txt"
    path.write_text("not a database " * 100)
    return path


def of_another_application(command: Command) -> Path:
    path = command.folder / "theirs.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    return path


def of_the_future(command: Command) -> Path:
    path = command.folder / "future.db"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA user_version = 99")
    return path


@pytest.mark.parametrize("state", [not_a_folder, not_mounted, no_database, of_another_application, of_the_future])
def test_a_state_that_cannot_be_used_stops_a_pass_before_it_changes_anything(
    state: Callable[[Command], Path], command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    command.table()
    path = state(command)
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
