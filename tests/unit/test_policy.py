"""Settings: their meaning, their sources, and refused values."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from icekeeper.cycle.service import workers_of
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.pipeline.events import MachineInput, parse_event
from icekeeper.policy import Operation, gc_enabled
from icekeeper.policy import layers as foreign_names
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS, Policy, Scope, refuse_meaningless
from icekeeper.policy.layers import Layer, layers_for
from icekeeper.policy.policy_file import matching_layers, parse_policy_file
from icekeeper.policy.resolve import resolve, unused_settings
from icekeeper.storage import listing
from support.settings import refusal, resolved


def test_fractions_of_a_byte_and_a_millisecond_round_to_the_safe_side() -> None:
    policy = resolved(target_file_size_mb="0.000003", snapshot_retention_hours="0.0000001").policy
    assert policy.target_file_size_bytes == 3
    assert policy.min_file_size_bytes == 3
    assert policy.snapshot_retention_ms == 1
    assert resolved(target_file_size_mb="0.0000000001").policy.target_file_size_bytes == 1


def test_values_are_printed_as_text_that_can_be_set_again() -> None:
    rows = {row[0]: row[1] for row in resolved({"history.expire.max-snapshot-age-ms": "1000"}).rows()}
    assert rows["snapshot_retention_hours"] == "≈0.000277778"
    assert resolved({"history.expire.min-snapshots-to-keep": "7"}).policy.max_snapshots_to_keep == 7
    assert rows["min_file_size_ratio"] == "0.75"
    assert rows["orphan_older_than_hours"] == "72"
    assert rows["snapshot_retain_max"] == "none"
    assert rows["table_filter"] == "none"
    assert rows["operations"] == "compact,rewrite_position_deletes,expire_snapshots,remove_orphans,rewrite_manifests"


def test_operations_are_unique_and_in_canonical_order() -> None:
    policy = resolved(operations="rewrite_manifests, compact,compact").policy
    assert policy.operations == (Operation.COMPACT, Operation.REWRITE_MANIFESTS)
    assert resolved(operations="all").policy.operations == Policy().operations


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("min_input_files", "1", "input should be greater than or equal to 2"),
        ("min_input_files", "many", "input should be a valid integer, unable to parse string as an integer"),
        ("target_file_size_mb", "0", "input should be greater than 0"),
        ("target_file_size_mb", "1e9", "write a number, for example 1.5"),
        ("min_file_size_ratio", "1.01", "input should be less than or equal to 1"),
        ("rewrite_enabled", "yes", "write true or false"),
        ("strategy", "hilbert", "input should be 'auto', 'binpack', 'sort' or 'zorder'"),
        ("where", "id =", "something is missing after '='"),
        ("operations", "none", "write all, or a comma-separated list of operations"),
        (
            "operations",
            "compat",
            "'compat' is not an operation (did you mean 'compact'?); write all, or a list of expire_partitions, "
            "compact, rewrite_position_deletes, expire_snapshots, remove_orphans, rewrite_manifests, "
            "compute_statistics",
        ),
    ],
)
def test_a_malformed_value_is_refused_with_the_allowed_values(key: str, value: str, message: str) -> None:
    assert refusal(**{key: value}) == f"policy key {key} cannot be '{value}' (from this call): {message}"


def test_an_unknown_key_is_refused_with_the_three_nearest_keys() -> None:
    for table, overrides, source in (
        ({"icekeeper.min_input_file": "3"}, {}, "table property icekeeper.min_input_file"),
        ({}, {"min_input_file": "3"}, "this call"),
    ):
        assert refusal(table, {}, **overrides) == (
            f"unknown policy key 'min_input_file' (from {source}) (did you mean 'min_input_files'?); "
            "the nearest keys are min_input_files, bucket_filter, min_file_size_ratio "
            "(icekeeper policy show NS.TABLE --all prints all)"
        )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"snapshot_retain_max": "4"},
            "snapshot_retain_max 4 (from this call) contradicts max_snapshots_to_keep 5 (from default): "
            "the most kept is below the least kept",
        ),
        (
            {"max_file_group_size_mb": "100"},
            "max_file_group_size_mb 100 (from this call) contradicts target_file_size_mb 256 (from default): "
            "a group could not fill one file",
        ),
        (
            {"max_files_to_rewrite": "4"},
            "max_files_to_rewrite 4 (from this call) contradicts min_input_files 5 (from default): "
            "no group would ever be rewritten",
        ),
    ],
)
def test_a_contradiction_names_both_values(overrides: dict[str, str], message: str) -> None:
    assert refusal(**overrides) == message


def test_a_grace_period_below_a_day_needs_unsafe() -> None:
    layers = [Layer("this call", {"orphan_older_than_hours": "23.9"})]
    with pytest.raises(PolicyError) as caught:
        resolve(layers)
    assert str(caught.value) == (
        "policy key orphan_older_than_hours is 23.9 (from this call), below 24: "
        "files of commits in progress could be deleted; --unsafe allows it"
    )
    assert resolve(layers, unsafe=True).policy.orphan_older_than_ms == 86_040_000


def test_a_disabled_operation_names_the_source_of_the_switch() -> None:
    result = resolved({"icekeeper.snapshot_expiry_enabled": "false"}, {}, operations="compact,expire_snapshots")
    assert result.why_disabled() is None
    assert result.why_not(Operation.EXPIRE_SNAPSHOTS) == (
        "snapshot_expiry_enabled is false (table property icekeeper.snapshot_expiry_enabled)"
    )
    assert [operation for operation in Operation if result.runs(operation)] == [Operation.COMPACT]
    disabled = resolved(maintenance_enabled="false")
    assert disabled.why_disabled() == "maintenance is disabled (this call)"
    assert not any(disabled.runs(operation) for operation in Operation)


def test_the_fingerprint_depends_on_the_values_that_a_pass_uses_not_on_their_sources() -> None:
    default = fingerprint()
    assert len(default) == 64
    assert fingerprint(min_input_files="5") == default
    assert fingerprint(min_input_files="7") == fingerprint("the policy file", min_input_files="7") != default
    nearly = [resolved({"history.expire.max-snapshot-age-ms": text}) for text in ("1000000001", "1000000002")]
    assert nearly[0].fingerprint() != nearly[1].fingerprint()
    for key in DEPLOYMENT_KEYS:
        value = {"table_settings": "all"}.get(key, "other*" if key.endswith("_filter") else "7")
        assert fingerprint(**{key: value}) == default, key


def fingerprint(source: str = "this call", **settings: str) -> str:
    return resolve([Layer(source, settings)]).fingerprint()


# Messages translate keys of other services and of Iceberg's procedures.


@pytest.mark.parametrize(
    ("key", "here"),
    [
        ("snapshot_min_retained", "max_snapshots_to_keep, the newest snapshots that are always kept"),
        ("rewrite_target_bytes", "target_file_size_mb, in MB (2^20 bytes)"),
        ("partial-progress.enabled", "partial_progress, file groups per commit; 0 is off"),
    ],
)
def test_a_key_of_another_service_is_translated(key: str, here: str) -> None:
    assert refusal(**{key: "5"}) == f"unknown policy key '{key}' (from this call); here it is {here}"


def test_every_translation_names_one_of_our_keys_or_none() -> None:
    for foreign, here in foreign_names._NAMES.items():
        assert foreign not in POLICY_KEYS
        assert here.startswith(("no setting", "--dry-run")) or any(key in here for key in POLICY_KEYS), here
    with pytest.raises(PolicyError, match="here it is max_snapshots_to_keep") as refused:
        layers_for({}, {"ICEKEEPER_SNAPSHOT_MIN_RETAINED": "3"}, {})
    assert "RETAIN_MAX" not in str(refused.value)


# The policy file: its rules, their order, and refused content.

FILE = """
# comments are allowed
rules:
- settings:
    snapshot_retention_hours: 100
    min_input_files: 3
- bucket: prod-*, live
  namespace: analytics.*
  table: events_?
  settings:
    min_input_files: 7
- table: "*_tmp"
  settings:
    maintenance_enabled: no
"""
ARN = "arn:aws:s3tables:us-east-1:111122223333:bucket/prod-eu"


def settings_of(text: str, warehouse: str, namespace: str, table: str) -> list[tuple[str, dict[str, object]]]:
    return [
        (layer.source, dict(layer.values))
        for layer in matching_layers(parse_policy_file(text, "F"), warehouse, namespace, table)
    ]


FIRST = ("policy file F rule 1 (*/*/*)", {"snapshot_retention_hours": "100", "min_input_files": "3"})
SECOND = ("policy file F rule 2 (prod-*,live/analytics.*/events_?)", {"min_input_files": "7"})
GOOD = FILE.replace("maintenance_enabled: no", "maintenance_enabled: false")
THIRD = ("policy file F rule 3 (*/*/*_tmp)", {"maintenance_enabled": "false"})


@pytest.mark.parametrize(
    ("table", "rules"),
    [
        ((ARN, "analytics.web", "events_1"), [FIRST, SECOND]),
        (("s3://live", "analytics.web", "events_1"), [FIRST, SECOND]),
        (("s3://live/folder", "analytics.web", "events_1"), [FIRST, SECOND]),
        ((ARN, "analytics.web", "events_12"), [FIRST]),  # ? is one character
        ((ARN, "analytics", "events_1"), [FIRST]),
        (("arn:aws:s3tables:us-east-1:1:bucket/test", "analytics.web", "events_1"), [FIRST]),
        (("file:///data/warehouse", "ns", "x_tmp"), [FIRST, THIRD]),
        ((ARN, "analytics.web", "Events_1"), [FIRST]),  # case matters
    ],
)
def test_a_rule_applies_if_all_of_its_patterns_match(table: tuple[str, str, str], rules: list[object]) -> None:
    assert settings_of(GOOD, *table) == rules


def test_brackets_are_not_wildcards_and_every_value_is_text() -> None:
    text = "rules:\n- table: 't[12]'\n  settings:\n    min_input_files: 3\n"
    assert [bool(settings_of(text, "w", "n", name)) for name in ("t1", "t[12]")] == [False, True]
    settings = {"target_file_size_mb": "1.50", "operations": "compact, expire_snapshots", "where": "d > '2024-01-01'"}
    lines = "".join(f"    {key}: {value}\n" for key, value in settings.items())
    ((_, values),) = settings_of(f"rules:\n- settings:\n{lines}", "w", "n", "t")
    assert values == settings
    assert settings_of("rules:\n# none yet\n", "w", "n", "t") == []


RULE = "rules:\n- settings:\n    min_input_files: 3\n"
WRONG = {
    "empty": ("", "policy file F has no rules: it must begin with 'rules:', then a list of rules"),
    "a list": ("- settings:\n    min_input_files: 3\n", "policy file F has no rules: it must begin with"),
    "no YAML": ("rules: [\n", "policy file F: line "),
    "flow style": ("rules: {a: 1}\n", "policy file F: line "),
    "a key twice": (RULE + "    min_input_files: 4\n", "policy file F: line "),
    "a tab": ("rules:\n\t- a\n", "policy file F: line "),
    "control characters": ("rules:\n- settings:\n    where: \x00\n", "policy file F"),
    "bounds": (RULE + "bounds:\n  a: b\n", "policy file F cannot set bounds: the deployment sets them"),
    "another field": (RULE + "rule:\n  a: b\n", "policy file F has an unknown field 'rule' (did you mean 'rules'?)"),
    "rules are no list": ("rules: all\n", "policy file F: rules must be a list, each rule beginning with '- '"),
    "a rule is text": ("rules:\n- x\n", "policy file F rule 1 must be fields of bucket, namespace, table, settings"),
    "unknown field": (
        RULE + "  tabel: x\n",
        "policy file F rule 1 has an unknown field 'tabel' (did you mean 'table'?); fields are bucket, namespace, "
        "table, settings",
    ),
    "setting beside settings": (
        RULE + "  strategy: sort\n",
        "policy file F rule 1 has an unknown field 'strategy'; fields are bucket, namespace, table, settings; write "
        "settings below 'settings:'",
    ),
    "no settings": ("rules:\n- table: x\n", "policy file F rule 1 (*/*/x) needs 'settings:' and below it KEY: VALUE"),
    "empty settings": ("rules:\n- settings:\n", "policy file F rule 1 (*/*/*) needs 'settings:' and below it KEY"),
    "empty pattern": (
        RULE + "  table: a,,b\n",
        "policy file F rule 1 needs a comma-separated list of patterns (* and ?) for table, for example prod-*",
    ),
    "a list of patterns": (
        RULE + "  table:\n  - a\n",
        "policy file F rule 1 needs a comma-separated list of patterns (* and ?) for table, for example prod-*",
    ),
    "a list of values": (
        "rules:\n- settings:\n    statistics_columns:\n    - a\n",
        "policy file F rule 1 (*/*/*) needs plain text for statistics_columns; write lists with commas",
    ),
    "unknown key": (
        RULE + "- settings:\n    min_input_file: 3\n",
        "unknown policy key 'min_input_file' (from policy file F rule 2 (*/*/*)) (did you mean 'min_input_files'?); "
        "the nearest keys are min_input_files, bucket_filter, min_file_size_ratio",
    ),
    "wrong value": (
        FILE,
        "policy key maintenance_enabled cannot be 'no' (from policy file F rule 3 (*/*/*_tmp)): write true or false",
    ),
    "deployment only": (
        "rules:\n- settings:\n    table_filter: x\n",
        "policy file F rule 1 (*/*/*) cannot set table_filter: it is a setting of the deployment, as "
        "ICEKEEPER_TABLE_FILTER",
    ),
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_a_mistake_refuses_the_file_and_names_its_line_or_rule(wrong: tuple[str, str]) -> None:
    text, sentence = wrong
    with pytest.raises(PolicyError) as caught:
        parse_policy_file(text, "F")
    assert str(caught.value).startswith(sentence)


# Layers of settings, and bounds.


def test_later_layers_override_earlier_layers() -> None:
    """In the order deployment, Iceberg's property, icekeeper.<key>, this call; each value names its source."""
    environment = {"ICEKEEPER_TARGET_FILE_SIZE_MB": "10", "ICEKEEPER_STATE": "/tmp/state.db"}
    own = {"write.target-file-size-bytes": "20971520"}
    ours = {"icekeeper.target_file_size_mb": "30"}
    steps = [
        (resolved(), "256", "default"),
        (resolved({}, environment), "10", "deployment ICEKEEPER_TARGET_FILE_SIZE_MB"),
        (resolved(own, environment), "20", "table property write.target-file-size-bytes"),
        (resolved(own | ours, environment), "30", "table property icekeeper.target_file_size_mb"),
        (resolved(own | ours, environment, target_file_size_mb="40"), "40", "this call"),
    ]
    for step, value, source in steps:
        row = next(row for row in step.rows() if row[0] == "target_file_size_mb")
        assert row == ("target_file_size_mb", value, source, "target size of rewritten data files, in MB (2^20)")


def test_rules_and_table_bucket_settings_are_between_deployment_and_table() -> None:
    environment = {"ICEKEEPER_TARGET_FILE_SIZE_MB": "10", "ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48"}
    rules = [Layer("rule 1", {"target_file_size_mb": "11"}), Layer("rule 2", {"target_file_size_mb": "12"})]
    bucket = [Layer("S3 Tables", {"target_file_size_mb": 13, "snapshot_retention_hours": 1})]
    own = {"write.target-file-size-bytes": "20971520"}
    for properties, bucket_layers, source, hours in (
        ({}, [], "rule 2", 168),
        ({}, bucket, "S3 Tables", 48),  # the deployment's bound also limits the bucket's settings
        (own, bucket, "table property write.target-file-size-bytes", 48),
    ):
        result = resolve(layers_for(properties, environment, {}, rules=rules, bucket=bucket_layers))
        assert result.sources["target_file_size_mb"] == source
        assert result.policy.snapshot_retention_hours == hours


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("write.target-file-size-bytes", "512 MB"),
        ("history.expire.max-snapshot-age-ms", "-1"),
        ("history.expire.min-snapshots-to-keep", "0"),
    ],
)
def test_a_malformed_property_of_iceberg_is_named(name: str, value: str) -> None:
    minimum = 0 if "age" in name else 1
    assert refusal({name: value}) == (
        f"table property {name} is '{value}'; it must be a whole number of at least {minimum}"
    )


def test_mistakes_are_refused_with_their_source() -> None:
    """Also if a later layer overrides them; unrelated variables are ignored."""
    assert refusal({"icekeeper.min_input_files": "x"}, {}, min_input_files="3").startswith(
        "policy key min_input_files cannot be 'x' (from table property icekeeper.min_input_files): "
    )
    assert refusal({}, {"ICEKEEPER_SNAPSHOT_RETENTON_HOURS": "1"}) == (
        "environment variable ICEKEEPER_SNAPSHOT_RETENTON_HOURS is not a setting "
        "(did you mean ICEKEEPER_SNAPSHOT_RETENTION_HOURS?)"
    )
    assert resolved({}, {"ICEKEEPER_STATE": "x", "ICEKEEPER_CATALOG": "y"}) == resolve([])
    assert refusal({"icekeeper.max_jobs_per_detection": "1"}) == (
        "table property icekeeper.max_jobs_per_detection cannot be set on a table: "
        "max_jobs_per_detection is a setting of the deployment"
    )


def test_a_bound_that_changes_a_value_is_named_as_its_source() -> None:
    """``tests/property/test_policy.py`` tests the values."""
    environment = {"ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS": "48", "ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "false"}
    for hours, source in (("1", "bound ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS"), ("49", "this call")):
        result = resolved({}, environment, snapshot_retention_hours=hours, maintenance_enabled="true")
        assert result.sources["snapshot_retention_hours"] == source
        assert result.why_disabled() == "maintenance is disabled (bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED)"


def test_a_bound_without_effect_is_refused() -> None:
    assert refusal({}, {"ICEKEEPER_BOUND_WHERE": "a = 1"}).startswith(
        "environment variable ICEKEEPER_BOUND_WHERE is not a bound; allowed are ICEKEEPER_BOUND_"
    )
    assert refusal({}, {"ICEKEEPER_BOUND_MAINTENANCE_ENABLED": "true"}) == (
        "policy key maintenance_enabled cannot be bounded to 'true' "
        "(from bound ICEKEEPER_BOUND_MAINTENANCE_ENABLED), its loosest value; tighter is false"
    )


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({}, True), ({"gc.enabled": "TRUE"}, True), ({"gc.enabled": "false"}, False), ({"gc.enabled": "maybe"}, False)],
)
def test_a_malformed_gc_enabled_counts_as_false(properties: dict[str, str], expected: bool) -> None:
    assert (
        gc_enabled(TableMetadata({"format-version": 2, "location": "s3://b/t", "properties": properties})) is expected
    )


def test_named_snapshots_are_refused_beside_a_bounded_retention() -> None:
    """Named snapshots expire regardless of the retention, which a bound must not allow."""
    assert resolved(snapshot_expire_ids="7, 5,7").policy.snapshot_expire_ids == (7, 5)
    assert resolved(snapshot_expire_ids="none").policy.snapshot_expire_ids == ()
    other = {"ICEKEEPER_BOUND_ORPHAN_OLDER_THAN_HOURS": "90"}
    assert resolved({}, other, snapshot_expire_ids="7").policy.snapshot_expire_ids == (7,)
    for bound in ("ICEKEEPER_BOUND_SNAPSHOT_RETENTION_HOURS", "ICEKEEPER_BOUND_MAX_SNAPSHOTS_TO_KEEP"):
        assert refusal({}, {bound: "9"}, snapshot_expire_ids="7") == (
            f"policy key snapshot_expire_ids (from this call) cannot be used: it would go below bound {bound}"
        )


def test_named_snapshots_are_whole_numbers_and_no_more_than_may_expire() -> None:
    assert refusal(snapshot_expire_ids="7,x") == (
        "policy key snapshot_expire_ids cannot be '7,x' (from this call): 'x' is not a snapshot id; write a "
        "comma-separated list of whole numbers"
    )
    assert refusal(snapshot_expire_ids="7,8", snapshot_expire_limit="1") == (
        "snapshot_expire_limit 1 (from this call) contradicts snapshot_expire_ids 7,8 (from this call): more snapshots "
        "are "
        "named than may expire"
    )


# A key of detection or scheduling has an effect, or is refused.


def refused(scope: Scope) -> set[str]:
    found = set()
    for key in POLICY_KEYS:
        try:
            refuse_meaningless([key], scope)
        except PolicyError:
            found.add(key)
    return found


def test_each_scope_accepts_the_keys_that_it_reads() -> None:
    cycle_keys = {"detection_interval_s", "max_concurrent_jobs", "max_concurrent_jobs_per_worker", "table_settings"}
    scan_keys = {"bucket_filter", "namespace_filter", "table_filter", "max_jobs_per_detection", "detection_timeout_s"}
    assert all(field.description for field in Policy.model_fields.values())
    assert refused(Scope.CYCLE) == set()
    assert refused(Scope.SCAN) == cycle_keys
    assert refused(Scope.TABLE) == cycle_keys | scan_keys
    assert DEPLOYMENT_KEYS - cycle_keys - scan_keys == {"job_timeout_s", "job_retry_limit"}


@pytest.mark.parametrize(
    ("given", "is_taken"),
    [
        ({"settings": {"table_filter": "x"}}, True),
        ({"settings": {"max_concurrent_jobs": "9"}}, False),
        ({"table": "ns.t", "settings": {"table_filter": "x"}}, False),
        ({"table": "ns.t", "settings": {"job_timeout_s": "60"}}, True),
    ],
)
def test_the_state_machine_accepts_the_same_keys(given: dict[str, object], is_taken: bool) -> None:
    if is_taken:
        parse_event(MachineInput, given)
        return
    with pytest.raises(PolicyError, match="has no effect on one "):
        parse_event(MachineInput, given)


def test_a_process_has_at_most_as_many_workers_as_slots() -> None:
    policy = Policy()
    assert (policy.detection_interval_s, workers_of(policy), policy.max_concurrent_jobs) == (3600, 2, 4)
    assert (policy.job_timeout_s, policy.job_retry_limit) == (3600, 1)
    assert workers_of(Policy(max_concurrent_jobs=1)) == 1
    assert workers_of(Policy(max_concurrent_jobs_per_worker=9)) == 4


@pytest.mark.parametrize("threads", [1, 3])
def test_at_most_as_many_sources_as_threads_are_read_at_once(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LISTING_THREADS", threads)
    lock, running, most = threading.Lock(), 0, 0

    def source() -> Iterator[int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.005)
        yield 1
        with lock:
            running -= 1

    assert sum(listing.in_parallel([source] * 12)) == 12
    assert most == threads


# A setting whose operation does not run is reported.

RETENTION = Layer("table property icekeeper.partition_retention_hours", {"partition_retention_hours": "720"})


WIDER = {"operations": "all,expire_partitions"}
OF_TABLE = "table property icekeeper.operations"


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        (
            [RETENTION],
            "partition_retention_hours is 720 (table property icekeeper.partition_retention_hours), but "
            "expire_partitions is not among the operations, so no partition is dropped; ask for it with "
            "operations=all,expire_partitions",
        ),
        (
            [Layer(OF_TABLE, WIDER, is_table=True)],
            f"{OF_TABLE} 'all,expire_partitions' is ignored: operations is compact,rewrite_position_deletes,"
            "expire_snapshots,remove_orphans,rewrite_manifests (default), and a table may only leave some of these out",
        ),
        ([], ""),
        ([RETENTION, Layer(OF_TABLE, WIDER)], ""),
        # The call sets the operations.
        ([RETENTION, Layer("this call", {"operations": "compact"})], ""),
    ],
    ids=["without its operation", "wider than the deployment", "no setting", "with its operation", "named in the call"],
)
def test_a_setting_without_effect_is_reported(layers: list[Layer], expected: str) -> None:
    found = " ".join(unused_settings(resolve(layers)))
    assert found == expected or (expected.endswith("some of these out") and found.startswith(f"{expected}; "))
