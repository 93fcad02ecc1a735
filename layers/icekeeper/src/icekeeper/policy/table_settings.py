"""Which of a table's own properties count: they cannot undo the operator's settings (rule: properties-never-loosen).

Every writer of a table can set its properties.  A value tighter than the operator's always counts; any other value
counts if ``table_settings`` lets tables set the key.  A setting that does not count is ignored, with the reason, and
fails no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.operation_facts import Operation
from icekeeper.policy.keys import ALL_SETTINGS, DEFAULT_SETTINGS, KEY_FACTS, MORE, OWN_SCHEDULES, KeyFacts, Policy
from icekeeper.policy.layers import (
    ENVIRONMENT_PREFIX,
    INTERVAL,
    LONGEST_INTERVAL_MS,
    SCHEDULE_PREFIX,
    Layer,
    Malformed,
    check_keys,
    divided,
    interval_text,
    is_schedule_key,
    parse_interval,
    parse_values,
)
from icekeeper.policy.values import rounded_up, text_of

_DEFAULT = "default"
_VARIABLE = f"{ENVIRONMENT_PREFIX}TABLE_SETTINGS"
# Each schedule is resolved for every pass, and may cause a pass; usual are one or two.
_MOST_SCHEDULES = 16
# Filters and sort orders are parsed by every pass and every scan, some in quadratic time.
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting of a table that does not count, wholly or in part."""

    key: str
    """With the prefix of the schedule, if any."""
    value: str
    source: str
    why: str
    """A clause of a message that names the setting that would admit the value."""

    def sentence(self) -> str:
        """The message to the operator."""
        return f"{self.source} '{self.value}' does not count: {self.why}"

    def document(self) -> dict[str, object]:
        """The setting in ``icekeeper policy show --json``."""
        return {"key": self.key, "source": self.source, "value": self.value, "why": self.why}


_Verdict: TypeAlias = tuple[tuple[object, ...], str]
"""The value that counts, as a tuple of one, or empty if none counts; and why the table's own value does not count."""


def without_ignored(layers: Sequence[Layer]) -> tuple[list[Layer], tuple[Ignored, ...]]:
    """The layers without the table's settings that do not count, and those settings.

    Raises:
        PolicyError: a table has an unknown key, or a malformed value of a key that it may set.
    """
    if not any(layer.is_table for layer in layers):
        return list(layers), ()
    operator = _Operator(layers)
    found: list[Layer] = []
    ignored: list[Ignored] = []
    for layer in layers:
        if not layer.is_table:
            found.append(layer)
            continue
        check_keys(layer)
        values: dict[str, object] = {}
        for key, value in layer.values.items():
            counts, why = operator.judge(key, value, layer.source)
            if counts:
                values[key] = counts[0]
            if why:
                ignored.append(Ignored(key, _as_set(value), layer.source, why))
        if values:
            found.append(replace(layer, values=values))
    return operator.with_rare_sweeps(found, ignored), tuple(ignored)


class _Operator:
    """The settings of all sources but the table, and what tables may set."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.stated: dict[str, tuple[object, str]] = {}
        """Key, with the prefix of its schedule → value and source."""
        self.bounds: dict[str, tuple[object, str]] = {}
        self.may_set = Policy().table_settings
        for layer in (layer for layer in layers if not layer.is_table):
            settings = self.bounds if layer.is_bound else self.stated
            for key, value in layer.values.items():
                if key == "table_settings":
                    self.may_set = parse_values({key: value}, {key: layer.source}).table_settings
                elif not layer.is_of_call:
                    settings[key] = _typed(key, value, layer.source), layer.source
        names = dict.fromkeys(
            divided(key, layer.source)[0]
            for layer in layers
            for key in layer.values
            if layer.is_table and is_schedule_key(key) and key.endswith(f".{INTERVAL}")
        )
        own = [name for name in names if _interval_key(name) not in self.stated]
        self.own_schedules = own[:_MOST_SCHEDULES]
        """The schedules that only the table defines, up to the limit."""

    def judge(self, key: str, value: object, source: str) -> _Verdict:
        """Decide whether a setting of the table counts.

        Raises:
            PolicyError: the value is malformed, and the table may set the key.
        """
        name, inner = divided(key, source) if is_schedule_key(key) else ("", key)
        if name and (why := self._why_no_schedule(name)):
            return (), why
        if inner == INTERVAL:
            return self._judge_interval(name, value, source)
        facts, (now, said_by) = KEY_FACTS[inner], self._says(name, inner)
        barred = self._why_barred(name, inner, facts, said_by)
        try:
            if isinstance(value, str) and len(value) > _LONGEST:
                raise PolicyError(
                    f"policy key {key} cannot be '{value[:100]}…' (from {source}): it has {len(value):,} characters; a "
                    f"table's setting has {_LONGEST:,} at most"
                )
            typed = _typed(key, value, source)
        except PolicyError as error:
            # A malformed value is ignored where only a tighter one would count.
            is_free = self._is_named(inner) or (DEFAULT_SETTINGS in self.may_set and not inner.startswith("orphan_"))
            if is_free and not facts.is_of_call:
                raise
            reason = str(error).partition("): ")[2] or str(error)  # without key, value and source
            return (), f"{reason}; {barred}"
        if facts.tighter is MORE or typed == now:
            return self._bounded(inner, typed)
        if facts.tighter is None:
            return ((), barred) if barred else ((typed,), "")
        if facts.tighter.holds(now, typed) and not (barred and self._moves_work(name, inner)):
            return self._bounded(inner, typed)
        if barred:
            tight = facts.tighter.meet(now, typed)
            is_as_it_was = facts.tighter.holds(tight, now) or self._moves_work(name, inner)
            return () if is_as_it_was else (tight,), barred
        return self._limited(inner, facts, typed, now)

    def _limited(self, key: str, facts: KeyFacts, typed: object, now: object) -> _Verdict:
        """The verdict on a value looser than the operator's that a table may set, up to the limit for tables."""
        assert facts.tighter is not None
        limit = facts.table_limit
        if limit is None or self._is_named(key):
            return self._bounded(key, typed)
        if facts.tighter.meet(limit, now) == limit:
            limit = now  # the operator's own value is looser
        if (held := facts.tighter.meet(limit, typed)) == typed:
            return self._bounded(key, typed)
        return (held,), f"a table may set it to {text_of(limit)} at the loosest; {self._admits(key)}"

    def _bounded(self, key: str, typed: object) -> _Verdict:
        """The verdict on a value that counts, with a remark if a bound limits it; ``resolve`` applies the bounds."""
        direction = KEY_FACTS[key].tighter
        if direction is not None and direction is not MORE and key in self.bounds:
            limit, source = self.bounds[key]
            if not direction.holds(limit, typed):
                return (typed,), f"{source} keeps it at {text_of(direction.meet(limit, typed))}"
        return (typed,), ""

    def _why_barred(self, schedule: str, key: str, facts: KeyFacts, said_by: str) -> str:
        """Why a table may only tighten a key, or cannot set it; empty: it may set any value."""
        if facts.is_of_call:
            return "it counts only from the deployment, a policy file or --set"
        for other in facts.undermines:
            source = self.bounds[other][1] if other in self.bounds else self._says(schedule, other)[1]
            if other in self.bounds or (source != _DEFAULT and not self._is_named(key)):
                admits = "" if other in self.bounds else f"; {self._admits(key)}"
                return f"it would override {other} ({source}){admits}"
        if self._is_named(key):
            return ""
        if self._moves_work(schedule, key):
            whose = self._says(schedule, INTERVAL)[1]
            return f"the schedule and its operations are those of {whose}; {self._admits(key)}"
        value = f"{key} is {text_of(self._says(schedule, key)[0])} ({said_by})"
        if facts.tighter is None:
            only = "a table may not set it"
        elif key == "operations":
            only = "a table may only leave some of these out"
        else:
            only = f"a table may only tighten it ({facts.tighter.words})"
        is_free = DEFAULT_SETTINGS in self.may_set and not key.startswith("orphan_") and key != "operations"
        is_stated = said_by != _DEFAULT and facts.tighter is not None and not facts.is_of_layout
        return "" if is_free and not is_stated else f"{value}, and {only}; {self._admits(key)}"

    def _judge_interval(self, name: str, value: object, source: str) -> _Verdict:
        interval_ms, key = parse_interval(name, value, source), _interval_key(name)
        if key not in self.stated or self._is_named(OWN_SCHEDULES):
            return (value,), ""
        stated, said_by = self.stated[key]
        stated_ms = parse_interval(name, stated, said_by)
        if stated_ms is not None and interval_ms is not None and interval_ms >= stated_ms:
            return (value,), ""
        rhythm = "none" if stated_ms is None else f"every {interval_text(stated_ms)}"
        why = f"the schedule is that of {said_by}, {rhythm}, and a table may only make it rarer"
        return (), f"{why}; {self._admits(OWN_SCHEDULES)}"

    def with_rare_sweeps(self, layers: list[Layer], ignored: list[Ignored]) -> list[Layer]:
        """Limit the table's own schedules that name ``remove_orphans`` to ``orphan_sweep_interval_hours``.

        A schedule that names its operations runs them in every turn, so it would sweep more often than other passes.
        """
        if self._is_named("orphan_sweep_interval_hours"):
            return layers
        hours: Any = self._says("", "orphan_sweep_interval_hours")[0]
        least_ms = min(rounded_up(hours, HOUR_MS // 1000) * 1000, LONGEST_INTERVAL_MS)
        sweeping = set[str]()
        for name in self.own_schedules:
            own = f"{SCHEDULE_PREFIX}{name}.operations"
            named: Any = [_typed(own, layer.values[own], layer.source) for layer in layers if own in layer.values]
            if named and Operation.REMOVE_ORPHANS in named[-1]:
                sweeping.add(_interval_key(name))
        found = []
        for layer in layers:
            values = dict(layer.values)
            for key, value in layer.values.items():
                if not layer.is_table or key not in sweeping:
                    continue
                interval_ms = parse_interval(key, value, layer.source)
                if interval_ms is not None and interval_ms < least_ms:
                    values[key] = interval_text(least_ms)
                    why = f"it names remove_orphans, and orphan_sweep_interval_hours is {text_of(hours)}"
                    admits = self._admits("orphan_sweep_interval_hours")
                    ignored.append(Ignored(key, _as_set(value), layer.source, f"{why}; {admits}"))
            found.append(replace(layer, values=values) if values != layer.values else layer)
        return found

    def _says(self, schedule: str, key: str) -> tuple[object, str]:
        """The operator's value of a key while a schedule runs, and its source."""
        own = f"{SCHEDULE_PREFIX}{schedule}.{key}"
        if schedule and own in self.stated:
            return self.stated[own]
        if key in self.stated:
            return self.stated[key]
        return Policy.model_fields[key].default, _DEFAULT

    def _why_no_schedule(self, name: str) -> str:
        """Why there is no such schedule; empty: the operator has it, or the table may define it."""
        if _interval_key(name) in self.stated:
            return ""
        if len(self.own_schedules) >= _MOST_SCHEDULES and name not in self.own_schedules:
            return f"a table may make {_MOST_SCHEDULES} schedules; others are for the deployment or a policy file"
        intervals = (key for key in self.stated if is_schedule_key(key) and key.endswith(f".{INTERVAL}"))
        theirs = [key.removeprefix(SCHEDULE_PREFIX).removesuffix(f".{INTERVAL}") for key in intervals]
        by_default = DEFAULT_SETTINGS in self.may_set
        # A table's own schedule would run the operations of the operator's without their settings.
        if self._is_named(OWN_SCHEDULES) or (by_default and not theirs):
            return ""
        beside = f" beside the operator's {', '.join(theirs)}" if by_default else ""
        return f"a table may make no schedules{beside}; {self._admits(OWN_SCHEDULES)}"

    def _moves_work(self, schedule: str, key: str) -> bool:
        """Whether the key removes operations from a schedule of the operator, to run them with other settings."""
        return key == "operations" and bool(schedule) and _interval_key(schedule) in self.stated

    def _is_named(self, key: str) -> bool:
        return key in self.may_set or ALL_SETTINGS in self.may_set

    def _admits(self, key: str) -> str:
        return f"{_VARIABLE}={','.join((*self.may_set, key))} (TableSettings of the stack) lets tables set it"


def _interval_key(schedule: str) -> str:
    return f"{SCHEDULE_PREFIX}{schedule}.{INTERVAL}"


def _typed(key: str, value: object, source: str) -> object:
    """A value as the policy has it; an interval stays text.  A malformed value raises PolicyError."""
    if isinstance(value, Malformed):
        raise PolicyError(value.why)
    prefix, inner = "", key
    if is_schedule_key(key):
        name, inner = divided(key, source)
        prefix = f"{SCHEDULE_PREFIX}{name}."
        if inner == INTERVAL:
            parse_interval(name, value, source)
            return value
    return getattr(parse_values({inner: value}, {inner: source}, prefix), inner)


def _as_set(value: object) -> str:
    return value.text[:_LONGEST] if isinstance(value, Malformed) else text_of(value)[:_LONGEST]
