"""The commands for staged loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from support.command import ABOUT, Command, local_path, one_sentence
from support.staged_table import StagedTable


@pytest.fixture
def table(local_catalog: SqlCatalog, tmp_path: Path) -> StagedTable:
    return StagedTable(local_catalog, tmp_path)


def test_the_documents_of_loads(command: Command, tmp_path: Path) -> None:
    location = command.table(appends=1).location()
    paths = [f"{location}/data/load/{number}.parquet" for number in range(4)]
    (tmp_path / "list.txt").write_text("\n".join(paths[1:]) + "\r\n\n")
    prefix = f"{location}/data/in"
    added = command(
        *("stage", "add", "ns.t", "--name", "L", "--file", paths[0], "--file", paths[1]),
        *("--file-list", str(tmp_path / "list.txt"), "--prefix", prefix, "--json"),
    )
    load = added.json["load"]
    assert added.code == 0
    assert added.json == {
        **ABOUT,
        "load": {
            "name": "L",
            "origin": "user",
            "state": "pending",
            "files": 4,
            "prefixes": [prefix],
            "changed_ms": load["changed_ms"],
            "changed": load["changed"],
        },
    }
    again = command("stage", "add", "ns.t", "--name", "L", "--file", paths[0], "--file", f"{location}/x", "--json")
    assert (again.json["load"]["files"], again.json["load"]["prefixes"]) == (5, [prefix])
    assert command("stage", "list", "ns.t", "--json").json == {**ABOUT, "loads": [again.json["load"]]}
    for state in ("adopted", "failed"):
        document = command("stage", state, "ns.t", "--name", "L", "--json").json
        assert document["load"]["state"] == state
        assert command("stage", state, "ns.t", "--name", "L", "--json").json == document
    line = " ".join(command("stage", "list", "ns.t").out.split())
    assert line == f"L failed 5 file(s), {prefix}, since {document['load']['changed']}"


def test_wrong_loads_are_one_sentence_and_record_nothing(command: Command, tmp_path: Path) -> None:
    location = command.table(appends=1).location()
    command.table("ns.u", appends=0)
    metadata = command.pointers()[0][1]
    add = ("stage", "add", "ns.t", "--name", "L")
    for arguments, sentence in (
        (add, "a load has files or prefixes; none were given"),
        ((*add, "--file", "s3://other/f"), f"s3://other/f is not below {location}, so it cannot be a staged file"),
        ((*add, "--file", f"{location}/../u/data/f"), f"{location}/../u/data/f is not below {location}"),
        ((*add, "--file", location), f"{location} is not below {location}"),
        ((*add, "--file", metadata), f"{metadata} is table metadata, so it cannot be a staged file of this table"),
        ((*add, "--prefix", f"{location}/"), f"{location}/ is not below {location}; nothing was recorded"),
        ((*add, "--file-list", str(tmp_path / "none")), f"the list of files {tmp_path / 'none'} cannot be read"),
        (("stage", "add", "ns.t", "--name", "run:compact", "--file", f"{location}/f"), "load name 'run:compact' must"),
        (("stage", "adopted", "ns.t", "--name", "L"), "there is no load 'L' on ns.t; loads are: none"),
        (("stage", "failed", "ns.absent", "--name", "L"), "there is no table ns.absent in catalog C"),
        (("stage", "list", "ns.absent"), "there is no table ns.absent in catalog C"),
    ):
        answer = command(*arguments, "--json")
        assert answer.code == 2
        assert answer.json["error"]["message"].startswith(sentence)
        assert one_sentence(answer.err).startswith(sentence)
    assert command("stage", "list", "ns.t", "--json").json["loads"] == []


def test_a_load_that_ended_is_not_staged_again(command: Command) -> None:
    location = command.table(appends=1).location()
    add = ("stage", "add", "ns.t", "--name", "L", "--file", f"{location}/data/f.parquet")
    command(*add)
    command("stage", "failed", "ns.t", "--name", "L")
    assert one_sentence(command(*add).err) == "load 'L' is failed already; choose another name"
    answer = command("stage", "adopted", "ns.t", "--name", "L")
    assert (answer.code, one_sentence(answer.err)) == (
        2,
        "load 'L' failed, so its files may be deleted already; stage them under another name",
    )


def test_what_was_cleaned_is_in_the_document_of_the_pass(command: Command) -> None:
    location = command.table(appends=1).location()
    path = local_path(location) / "data" / "f.parquet"
    path.write_bytes(b"?")
    command("stage", "add", "ns.t", "--name", "L", "--file", path.as_uri())
    command("stage", "failed", "ns.t", "--name", "L")
    maintain = ("maintain", "ns.t", "--engine", "local", "--unsafe", "--operations", "compact", "--json")
    assert "staged" not in command(*maintain).json
    answer = command(*maintain, "--set", "orphan_older_than_hours=0")
    assert answer.code == 0
    assert answer.json["staged"] == {
        "summary": "deleted 1 staged file(s) of 1 failed load(s)",
        "problem": None,
        "metrics": {key: value for key, value in answer.json["metrics"].items() if key.startswith("staged.")},
        "files": {"planned": [path.as_uri()], "deleted": [path.as_uri()]},
    }
    assert answer.json["metrics"]["staged.files_deleted"] == 1
    assert [part["operation"] for part in answer.json["operations"]] == ["compact"]
    assert "staged files: deleted 1 staged file(s) of 1 failed load(s)" in answer.err
    assert not path.exists()
