"""Whoever comes from Modak or Iceberg's procedures is told the right key, never one of the opposite meaning."""

from __future__ import annotations

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import layers as foreign_names
from icekeeper.policy.keys import POLICY_KEYS
from icekeeper.policy.layers import Layer, layers_for
from icekeeper.policy.resolve import resolve


def refusal(key: str) -> str:
    with pytest.raises(PolicyError) as refused:
        resolve([Layer("--set", {key: "5"})])
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "here"),
    [
        ("snapshot_min_retained", "max_snapshots_to_keep, the newest snapshots that are always kept"),
        ("retain_last", "max_snapshots_to_keep, the newest snapshots that are always kept"),
        ("rewrite_target_bytes", "target_file_size_mb, in MB (2^20 bytes)"),
        ("orphan_grace_hours", "orphan_older_than_hours"),
        ("delete-file-threshold", "delete_compaction_min_deletes"),
        ("partial-progress.enabled", "partial_progress, file groups per commit; 0 is off"),
    ],
)
def test_a_name_of_another_service_is_translated(key: str, here: str) -> None:
    said = refusal(key)
    assert said == f"unknown policy key '{key}' (from --set); here it is {here}"
    assert "snapshot_retain_max" not in said


def test_the_environment_is_no_exception() -> None:
    with pytest.raises(PolicyError, match="here it is max_snapshots_to_keep") as refused:
        layers_for({}, {"ICEKEEPER_SNAPSHOT_MIN_RETAINED": "3"}, {})
    assert "RETAIN_MAX" not in str(refused.value)


def test_every_translation_names_a_key_of_ours_or_says_that_there_is_none() -> None:
    for foreign, here in foreign_names._NAMES.items():
        assert foreign not in POLICY_KEYS
        assert here.startswith(("no setting", "--dry-run")) or any(key in here for key in POLICY_KEYS), here
