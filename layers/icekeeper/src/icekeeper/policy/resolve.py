"""Layers of settings become one checked policy that knows where each value came from (rule 114)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from icekeeper.errors import PolicyError
from icekeeper.policy.choices import Strategy
from icekeeper.policy.foreign_names import name_here
from icekeeper.policy.keys import POLICY_KEYS, Policy, nearest_keys
from icekeeper.policy.layers import SCHEDULE_PREFIX, Layer
from icekeeper.policy.resolved_policy import DEFAULT_SOURCE, ResolvedPolicy, Schedule
from icekeeper.policy.schedules import (
    INTERVAL,
    layers_of_schedule,
    parse_interval,
    schedule_settings,
    without_schedules,
)
from icekeeper.policy.units import amount_with_unit
from icekeeper.policy.values import did_you_mean, text_of

__all__ = ["MIN_ORPHAN_GRACE_HOURS", "check_layer", "resolve"]

# Iceberg's own remove_orphan_files refuses less: younger files may belong to a commit that is under way.
MIN_ORPHAN_GRACE_HOURS = 24
_RETENTION_KEYS = frozenset({"snapshot_retention_hours", "max_snapshots_to_keep"})


def resolve(layers: Sequence[Layer], *, unsafe: bool = False) -> ResolvedPolicy:
    """Apply the layers to the defaults, later ones winning; then apply the bounds among them.

    ``unsafe`` allows an orphan grace period below 24 hours, and to give snapshots up.

    Raises:
        PolicyError: an unknown key, a malformed or contradictory value; the message names key, value, source
            and what is allowed.
    """
    for layer in layers:
        # Each layer is checked by itself: a mistake is reported even where a later layer hides it.
        check_layer(layer)
    own = schedule_settings(layers)
    general = [replace(layer, values=without_schedules(layer.values)) for layer in layers] if own else layers
    resolved = _resolve(general, unsafe=unsafe)
    found = (_schedule(name, layers, its_layers, unsafe=unsafe) for name, its_layers in own.items())
    return replace(resolved, schedules={one.name: one for one in found if one is not None}) if own else resolved


def _schedule(name: str, layers: Sequence[Layer], own: Sequence[Layer], *, unsafe: bool) -> Schedule | None:
    """One schedule; ``None`` where its interval is ``none``."""
    told = [layer for layer in own if INTERVAL in layer.values]
    if not told:
        raise PolicyError(
            f"schedule {name} (from {own[-1].source}) has no interval; set {SCHEDULE_PREFIX}{name}.{INTERVAL}, for "
            "example 24h"
        )
    interval_ms = parse_interval(name, told[-1].values[INTERVAL], told[-1].source)
    if interval_ms is None:
        return None
    try:
        resolved = _resolve(list(layers_of_schedule(layers, own)), unsafe=unsafe)
    except PolicyError as error:
        raise PolicyError(f"schedule {name}: {error}") from None
    sources = {key: layer.source for layer in own for key in layer.values}
    said = tuple((key, sources[key]) for key in (INTERVAL, *POLICY_KEYS) if key in sources)
    return Schedule(name, interval_ms, resolved, said)


def _resolve(layers: Sequence[Layer], *, unsafe: bool) -> ResolvedPolicy:
    """The policy of layers without schedules, each of which was checked."""
    values: dict[str, object] = {}
    sources = dict.fromkeys(POLICY_KEYS, DEFAULT_SOURCE)
    for layer in layers:
        if not layer.is_bound:
            values.update(layer.values)
            sources.update(dict.fromkeys(layer.values, layer.source))
    policy = _parse(values, sources)
    for layer in layers:
        if layer.is_bound:
            policy = _tighten(policy, layer, sources)
    if not unsafe:
        _check_safe(policy, sources)
    _check_contradictions(policy, sources)
    _check_bounds_hold(layers, policy, sources)
    # A bound can only be false.
    is_stopped = any(layer.is_bound and "maintenance_enabled" in layer.values for layer in layers)
    return ResolvedPolicy(policy, sources, is_stopped, frozenset(layer.source for layer in layers if layer.is_bound))


def check_layer(layer: Layer) -> None:
    """Check the keys and values of one layer by themselves.

    Raises:
        PolicyError: an unknown key or a malformed value.
    """
    general = without_schedules(layer.values)
    for key in general:
        if key not in POLICY_KEYS:
            here = name_here(key)
            if here is not None:
                raise PolicyError(f"unknown policy key '{key}' (from {layer.source}); here it is {here}")
            raise PolicyError(
                f"unknown policy key '{key}' (from {layer.source}){did_you_mean(key, POLICY_KEYS)}{nearest_keys(key)}"
            )
    _parse(general, dict.fromkeys(general, layer.source))
    for name, (own,) in schedule_settings([layer]).items():
        values = {key: value for key, value in own.values.items() if key != INTERVAL}
        _parse(values, dict.fromkeys(values, layer.source), f"{SCHEDULE_PREFIX}{name}.")
        if INTERVAL in own.values:
            parse_interval(name, own.values[INTERVAL], layer.source)


def _parse(values: Mapping[str, object], sources: Mapping[str, str], prefix: str = "") -> Policy:
    try:
        return Policy.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise PolicyError(
            f"policy key {prefix}{key} cannot be '{text_of(values[key])}' (from {sources[key]}): "
            f"{amount_with_unit(key, values[key]) or _allowed(first)}"
        ) from None


def _allowed(error: Any) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def _tighten(policy: Policy, bound: Layer, sources: dict[str, str]) -> Policy:
    bounds = _parse(bound.values, dict.fromkeys(bound.values, bound.source))
    changes: dict[str, object] = {}
    for key in bound.values:
        limit, value = getattr(bounds, key), getattr(policy, key)
        if isinstance(limit, bool):
            if limit:
                raise PolicyError(f"policy key {key} cannot be bounded to 'true' (from {bound.source}); write false")
            loosened = value
        else:
            loosened = value < limit
        if loosened:
            changes[key] = limit
            sources[key] = bound.source
    return policy.model_copy(update=changes)


def _check_safe(policy: Policy, sources: Mapping[str, str]) -> None:
    key = "orphan_older_than_hours"
    if policy.orphan_older_than_hours < MIN_ORPHAN_GRACE_HOURS:
        raise PolicyError(
            f"policy key {key} is {text_of(policy.orphan_older_than_hours)} (from {sources[key]}), below "
            f"{MIN_ORPHAN_GRACE_HOURS}: files of commits that are under way could be deleted; --unsafe allows it"
        )
    key = "snapshot_give_up_ids"
    if policy.snapshot_give_up_ids:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) drops snapshots whose rows may still be recovered; --unsafe "
            "allows it"
        )


def _check_contradictions(policy: Policy, sources: Mapping[str, str]) -> None:
    def contradiction(first: str, second: str, rule: str) -> PolicyError:
        named = [f"{key} {text_of(getattr(policy, key))} (from {sources[key]})" for key in (first, second)]
        return PolicyError(f"{named[0]} contradicts {named[1]}: {rule}")

    retain_max, files_max = policy.snapshot_retain_max, policy.max_files_to_rewrite
    if retain_max is not None and retain_max < policy.max_snapshots_to_keep:
        raise contradiction("snapshot_retain_max", "max_snapshots_to_keep", "the most kept is below the least kept")
    limit, (key, named) = policy.snapshot_expire_limit, policy.named_snapshots
    if limit is not None and limit < len(named):
        raise contradiction("snapshot_expire_limit", key, "more snapshots are named than may expire")
    if policy.snapshot_give_up_ids and policy.snapshot_expire_ids:
        raise contradiction("snapshot_give_up_ids", "snapshot_expire_ids", "only the snapshots of one of them expire")
    if policy.max_file_group_size_mb < policy.target_file_size_mb:
        raise contradiction("max_file_group_size_mb", "target_file_size_mb", "a group could not fill one file")
    if files_max is not None and files_max < policy.min_input_files and not policy.rewrite_all:
        raise contradiction("max_files_to_rewrite", "min_input_files", "no group would ever be rewritten")
    if policy.strategy is Strategy.ZORDER and not policy.zorder_columns:
        raise contradiction("strategy", "zorder_columns", "z-order needs the columns that it interleaves")


def _check_bounds_hold(layers: Sequence[Layer], policy: Policy, sources: Mapping[str, str]) -> None:
    """Refuse named snapshots, for which the retention does not count, where the deployment bounds the retention."""
    bounds = [layer for layer in layers if layer.is_bound and not _RETENTION_KEYS.isdisjoint(layer.values)]
    key, named = policy.named_snapshots
    if named and bounds:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) cannot be used: it would go below {bounds[0].source}"
        )
