"""What every JSON document has: which table or catalog it is about, how the command went, ids that no reader rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from icekeeper.cli.console import with_id_texts
from support.command import Command

CALLS = (
    ("maintain", "ns.t", "--engine", "local", "--dry-run"),
    ("plan", "ns.t", "--engine", "local"),
    ("detect",),
    ("health", "ns.t"),
    ("verify", "ns.t"),
    ("history", "ns.t"),
    ("policy", "show", "ns.t"),
    ("policy", "set", "ns.t", "min_input_files=3"),
    ("policy", "unset", "ns.t", "min_input_files"),
    ("policy", "reset", "ns.t"),
    ("pin", "add", "ns.t", "--snapshot", "current", "--ttl", "1h", "--name", "N"),
    ("pin", "list", "ns.t"),
    ("pin", "remove", "ns.t", "--name", "N"),
    ("stage", "list", "ns.t"),
    ("claims", "list", "ns.t"),
)


def objects(document: Any) -> Iterator[dict[str, Any]]:
    if isinstance(document, dict):
        yield document
    for part in document.values() if isinstance(document, dict) else document if isinstance(document, list) else ():
        yield from objects(part)


def test_every_document_says_what_it_is_about_and_how_it_went(command: Command) -> None:
    command.table()
    told = 0
    for call in CALLS:
        document = command(*call, "--json").json
        assert (document["catalog"], document["status"]) == ("C", "succeeded"), call
        assert document.get("table", "ns.t") == "ns.t"
        assert ("table" in document) == (call[0] != "detect")
        for part in objects(document):
            if part.get("snapshot_id") is not None:
                told += 1
                assert part["snapshot_id_text"] == str(part["snapshot_id"])
    assert told == 10  # health, the added pin twice, and of the plan: a ref and six snapshots


@pytest.mark.parametrize("snapshot_id", [2**53 + 1, None])
def test_ids_are_told_as_text_too(snapshot_id: int | None) -> None:
    text = None if snapshot_id is None else "9007199254740993"
    assert with_id_texts({"a": [{"snapshot_id": snapshot_id, "b": 1}], "snapshot_ids": [2**53 + 1]}) == {
        "a": [{"snapshot_id": snapshot_id, "snapshot_id_text": text, "b": 1}],
        "snapshot_ids": [2**53 + 1],
        "snapshot_ids_text": ["9007199254740993"],
    }


def test_a_damaged_table_and_an_unread_one_are_no_success(command: Command) -> None:
    table = command.table(appends=1)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    for path in command.warehouse.rglob("*.parquet"):
        path.unlink()
    assert command("verify", "ns.t", "--json").json["status"] == "failed"
    for path in command.warehouse.rglob("*.metadata.json"):
        path.write_text("{")
    assert command("detect", "--json").json["status"] == "partial"


def test_settings_are_told_in_one_shape_with_their_types(command: Command) -> None:
    command.table(appends=1, properties={"icekeeper.min_file_size_ratio": "0.5", "icekeeper.rewrite_all": "true"})
    shown = command("policy", "show", "ns.t", "--json").json["policy"]
    own = {key: setting for key, setting in shown.items() if setting["source"] != "default"}
    assert (
        own
        == command("health", "ns.t", "--json").json["policy"]
        == {
            "min_file_size_ratio": {"value": 0.5, "source": "table property icekeeper.min_file_size_ratio"},
            "rewrite_all": {"value": True, "source": "table property icekeeper.rewrite_all"},
        }
    )
    assert shown["snapshot_retain_max"]["value"] is None
    assert shown["target_file_size_mb"]["value"] == 256
    assert shown["table_filter"]["value"] == []
    assert shown["operations"]["value"][0] == "compact"
