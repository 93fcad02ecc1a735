"""The limits of table properties that an attacker sets (rule: properties-never-loosen)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from icekeeper.commit.manifest_lanes import manifest_target_bytes
from icekeeper.errors import PolicyError, TableUnsupported
from icekeeper.operations.compaction.terms.recipe import MAX_SORT_COLUMNS, choose_recipe
from icekeeper.operations.compaction.terms.write_properties import metrics_modes, output_properties, writer_options
from icekeeper.operations.compaction.work import write_file as write
from icekeeper.operations.compaction.work.write_file import write_data_file
from icekeeper.policy import POLICY_KEYS, Operation, ResolvedPolicy, layers_for, resolve
from icekeeper.policy.keys import DEPLOYMENT_KEYS
from icekeeper.policy.layers import BOUND_KEYS, Layer
from icekeeper.policy.values import text_of
from icekeeper.rows.arrow_schema import leaf_columns
from icekeeper.storage.storage import Storage
from support.plans import policy, table
from support.rewrites import rows, struct, task
from support.settings import NONE, refusal
from support.settings import resolved as resolved_settings


@dataclass(frozen=True)
class May:
    """How a table may set a key, and values to try, as text."""

    kind: str
    """``any``: any value; ``unstated``: looser values if the operator sets none; ``tighter``: only tighter values;
    ``nothing``; ``never``: not even if the deployment allows it."""
    tight: str = ""
    stated: str = ""
    """The operator's value."""
    loose: str = ""


MAY: Mapping[str, May] = {
    "maintenance_enabled": May("unstated", "false", "false", "true"),
    "paused_until": May("unstated", "2099-01-02T00:00:00Z", "2099-01-01T00:00:00Z", "none"),
    "operations": May("tighter", "compact", "compact,expire_snapshots", "compact,expire_snapshots,expire_partitions"),
    "target_file_size_mb": May("any", "300", "256", "1"),
    "min_file_size_ratio": May("unstated", "0.1", "0.5", "0.9"),
    "max_file_group_size_mb": May("unstated", "500", "1000", "200000"),
    "min_input_files": May("unstated", "20", "10", "2"),
    "partition_rest_hours": May("unstated", "48", "30", "0"),
    "expected_scans": May("unstated", "1", "100", "none"),
    "min_row_group_copy_bytes": May("unstated", "none", "20000000", "2000000"),
    "rewrite_all": May("unstated", "false", "false", "true"),
    "rewrite_reason": May("unstated", "codec", "codec,bloom", "codec,bloom,spec"),
    "max_files_to_rewrite": May("unstated", "10", "100", "none"),
    "max_bytes_to_rewrite": May("unstated", "10", "100", "none"),
    "rewrite_job_order": May("any", "", "bytes-asc", "files-asc"),
    "min_partition_age_hours": May("unstated", "5", "3", "none"),
    "apply_deletes": May("unstated", "false", "false", "true"),
    "convert_equality_deletes": May("unstated", "false", "false", "true"),
    "delete_compaction_min_deletes": May("unstated", "50", "5", "1"),
    "delete_compaction_min_ratio": May("unstated", "0.9", "0.5", "0.001"),
    "strategy": May("any", "binpack", "auto", "sort"),
    "sort_order": May("any", "", "a", "b"),
    "where": May("any", "", "a = 1", "b = 1"),
    "branch": May("any", "", "a", "b"),
    "output_spec": May("any", "", "current", "keep"),
    "partial_progress": May("unstated", "0", "10", "1"),
    "proof": May("unstated", "full", "full", "counts"),
    "snapshot_retention_hours": May("unstated", "900", "800", "0"),
    "max_snapshots_to_keep": May("unstated", "90", "80", "1"),
    "snapshot_retain_max": May("unstated", "none", "80", "5"),
    "snapshot_expire_limit": May("unstated", "1", "10", "none"),
    "snapshot_expire_ids": May("any", "", "7", "8"),
    "snapshot_give_up_ids": May("never", "", "none", "8"),
    "writer_mark_retention_hours": May("unstated", "900", "800", "0"),
    "clean_expired_metadata": May("unstated", "false", "false", "true"),
    "orphan_older_than_hours": May("tighter", "900", "800", "24"),
    "orphan_protected_prefixes": May("tighter"),  # a union, tested below
    "orphan_sweep_prefixes": May("never", "none", "s3://b/a", "s3://b/a,s3://victim"),
    "orphan_table_types": May("never", "none", "fact", "fact,lance"),
    "orphan_file_endings": May("never", "none", "bin", "bin,lance"),
    "orphan_sweep_interval_hours": May("tighter", "90", "80", "0"),
    "orphan_max_delete_ratio": May("tighter", "0.1", "0.2", "1"),
    "orphan_max_missing_ratio": May("tighter", "0.001", "0.002", "1"),
    "orphan_inventory": May("nothing", "", "s3://b/list", "s3://victim/list"),
    "min_manifests_to_rewrite": May("unstated", "90", "10", "2"),
    "statistics_columns": May("any", "", "a", "b"),
    "partition_retention_hours": May("unstated", "none", "900", "1"),
    "partition_time": May("any", "", "a", "b=%Y/%m/%d"),
    "max_commit_retries": May("unstated", "0", "4", "90"),
    "rewrite_enabled": May("unstated", "false", "false", "true"),
    "delete_compaction_enabled": May("unstated", "false", "false", "true"),
    "manifest_rewrite_enabled": May("unstated", "false", "false", "true"),
    "snapshot_expiry_enabled": May("unstated", "false", "false", "true"),
    "orphan_sweep_enabled": May("tighter", "false", "false", "true"),
    "ownership": May("unstated", "auto", "auto", "icekeeper"),
    **dict.fromkeys(
        (
            *("table_settings", "bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection"),
            *("detection_timeout_s", "detection_interval_s", "max_concurrent_jobs", "max_concurrent_jobs_per_worker"),
            *("job_timeout_s", "job_retry_limit"),
        ),
        May("deployment"),
    ),
}
TRIED = [key for key in POLICY_KEYS if MAY[key].loose]  # fails for a key that is missing in MAY


def policy_with(key: str, table: str, environment: Mapping[str, str] = NONE) -> ResolvedPolicy:
    """The policy of a table with this value of a key."""
    return resolve(layers_for({f"icekeeper.{key}": table}, environment, {}), unsafe=True)


def has_value(resolved: ResolvedPolicy, key: str, text: str) -> bool:
    return bool(getattr(resolved.policy, key) == getattr(resolve([Layer("x", {key: text})], unsafe=True).policy, key))


def operator_sets(key: str, settings: str = "default") -> dict[str, str]:
    return {f"ICEKEEPER_{key.upper()}": MAY[key].stated, "ICEKEEPER_TABLE_SETTINGS": settings}


def test_every_key_is_classified_for_tables() -> None:
    assert MAY.keys() == set(POLICY_KEYS)
    assert {key for key in MAY if MAY[key].kind == "deployment"} == DEPLOYMENT_KEYS


@pytest.mark.parametrize("key", TRIED)
def test_a_looser_value_counts_according_to_the_kind_of_key(key: str) -> None:
    may, resolved = MAY[key], policy_with(key, MAY[key].loose)
    counts = may.kind in ("any", "unstated")
    assert counts or not has_value(resolved, key, may.loose) or has_value(resolve([]), key, may.loose)
    if counts:
        assert has_value(resolved, key, may.loose)
        assert resolved.ignored == ()
    resolved = policy_with(key, may.loose, operator_sets(key))
    assert has_value(resolved, key, may.loose if may.kind == "any" else may.stated)
    assert [item.why != "" for item in resolved.ignored] == [may.kind != "any"] * (may.kind != "any")
    assert has_value(policy_with(key, may.loose, operator_sets(key, "none")), key, may.stated)


@pytest.mark.parametrize("key", [key for key in TRIED if MAY[key].tight])
def test_a_tighter_value_always_counts(key: str) -> None:
    for settings in ("default", "none"):
        resolved = policy_with(key, MAY[key].tight, operator_sets(key, settings))
        assert has_value(resolved, key, MAY[key].tight)
        assert resolved.ignored == ()


@pytest.mark.parametrize("key", TRIED)
def test_the_deployment_may_let_tables_set_a_key_to_any_value(key: str) -> None:
    environment = operator_sets(key, f"default,{key}")
    if MAY[key].kind == "never":
        assert refusal({}, environment).endswith(f"'{key}' cannot be set by a table")
        return
    for words in (key, "all"):
        resolved = policy_with(key, MAY[key].loose, operator_sets(key, words))
        assert has_value(resolved, key, MAY[key].loose)
        assert resolved.ignored == ()


@pytest.mark.parametrize("key", sorted(BOUND_KEYS & set(TRIED)))
def test_no_layer_loosens_a_bound_of_the_environment(key: str) -> None:
    may, variable = MAY[key], f"ICEKEEPER_BOUND_{key.upper()}"
    bound = {variable: may.stated, "ICEKEEPER_TABLE_SETTINGS": "all"}
    resolved = policy_with(key, may.loose, bound)
    assert has_value(resolved, key, "none" if may.kind == "never" else may.stated)
    if may.kind != "never":
        assert [item.why for item in resolved.ignored] == [
            f"bound {variable} keeps it at {text_of(getattr(resolved.policy, key))}"
        ]
    assert has_value(resolve(layers_for({}, bound, {key: may.loose}), unsafe=True), key, may.stated)
    assert has_value(resolve(layers_for({f"icekeeper.{key}": may.tight}, bound, {}), unsafe=True), key, may.tight)


def test_every_ordered_key_can_be_bounded() -> None:
    unordered = {key for key in POLICY_KEYS if key not in BOUND_KEYS and key not in DEPLOYMENT_KEYS}
    assert unordered == {
        *("rewrite_job_order", "sort_order", "where", "branch", "output_spec"),
        *("snapshot_expire_ids", "snapshot_give_up_ids", "orphan_inventory", "statistics_columns"),
        "partition_time",
    }
    assert all(MAY[key].tight == "" for key in unordered)


# -- the attacks


def resolve_attack(attack: Mapping[str, str], environment: Mapping[str, str] = NONE) -> ResolvedPolicy:
    return resolve(layers_for({f"icekeeper.{key}": value for key, value in attack.items()}, environment, {}))


def test_a_table_cannot_add_operations() -> None:
    resolved = resolve_attack(
        {"operations": "expire_partitions,compact"}, {"ICEKEEPER_OPERATIONS": "compact,remove_orphans"}
    )
    assert resolved.policy.operations == (Operation.COMPACT,)
    assert resolve_attack({"operations": "expire_partitions"}).policy.operations == ()
    assert [item.why for item in resolved.ignored] == [
        "operations is compact,remove_orphans (deployment ICEKEEPER_OPERATIONS), and a table may only leave some of "
        "these out; ICEKEEPER_TABLE_SETTINGS=default,operations (TableSettings of the stack) lets tables set it"
    ]


def test_protected_prefixes_are_the_union_of_all_layers() -> None:
    kept = {"ICEKEEPER_ORPHAN_PROTECTED_PREFIXES": "s3://lake/kept"}
    attacked = resolve_attack({"orphan_protected_prefixes": "none"}, kept)
    assert attacked.policy.orphan_protected_prefixes == ("s3://lake/kept",)
    layers = layers_for(
        {"icekeeper.orphan_protected_prefixes": "s3://c, s3://a"},
        {"ICEKEEPER_ORPHAN_PROTECTED_PREFIXES": "s3://a", "ICEKEEPER_BOUND_ORPHAN_PROTECTED_PREFIXES": "s3://e"},
        {"orphan_protected_prefixes": "s3://d"},
        rules=[Layer("rule", {"orphan_protected_prefixes": "s3://b"})],
    )
    resolved = resolve(layers)
    assert resolved.policy.orphan_protected_prefixes == ("s3://a", "s3://b", "s3://c", "s3://d", "s3://e")
    assert resolved.sources["orphan_protected_prefixes"] == (
        "deployment ICEKEEPER_ORPHAN_PROTECTED_PREFIXES, rule, table property icekeeper.orphan_protected_prefixes, "
        "this call, bound ICEKEEPER_BOUND_ORPHAN_PROTECTED_PREFIXES"
    )


@pytest.mark.parametrize(
    ("attack", "kept"),
    [
        ({"history.expire.max-snapshot-age-ms": "0"}, "snapshot_retention_hours"),
        ({"history.expire.min-snapshots-to-keep": "1"}, "max_snapshots_to_keep"),
        ({"icekeeper.snapshot_retain_max": "90"}, "snapshot_retain_max"),
        ({"icekeeper.snapshot_expire_ids": "7"}, "snapshot_expire_ids"),
    ],
)
@pytest.mark.parametrize("prefix", ["ICEKEEPER_", "ICEKEEPER_BOUND_"])
def test_no_property_loosens_a_retention(attack: Mapping[str, str], kept: str, prefix: str) -> None:
    environment = {f"{prefix}SNAPSHOT_RETENTION_HOURS": "720", f"{prefix}MAX_SNAPSHOTS_TO_KEEP": "80"}
    without, resolved = resolve(layers_for({}, environment, {})), resolve(layers_for(attack, environment, {}))
    assert resolved.policy == without.policy
    assert [(item.key, item.source) for item in resolved.ignored] == [(kept, f"table property {next(iter(attack))}")]
    tighter = {"history.expire.max-snapshot-age-ms": str(2**62), "history.expire.min-snapshots-to-keep": "99"}
    assert resolve(layers_for(tighter, environment, {})).policy.max_snapshots_to_keep == 99
    assert resolve(layers_for(tighter, environment, {})).ignored == ()


def test_a_bounded_retention_disables_a_maximum_of_snapshots() -> None:
    bound = {"ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48"}
    assert resolve(layers_for({}, bound, {"snapshot_retain_max": "9"})).policy.snapshot_retain_max is None


def test_extreme_values_are_capped() -> None:
    resolved = resolve(layers_for({"write.target-file-size-bytes": "1"}, {}, {}))
    assert resolved.policy.target_file_size_mb == 1
    assert [item.why for item in resolved.ignored] == [
        "a table may set it to 1 at the loosest; ICEKEEPER_TABLE_SETTINGS=default,target_file_size_mb "
        "(TableSettings of the stack) lets tables set it"
    ]
    assert resolve_attack({"min_row_group_copy_bytes": "1"}).policy.min_row_group_copy_bytes == 1024 * 1024
    assert resolve_attack({"max_commit_retries": "1000000000"}).policy.max_commit_retries == 100
    more = resolve_attack({"max_commit_retries": "1000"}, {"ICEKEEPER_TABLE_SETTINGS": "default,max_commit_retries"})
    assert more.policy.max_commit_retries == 1000


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("icekeeper.orphan_max_missing_ratio", "default"),
        ("icekeeper.orphan_sweep_prefixes", "default"),
        ("icekeeper.snapshot_give_up_ids", "all"),
        ("icekeeper.min_input_files", "none"),
        ("history.expire.min-snapshots-to-keep", "none"),
        ("history.expire.min-snapshots-to-keep", "orphan_max_missing_ratio"),
    ],
)
def test_a_malformed_value_of_an_ignored_key_is_not_an_error(name: str, settings: str) -> None:
    environment = {"ICEKEEPER_TABLE_SETTINGS": settings}
    resolved = resolve(layers_for({name: "soon"}, environment, {}))
    assert resolved.policy == resolve(layers_for({}, environment, {})).policy
    assert name in {item.source.removeprefix("table property ") for item in resolved.ignored}


def test_a_malformed_value_of_a_key_that_a_table_may_set_is_an_error() -> None:
    assert "cannot be 'few'" in refusal({"icekeeper.min_input_files": "few"})
    assert "must be a whole number" in refusal({"history.expire.min-snapshots-to-keep": "few"})
    assert "cannot be 'soon'" in refusal(
        {"icekeeper.orphan_max_missing_ratio": "soon"}, {"ICEKEEPER_TABLE_SETTINGS": "orphan_max_missing_ratio"}
    )


def test_an_unknown_key_in_table_settings_is_an_error() -> None:
    assert refusal({}, {"ICEKEEPER_TABLE_SETTINGS": "default,orphan_max_missing_rati"}) == (
        "policy key table_settings cannot be 'default,orphan_max_missing_rati' (from deployment "
        "ICEKEEPER_TABLE_SETTINGS): 'orphan_max_missing_rati' is not a policy key (did you mean "
        "'orphan_max_missing_ratio'?); write keys, default, all or none"
    )
    assert "cannot be set by a table" in refusal({}, {"ICEKEEPER_TABLE_SETTINGS": "table_filter"})
    assert refusal({"icekeeper.table_settings": "all"}).endswith("table_settings is a setting of the deployment")


# Attacks by Iceberg's own table properties.

SCHEMA = struct(*((number, f"c{number}", "long") for number in range(1, 41)))
LEAVES = leaf_columns(SCHEMA)
MB = 1024 * 1024
DIGITS = "9" * 5000  # more than Python converts to an int


def output_settings(**properties: str) -> dict[str, str]:
    """Output properties of a table with the properties ``write.parquet.…``."""
    prefixed = {f"write.parquet.{key.replace('_', '-')}": value for key, value in properties.items()}
    return output_properties(table(properties=prefixed, schemas=[{**SCHEMA, "schema-id": 0}]))


def options(**properties: str) -> dict[str, Any]:
    return writer_options(output_settings(**properties), LEAVES, 100_000)


def test_a_page_has_at_least_a_thousand_rows() -> None:
    """Pages of one row take 500 times the CPU, 80 times the bytes, and memory for an index entry per row."""
    assert options(page_row_limit="1")["max_rows_per_page"] == 1000
    assert options(page_row_limit="5000")["max_rows_per_page"] == 5000


@pytest.mark.parametrize(
    ("codec", "level", "used"), [("zstd", "22", 12), ("zstd", "5", 5), ("brotli", "11", 9), ("gzip", "9", 9)]
)
def test_compression_levels_are_capped(codec: str, level: str, used: int) -> None:
    assert options(compression_codec=codec, compression_level=level)["compression_level"] == used


@pytest.mark.parametrize(("codec", "level"), [("zstd", 3), ("gzip", 6), ("snappy", None)])
def test_the_default_compression_level_is_that_of_parquet_java(codec: str, level: int | None) -> None:
    """Files with Arrow's level 1 for zstd are larger than the files that they replace."""
    assert options(compression_codec=codec)["compression_level"] == level
    assert options()["compression_level"] == 3


def test_bloom_filters_of_a_row_group_are_capped() -> None:
    """A filter with a probability of 1e-300 has 128 MB for a single value."""
    filters = {f"bloom-filter-enabled.column.c{number}": "true" for number in range(1, 41)}
    fpp = {f"bloom-filter-fpp.column.c{number}": "1e-300" for number in range(1, 41)}
    found = options(**filters, **fpp, bloom_filter_max_bytes=str(10**18))["bloom_filter_options"]
    assert len(found) == 40
    assert {item["fpp"] for item in found.values()} == {1e-6}
    assert max(item["ndv"] for item in found.values()) * 41 / 8 * 40 < 160 * MB  # 41 bits per value
    usual = options(**filters)["bloom_filter_options"]
    assert {item["ndv"] for item in usual.values()} == {100_000}


@pytest.mark.parametrize("key", ["page-size-bytes", "page-row-limit", "dict-size-bytes"])
def test_numbers_beyond_arrows_range_are_capped(key: str) -> None:
    name = {"page-size-bytes": "data_page_size", "page-row-limit": "max_rows_per_page"}
    assert options(**{key: str(2**62)})[name.get(key, "dictionary_pagesize_limit")] == 2**31 - 1


@pytest.mark.parametrize(
    "key", ["page-size-bytes", "page-row-limit", "dict-size-bytes", "compression-level", "bloom-filter-max-bytes"]
)
def test_a_number_of_thousands_of_digits_is_malformed(key: str) -> None:
    with pytest.raises(PolicyError, match=f"table property write.parquet.{key} is '9999"):
        options(**{key: DIGITS, "bloom-filter-enabled.column.c1": "true"})


def test_a_metrics_mode_with_thousands_of_digits_is_ignored() -> None:
    properties = {
        "write.metadata.metrics.default": f"truncate({DIGITS})",
        "write.metadata.metrics.max-inferred-column-defaults": DIGITS,
    }
    assert set(metrics_modes(SCHEMA, properties).values()) == {"truncate(16)"}


def test_the_number_of_row_groups_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_MOST_ROW_GROUPS", 10)
    schema = struct((1, "id", "long"))
    (whole,) = rows(schema, {"id": list(range(1000))}).to_batches()
    path = tmp_path / "file.parquet"
    rewrite = task(schema, [], tmp_path, table_properties={"write.parquet.row-group-size-bytes": "1"})
    write_data_file(str(path), (whole.slice(row, 1) for row in range(1000)), rewrite, Storage({}))
    footer = pq.read_metadata(path)
    assert footer.num_rows == 1000
    assert footer.num_row_groups < 100


@pytest.mark.parametrize(("asked", "total", "used"), [
    ("1", 0, 1),
    ("1", 500 * MB, 52_429),  # 10,000 manifests
    ("40000", 300 * MB, 40_000),
    (str(2**62), MB, 128 * MB),
])  # fmt: skip
def test_the_target_size_of_manifests_is_bounded(asked: str, total: int, used: int) -> None:
    metadata = table(properties={"commit.manifest.target-size-bytes": asked})
    assert manifest_target_bytes(metadata, total) == used


def test_an_integer_property_has_64_bits() -> None:
    for value in (DIGITS, str(2**63), str(-(2**63) - 1)):
        with pytest.raises(PolicyError, match="which is not an integer"):
            manifest_target_bytes(table(properties={"commit.manifest.target-size-bytes": value}), 0)


def test_a_very_long_setting_is_not_parsed() -> None:
    """A hundred thousand parentheses would take seconds in every scan."""
    for key, value in (("where", "(" * 10**6), ("sort_order", "bucket(" * 10**6)):
        assert refusal({f"icekeeper.{key}": value}).endswith(
            f"…' (from table property icekeeper.{key}): it has {len(value):,} characters; a table's setting has 10,000 "
            "at most"
        )
    ignored = resolved_settings({"icekeeper.orphan_inventory": "x" * 10**6}).ignored
    assert [len(item.value) for item in ignored] == [10_000]


def test_a_sort_order_with_more_than_32_columns_is_refused() -> None:
    fields = [
        {"source-id": number % 40 + 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}
        for number in range(MAX_SORT_COLUMNS + 1)
    ]
    orders = [{"order-id": 0, "fields": []}, {"order-id": 1, "fields": fields}]
    more: dict[str, Any] = {"default-sort-order-id": 1, "sort-orders": orders}
    metadata = table(schemas=[{**SCHEMA, "schema-id": 0}], **more)
    assert choose_recipe(metadata, policy(strategy="auto")) is None
    with pytest.raises(TableUnsupported, match="the table's sort order has 33 columns; at most 32 can be applied"):
        choose_recipe(metadata, policy(strategy="sort"))
    names = ",".join(f"c{number}" for number in range(1, MAX_SORT_COLUMNS + 2))
    with pytest.raises(PolicyError, match="sort_order names 33 columns; at most 32 are allowed"):
        choose_recipe(metadata, policy(strategy="sort", sort_order=names))
