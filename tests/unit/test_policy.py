"""Settings: what they mean, and what is refused."""

from __future__ import annotations

import pytest

from icekeeper.errors import PolicyError
from icekeeper.policy import (
    DEPLOYMENT_KEYS,
    Layer,
    Operation,
    Policy,
    resolve,
)
from support.settings import refusal, resolved


def test_the_defaults_are_those_of_the_documentation() -> None:
    policy = resolve([]).policy
    assert policy.maintenance_enabled is True
    assert policy.operations == (
        Operation.COMPACT,
        Operation.REWRITE_POSITION_DELETES,
        Operation.EXPIRE_SNAPSHOTS,
        Operation.REMOVE_ORPHANS,
        Operation.REWRITE_MANIFESTS,
    )
    assert policy.target_file_size_bytes == 268_435_456
    assert policy.min_file_size_bytes == 201_326_592
    assert policy.max_file_group_size_bytes == 107_374_182_400
    assert policy.min_input_files == 5
    assert policy.apply_deletes is True
    assert policy.snapshot_retention_ms == 604_800_000
    assert policy.max_snapshots_to_keep == 5
    assert policy.orphan_older_than_ms == 259_200_000
    assert policy.min_manifests_to_rewrite == 5
    assert policy.max_commit_retries == 5
    assert policy.max_jobs_per_detection == 100
    assert policy.detection_timeout_s == 300
    assert policy == Policy()


def test_every_key_has_a_meaning() -> None:
    assert all(field.description for field in Policy.model_fields.values())
    assert {
        "bucket_filter",
        "detection_interval_s",
        "detection_timeout_s",
        "job_retry_limit",
        "job_timeout_s",
        "max_concurrent_jobs",
        "max_concurrent_jobs_per_worker",
        "max_jobs_per_detection",
        "namespace_filter",
        "table_filter",
        "table_settings",
    } == DEPLOYMENT_KEYS


def test_fractions_of_a_byte_and_a_millisecond_round_to_the_safe_side() -> None:
    policy = resolved(target_file_size_mb="0.000003", snapshot_retention_hours="0.0000001").policy
    assert policy.target_file_size_bytes == 3
    assert policy.min_file_size_bytes == 3
    assert policy.snapshot_retention_ms == 1
    assert resolved(target_file_size_mb="0.0000000001").policy.target_file_size_bytes == 1


def test_amounts_are_shown_as_they_are_written() -> None:
    rows = {row[0]: row[1] for row in resolved({"history.expire.max-snapshot-age-ms": "1000"}).rows()}
    assert rows["snapshot_retention_hours"] == "≈0.000277778"
    assert rows["min_file_size_ratio"] == "0.75"
    assert rows["orphan_older_than_hours"] == "72"
    assert rows["snapshot_retain_max"] == "none"
    assert rows["table_filter"] == "none"
    assert rows["operations"] == "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests"


def test_operations_come_out_in_canonical_order_and_once() -> None:
    policy = resolved(operations="rewrite_manifests, compact,compact").policy
    assert policy.operations == (Operation.COMPACT, Operation.REWRITE_MANIFESTS)
    assert resolved(operations="all").policy.operations == Policy().operations


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("min_input_files", "1", "input should be greater than or equal to 2"),
        ("min_input_files", "many", "input should be a valid integer, unable to parse string as an integer"),
        ("max_snapshots_to_keep", "0", "input should be greater than or equal to 1"),
        ("snapshot_expire_limit", "0", "input should be greater than or equal to 1"),
        ("max_commit_retries", "-1", "input should be greater than or equal to 0"),
        ("target_file_size_mb", "0", "input should be greater than 0"),
        ("target_file_size_mb", "1e9", "write a number, for example 1.5"),
        ("target_file_size_mb", "nan", "write a number, for example 1.5"),
        ("min_file_size_ratio", "1.01", "input should be less than or equal to 1"),
        ("min_file_size_ratio", "0", "input should be greater than 0"),
        ("snapshot_retention_hours", "-0.5", "input should be greater than or equal to 0"),
        ("rewrite_enabled", "yes", "write true or false"),
        ("strategy", "hilbert", "input should be 'auto', 'binpack', 'sort' or 'zorder'"),
        ("branch", "", "string should have at least 1 character"),
        ("operations", "none", "write all, or a comma-separated list of operations"),
        (
            "operations",
            "compat",
            "'compat' is no operation (did you mean 'compact'?); write all, or a list of expire_partitions, compact, "
            "rewrite_position_deletes, expire_snapshots, remove_orphans, rewrite_manifests, compute_statistics",
        ),
    ],
)
def test_a_malformed_value_is_refused_with_what_is_allowed(key: str, value: str, message: str) -> None:
    assert refusal(**{key: value}) == f"policy key {key} cannot be '{value}' (from --set): {message}"


@pytest.mark.parametrize(
    ("table", "overrides", "source"),
    [
        ({"icekeeper.min_input_file": "3"}, {}, "table property icekeeper.min_input_file"),
        ({}, {"min_input_file": "3"}, "--set"),
    ],
)
def test_an_unknown_key_is_refused_with_the_three_nearest_ones(
    table: dict[str, str], overrides: dict[str, str], source: str
) -> None:
    assert refusal(table, {}, **overrides) == (
        f"unknown policy key 'min_input_file' (from {source}) (did you mean 'min_input_files'?); "
        "the nearest keys are min_input_files, bucket_filter, min_file_size_ratio "
        "(icekeeper policy show NS.TABLE prints all)"
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"snapshot_retain_max": "4"},
            "snapshot_retain_max 4 (from --set) contradicts max_snapshots_to_keep 5 (from default): "
            "the most kept is below the least kept",
        ),
        (
            {"max_file_group_size_mb": "100"},
            "max_file_group_size_mb 100 (from --set) contradicts target_file_size_mb 256 (from default): "
            "a group could not fill one file",
        ),
        (
            {"max_files_to_rewrite": "4"},
            "max_files_to_rewrite 4 (from --set) contradicts min_input_files 5 (from default): "
            "no group would ever be rewritten",
        ),
        (
            {"strategy": "zorder"},
            "strategy zorder (from --set) contradicts zorder_columns none (from default): "
            "z-order needs the columns that it interleaves",
        ),
    ],
)
def test_a_contradiction_names_both_values(overrides: dict[str, str], message: str) -> None:
    assert refusal(**overrides) == message


def test_a_grace_period_below_a_day_needs_unsafe() -> None:
    layers = [Layer("--set", {"orphan_older_than_hours": "23.9"})]
    with pytest.raises(PolicyError) as caught:
        resolve(layers)
    assert str(caught.value) == (
        "policy key orphan_older_than_hours is 23.9 (from --set), below 24: "
        "files of commits that are under way could be deleted; --unsafe allows it"
    )
    assert resolve(layers, unsafe=True).policy.orphan_older_than_ms == 86_040_000


def test_switches_say_who_turned_them_off() -> None:
    result = resolved({"icekeeper.snapshot_expiry_enabled": "false"}, {}, operations="compact,expire_snapshots")
    assert result.why_disabled() is None
    assert result.why_switched_off(Operation.EXPIRE_SNAPSHOTS) == (
        "snapshot_expiry_enabled is false (table property icekeeper.snapshot_expiry_enabled)"
    )
    assert [operation for operation in Operation if result.runs(operation)] == [Operation.COMPACT]
    disabled = resolved(maintenance_enabled="false")
    assert disabled.why_disabled() == "maintenance is disabled (--set)"
    assert not any(disabled.runs(operation) for operation in Operation)


def test_the_fingerprint_follows_values_not_sources() -> None:
    plain = resolve([]).fingerprint()
    assert len(plain) == 64
    assert resolved(min_input_files="5").fingerprint() == plain
    assert resolved(min_input_files="6").fingerprint() != plain
    nearly = [resolved({"history.expire.max-snapshot-age-ms": text}) for text in ("1000000001", "1000000002")]
    assert nearly[0].fingerprint() != nearly[1].fingerprint()
