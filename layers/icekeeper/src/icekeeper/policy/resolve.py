"""Resolve layers of settings to one checked policy with the source of each value (rule: refuse-bad-settings).

Also: what requests may set, what changed between two policies, and settings without effect.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from icekeeper.errors import PolicyError, RequestRefused
from icekeeper.operation_facts import FACTS, Operation
from icekeeper.policy.keys import DEPLOYMENT_KEYS, KEY_FACTS, MORE, POLICY_KEYS, Policy
from icekeeper.policy.layers import (
    OVERRIDE_SOURCE,
    PAUSED_UNTIL,
    TABLE_PREFIX,
    Layer,
    check_layer,
    parse_values,
    table_layers,
    table_source,
    without_past_pauses,
)
from icekeeper.policy.ownership import Owners
from icekeeper.policy.table_settings import Ignored, without_ignored
from icekeeper.policy.values import Strategy, did_you_mean, json_value, text_of

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
    """The table's settings that do not count, wholly or in part (rule: properties-never-loosen)."""
    orders: Policy | None = None
    """If the settings of the call only merge files: the table's policy without them, by which other passes order files
    (rule: keep-order-of-the-table)."""
    layers: tuple[Layer, ...] = field(default=(), repr=False, compare=False)
    """The layers of the policy, as they were given."""
    _own_fingerprint: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """Cache of :meth:`fingerprint`: tables share policies, and detection asks for the fingerprint per table."""

    def is_set(self, key: str) -> bool:
        """Whether any source has set the key."""
        return self.sources[key] != DEFAULT_SOURCE

    def rows(self) -> list[tuple[str, str, str, str]]:
        """``(key, value, source, meaning)`` as text of every key."""
        return [self._row(key, self.sources[key]) for key in Policy.model_fields]

    def _row(self, key: str, source: str) -> tuple[str, str, str, str]:
        return key, text_of(getattr(self.policy, key)), source, Policy.model_fields[key].description or ""

    def documents(self, *, defaults: bool = True) -> dict[str, dict[str, object]]:
        """Key → ``{"source", "value"}`` with JSON values.

        Field names are in alphabetical order, as a state store returns them, so that stored documents compare equal.
        Without ``defaults``, only keys that are set.
        """
        keys = [key for key in POLICY_KEYS if defaults or self.sources[key] != DEFAULT_SOURCE]
        return {key: self._document(key, self.sources[key]) for key in keys}

    def _document(self, key: str, source: str) -> dict[str, object]:
        return {"source": source, "value": json_value(getattr(self.policy, key))}

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

    def why_ignored(self, key: str) -> str | None:
        """Why the table's own property for a key does not count; ``None``: it counts."""
        return next((one.why for one in self.ignored if one.key == key and one.source == table_source(key)), None)

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
        """Why an operation that has begun must stop: what the table's newest properties switch off; ``None``: nothing.

        All other settings are those with which the pass began.  ``None`` as operation: the cleaning after failed loads.

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
        return operation in self.policy.operations and self.why_not(operation) is None


def _is_switch(layer: Layer) -> bool:
    return not _SWITCHES.isdisjoint(layer.values)


def _exact_text(value: object) -> str:
    return str(value) if isinstance(value, Fraction) else text_of(value)


# As in Iceberg's remove_orphan_files: younger files may belong to a commit in progress.
MIN_ORPHAN_GRACE_HOURS = 24
_UNITED = tuple(key for key, facts in KEY_FACTS.items() if facts.tighter is MORE)
_RETENTION_KEYS = frozenset({"snapshot_retention_hours", "max_snapshots_to_keep"})


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
    given = tuple(layers)
    layers, ignored = without_ignored(layers)
    resolved = replace(_resolve(layers, unsafe=unsafe), ignored=ignored, layers=given)
    of_call = {key for layer in layers if layer.is_of_call for key in layer.values}
    if "strategy" not in of_call or resolved.policy.strategy is not Strategy.BINPACK:
        return resolved
    return replace(resolved, orders=_merged([layer for layer in layers if not layer.is_of_call])[0])


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


def _resolve(layers: Sequence[Layer], *, unsafe: bool) -> ResolvedPolicy:
    policy, sources = _merged(layers)
    if not unsafe:
        _check_safe(policy, sources)
    _check_contradictions(policy, sources)
    _check_bounds_hold(layers, policy, sources)
    # The bound can only be false.
    is_stopped = any(layer.is_bound and "maintenance_enabled" in layer.values for layer in layers)
    is_stopped = is_stopped or policy.paused_until is not None
    waived = _union_of("orphan_protected_prefixes", [layer for layer in layers if not layer.is_table])
    bounds = frozenset(layer.source for layer in layers if layer.is_bound)
    return ResolvedPolicy(policy, sources, is_stopped, bounds, waived_prefixes=waived)


def _unite(layers: Sequence[Layer], policy: Policy, sources: dict[str, str]) -> Policy:
    """The policy with each list that is a union over the layers."""
    for key in _UNITED:
        stating = [layer for layer in layers if key in layer.values and not layer.is_bound]
        if len(stating) > 1:
            policy = policy.model_copy(update={key: _union_of(key, stating)})
            sources[key] = ", ".join(one.source for one in stating if _union_of(key, [one])) or sources[key]
    return policy


def _union_of(key: str, layers: Sequence[Layer]) -> tuple[str, ...]:
    stating = [layer for layer in layers if key in layer.values]
    parts = [getattr(parse_values({key: one.values[key]}, {key: one.source}), key) for one in stating]
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


_RETENTION = "snapshot_retention_hours"
SAFE_RETENTION_HOURS = 24
"""Readers, and jobs that resume from a snapshot, may run for a day."""


def require_safe_retention(settings: Mapping[str, str]) -> None:
    """Check the settings of a command line.

    Raises:
        PolicyError: they shorten the retention of snapshots below a day; malformed values are reported later.
    """
    for key, value in settings.items():
        if key != _RETENTION:
            continue
        with suppress(PolicyError):
            hours = parse_values({_RETENTION: value}, {_RETENTION: OVERRIDE_SOURCE}).snapshot_retention_hours
            if hours < SAFE_RETENTION_HOURS:
                break
    else:
        return
    raise PolicyError(
        f"{key}={value} is below {SAFE_RETENTION_HOURS}: readers that are under way could lose their snapshot; "
        "icekeeper maintain --unsafe allows it"
    )


def short_retentions(resolved: ResolvedPolicy) -> Iterator[str]:
    """A sentence if a policy sets a retention of snapshots below a day."""
    hours, source = resolved.policy.snapshot_retention_hours, resolved.sources[_RETENTION]
    if hours < SAFE_RETENTION_HOURS and source != OVERRIDE_SOURCE and resolved.runs(Operation.EXPIRE_SNAPSHOTS):
        yield (
            f"{_RETENTION} is {text_of(hours)} ({source}), below {SAFE_RETENTION_HOURS}: readers that are "
            "under way could lose their snapshot"
        )


def _check_safe(policy: Policy, sources: Mapping[str, str]) -> None:
    if policy.orphan_older_than_hours < MIN_ORPHAN_GRACE_HOURS:
        hours, source = text_of(policy.orphan_older_than_hours), sources["orphan_older_than_hours"]
        raise PolicyError(
            f"policy key orphan_older_than_hours is {hours} (from {source}), below {MIN_ORPHAN_GRACE_HOURS}: files of "
            "commits that are under way could be deleted; --unsafe allows it"
        )
    if policy.snapshot_give_up_ids:
        raise PolicyError(
            f"policy key snapshot_give_up_ids (from {sources['snapshot_give_up_ids']}) drops snapshots whose rows may "
            "still be recovered; --unsafe allows it"
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


def _check_bounds_hold(layers: Sequence[Layer], policy: Policy, sources: Mapping[str, str]) -> None:
    """Refuse named snapshots, which ignore the retention, if the deployment bounds the retention."""
    bounds = [layer for layer in layers if layer.is_bound and not _RETENTION_KEYS.isdisjoint(layer.values)]
    key, named = policy.named_snapshots
    if named and bounds:
        raise PolicyError(
            f"policy key {key} (from {sources[key]}) cannot be used: it would go below {bounds[0].source}"
        )


# A request for a pass must not delete more than the table's policy (rule: requests-never-exceed-policy).
#
# The sender of a request need not be an operator.  So a request may name operations of the policy, and settings that
# are no looser than those with which the operation runs anyway.  ``ICEKEEPER_REQUESTS_MAY`` admits more.

REQUESTS_MAY = "ICEKEEPER_REQUESTS_MAY"
"""The environment variable that admits operations, keys, or ``all`` in requests beyond a table's policy."""
_ALL = "all"

_EXPIRY = frozenset({Operation.EXPIRE_SNAPSHOTS})
_ORPHANS = frozenset({Operation.REMOVE_ORPHANS})
_PROTECTED = "orphan_protected_prefixes"
_PARTITIONS = frozenset({Operation.EXPIRE_PARTITIONS})
_REWRITES = frozenset({Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.COMPUTE_STATISTICS})
_EVERY = frozenset(Operation)
"""Every pass, even without operations, because it cleans up after failed loads."""

_DECIDES: Mapping[str, frozenset[Operation]] = {
    "maintenance_enabled": _EVERY,
    "paused_until": _EVERY,
    "ownership": _EVERY,
    "table_settings": _EVERY,
    "orphan_older_than_hours": _EVERY,
    "rewrite_enabled": frozenset({Operation.COMPACT}),
    "delete_compaction_enabled": frozenset({Operation.COMPACT}),
    "manifest_rewrite_enabled": frozenset({Operation.REWRITE_MANIFESTS}),
    "proof": _REWRITES,
    **dict.fromkeys(
        ("snapshot_expiry_enabled", "snapshot_retention_hours", "max_snapshots_to_keep", "snapshot_retain_max"), _EXPIRY
    ),
    **dict.fromkeys(
        ("snapshot_expire_limit", "snapshot_expire_ids", "snapshot_give_up_ids", "writer_mark_retention_hours"), _EXPIRY
    ),
    "clean_expired_metadata": _EXPIRY,
    **dict.fromkeys(
        ("orphan_sweep_enabled", "orphan_sweep_prefixes", "orphan_min_sightings", "orphan_inventory"), _ORPHANS
    ),
    **dict.fromkeys(("orphan_max_delete_ratio", "orphan_max_missing_ratio"), _ORPHANS),
    **dict.fromkeys(("orphan_table_types", "orphan_file_endings"), _ORPHANS),
    **dict.fromkeys(("partition_retention_hours", "partition_time", "branch", "where"), _PARTITIONS),
}
"""The keys that decide whether an operation runs, what it deletes, or how it proves that no row was lost."""

UNRESTRICTED = frozenset(POLICY_KEYS) - _DECIDES.keys() - {"operations", _PROTECTED}
"""The keys that any request may set, because none of their values deletes more."""


def requests_may(environment: Mapping[str, str]) -> frozenset[str]:
    """The operations and keys that the deployment admits in requests, whatever a table's policy says.

    Raises:
        PolicyError: the variable names anything else.
    """
    known = (_ALL, *(operation.value for operation in Operation), *_DECIDES, _PROTECTED)
    named = [name for name in (part.strip() for part in environment.get(REQUESTS_MAY, "").split(",")) if name]
    for name in named:
        if name not in known:
            raise PolicyError(
                f"environment variable {REQUESTS_MAY} has '{name}', which is no operation and no key that requests are "
                f"held to{did_you_mean(name, known)}; write a comma-separated list of them, or {_ALL}"
            )
    return frozenset(named)


def require_no_more(
    policy: ResolvedPolicy, asked: ResolvedPolicy, may: frozenset[str], table: str, *, asks: str = "a request"
) -> None:
    """Check a request: ``policy`` is the table's own, ``asked`` the policy with the request's settings.

    ``asks`` names in the message what asks for the pass.

    Raises:
        RequestRefused: the request would delete more; the message says what, and which setting admits it.
    """
    if _ALL in may:
        return
    refused = _looser(policy.policy, asked.policy, None, may)
    for operation in asked.policy.operations:
        refused |= _loosest(policy, asked, operation, may)
    if refused:
        raise RequestRefused(
            f"{asks} for {table} cannot {', and cannot '.join(refused.values())}: it does no more than the table's "
            f"policy; to admit that, the operator sets RequestsMay ({REQUESTS_MAY}) to {','.join(refused)}"
        )


def _loosest(own: ResolvedPolicy, asked: ResolvedPolicy, operation: Operation, may: frozenset[str]) -> dict[str, str]:
    """What is refused of a requested operation, by the setting that admits it; empty if the policy allows it."""
    found: dict[str, str] = {}
    if operation not in own.policy.operations and operation.value not in may:
        found[operation.value] = f"ask for {operation.value}, which the policy does not have"
    found |= _looser(own.policy, asked.policy, operation, may)
    more = [one for one in asked.waived_prefixes if one not in own.waived_prefixes]
    if operation is Operation.REMOVE_ORPHANS and more and _PROTECTED not in may:
        # A sweep would remove data beside another table's metadata (rule: operators-waive-foreign-metadata).
        what = f"add {text_of(tuple(more))} to {_PROTECTED}, by which what another table has there is removed"
        found[_PROTECTED] = what
    return found


def _looser(own: Policy, asked: Policy, operation: Operation | None, may: frozenset[str]) -> dict[str, str]:
    """The keys of an operation for which the request has a looser value, each with a clause of the message.

    ``None``: the keys of every pass.
    """
    looser: dict[str, str] = {}
    for key, operations in _DECIDES.items():
        is_meant = operations == _EVERY if operation is None else operation in operations
        if not is_meant or key in may:
            continue
        before, after, direction = getattr(own, key), getattr(asked, key), KEY_FACTS[key].tighter
        if before != after and (direction is None or not direction.holds(before, after)):
            looser[key] = f"set {key} to {text_of(after)}, where the policy has {text_of(before)}"
    return looser


def setting_changes(
    before: ResolvedPolicy | None, after: ResolvedPolicy, properties_before: Mapping[str, str]
) -> list[dict[str, Any]]:
    """``{"key", "before", "after"}`` of every key that changed.

    Each side is ``{"value", "source"}`` or ``None``.  ``before`` is ``None`` if the settings were wrong; the table's
    properties replace it.  ``after`` is ``None`` for a key that is no longer set or does not exist.
    """
    new = after.documents()
    if before is not None:
        old: Mapping[str, Any] = before.documents()
        keys = [key for key in new if old.get(key) != new[key]]
    else:
        old = {
            name.removeprefix(TABLE_PREFIX): {"value": value, "source": f"table property {name}"}
            for name, value in properties_before.items()
            if name.startswith(TABLE_PREFIX)
        }
        now = {key: _bare(value) for key, value, source, _ in after.rows() if source == table_source(key)}
        keys = [key for key in new if now.get(key) != (_bare(old[key]["value"]) if key in old else None)]
    changed = [{"key": key, "before": old.get(key), "after": new[key]} for key in keys]
    gone = [key for key in sorted(old) if key not in new]
    return [*changed, *({"key": key, "before": old[key], "after": None} for key in gone)]


def _bare(value: str) -> str:
    return "".join(value.split()).lower()


# Setting → the operation that reads it, which `all` does not include, and what does not happen without it.
_OF_OPERATIONS_ON_REQUEST = {
    "partition_retention_hours": (Operation.EXPIRE_PARTITIONS, "no partition is dropped"),
    "statistics_columns": (Operation.COMPUTE_STATISTICS, "no statistics are computed"),
}


def unused_settings(resolved: ResolvedPolicy) -> Iterator[str]:
    """A sentence for each setting of the table that does not count, or that no operation of this policy reads.

    The latter are not reported if the call itself names the operations.
    """
    yield from (one.sentence() for one in resolved.ignored)
    if resolved.sources["operations"] == OVERRIDE_SOURCE:
        return
    for key, (operation, missing) in _OF_OPERATIONS_ON_REQUEST.items():
        value = getattr(resolved.policy, key)
        if value not in (None, ()) and operation not in resolved.policy.operations:
            yield (
                f"{key} is {text_of(value)} ({resolved.sources[key]}), but {operation.value} is not among the "
                f"operations, so {missing}; ask for it with operations=all,{operation.value}"
            )
