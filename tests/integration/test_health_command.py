"""``icekeeper health``, and the activity of a whole pass, on real tables."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from support.command import Command, one_sentence


@pytest.fixture
def icekeeper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(tmp_path, monkeypatch, capsys)


def test_health_counts_and_warns_and_changes_nothing(icekeeper: Command) -> None:
    table = icekeeper.table(appends=6, properties={"icekeeper.maintenance_enabled": "false"})
    before = icekeeper.contents()
    answer = icekeeper("health", "ns.t", "--json")
    assert answer.code == 0
    document = answer.json
    assert list(document) == [
        *("table", "catalog", "status", "snapshot_id", "snapshot_id_text"),
        *("observed_ms", "counters", "warnings", "policy"),
    ]
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert (document["table"], document["catalog"], document["snapshot_id"]) == ("ns.t", "C", snapshot.snapshot_id)
    counters = document["counters"]
    expected = {"lake_snapshots": 6, "lake_data_files": 6, "lake_records": 18, "lake_manifests": 6}
    assert {key: counters[key] for key in expected} == expected
    assert counters["lake_delete_manifests"] == 0
    assert [warning["kind"] for warning in document["warnings"]] == ["manifest_sprawl", "small_files"]
    source = "table property icekeeper.maintenance_enabled"
    assert document["policy"] == {"maintenance_enabled": {"value": False, "source": source}}
    assert icekeeper.contents() == before

    people = icekeeper("health", "ns.t")
    assert people.code == 0
    assert people.out.startswith("ns.t: 2 warning(s)\n  manifest_sprawl: 6 manifests for 6 data files reach")


def test_wrong_settings_of_a_table_are_a_warning_and_those_of_the_call_an_error(icekeeper: Command) -> None:
    icekeeper.table(appends=1, properties={"icekeeper.min_input_files": "few"})
    answer = icekeeper("health", "ns.t", "--json")
    assert answer.code == 0
    assert [warning["kind"] for warning in answer.json["warnings"]] == ["wrong_settings"]
    wrong = icekeeper("health", "ns.t", "--set", "min_input_files=x")
    assert wrong.code == 2
    assert one_sentence(wrong.err).startswith("policy key min_input_files cannot be")
    assert icekeeper("health", "ns.gone").code == 2


def test_settings_of_a_table_that_do_not_count_are_a_warning(icekeeper: Command) -> None:
    settings = {"icekeeper.operations": "all,expire_partitions", "icekeeper.orphan_max_delete_ratio": "1"}
    icekeeper.table(appends=1, properties=settings)
    (warning,) = icekeeper("health", "ns.t", "--json").json["warnings"]
    assert warning["kind"] == "ignored_settings"
    assert warning["message"].startswith(
        "table property icekeeper.operations 'all,expire_partitions' does not count: operations is "
    )
    assert warning["message"].endswith("; nor do 1 more: icekeeper policy show says why")


def test_a_pass_logs_each_operations_start_progress_and_end(
    icekeeper: Command, caplog: pytest.LogCaptureFixture
) -> None:
    icekeeper.table(appends=6)
    caplog.set_level(logging.INFO, "icekeeper.activity")
    answer = icekeeper("maintain", "ns.t", "--engine", "local", "--operations", "compact,expire_snapshots", "--json")
    assert answer.code == 0
    lines = [vars(record) for record in caplog.records if record.name == "icekeeper.activity"]
    assert [(line["event"], line["operation"]) for line in lines] == [
        ("operation_started", "compact"),
        ("progress", "compact"),
        ("operation_finished", "compact"),
        ("operation_started", "expire_snapshots"),
        ("operation_finished", "expire_snapshots"),
    ]
    assert {line["run_id"] for line in lines} == {answer.json["run_id"]}
    assert [line["status"] for line in lines if "status" in line] == ["succeeded", "skipped"]
    assert (lines[1]["done"], lines[1]["total"]) == (1, 1)
