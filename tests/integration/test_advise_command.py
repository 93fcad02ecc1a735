"""``icekeeper advise`` on real tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Command, one_sentence


@pytest.fixture
def icekeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def test_advice_is_given_with_its_numbers_and_changes_nothing(icekeeper: Command) -> None:
    icekeeper.table(appends=9, properties={"write.metadata.previous-versions-max": "5"})
    before = icekeeper.contents()
    answer = icekeeper("advise", "ns.t", "--json")
    assert answer.code == 0, answer.err
    document = answer.json
    assert list(document) == ["table", "catalog", "status", "advice"]
    assert (document["table"], document["catalog"], document["status"]) == ("ns.t", "C", "succeeded")
    (advice,) = document["advice"]
    assert list(advice) == ["table", "kind", "severity", "reason", "numbers", "gain", "statement"]
    assert advice["kind"] == "metadata_log"
    assert advice["numbers"] == {"metadata_log": 5, "limit": 5}
    assert icekeeper.contents() == before
    people = icekeeper("advise", "ns.t")
    assert people.out.startswith("ns.t: 1 to consider\n  metadata_log: the metadata log is full with 5 files")
    assert f"    do:   {advice['statement']}\n" in people.out


def test_all_tables_are_advised_and_one_that_cannot_be_read_is_named(icekeeper: Command) -> None:
    icekeeper.table(appends=1)
    assert icekeeper("advise", "--all").out == "ns.t: nothing to advise\n"
    whole = icekeeper("advise", "--all", "--json").json
    assert whole == {
        "catalog": "C",
        "status": "succeeded",
        "advice": [],
        "tables": [{"table": "ns.t", "status": "succeeded", "advice": []}],
    }
    for path in icekeeper.warehouse.rglob("snap-*.avro"):
        path.unlink()
    broken = icekeeper("advise", "--all", "--json")
    assert broken.code == 1
    assert [table["status"] for table in broken.json["tables"]] == ["failed"]
    told = one_sentence(broken.err)
    assert told.startswith("1 table could not be read: ns.t: manifest list file://")
    assert told.endswith(".avro does not exist")


def test_a_wrong_call_is_bad_usage(icekeeper: Command) -> None:
    icekeeper.table(appends=1)
    assert icekeeper("advise").code == 2
    assert icekeeper("advise", "ns.t", "--all").code == 2
    assert icekeeper("advise", "--all", "--set", "min_input_files=x").code == 2
    assert icekeeper("advise", "ns.gone").code == 2
