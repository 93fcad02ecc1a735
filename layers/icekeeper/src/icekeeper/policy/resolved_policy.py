"""A checked policy that knows where each value came from (rule 114), and the schedules in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction

from icekeeper.operation_facts import FACTS, Operation
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS, Policy
from icekeeper.policy.layers import SCHEDULE_PREFIX, table_source
from icekeeper.policy.ownership import Owners
from icekeeper.policy.schedules import INTERVAL, interval_text
from icekeeper.policy.table_settings import Ignored
from icekeeper.policy.values import json_value, text_of

__all__ = ["DEFAULT_SOURCE", "ResolvedPolicy", "Schedule"]

DEFAULT_SOURCE = "default"
# When a sweep is due decides nothing of what it finds.
_UNDECIDING = DEPLOYMENT_KEYS | {"orphan_sweep_interval_hours"}

# What of a schedule decides what others leave as it is.
_OF_LAYOUT = ("strategy", "sort_order", "zorder_columns", "target_file_size_mb", "min_file_size_ratio")


@dataclass(frozen=True, slots=True)
class Schedule:
    """One rhythm of a table's maintenance."""

    name: str
    interval_ms: int
    """How long after one turn of it the next one is due."""
    resolved: ResolvedPolicy
    """The settings that hold while it runs."""
    said: tuple[tuple[str, str], ...]
    """The keys that the schedule itself sets, in the order of all keys, and the source of each."""

    def says(self, key: str) -> bool:
        """Whether the schedule itself sets a key."""
        return any(said == key for said, _ in self.said)


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
    schedules: Mapping[str, Schedule] = field(default_factory=dict)
    """The named schedules, by name."""
    waived_prefixes: tuple[str, ...] = ()
    """Those of ``orphan_protected_prefixes`` that are not the table's: in them a foreign table stops no sweep."""
    ignored: tuple[Ignored, ...] = ()
    """The settings of the table that do not count, wholly or in part (rule 260)."""
    beside: tuple[Policy, ...] = ()
    """Of a schedule: the policies of the table's other schedules that compact."""
    known_as: str = ""
    """The fingerprint of the policy that this one is a part of; empty: it is a whole one."""
    _own_fingerprint: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """What :meth:`fingerprint` found, once it was asked: tables share policies, and detection asks for each of them."""

    def is_set(self, key: str) -> bool:
        """Whether anybody has set a key: the deployment, a policy file, the table or this call."""
        return self.sources[key] != DEFAULT_SOURCE

    def rows(self) -> list[tuple[str, str, str, str]]:
        """``(key, value, source, meaning)`` of every key, for people; then what the schedules say of themselves."""
        rows = [self._row(key, self.sources[key]) for key in Policy.model_fields]
        for name, schedule in sorted(self.schedules.items()):
            prefix = f"{SCHEDULE_PREFIX}{name}."
            for key, source in schedule.said:
                if key == INTERVAL:
                    what = f"how often schedule {name} runs"
                    rows.append((f"{prefix}{key}", interval_text(schedule.interval_ms), source, what))
                else:
                    _, value, source, what = schedule.resolved._row(key, schedule.resolved.sources[key])
                    rows.append((f"{prefix}{key}", value, source, what))
        return rows

    def _row(self, key: str, source: str) -> tuple[str, str, str, str]:
        return key, text_of(getattr(self.policy, key)), source, Policy.model_fields[key].description or ""

    def documents(self, *, defaults: bool = True) -> dict[str, dict[str, object]]:
        """Every key with its value as JSON has it, and its source; the one shape of a value with its source.

        Then what the schedules say of themselves, intervals as text (``24h``).  Field names are in alphabetical order:
        a state store returns them so, and remembered ones compare equal.  Without ``defaults``: only what somebody set.
        """
        keys = [key for key in POLICY_KEYS if defaults or self.sources[key] != DEFAULT_SOURCE]
        documents = {key: self._document(key, self.sources[key]) for key in keys}
        for name, schedule in sorted(self.schedules.items()):
            for key, source in schedule.said:
                named = f"{SCHEDULE_PREFIX}{name}.{key}"
                if key == INTERVAL:
                    documents[named] = {"source": source, "value": interval_text(schedule.interval_ms)}
                else:
                    documents[named] = schedule.resolved._document(key, source)
        return documents

    def _document(self, key: str, source: str) -> dict[str, object]:
        return {"source": source, "value": json_value(getattr(self.policy, key))}

    def of_schedule(self, name: str) -> ResolvedPolicy:
        """The settings of one schedule, of the same owners."""
        own = self.schedules[name].resolved
        others = (one.resolved for other, one in sorted(self.schedules.items()) if other != name)
        beside = tuple(other.policy for other in others if other.runs(Operation.COMPACT))
        return replace(own, owners=self.owners, beside=beside)

    def unscheduled(self) -> ResolvedPolicy:
        """The policy for the operations that no schedule names; the whole one where there are no schedules."""
        if not self.schedules:
            return self
        taken = {one for schedule in self.schedules.values() for one in schedule.resolved.policy.operations}
        left = tuple(operation for operation in self.policy.operations if operation not in taken)
        policy = self.policy.model_copy(update={"operations": left})
        return replace(self, policy=policy, schedules={}, known_as=self.fingerprint())

    def names_operations(self, schedule: str | None) -> bool:
        """Whether a schedule says itself what it does, so that each turn does it."""
        return schedule is not None and self.schedules[schedule].says("operations")

    def parts(self) -> tuple[ResolvedPolicy, ...]:
        """The policies by which passes may run: what no schedule names, and each schedule."""
        return self.unscheduled(), *(self.of_schedule(name) for name in sorted(self.schedules))

    def apart_from_schedules(self) -> ResolvedPolicy:
        """The policy for a pass outside of all schedules."""
        return replace(self, schedules={}, known_as=self.fingerprint())

    def fingerprint(self) -> str:
        """A digest of all that decides what a pass does: equal for equal values and owners, whatever their source.

        Which tables a detection looks at, and when, decides nothing: what is done stays done under other filters.
        """
        if self.known_as:
            return self.known_as
        if not self._own_fingerprint:
            self._own_fingerprint.append(self._digest())
        return self._own_fingerprint[0]

    def _digest(self) -> str:
        deciding = sorted(key for key in POLICY_KEYS if key not in _UNDECIDING)
        lines = [f"{key}={_exact_text(getattr(self.policy, key))}" for key in deciding]
        # An operation that was left to the bucket is work again once the bucket no longer does it.
        lines += [f"{operation.value} is not ours" for operation in Operation if operation in self.owners.owned]
        lines += [f"beside {key}={_exact_text(getattr(one, key))}" for one in self.beside for key in _OF_LAYOUT]
        for name, schedule in sorted(self.schedules.items()):
            lines.append(f"{SCHEDULE_PREFIX}{name}={schedule.interval_ms} {schedule.resolved.fingerprint()}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    def owned_by(self, owners: Owners) -> ResolvedPolicy:
        """The same settings with other owners."""
        return replace(self, owners=owners)

    def why_ignored(self, key: str) -> str | None:
        """Why what the table's own property says of a key does not count, ``None`` where it does."""
        return next((one.why for one in self.ignored if one.key == key and one.source == table_source(key)), None)

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


def _exact_text(value: object) -> str:
    return str(value) if isinstance(value, Fraction) else text_of(value)
