"""Passes over a real table record where they had nothing more to do, and detection goes by it."""

from __future__ import annotations

from typing import Any

from icekeeper.catalogs.catalog import identity_of
from icekeeper.detection.assess import assess_table
from icekeeper.detection.proposal import Proposal
from support.maintained_table import MaintainedTable

SETTINGS: dict[str, Any] = {
    "operations": "compact,rewrite_position_deletes,rewrite_manifests",
    "min_input_files": "4",
    "min_manifests_to_rewrite": "5",
}


def told(table: MaintainedTable) -> tuple[str, ...] | str:
    """The reasons for a pass, or why there is none."""
    runtime = table.runtime_with()
    loaded, now_ms = table.loaded, runtime.clock()
    identity = identity_of(table.catalog, loaded)
    found = assess_table(
        loaded,
        identity,
        runtime.policy(loaded, SETTINGS, unsafe=True),
        table.state.glance(identity, now_ms=now_ms),
        now_ms=now_ms,
        plan_sweep=table.state.schedules.record,
    )
    return found.reasons if isinstance(found, Proposal) else found.reason


def maintained(table: MaintainedTable) -> list[str]:
    runtime = table.runtime_with()
    outcome = runtime.maintain(table.loaded.name, SETTINGS, table.engine, unsafe=True)
    return [one.status.value for one in outcome.operations]


def test_passes_are_proposed_when_they_have_work_and_not_before(table: MaintainedTable) -> None:
    """One file a commit: passes merge four files or five manifests at a time, and none comes in vain."""
    table.fill(5)
    done = []
    for number in range(100, 113):
        if isinstance(told(table), tuple):
            done.append([one == "succeeded" for one in maintained(table)])
        table.append(number)
    assert done == [[True, False, False], [True, False, False], [True, False, False], [True, False, True]]


def test_an_idle_pass_is_remembered_across_small_commits(table: MaintainedTable) -> None:
    table.fill(1)
    assert maintained(table) == ["skipped"] * 3
    assert told(table) == "unchanged since the last pass found nothing to do"
    table.append(50)
    table.append(51)
    assert told(table) == "2 data files came since the last pass, fewer than 4"
    table.append(52)
    table.append(53)
    assert isinstance(told(table), tuple)
    assert maintained(table)[0] == "succeeded"
