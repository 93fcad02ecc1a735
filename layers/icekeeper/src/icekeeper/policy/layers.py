"""Where settings come from, in the order in which later ones win.

``default`` → deployment environment → policy file → S3 Tables maintenance configuration → Iceberg's own table
properties → table properties ``icekeeper.<key>`` → ``--set``.  What the table's properties count for says
:mod:`icekeeper.policy.table_settings`; the deployment's bounds then limit what all of them say.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.machine.resources import variables_set
from icekeeper.policy.foreign_names import name_here
from icekeeper.policy.keys import DEPLOYMENT_KEYS, KEY_FACTS, POLICY_KEYS
from icekeeper.policy.rewrite_keys import MEGABYTE

__all__ = [
    "BOUND_KEYS",
    "ENVIRONMENT_PREFIX",
    "OVERRIDE_SOURCE",
    "SCHEDULE_PREFIX",
    "TABLE_PREFIX",
    "Layer",
    "Malformed",
    "gc_enabled",
    "layers_for",
    "table_source",
]

OVERRIDE_SOURCE = "--set"
TABLE_PREFIX = "icekeeper."
"""The prefix of table properties that are policy keys."""
SCHEDULE_PREFIX = "schedules."
"""The prefix of settings that hold for one named schedule: ``schedules.NAME.KEY``."""
ENVIRONMENT_PREFIX = "ICEKEEPER_"
"""The prefix of environment variables that are settings of the deployment, or its bounds."""
BOUND_PREFIX = "ICEKEEPER_BOUND_"
BOUND_KEYS = frozenset(
    name for name, facts in KEY_FACTS.items() if facts.tighter is not None and not facts.is_of_deployment
)
"""Keys that a deployment may bound: those of which one value deletes or costs more than another."""
# Variables that are no policy key (ICEKEEPER_STATE, …) share the prefix; one this similar to a key (difflib's ratio) is
# taken for a misspelt key.
_MISSPELT = 0.8


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source by policy key, as text or already typed; a bound only tightens what others say."""

    source: str
    values: Mapping[str, object]
    is_bound: bool = False
    is_table: bool = False
    """Said by the table's own properties, which whoever may write the table sets (rule 260)."""

    @property
    def is_of_call(self) -> bool:
        """Whether this call says it with ``--set``."""
        return self.source == OVERRIDE_SOURCE and not self.is_bound


@dataclass(frozen=True, slots=True)
class Malformed:
    """A value of one of Iceberg's own properties that cannot be read: an error where the table may set the key."""

    text: str
    why: str


class HasProperties(Protocol):
    """Table metadata, as far as this module needs it."""

    @property
    def properties(self) -> Mapping[str, str]: ...


def gc_enabled(metadata: HasProperties) -> bool:
    """False forbids every operation that deletes files (Iceberg's ``gc.enabled``, default true).

    Java takes only ``true`` for true, and so does this: a malformed value deletes nothing.
    """
    return metadata.properties.get("gc.enabled", "true").strip().lower() == "true"


def layers_for(
    table_properties: Mapping[str, str],
    environment: Mapping[str, str],
    overrides: Mapping[str, str],
    *,
    rules: Sequence[Layer] = (),
    bucket: Sequence[Layer] = (),
) -> list[Layer]:
    """The layers of one table, lowest first, each with a source by which a person finds it.

    ``overrides`` are this call's ``--set`` values, ``rules`` the rules of the policy file that fit the table,
    ``bucket`` the settings of the table bucket's own maintenance.  An environment variable that is empty is not set.

    Raises:
        PolicyError: a variable or property that looks like a setting has no such key.
    """
    variables = variables_set(environment)
    return [
        *_environment_layers(variables),
        *rules,
        *bucket,
        *_iceberg_layers(table_properties),
        *_table_layers(table_properties),
        *([Layer(OVERRIDE_SOURCE, dict(overrides))] if overrides else []),
        *_bound_layers(variables),
    ]


def table_source(key: str) -> str:
    """How people find the table property ``icekeeper.<key>``."""
    return f"table property {TABLE_PREFIX}{key}"


def _environment_layers(environment: Mapping[str, str]) -> Sequence[Layer]:
    layers = []
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(BOUND_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if "__" in key:
            key = key.replace("__", ".")  # a name of a variable has no dots
        if key in POLICY_KEYS or key.startswith(SCHEDULE_PREFIX):
            layers.append(Layer(f"deployment {variable}", {key: environment[variable]}))
        elif here := name_here(key):
            raise PolicyError(f"environment variable {variable} is no setting; here it is {here}")
        elif key.startswith("schedule"):
            raise PolicyError(
                f"environment variable {variable} is no setting; those of a schedule are called "
                f"{ENVIRONMENT_PREFIX}SCHEDULES__NAME__KEY, with two underscores before name and key"
            )
        elif nearest := difflib.get_close_matches(key, POLICY_KEYS, n=1, cutoff=_MISSPELT):
            meant = f"{ENVIRONMENT_PREFIX}{nearest[0].upper()}"
            raise PolicyError(f"environment variable {variable} is no setting (did you mean {meant}?)")
    return layers


def _bound_layers(environment: Mapping[str, str]) -> Sequence[Layer]:
    layers = []
    for variable in sorted(environment):
        if not variable.startswith(BOUND_PREFIX):
            continue
        key = variable.removeprefix(BOUND_PREFIX).lower()
        if key not in BOUND_KEYS:
            allowed = ", ".join(f"{BOUND_PREFIX}{known.upper()}" for known in sorted(BOUND_KEYS))
            raise PolicyError(f"environment variable {variable} is no bound; allowed are {allowed}")
        layers.append(Layer(f"bound {variable}", {key: environment[variable]}, is_bound=True))
    return layers


def _table_layers(properties: Mapping[str, str]) -> Sequence[Layer]:
    layers = []
    for name in sorted(properties):
        if not name.startswith(TABLE_PREFIX):
            continue
        key = name.removeprefix(TABLE_PREFIX)
        if key in DEPLOYMENT_KEYS:
            raise PolicyError(f"table property {name} cannot be set on a table: {key} is a setting of the deployment")
        layers.append(Layer(table_source(key), {key: properties[name]}, is_table=True))
    return layers


def _iceberg_layers(properties: Mapping[str, str]) -> Sequence[Layer]:
    layers = []
    for name, (key, minimum, convert) in _ICEBERG_PROPERTIES.items():
        if name not in properties:
            continue
        text = properties[name].strip()
        source = f"table property {name}"
        # Java parses these as decimal longs.
        if text.isascii() and text.isdigit() and len(text) <= 19 and int(text) >= minimum:
            value = convert(int(text))
        else:
            why = f"{source} is '{properties[name]}'; it must be a whole number of at least {minimum}"
            value = Malformed(properties[name], why)
        layers.append(Layer(source, {key: value}, is_table=True))
    return layers


_ICEBERG_PROPERTIES: Mapping[str, tuple[str, int, Callable[[int], object]]] = {
    "write.target-file-size-bytes": ("target_file_size_mb", 1, lambda size: Fraction(size, MEGABYTE)),
    "history.expire.max-snapshot-age-ms": ("snapshot_retention_hours", 0, lambda age: Fraction(age, HOUR_MS)),
    "history.expire.min-snapshots-to-keep": ("max_snapshots_to_keep", 1, int),
}
"""Iceberg's own property → our key, its smallest legal value, and the conversion of its unit."""
