"""Layers of settings become one checked policy that knows where each value came from (rule 114)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from pydantic import ValidationError

from icekeeper.errors import PolicyError
from icekeeper.operation_facts import FACTS, Operation
from icekeeper.policy.choices import Strategy
from icekeeper.policy.keys import POLICY_KEYS, Policy, nearest_keys
from icekeeper.policy.layers import Layer
from icekeeper.policy.ownership import Owners
from icekeeper.policy.units import amount_with_unit
from icekeeper.policy.values import did_you_mean, json_value, text_of

__all__ = ["DEFAULT_SOURCE", "MIN_ORPHAN_GRACE_HOURS", "ResolvedPolicy", "check_layer", "resolve"]

DEFAULT_SOURCE = "default"
# Iceberg's own remove_orphan_files refuses less: younger files may belong to a commit that is under way.
MIN_ORPHAN_GRACE_HOURS = 24
_RETENTION_KEYS = frozenset({"snapshot_retention_hours", "max_snapshots_to_keep"})


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """A policy and, for every key, the name of the source its value came from."""

    policy: Policy
    sources: Mapping[str, str]
    is_stopped: bool = False
    """The deployment's bounds forbid maintenance: then not even files of failed loads are deleted."""
    bounds: frozenset[str] = frozenset()
    """The sources that are bounds."""
    owners: Owners = field(default_factory=Owners)
    """Who runs which operation in a table bucket that maintains its tables itself."""
    allowed_prefixes: tuple[str, ...] | None = None
    """The folders in which the deployment lets the table's files be read, written and deleted; ``None``: anywhere."""

    def rows(self) -> list[tuple[str, str, str, str]]:
        """``(key, value, source, meaning)`` of every key, for people."""
        return [
            (key, text_of(getattr(self.policy, key)), self.sources[key], field.description or "")
            for key, field in Policy.model_fields.items()
        ]

    def documents(self) -> dict[str, dict[str, object]]:
        """Every key with its value as JSON has it, and its source; the one shape of a value with its source.

        Field names are in alphabetical order: a state store returns them so, and remembered ones compare equal.
        """
        return {
            key: {"source": self.sources[key], "value": json_value(getattr(self.policy, key))} for key in POLICY_KEYS
        }

    def fingerprint(self) -> str:
        """A digest of all values and owners: equal for equal ones, whatever source they came from."""
        lines = [f"{key}={_exact_text(getattr(self.policy, key))}" for key in sorted(POLICY_KEYS)]
        # An operation that was left to the bucket is work again once the bucket no longer does it.
        lines += [f"{operation.value} is not ours" for operation in Operation if operation in self.owners.owned]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def owned_by(self, owners: Owners) -> ResolvedPolicy:
        """The same settings with other owners."""
        return replace(self, owners=owners)

    def is_bounded(self, key: str) -> bool:
        """Whether the value of a key comes from a bound of the deployment, which overruled the layers."""
        return self.sources[key] in self.bounds

    def why_disabled(self) -> str | None:
        """The reason every operation is skipped, ``None`` when maintenance is enabled."""
        if self.policy.maintenance_enabled:
            return None
        return f"maintenance is disabled ({self.sources['maintenance_enabled']})"

    def why_switched_off(self, operation: Operation) -> str | None:
        """The reason one operation is skipped, ``None`` when its switch is on or it has none."""
        keys = FACTS[operation].switches
        if not keys or any(getattr(self.policy, key) for key in keys):
            return None
        return ", ".join(f"{key} is false ({self.sources[key]})" for key in keys)

    def why_not(self, operation: Operation) -> str | None:
        """The reason an operation is skipped whatever the table holds: disabled, switched off, or not ours."""
        return self.why_disabled() or self.why_switched_off(operation) or self.owners.owned.get(operation)

    def runs(self, operation: Operation) -> bool:
        """Whether a pass under this policy attempts the operation at all."""
        return operation in self.policy.operations and self.why_not(operation) is None


def resolve(layers: Sequence[Layer], *, unsafe: bool = False) -> ResolvedPolicy:
    """Apply the layers to the defaults, later ones winning; then apply the bounds among them.

    ``unsafe`` allows an orphan grace period below 24 hours.

    Raises:
        PolicyError: an unknown key, a malformed or contradictory value; the message names key, value, source
            and what is allowed.
    """
    values: dict[str, object] = {}
    sources = dict.fromkeys(POLICY_KEYS, DEFAULT_SOURCE)
    for layer in layers:
        # Each layer is checked by itself: a mistake is reported even where a later layer hides it.
        check_layer(layer)
        if not layer.is_bound:
            values.update(layer.values)
            sources.update(dict.fromkeys(layer.values, layer.source))
    policy = _parse(values, sources)
    for layer in layers:
        if layer.is_bound:
            policy = _tighten(policy, layer, sources)
    _check_grace(policy, sources, unsafe=unsafe)
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
    for key in layer.values:
        if key not in POLICY_KEYS:
            raise PolicyError(
                f"unknown policy key '{key}' (from {layer.source}){did_you_mean(key, POLICY_KEYS)}{nearest_keys(key)}"
            )
    _parse(layer.values, dict.fromkeys(layer.values, layer.source))


def _parse(values: Mapping[str, object], sources: Mapping[str, str]) -> Policy:
    try:
        return Policy.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise PolicyError(
            f"policy key {key} cannot be '{text_of(values[key])}' (from {sources[key]}): "
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


def _check_grace(policy: Policy, sources: Mapping[str, str], *, unsafe: bool) -> None:
    key = "orphan_older_than_hours"
    if policy.orphan_older_than_hours < MIN_ORPHAN_GRACE_HOURS and not unsafe:
        raise PolicyError(
            f"policy key {key} is {text_of(policy.orphan_older_than_hours)} (from {sources[key]}), below "
            f"{MIN_ORPHAN_GRACE_HOURS}: files of commits that are under way could be deleted; --unsafe allows it"
        )


def _check_contradictions(policy: Policy, sources: Mapping[str, str]) -> None:
    def contradiction(first: str, second: str, rule: str) -> PolicyError:
        named = [f"{key} {text_of(getattr(policy, key))} (from {sources[key]})" for key in (first, second)]
        return PolicyError(f"{named[0]} contradicts {named[1]}: {rule}")

    retain_max, files_max = policy.snapshot_retain_max, policy.max_files_to_rewrite
    if retain_max is not None and retain_max < policy.max_snapshots_to_keep:
        raise contradiction("snapshot_retain_max", "max_snapshots_to_keep", "the most kept is below the least kept")
    limit, named = policy.snapshot_expire_limit, policy.snapshot_expire_ids
    if limit is not None and limit < len(named):
        raise contradiction("snapshot_expire_limit", "snapshot_expire_ids", "more snapshots are named than may expire")
    if policy.max_file_group_size_mb < policy.target_file_size_mb:
        raise contradiction("max_file_group_size_mb", "target_file_size_mb", "a group could not fill one file")
    if files_max is not None and files_max < policy.min_input_files and not policy.rewrite_all:
        raise contradiction("max_files_to_rewrite", "min_input_files", "no group would ever be rewritten")
    if policy.strategy is Strategy.ZORDER and not policy.zorder_columns:
        raise contradiction("strategy", "zorder_columns", "z-order needs the columns that it interleaves")


def _check_bounds_hold(layers: Sequence[Layer], policy: Policy, sources: Mapping[str, str]) -> None:
    """Refuse ``snapshot_expire_ids``, which ignores the retention, where the deployment bounds the retention."""
    bounds = [layer for layer in layers if layer.is_bound and not _RETENTION_KEYS.isdisjoint(layer.values)]
    if policy.snapshot_expire_ids and bounds:
        raise PolicyError(
            f"policy key snapshot_expire_ids (from {sources['snapshot_expire_ids']}) cannot be used: it would go below "
            f"{bounds[0].source}"
        )


def _exact_text(value: object) -> str:
    return str(value) if isinstance(value, Fraction) else text_of(value)
