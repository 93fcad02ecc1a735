"""Resolve layers of settings to one checked policy with the source of each value."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata, table_digest
from icekeeper.operation_facts import FACTS, Operation
from icekeeper.policy.age_floors import short_retention
from icekeeper.policy.contradictions import check_policy
from icekeeper.policy.keys import DEPLOYMENT_KEYS, KEY_FACTS, MORE, POLICY_KEYS, Policy
from icekeeper.policy.layers import (
    OVERRIDE_SOURCE,
    PAUSED_UNTIL,
    Layer,
    check_layer,
    parse_value,
    parse_values,
    table_layers,
    table_source,
    without_past_pauses,
)
from icekeeper.policy.ownership import Owners
from icekeeper.policy.table_may_set import Ignored, without_ignored
from icekeeper.policy.values import Strategy, json_value, text_of

DEFAULT_SOURCE = "default"
# Keys without influence on what a pass does; the interval of sweeps only decides when.
_UNDECIDING = DEPLOYMENT_KEYS | {"orphan_sweep_interval_hours"}
# Keys that stop a pass, also after it has begun (rule: switches-stop-at-once).
_SWITCHES = {"maintenance_enabled", PAUSED_UNTIL}.union(*(facts.switches for facts in FACTS.values()))
# Keys that decide the order that files have.
_OF_ORDER = ("strategy", "sort_order", "target_file_size_mb")


@dataclass(frozen=True, slots=True)
class ResolvedPolicy:
    """A policy and, for every key, the source of its value."""

    policy: Policy
    sources: Mapping[str, str]
    is_stopped: bool = False
    """A bound forbids maintenance, or the table is paused; then not even the files of failed loads are deleted."""
    bounds: frozenset[str] = frozenset()
    """The sources that are bounds."""
    owners: Owners = field(default_factory=Owners)
    """In a table bucket: who runs which operation."""
    waived_prefixes: tuple[str, ...] = ()
    """The ``orphan_protected_prefixes`` of others than the table; another table's metadata there stops no sweep."""
    ignored: tuple[Ignored, ...] = ()
    """The table's settings that are ignored, wholly or in part (rule: properties-never-loosen)."""
    orders: Policy | None = None
    """If the settings of the call only merge files: the table's policy without them, by which other passes order
    files."""
    layers: tuple[Layer, ...] = field(default=(), repr=False, compare=False)
    """The layers of the policy, as they were given."""
    _attempted: dict[Operation, bool] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Cache of :meth:`runs`."""
    _own_fingerprint: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """Cache of :meth:`fingerprint`: tables share policies, and detection asks for the fingerprint per table."""

    def is_set(self, key: str) -> bool:
        """Whether any source has set the key."""
        return self.sources[key] != DEFAULT_SOURCE

    def rows(self, *, defaults: bool = True) -> list[tuple[str, str, str, str]]:
        """``(key, value, source, meaning)`` as text of every key; without ``defaults``, of keys that are set."""
        return [
            (key, text_of(getattr(self.policy, key)), self.sources[key], field.description or "")
            for key, field in Policy.model_fields.items()
            if defaults or self.is_set(key)
        ]

    def documents(self, *, defaults: bool = True) -> dict[str, dict[str, object]]:
        """Key → ``{"source", "value"}`` with JSON values.

        Field names are in alphabetical order, as a state store returns them, so that stored documents compare equal.
        Without ``defaults``, only keys that are set.
        """
        keys = [key for key in POLICY_KEYS if defaults or self.sources[key] != DEFAULT_SOURCE]
        return {key: {"source": self.sources[key], "value": json_value(getattr(self.policy, key))} for key in keys}

    def fingerprint(self) -> str:
        """A digest of everything that decides what a pass does: equal for equal values and owners, whatever the source.

        Settings of detection are not part of it: with other filters, finished work remains finished.
        """
        if self._own_fingerprint:
            return self._own_fingerprint[0]
        deciding = sorted(key for key in POLICY_KEYS if key not in _UNDECIDING)
        lines = [f"{key}={_exact_text(getattr(self.policy, key))}" for key in deciding]
        # Once the bucket no longer runs an operation, it is our work again.
        lines += [f"{operation.value} is not ours" for operation in Operation if operation in self.owners.owned]
        if self.orders is not None:
            lines += [f"orders {key}={_exact_text(getattr(self.orders, key))}" for key in _OF_ORDER]
        self._own_fingerprint.append(hashlib.sha256("\n".join(lines).encode()).hexdigest())
        return self._own_fingerprint[0]

    def digest_over(self, metadata: TableMetadata) -> str:
        """A digest of what decides a pass over a table besides its snapshots: this policy, and the table's own settings
        (schema, partition spec, sort order, properties)."""
        return hashlib.sha256(f"{self.fingerprint()} {table_digest(metadata)}".encode()).hexdigest()

    def why_ignored(self, key: str) -> str | None:
        """Why the table's own property for a key is ignored; ``None``: it counts."""
        return next(
            (setting.why for setting in self.ignored if setting.key == key and setting.source == table_source(key)),
            None,
        )

    def why_disabled(self) -> str | None:
        """Why every operation is skipped; ``None``: maintenance is enabled."""
        if not self.policy.maintenance_enabled:
            return f"maintenance is disabled ({self.sources['maintenance_enabled']})"
        if self.policy.paused_until is not None:
            return f"the table is paused until {self.policy.paused_until} ({self.sources['paused_until']})"
        return None

    def why_not(self, operation: Operation) -> str | None:
        """Why an operation is skipped for any table: disabled, all its switches are off, or left to the table
        bucket."""
        if disabled := self.why_disabled():
            return disabled
        switches = FACTS[operation].switches
        if switches and not any(getattr(self.policy, key) for key in switches):
            return ", ".join(f"{key} is false ({self.sources[key]})" for key in switches)
        return self.owners.owned.get(operation)

    def why_stopped(self, operation: Operation | None, properties: Mapping[str, str], now_ms: int) -> str | None:
        """Why an operation that has begun must stop, because the table's newest properties switch it off; ``None``: it
        may go on.

        All other settings are those with which the pass began.  Operation ``None`` is the cleanup of failed loads.

        Raises:
            PolicyError: a switch is malformed.
        """
        before = [layer for layer in self.layers if layer.is_table and _is_switch(layer)]
        now = [layer for layer in without_past_pauses([*table_layers(properties)], now_ms) if _is_switch(layer)]
        if now == before:
            return None
        rest = [layer for layer in self.layers if layer not in before]
        end = next((at for at, layer in enumerate(rest) if layer.is_of_call or layer.is_bound), len(rest))
        resolved = resolve([*rest[:end], *now, *rest[end:]], unsafe=True)
        if operation is None:
            return resolved.why_disabled() if resolved.is_stopped else None
        if disabled := resolved.why_disabled():
            return disabled
        switches = FACTS[operation].switches
        off = [key for key in switches if getattr(self.policy, key) and not getattr(resolved.policy, key)]
        return ", ".join(f"{key} is false ({resolved.sources[key]})" for key in off) or None

    def runs(self, operation: Operation) -> bool:
        """Whether a pass under this policy attempts the operation at all."""
        if not self._attempted:
            self._attempted.update({o: o in self.policy.operations and self.why_not(o) is None for o in Operation})
        return self._attempted[operation]


def _is_switch(layer: Layer) -> bool:
    return not _SWITCHES.isdisjoint(layer.values)


def _exact_text(value: object) -> str:
    return str(value) if isinstance(value, Fraction) else text_of(value)


# The list that is the union over all layers.
(_UNITED,) = (key for key, facts in KEY_FACTS.items() if facts.tighter is MORE)


def resolve(layers: Sequence[Layer], *, unsafe: bool = False) -> ResolvedPolicy:
    """Apply the layers to the defaults, later ones winning, and then the bounds among them.

    ``unsafe`` allows an orphan grace period below 24 hours and ``snapshot_give_up_ids``.

    Raises:
        PolicyError: an unknown key, or a malformed or contradictory value; the message names key, value, source and
            the allowed values.
    """
    for layer in layers:
        # Each layer is checked by itself, so that a mistake is reported even if a later layer overrides it.
        if not layer.is_table:
            check_layer(layer)
    counting, ignored = without_ignored(layers)
    policy, sources = _merged(counting)
    check_policy(policy, sources, counting, unsafe=unsafe)
    # The bound can only be false.
    is_stopped = any(layer.is_bound and "maintenance_enabled" in layer.values for layer in counting)
    of_call = {key for layer in counting if layer.is_of_call for key in layer.values}
    only_merges = "strategy" in of_call and policy.strategy is Strategy.BINPACK
    return ResolvedPolicy(
        policy,
        sources,
        is_stopped=is_stopped or policy.paused_until is not None,
        bounds=frozenset(layer.source for layer in counting if layer.is_bound),
        waived_prefixes=_union([layer for layer in counting if not layer.is_table]),
        ignored=ignored,
        orders=_merged([layer for layer in counting if not layer.is_of_call])[0] if only_merges else None,
        layers=tuple(layers),
    )


def _merged(layers: Sequence[Layer]) -> tuple[Policy, dict[str, str]]:
    """The values of checked layers within the bounds among them, and the source of each."""
    values: dict[str, object] = {}
    sources = dict.fromkeys(POLICY_KEYS, DEFAULT_SOURCE)
    for layer in layers:
        if not layer.is_bound:
            values.update(layer.values)
            sources.update(dict.fromkeys(layer.values, layer.source))
    policy = _unite(layers, parse_values(values, sources), sources)
    for layer in layers:
        if layer.is_bound:
            policy = _tighten(policy, layer, sources)
    return policy, sources


def _unite(layers: Sequence[Layer], policy: Policy, sources: dict[str, str]) -> Policy:
    """The policy with the list that is the union over the layers."""
    stating = [layer for layer in layers if _UNITED in layer.values and not layer.is_bound]
    if len(stating) > 1:
        policy = policy.model_copy(update={_UNITED: _union(stating)})
        sources[_UNITED] = ", ".join(layer.source for layer in stating if _union([layer])) or sources[_UNITED]
    return policy


def _union(layers: Sequence[Layer]) -> tuple[str, ...]:
    stating = [layer for layer in layers if _UNITED in layer.values]
    parts: list[Any] = [parse_value(_UNITED, layer.values[_UNITED], layer.source) for layer in stating]
    return tuple(dict.fromkeys(value for part in parts for value in part))


def _tighten(policy: Policy, bound: Layer, sources: dict[str, str]) -> Policy:
    bounds = parse_values(bound.values, dict.fromkeys(bound.values, bound.source))
    changes: dict[str, object] = {}
    for key in bound.values:
        direction, limit, value = KEY_FACTS[key].tighter, getattr(bounds, key), getattr(policy, key)
        assert direction is not None  # BOUND_KEYS
        if limit in direction.loosest:
            raise PolicyError(
                f"policy key {key} cannot be bounded to '{text_of(limit)}' (from {bound.source}), its loosest value; "
                f"tighter is {direction.words}"
            )
        tightened = direction.meet(value, limit)
        if tightened != value:
            changes[key] = tightened
            sources[key] = bound.source if direction is not MORE or not value else f"{sources[key]}, {bound.source}"
    if "snapshot_retention_hours" in bound.values and policy.snapshot_retain_max is not None:
        changes["snapshot_retain_max"] = None  # it would make young snapshots expire
        sources["snapshot_retain_max"] = bound.source
    return policy.model_copy(update=changes)


# Setting → the operation that reads it, which `all` does not include, and what does not happen without it.
_OF_OPERATIONS_ON_REQUEST = {
    "partition_retention_hours": (Operation.EXPIRE_PARTITIONS, "no partition is dropped"),
    "statistics_columns": (Operation.COMPUTE_STATISTICS, "no statistics are computed"),
}


def unused_settings(resolved: ResolvedPolicy) -> Iterator[str]:
    """A sentence for each setting of the table that is ignored, or that no operation of this policy reads.

    The latter are not reported if the call itself names the operations.
    """
    yield from (setting.sentence() for setting in resolved.ignored)
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return
    for key, (operation, missing) in _OF_OPERATIONS_ON_REQUEST.items():
        value = getattr(resolved.policy, key)
        if value not in (None, ()) and operation not in resolved.policy.operations:
            yield (
                f"{key} is {text_of(value)} ({resolved.sources[key]}), but {operation.value} is not among the "
                f"operations, so {missing}; ask for it with operations=all,{operation.value}"
            )


def short_retentions(resolved: ResolvedPolicy) -> Iterator[str]:
    """A sentence if a policy sets a retention of snapshots below a day."""
    sentence = short_retention(resolved.policy, resolved.sources)
    if sentence is not None and resolved.runs(Operation.EXPIRE_SNAPSHOTS):
        yield sentence
