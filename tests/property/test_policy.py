"""Layered settings resolve in order, and each value names its source."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from icekeeper.machine.clock import HOUR_MS
from icekeeper.policy import MEGABYTE, Layer, layers_for, resolve
from icekeeper.policy.values import text_of

VALUES: dict[str, st.SearchStrategy[str]] = {
    "min_input_files": st.integers(2, 50).map(str),
    "max_commit_retries": st.integers(0, 20).map(str),
    "max_snapshots_to_keep": st.integers(1, 50).map(str),
    "snapshot_retention_hours": st.decimals(0, 10_000, places=3).map(str),
    "orphan_older_than_hours": st.decimals(24, 10_000, places=3).map(str),
    "rewrite_enabled": st.sampled_from(["true", "false", "True"]),
    "operations": st.sampled_from(["all", "compact", "rewrite_manifests,compact"]),
}
SETTINGS = st.fixed_dictionaries({}, optional=VALUES)
LAYERS = st.lists(SETTINGS, max_size=5).map(
    lambda settings: [Layer(f"source {number}", values) for number, values in enumerate(settings)]
)


@given(LAYERS)
def test_the_last_layer_that_sets_a_key_gives_its_value_and_source(layers: list[Layer]) -> None:
    result = resolve(layers)
    for key in VALUES:
        setters = [layer for layer in layers if key in layer.values]
        assert result.sources[key] == (setters[-1].source if setters else "default")
        expected = resolve([Layer("only", {key: setters[-1].values[key]})] if setters else []).policy
        assert getattr(result.policy, key) == getattr(expected, key)


@given(LAYERS, st.integers(0, 1000), st.integers(24, 1000))
def test_no_layer_loosens_a_bound(layers: list[Layer], retention: int, grace: int) -> None:
    bounds = Layer("bound", {"snapshot_retention_hours": retention, "orphan_older_than_hours": grace}, is_bound=True)
    free, bound = resolve(layers).policy, resolve([bounds, *layers]).policy
    assert bound.snapshot_retention_hours == max(free.snapshot_retention_hours, retention)
    assert bound.orphan_older_than_hours == max(free.orphan_older_than_hours, grace)


@given(st.integers(MEGABYTE, 100 * 1024**3), st.integers(0, 2**63 - 1))
def test_bytes_and_milliseconds_convert_exactly_to_megabytes_and_hours(size: int, age_ms: int) -> None:
    properties = {"write.target-file-size-bytes": str(size), "history.expire.max-snapshot-age-ms": str(age_ms)}
    policy = resolve(layers_for(properties, {}, {})).policy
    assert policy.target_file_size_bytes == size
    assert policy.snapshot_retention_ms == age_ms
    assert policy.target_file_size_mb == Fraction(size, MEGABYTE)
    assert policy.snapshot_retention_hours == Fraction(age_ms, HOUR_MS)


@given(SETTINGS)
def test_shown_values_can_be_set_again(settings: dict[str, str]) -> None:
    first = resolve([Layer("first", settings)])
    shown = {key: value for key, value, source, _ in first.rows() if source == "first"}
    again = resolve([Layer("second", shown)])
    assert again.policy == first.policy
    assert again.fingerprint() == first.fingerprint()


@given(st.integers(0, 10**6), st.integers(0, 10**12 - 1))
def test_a_finite_decimal_is_shown_exactly(whole: int, millionths: int) -> None:
    value = whole + Fraction(millionths, 10**12)
    assert Fraction(text_of(value)) == value
