"""Which layers of settings a table has, and in which order.

The order is ``default`` → deployment environment → policy file → S3 Tables maintenance configuration →
Iceberg's own table properties → table properties ``icekeeper.<key>`` → this call; later layers win, and each is
checked.  :mod:`icekeeper.policy.table_may_set` decides which table properties count.  The
deployment's bounds then limit the values of all layers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from icekeeper.errors import PolicyError, UnknownSetting
from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.machine.resources import variables_set
from icekeeper.policy.keys import DEPLOYMENT_KEYS, KEY_FACTS, MEGABYTE, POLICY_KEYS, Policy, nearest_keys
from icekeeper.policy.values import amount_with_unit, parse_moment, text_of

if TYPE_CHECKING:
    from icekeeper.metadata.document import TableMetadata


# The keys of other maintenance services.  Similar names may mean the opposite: at least ``snapshot_min_retained``
# snapshots are kept, at most ``snapshot_retain_max``.

_KEPT = "max_snapshots_to_keep, the newest snapshots that are always kept"
_TARGET = "target_file_size_mb, in MB (2^20 bytes)"
_ALWAYS = "no setting: it is always done"
# Sources: Modak, "Policy"; Iceberg's Spark procedures and their options; Iceberg's table properties.  Names are in
# lower case, with underscores in place of hyphens and dots.
_NAMES: Mapping[str, str] = {
    "rewrite_target_bytes": _TARGET,
    "rewrite_min_input_files": "min_input_files",
    "manifest_rewrite_min_manifests": "min_manifests_to_rewrite",
    "snapshot_min_retained": _KEPT,
    "orphan_grace_hours": "orphan_older_than_hours",
    "retain_last": _KEPT,
    "min_snapshots_to_keep": _KEPT,
    "history_expire_min_snapshots_to_keep": _KEPT,
    "max_snapshot_age_ms": "snapshot_retention_hours, in hours",
    "history_expire_max_snapshot_age_ms": "snapshot_retention_hours, in hours",
    "older_than": "snapshot_retention_hours for snapshots, orphan_older_than_hours for orphans; both in hours",
    "snapshot_ids": "snapshot_expire_ids",
    "target_file_size_bytes": _TARGET,
    "write_target_file_size_bytes": _TARGET,
    "min_file_size_bytes": "min_file_size_ratio, a share of target_file_size_mb",
    "max_file_size_bytes": "no setting: outputs are at most a quarter above target_file_size_mb",
    "max_file_group_size_bytes": "max_file_group_size_mb, in MB (2^20 bytes)",
    "delete_file_threshold": "delete_compaction_min_deletes",
    "delete_ratio_threshold": "delete_compaction_min_ratio",
    "partial_progress_enabled": "partial_progress, file groups per commit; 0 is off",
    "partial_progress_max_commits": "partial_progress, file groups per commit",
    "output_spec_id": "output_spec: current or keep",
    "remove_dangling_deletes": _ALWAYS,
    "use_starting_sequence_number": _ALWAYS,
    "prefix_listing": _ALWAYS,
    "max_concurrent_deletes": "no setting: eight delete requests are sent at a time",
    "dry_run": "no setting: a dry run is asked for with each call (--dry-run, dry_run=True)",
    "zorder": "strategy=zorder, with its columns in sort_order",
}


def name_here(key: str) -> str | None:
    """Our name and unit of another service's key; ``None``: the key is not known."""
    return _NAMES.get(re.sub(r"[-.]", "_", key.strip().lower()))


OVERRIDE_SOURCE = "this call"
"""The source of settings of one call: of ``--set`` and ``--operations``, of a library's call, of a run's input."""
TABLE_PREFIX = "icekeeper."
"""The prefix of table properties that are policy keys."""
ENVIRONMENT_PREFIX = "ICEKEEPER_"
"""The prefix of environment variables that are settings or bounds of the deployment."""
BOUND_PREFIX = "ICEKEEPER_BOUND_"
BOUND_KEYS = frozenset(
    name for name, facts in KEY_FACTS.items() if facts.tighter is not None and not facts.is_of_deployment
)
# Other variables (ICEKEEPER_STATE, …) share the prefix.  One this similar to a key (difflib's ratio) is a misspelt key.
_MISSPELT = 0.8


@dataclass(frozen=True, slots=True)
class Layer:
    """The settings of one source by policy key, as text or typed; a bound only tightens the values of others."""

    source: str
    values: Mapping[str, object]
    is_bound: bool = False
    is_table: bool = False
    """From the table's own properties, which every writer of the table can set (rule: properties-never-loosen)."""

    @property
    def is_of_call(self) -> bool:
        return self.source == OVERRIDE_SOURCE and not self.is_bound


@dataclass(frozen=True, slots=True)
class Malformed:
    """A malformed value of one of Iceberg's own properties; an error if the table may set the key."""

    text: str
    why: str


def gc_enabled(metadata: TableMetadata) -> bool:
    """False forbids every operation that deletes files (Iceberg's ``gc.enabled``, default true).

    As in Java, only ``true`` is true: with a malformed value nothing is deleted.
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
    """The layers of one table, lowest first.

    ``overrides`` are the settings of this call, ``rules`` the rules of the policy file that match the table,
    ``bucket`` the settings of the table bucket's own maintenance.  An empty environment variable is not set.

    Raises:
        PolicyError: a variable or property that looks like a setting has no such key.
    """
    variables = variables_set(environment)
    return [
        *_environment_layers(variables),
        *rules,
        *bucket,
        *_iceberg_layers(table_properties),
        *table_layers(table_properties),
        *([Layer(OVERRIDE_SOURCE, dict(overrides))] if overrides else []),
        *_bound_layers(variables),
    ]


PAUSED_UNTIL = "paused_until"


def without_past_pauses(layers: Sequence[Layer], now_ms: int) -> list[Layer]:
    """The layers without pauses that are over, so that a policy does not depend on the time; other texts stay."""
    now = iso_utc(now_ms)
    return [
        replace(layer, values={key: value for key, value in layer.values.items() if key != PAUSED_UNTIL})
        if _is_over(layer.values.get(PAUSED_UNTIL), now)
        else layer
        for layer in layers
    ]


def _is_over(pause: object, now: str) -> bool:
    if pause is None:
        return False
    try:
        until = parse_moment(pause)
    except ValueError:
        return False  # it is reported where the layer is checked
    return until is not None and until <= now


def table_source(key: str) -> str:
    """The source of settings from the table property ``icekeeper.<key>``."""
    return f"table property {TABLE_PREFIX}{key}"


def _environment_layers(environment: Mapping[str, str]) -> Iterator[Layer]:
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(BOUND_PREFIX):
            continue
        key = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
        if key in POLICY_KEYS:
            yield Layer(f"deployment {variable}", {key: environment[variable]})
        elif here := name_here(key):
            raise PolicyError(f"environment variable {variable} is not a setting; here it is {here}")
        elif nearest := difflib.get_close_matches(key, POLICY_KEYS, n=1, cutoff=_MISSPELT):
            meant = f"{ENVIRONMENT_PREFIX}{nearest[0].upper()}"
            raise PolicyError(f"environment variable {variable} is not a setting (did you mean {meant}?)")


def _bound_layers(environment: Mapping[str, str]) -> Iterator[Layer]:
    for variable in sorted(environment):
        if not variable.startswith(BOUND_PREFIX):
            continue
        key = variable.removeprefix(BOUND_PREFIX).lower()
        if key not in BOUND_KEYS:
            allowed = ", ".join(f"{BOUND_PREFIX}{known.upper()}" for known in sorted(BOUND_KEYS))
            raise PolicyError(f"environment variable {variable} is not a bound; allowed are {allowed}")
        yield Layer(f"bound {variable}", {key: environment[variable]}, is_bound=True)


def table_layers(properties: Mapping[str, str]) -> Iterator[Layer]:
    """The layers of a table's properties ``icekeeper.<key>``, a layer for each property.

    Raises:
        PolicyError: a property is a setting of the deployment.
    """
    for name in sorted(properties):
        if not name.startswith(TABLE_PREFIX):
            continue
        key = name.removeprefix(TABLE_PREFIX)
        if key in DEPLOYMENT_KEYS:
            raise PolicyError(f"table property {name} cannot be set on a table: {key} is a setting of the deployment")
        yield Layer(table_source(key), {key: properties[name]}, is_table=True)


def _iceberg_layers(properties: Mapping[str, str]) -> Iterator[Layer]:
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
        yield Layer(source, {key: value}, is_table=True)


_ICEBERG_PROPERTIES: Mapping[str, tuple[str, int, Callable[[int], object]]] = {
    "write.target-file-size-bytes": ("target_file_size_mb", 1, lambda size: Fraction(size, MEGABYTE)),
    "history.expire.max-snapshot-age-ms": ("snapshot_retention_hours", 0, lambda age: Fraction(age, HOUR_MS)),
    "history.expire.min-snapshots-to-keep": ("max_snapshots_to_keep", 1, int),
}
"""Iceberg's own property → our key, its smallest legal value, and the conversion of its unit."""


def check_layer(layer: Layer) -> None:
    """Raise PolicyError for an unknown key or a malformed value of the layer."""
    check_keys(layer)
    parse_values(layer.values, dict.fromkeys(layer.values, layer.source))


def check_keys(layer: Layer) -> None:
    """Raise PolicyError for an unknown key of the layer."""
    for key in layer.values:
        if key not in POLICY_KEYS:
            here = name_here(key)
            if here is not None:
                raise UnknownSetting(f"unknown policy key '{key}' (from {layer.source}); here it is {here}")
            raise UnknownSetting(f"unknown policy key '{key}' (from {layer.source}){nearest_keys(key)}")


def parse_values(values: Mapping[str, object], sources: Mapping[str, str]) -> Policy:
    """The policy with these values and otherwise defaults.

    Raises:
        PolicyError: a malformed value; the message names key, value, source and the allowed values.
    """
    try:
        return Policy.model_validate(dict(values))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = str(first["loc"][0])
        raise PolicyError(
            f"policy key {key} cannot be '{text_of(values[key])}' (from {sources[key]}): "
            f"{amount_with_unit(key, values[key]) or _allowed(first)}"
        ) from None


def parse_value(key: str, value: object, source: str) -> object:
    """One value as the policy has it.

    Raises:
        PolicyError: as :func:`parse_values` does; or the value is malformed.
    """
    if isinstance(value, Malformed):
        raise PolicyError(value.why)
    return getattr(parse_values({key: value}, {key: source}), key)


def _allowed(error: Any) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]
