"""Where settings come from, which of them wins, and what a bound holds."""

from __future__ import annotations

from fractions import Fraction
from types import SimpleNamespace

import pytest

from icekeeper.policy import (
    Layer,
    gc_enabled,
    layers_for,
    resolve,
)
from support.settings import refusal, resolved


def test_later_layers_win_in_the_documented_order() -> None:
    """deployment < Iceberg's own property < icekeeper.<key> < --set, and each names its source."""
    environment = {"ICEKEEPER_TARGET_FILE_SIZE_MB": "10", "ICEKEEPER_STATE": "/tmp/state.db"}
    own = {"write.target-file-size-bytes": "20971520"}
    ours = {"icekeeper.target_file_size_mb": "30"}
    steps = [
        (resolved(), "256", "default"),
        (resolved({}, environment), "10", "deployment ICEKEEPER_TARGET_FILE_SIZE_MB"),
        (resolved(own, environment), "20", "table property write.target-file-size-bytes"),
        (resolved(own | ours, environment), "30", "table property icekeeper.target_file_size_mb"),
        (resolved(own | ours, environment, target_file_size_mb="40"), "40", "--set"),
    ]
    for step, value, source in steps:
        row = next(row for row in step.rows() if row[0] == "target_file_size_mb")
        assert row == ("target_file_size_mb", value, source, "size that rewritten data files aim at, in MB (2^20)")


def test_icebergs_own_properties_convert_exactly() -> None:
    policy = resolved(
        {
            "write.target-file-size-bytes": "1572864",
            "history.expire.max-snapshot-age-ms": "1000",
            "history.expire.min-snapshots-to-keep": "7",
        }
    ).policy
    assert policy.target_file_size_mb == Fraction(3, 2)
    assert policy.target_file_size_bytes == 1_572_864
    assert policy.snapshot_retention_ms == 1000
    assert policy.max_snapshots_to_keep == 7


def test_rules_and_the_table_buckets_settings_lie_between_deployment_and_table() -> None:
    environment = {"ICEKEEPER_TARGET_FILE_SIZE_MB": "10", "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48"}
    rules = [Layer("rule 1", {"target_file_size_mb": "11"}), Layer("rule 2", {"target_file_size_mb": "12"})]
    bucket = [Layer("S3 Tables", {"target_file_size_mb": 13, "snapshot_retention_hours": 1})]
    own = {"write.target-file-size-bytes": "20971520"}

    def source(properties: dict[str, str], rules: list[Layer], bucket: list[Layer]) -> str:
        return resolve(layers_for(properties, environment, {}, rules=rules, bucket=bucket)).sources[
            "target_file_size_mb"
        ]

    assert source({}, rules, []) == "rule 2"
    assert source({}, rules, bucket) == "S3 Tables"
    assert source(own, rules, bucket) == "table property write.target-file-size-bytes"
    # The deployment's bounds hold for what the bucket is set to, too.
    bounded = resolve(layers_for({}, environment, {}, rules=rules, bucket=bucket))
    assert bounded.policy.snapshot_retention_hours == 48
    assert bounded.sources["snapshot_retention_hours"] == "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "512 MB"),
        ("write.target-file-size-bytes", "0"),
        ("history.expire.max-snapshot-age-ms", "-1"),
        ("history.expire.max-snapshot-age-ms", "1.5"),
        ("history.expire.min-snapshots-to-keep", "0"),
        ("history.expire.min-snapshots-to-keep", ""),
    ],
)
def test_a_malformed_property_of_iceberg_is_named(name: str, value: str) -> None:
    minimum = 0 if "age" in name else 1
    assert refusal({name: value}) == (
        f"table property {name} is '{value}'; it must be a whole number of at least {minimum}"
    )


def test_a_mistake_is_refused_even_where_a_later_layer_hides_it() -> None:
    assert refusal({"icekeeper.min_input_files": "x"}, {}, min_input_files="3").startswith(
        "policy key min_input_files cannot be 'x' (from table property icekeeper.min_input_files): "
    )


def test_a_misspelt_variable_is_refused_and_an_unrelated_one_is_not() -> None:
    assert refusal({}, {"ICEKEEPER_SNAPSHOT_RETENTON_HOURS": "1"}) == (
        "environment variable ICEKEEPER_SNAPSHOT_RETENTON_HOURS is no setting "
        "(did you mean ICEKEEPER_SNAPSHOT_RETENTION_HOURS?)"
    )
    assert resolved({}, {"ICEKEEPER_STATE": "x", "ICEKEEPER_CATALOG": "y"}) == resolve([])


def test_a_table_cannot_set_what_steers_the_deployment() -> None:
    assert refusal({"icekeeper.max_jobs_per_detection": "1"}) == (
        "table property icekeeper.max_jobs_per_detection cannot be set on a table: "
        "max_jobs_per_detection is a setting of the deployment"
    )


def test_a_bound_tightens_what_later_layers_loosen() -> None:
    environment = {
        "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48",
        "ICEKEEPER_BOUND_ORPHAN_OLDER_THAN_HOURS": "96",
        "ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false",
    }
    result = resolved({}, environment, snapshot_retention_hours="1", maintenance_enabled="true")
    assert result.policy.snapshot_retention_hours == 48
    assert result.sources["snapshot_retention_hours"] == "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS"
    assert result.policy.orphan_older_than_hours == 96
    assert result.why_disabled() == "maintenance is disabled (bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED)"


def test_a_bound_leaves_what_is_tighter_alone() -> None:
    result = resolved({}, {"ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48"}, snapshot_retention_hours="49")
    assert result.policy.snapshot_retention_hours == 49
    assert result.sources["snapshot_retention_hours"] == "--set"


def test_a_bound_that_could_not_bind_is_refused() -> None:
    assert refusal({}, {"ICEKEEPER_BOUND_WHERE": "a = 1"}).startswith(
        "environment variable ICEKEEPER_BOUND_WHERE is no bound; allowed are ICEKEEPER_BOUND_"
    )
    assert refusal({}, {"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "true"}) == (
        "policy key maintenance_enabled cannot be bounded to 'true' "
        "(from bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED), its loosest value; tighter is false"
    )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, True), ({"gc.enabled": "TRUE"}, True), ({"gc.enabled": "false"}, False), ({"gc.enabled": "maybe"}, False)],
)
def test_gc_enabled_deletes_nothing_when_in_doubt(properties: dict[str, str], expected: bool) -> None:
    assert gc_enabled(SimpleNamespace(properties=properties)) is expected


def test_named_snapshots_do_not_get_below_a_bounded_retention() -> None:
    """They expire whatever the retention says, which a deployment that bounds it did not mean."""
    assert resolved(snapshot_expire_ids="7, 5,7").policy.snapshot_expire_ids == (7, 5)
    assert resolved(snapshot_expire_ids="none").policy.snapshot_expire_ids == ()
    other = {"ICEKEEPER_BOUND_ORPHAN_OLDER_THAN_HOURS": "90"}
    assert resolved({}, other, snapshot_expire_ids="7").policy.snapshot_expire_ids == (7,)
    for bound in ("ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS", "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP"):
        assert refusal({}, {bound: "9"}, snapshot_expire_ids="7") == (
            f"policy key snapshot_expire_ids (from --set) cannot be used: it would go below bound {bound}"
        )


def test_named_snapshots_are_whole_numbers_and_no_more_than_may_expire() -> None:
    assert refusal(snapshot_expire_ids="7,x") == (
        "policy key snapshot_expire_ids cannot be '7,x' (from --set): 'x' is no snapshot id; write a comma-separated "
        "list of whole numbers"
    )
    assert refusal(snapshot_expire_ids="7,8", snapshot_expire_limit="1") == (
        "snapshot_expire_limit 1 (from --set) contradicts snapshot_expire_ids 7,8 (from --set): more snapshots are "
        "named than may expire"
    )
