"""A request may not loosen the table's policy, unless the operator admits it
(rule: requests-never-exceed-policy)."""

from __future__ import annotations

import pytest

from icekeeper.errors import PolicyError
from icekeeper.operation_facts import Operation
from icekeeper.policy import POLICY_KEYS, ResolvedPolicy, resolve
from icekeeper.policy.layers import OVERRIDE_SOURCE, Layer
from icekeeper.policy.request_may_set import REQUESTS_MAY, requests_may, require_no_more

EVERYTHING = ",".join(operation.value for operation in Operation)
LIMITED: dict[str, tuple[str, str, str | None]] = {
    "maintenance_enabled": ("false", "true", "false"),
    "paused_until": ("2099-01-01T00:00:00Z", "none", "2099-01-02T00:00:00Z"),
    "ownership": ("auto", "icekeeper", "auto"),
    "rewrite_enabled": ("false", "true", "false"),
    "delete_compaction_enabled": ("false", "true", "false"),
    "manifest_rewrite_enabled": ("false", "true", "false"),
    "snapshot_expiry_enabled": ("false", "true", "false"),
    "orphan_sweep_enabled": ("false", "true", "false"),
    "proof": ("full", "counts", "full"),
    "snapshot_retention_hours": ("168", "167.9", "169"),
    "max_snapshots_to_keep": ("5", "4", "6"),
    "snapshot_retain_max": ("none", "100", "none"),
    "snapshot_expire_limit": ("10", "none", "9"),
    "snapshot_expire_ids": ("none", "7", None),
    "writer_mark_retention_hours": ("24", "0", "25"),
    "clean_expired_metadata": ("false", "true", "false"),
    "orphan_older_than_hours": ("72", "48", "73"),
    "table_settings": ("default", "all", None),
    "orphan_sweep_prefixes": ("s3://b/t", "s3://b/t,s3://b/u", "none"),
    "orphan_table_types": ("fact", "fact,lance", "none"),
    "orphan_file_endings": ("bin", "bin,lance", "none"),
    "orphan_inventory": ("none", "s3://mine/list.csv", None),
    "orphan_max_delete_ratio": ("0.5", "0.6", "0.1"),
    "orphan_max_missing_ratio": ("0.01", "1", "0.001"),
    "partition_retention_hours": ("none", "36", "none"),
    "partition_time": ("none", "day", None),
    "branch": ("main", "audit", None),
    "where": ("none", "k = 1", None),
}
"""Key → the policy's value, a looser value, and a tighter value (``None``: every other value is looser)."""
FREE = {
    *("apply_deletes", "bucket_filter", "delete_compaction_min_deletes"),
    *("convert_equality_deletes", "delete_compaction_min_ratio", "detection_interval_s", "detection_timeout_s"),
    *("expected_scans", "job_retry_limit", "job_timeout_s", "max_bytes_to_rewrite"),
    *("max_commit_retries", "max_concurrent_jobs", "max_concurrent_jobs_per_worker"),
    *("max_file_group_size_mb", "max_files_to_rewrite", "max_jobs_per_detection"),
    *("min_file_size_ratio", "min_input_files", "min_manifests_to_rewrite"),
    *("min_partition_age_hours", "min_row_group_copy_bytes", "namespace_filter", "orphan_sweep_interval_hours"),
    *("output_spec", "partial_progress", "partition_rest_hours", "rewrite_all", "rewrite_job_order"),
    *("rewrite_reason", "sort_order", "statistics_columns"),
    *("strategy", "table_filter", "target_file_size_mb"),
}
"""The keys that any request may set, repeated on purpose: a new key must be added here deliberately."""
# It needs --unsafe, which requests do not have.
NEVER = {"snapshot_give_up_ids"}
# The lists of all sources are united: a request cannot remove an entry, and an added entry waives a refusal.
UNITED = {"orphan_protected_prefixes"}


def resolved(policy: dict[str, str], request: dict[str, str] | None = None) -> ResolvedPolicy:
    layers = [Layer("policy file", dict(policy))]
    return resolve([*layers, Layer(OVERRIDE_SOURCE, dict(request))] if request else layers)


def refusal(policy: dict[str, str], request: dict[str, str], may: str = "") -> str | None:
    try:
        require_no_more(resolved(policy), resolved(policy, request), requests_may({REQUESTS_MAY: may}), "ns.t")
    except PolicyError as error:
        return str(error)
    return None


def test_every_key_is_limited_or_free() -> None:
    for key in FREE:
        with pytest.raises(PolicyError, match=f"'{key}', which is neither an operation nor a key that limits requests"):
            requests_may({REQUESTS_MAY: key})
    assert {*LIMITED, *FREE, *NEVER, *UNITED, "operations"} == set(POLICY_KEYS)


@pytest.mark.parametrize("key", LIMITED)
def test_a_request_cannot_set_a_looser_value(key: str) -> None:
    own, looser, tighter = LIMITED[key]
    policy = {"operations": EVERYTHING, **({} if own == "none" and key != "orphan_sweep_prefixes" else {key: own})}
    message = refusal(policy, {key: looser})
    assert message is not None
    assert message.startswith(f"a request for ns.t cannot set {key} to {looser}, where the policy has {own}")
    assert message.endswith(f"; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to {key}")
    assert refusal(policy, {key: looser}, may=f"compact, {key}") is None
    assert refusal(policy, {key: looser}, may="all") is None
    assert refusal(policy, {key: own}) is None
    assert tighter is None or refusal(policy, {key: tighter}) is None


def test_a_request_cannot_unprotect_a_folder() -> None:
    policy, request = {"orphan_protected_prefixes": "s3://b/keep"}, {"orphan_protected_prefixes": "none"}
    assert resolved(policy, request).policy.orphan_protected_prefixes == ("s3://b/keep",)
    assert refusal(policy, request) is None


@pytest.mark.parametrize("table", [{}, {"orphan_protected_prefixes": "s3://b/t/other.metadata.json"}])
def test_a_request_cannot_waive_the_refusal_for_another_tables_metadata(table: dict[str, str]) -> None:
    """A prefix that only the table protects waives no refusal; in a request it would
    (rule: unknown-metadata-stops-sweeps)."""

    def policy_of(*requests: dict[str, str]) -> ResolvedPolicy:
        own = [Layer("table property", dict(table), is_table=True)] if table else []
        return resolve([*own, *(Layer(OVERRIDE_SOURCE, item) for item in requests)])

    request = {"orphan_protected_prefixes": "s3://b/t/other.metadata.json"}
    with pytest.raises(
        PolicyError,
        match="cannot add s3://b/t/other.metadata.json to orphan_protected_prefixes, which lets sweeps remove another "
        r"table's files there: .* sets RequestsMay \(ICEKEEPER_REQUESTS_MAY\) to orphan_protected_prefixes$",
    ):
        require_no_more(policy_of(), policy_of(request), frozenset(), "ns.t")
    require_no_more(policy_of(), policy_of(request), requests_may({REQUESTS_MAY: "orphan_protected_prefixes"}), "ns.t")
    require_no_more(policy_of(), policy_of({**request, "operations": "compact"}), frozenset(), "ns.t")


def test_a_value_limited_by_a_bound_is_not_looser() -> None:
    bound = Layer("bound B", {"snapshot_retention_hours": "100"}, is_bound=True)
    policy, request = (
        Layer("policy file", {"snapshot_retention_hours": "24"}),
        Layer(OVERRIDE_SOURCE, {"snapshot_retention_hours": "0"}),
    )
    require_no_more(resolve([policy, bound]), resolve([policy, request, bound]), frozenset(), "ns.t")


def test_an_operation_that_the_policy_lacks_is_refused() -> None:
    message = refusal({"operations": "compact"}, {"operations": "compact,expire_snapshots"})
    assert message == (
        "a request for ns.t cannot ask for expire_snapshots, which the policy does not have: it does no more than the "
        "table's policy; to admit that, the operator sets RequestsMay (ICEKEEPER_REQUESTS_MAY) to expire_snapshots"
    )
    assert refusal({"operations": "compact"}, {"operations": "all"}, may="expire_snapshots") is not None
    assert refusal({}, {"operations": "compact"}) is None
    assert refusal({}, {"operations": "all"}) is None


def test_settings_of_operations_that_do_not_run_are_free() -> None:
    assert refusal({}, {"operations": "compact", "snapshot_retention_hours": "0", "branch": "b"}) is None
    message = refusal({}, {"operations": "compact", "orphan_older_than_hours": "24"})  # also of failed loads
    assert message is not None
    assert "cannot set orphan_older_than_hours to 24, where the policy has 72" in message


@pytest.mark.parametrize("word", ["expire", "snapshot_retention", "target_file_size_mb", "*", "ALL"])
def test_an_unknown_word_in_requests_may_is_refused(word: str) -> None:
    with pytest.raises(
        PolicyError,
        match=r"^environment variable ICEKEEPER_REQUESTS_MAY has '.*', which is neither an operation nor a key",
    ):
        requests_may({REQUESTS_MAY: f"compact,{word}"})
    assert requests_may({REQUESTS_MAY: " compact , branch,"}) == {"compact", "branch"}
    assert requests_may({}) == frozenset()
