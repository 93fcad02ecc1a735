"""Passes over a real table record that no work is left, and detection uses the record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icekeeper.catalogs.catalog import identity_of
from icekeeper.detection.assess import assess_table
from icekeeper.detection.proposal import Proposal
from icekeeper.state.lake_stats import LakeStats
from icekeeper.storage.paths import normalise
from icekeeper.storage.s3_reads import ObjectPart
from icekeeper.storage.storage import Storage
from support.maintained_table import NAME, MaintainedTable

SETTINGS: dict[str, Any] = {
    "operations": "compact,rewrite_position_deletes,rewrite_manifests",
    "min_input_files": "4",
    "min_manifests_to_rewrite": "5",
}


def answer_of(table: MaintainedTable) -> tuple[str, ...] | str:
    """The reasons for a pass, or the reason against it."""
    runtime = table.runtime_with()
    loaded, now_ms = table.loaded, runtime.clock()
    identity = identity_of(table.catalog, loaded)
    found = assess_table(
        loaded,
        identity,
        runtime.policy(loaded, SETTINGS, unsafe=True),
        table.state.glance(identity, now_ms=now_ms),
        now_ms=now_ms,
        plan_sweep=table.state.sweeps.record,
    )
    return found.reasons if isinstance(found, Proposal) else found.reason


def maintained(table: MaintainedTable) -> list[str]:
    runtime = table.runtime_with()
    outcome = runtime.maintain(table.loaded.name, SETTINGS, table.engine, unsafe=True)
    return [item.status.value for item in outcome.operations]


def test_passes_are_proposed_only_when_they_have_work(table: MaintainedTable) -> None:
    """Each commit adds a file; passes merge four files or five manifests at a time, and no pass is idle."""
    table.fill(5)
    done = []
    for number in range(100, 113):
        if isinstance(answer_of(table), tuple):
            done.append([item == "succeeded" for item in maintained(table)])
        table.append(number)
    assert done == [[True, False, False], [True, False, False], [True, False, False], [True, False, True]]


def test_an_idle_pass_is_recorded_across_small_commits(table: MaintainedTable) -> None:
    table.fill(1)
    assert maintained(table) == ["skipped"] * 3
    assert answer_of(table) == "nothing came since the last pass"
    table.append(50)
    table.append(51)
    assert (
        answer_of(table)
        == "2 data files came since the last pass, fewer than 4; 2 commits came since the last pass, fewer than 5"
    )
    table.append(52)
    table.append(53)
    assert isinstance(answer_of(table), tuple)
    assert maintained(table)[0] == "succeeded"


# The manifests of a head whose summary does not count them, as of PyIceberg and Iceberg-Java up to 1.10.

MANIFESTS = {"operations": "rewrite_manifests", "min_manifests_to_rewrite": "5", "min_input_files": "100"}


def recorded(table: MaintainedTable) -> LakeStats:
    (found,) = table.state.lake_stats.of_catalog(table.catalog.id)
    return found


def proposed(table: MaintainedTable) -> tuple[str, ...]:
    return tuple(reason for item in table.runtime.detect(MANIFESTS).proposals for reason in item.reasons)


def reads_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    read, seen = Storage.read_start, list[str]()

    def noted(storage: Storage, path: str) -> ObjectPart:
        seen.append(path)
        return read(storage, path)

    monkeypatch.setattr(Storage, "read_start", noted)
    return seen


def test_a_scan_counts_the_manifests_of_each_new_head_once(
    table: MaintainedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the manifest list once without decoding it."""
    seen = reads_of(monkeypatch)
    table.fill(4)
    assert proposed(table) == ()
    assert (recorded(table).counters["lake_manifests"], recorded(table).warnings) == (4, {})
    table.fill(2, start=10)
    for _ in range(2):
        assert proposed(table) == ("6 manifests reach min_manifests_to_rewrite 5",)
        assert recorded(table).counters["lake_manifests"] == 6
        assert recorded(table).warnings == {
            "manifest_sprawl": "6 manifests for 6 data files reach min_manifests_to_rewrite 5",
            "small_files": "6 data files of 915 B on average are below 192 MB",  # the table's policy merges them
        }
    assert len(seen) == len({*seen}) == 2
    assert table.runtime.afresh.health(NAME).counters["lake_manifests"] == 6
    table.runtime.maintain(NAME, MANIFESTS, table.engine)
    assert (proposed(table), recorded(table).counters["lake_manifests"]) == ((), 1)
    assert list(recorded(table).warnings) == ["small_files"]
    assert len(seen) == 2, "our own commits count them"


@pytest.mark.parametrize("damage", ["cut off", "gone", "elsewhere"])
def test_an_unreadable_manifest_list_is_a_warning_but_not_a_signal(table: MaintainedTable, damage: str) -> None:
    table.fill(6)
    head = table.metadata.current_snapshot
    assert head is not None
    assert head.manifest_list is not None
    manifest_list = Path(normalise(head.manifest_list))
    content = manifest_list.read_bytes()
    if damage == "cut off":
        manifest_list.write_bytes(content[:-5])
    elif damage == "gone":
        manifest_list.unlink()
    else:
        table.rewrite_document(lambda document: document["snapshots"][-1].update({"manifest-list": "/etc/hostname"}))
    why = {"cut off": "is damaged or truncated", "gone": "does not exist", "elsewhere": "is outside"}[damage]
    for _ in range(2):
        assert proposed(table) == ()
        assert "lake_manifests" not in recorded(table).counters
        assert list(recorded(table).warnings) == ["manifests_unread", "small_files"]
        assert "the number of the table's manifests is unknown: " in recorded(table).warnings["manifests_unread"]
        assert why in recorded(table).warnings["manifests_unread"]
    if damage != "elsewhere":
        manifest_list.write_bytes(content)
        assert proposed(table) == ("6 manifests reach min_manifests_to_rewrite 5",)
        assert list(recorded(table).warnings) == ["manifest_sprawl", "small_files"]
