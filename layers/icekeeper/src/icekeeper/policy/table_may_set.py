"""Which of a table's own properties count: they cannot undo the operator's settings (rule: properties-never-loosen).

Every writer of a table can set its properties.  A value tighter than the operator's always counts; any other value
counts if ``table_settings`` lets tables set the key.  A setting that does not count is ignored, with the reason, and
fails no pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from icekeeper.errors import PolicyError
from icekeeper.policy.keys import ALL_SETTINGS, DEFAULT_SETTINGS, KEY_FACTS, MORE, TIGHTER_ONLY, KeyFacts, Policy
from icekeeper.policy.layers import ENVIRONMENT_PREFIX, Layer, Malformed, check_keys, parse_value, parse_values
from icekeeper.policy.values import text_of

_DEFAULT = "default"
_VARIABLE = f"{ENVIRONMENT_PREFIX}TABLE_SETTINGS"
# Filters and sort orders are parsed by every pass and every scan, some in quadratic time.
_LONGEST = 10_000


@dataclass(frozen=True, slots=True)
class Ignored:
    """A setting of a table that is ignored, wholly or in part."""

    key: str
    value: str
    source: str
    why: str
    """A clause of a message that names the setting that would admit the value."""

    def sentence(self) -> str:
        """The message to the operator."""
        return f"{self.source} '{self.value}' is ignored: {self.why}"

    def document(self) -> dict[str, object]:
        """The setting in ``icekeeper policy show --json``."""
        return {"key": self.key, "source": self.source, "value": self.value, "why": self.why}


_Verdict: TypeAlias = tuple[tuple[object, ...], str]
"""The value that counts, as a tuple of length 1 (empty: no value counts); and why the table's own value is ignored."""


def without_ignored(layers: Sequence[Layer]) -> tuple[list[Layer], tuple[Ignored, ...]]:
    """The layers without the table's settings that are ignored, and those settings.

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
    return found, tuple(ignored)


class _Operator:
    """The settings of all sources but the table, and what tables may set."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.stated: dict[str, tuple[object, str]] = {}
        """Key → value and source."""
        self.bounds: dict[str, tuple[object, str]] = {}
        self.may_set = Policy().table_settings
        for layer in (layer for layer in layers if not layer.is_table):
            settings = self.bounds if layer.is_bound else self.stated
            for key, value in layer.values.items():
                if key == "table_settings":
                    self.may_set = parse_values({key: value}, {key: layer.source}).table_settings
                elif not layer.is_of_call:
                    settings[key] = parse_value(key, value, layer.source), layer.source

    def judge(self, key: str, value: object, source: str) -> _Verdict:
        """Decide whether a setting of the table counts.

        Raises:
            PolicyError: the value is malformed, and the table may set the key.
        """
        facts, (now, said_by) = KEY_FACTS[key], self._says(key)
        barred = self._why_barred(key, facts, said_by)
        try:
            if isinstance(value, str) and len(value) > _LONGEST:
                raise PolicyError(
                    f"policy key {key} cannot be '{value[:100]}…' (from {source}): it has {len(value):,} characters; a "
                    f"table's setting has {_LONGEST:,} at most"
                )
            typed = parse_value(key, value, source)
        except PolicyError as error:
            # A malformed value is ignored where only a tighter value would count.  A malformed list of operations is
            # an error: if it were ignored, a pass would run operations that the table leaves out.
            is_default = key == "operations" and DEFAULT_SETTINGS in self.may_set
            if (is_default or self._is_named(key) or self._is_free(key)) and not facts.is_of_call:
                raise
            reason = str(error).partition("): ")[2] or str(error)  # without key, value and source
            return (), f"{reason}; {barred}"
        if facts.tighter is MORE or typed == now:
            return self._bounded(key, typed)
        if facts.tighter is None:
            return ((), barred) if barred else ((typed,), "")
        if facts.tighter.holds(now, typed):
            return self._bounded(key, typed)
        if barred:
            tight = facts.tighter.meet(now, typed)
            return () if facts.tighter.holds(tight, now) else (tight,), barred
        return self._limited(key, facts, typed, now)

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

    def _why_barred(self, key: str, facts: KeyFacts, said_by: str) -> str:
        """Why a table may only tighten a key, or cannot set it; empty: it may set any value."""
        if facts.is_of_call:
            return "only the deployment, a policy file or the call can set it"
        for other in facts.undermines:
            source = self.bounds[other][1] if other in self.bounds else self._says(other)[1]
            if other in self.bounds or (source != _DEFAULT and not self._is_named(key)):
                admits = "" if other in self.bounds else f"; {self._admits(key)}"
                return f"it would override {other} ({source}){admits}"
        if self._is_named(key):
            return ""
        value = f"{key} is {text_of(self._says(key)[0])} ({said_by})"
        if facts.tighter is None:
            only = "a table may not set it"
        elif key == "operations":
            only = "a table may only leave some of these out"
        else:
            only = f"a table may only tighten it ({facts.tighter.words})"
        is_stated = said_by != _DEFAULT and facts.tighter is not None and not facts.is_of_layout
        return "" if self._is_free(key) and not is_stated else f"{value}, and {only}; {self._admits(key)}"

    def _says(self, key: str) -> tuple[object, str]:
        """The operator's value of a key, and its source."""
        if key in self.stated:
            return self.stated[key]
        return Policy.model_fields[key].default, _DEFAULT

    def _is_free(self, key: str) -> bool:
        """Whether tables may set the key to any value where the operator states none."""
        return DEFAULT_SETTINGS in self.may_set and key not in TIGHTER_ONLY

    def _is_named(self, key: str) -> bool:
        return key in self.may_set or ALL_SETTINGS in self.may_set

    def _admits(self, key: str) -> str:
        return f"{_VARIABLE}={','.join((*self.may_set, key))} (TableSettings of the stack) lets tables set it"


def _as_set(value: object) -> str:
    return value.text[:_LONGEST] if isinstance(value, Malformed) else text_of(value)[:_LONGEST]
