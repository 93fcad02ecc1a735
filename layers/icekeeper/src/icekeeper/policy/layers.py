"""What an operator sets for tables: layers of settings, the policy file among them, and the prefixes of their files.

The order of layers is ``default`` → deployment environment → policy file → S3 Tables maintenance configuration →
Iceberg's own table properties → table properties ``icekeeper.<key>`` → ``--set``; later layers win, and each is checked
(rule: refuse-bad-settings).  :mod:`icekeeper.policy.table_settings` decides which table properties count.  The
deployment's bounds then limit the values of all layers.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from fractions import Fraction
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from pydantic import ValidationError

from icekeeper.errors import PolicyError, UnknownSetting
from icekeeper.machine.clock import HOUR_MS, iso_utc
from icekeeper.machine.resources import variables_set
from icekeeper.policy.keys import DEPLOYMENT_KEYS, KEY_FACTS, MEGABYTE, POLICY_KEYS, Policy, nearest_keys
from icekeeper.policy.values import amount_with_unit, did_you_mean, parse_moment, text_of

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
    "dry_run": "--dry-run, an option of the command",
    "zorder": "strategy=zorder, with its columns in sort_order",
}


def name_here(key: str) -> str | None:
    """Our name and unit of another service's key; ``None``: the key is not known."""
    return _NAMES.get(re.sub(r"[-.]", "_", key.strip().lower()))


OVERRIDE_SOURCE = "--set"
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

    ``overrides`` are this call's ``--set`` values, ``rules`` the rules of the policy file that match the table,
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
            raise PolicyError(f"environment variable {variable} is no setting; here it is {here}")
        elif nearest := difflib.get_close_matches(key, POLICY_KEYS, n=1, cutoff=_MISSPELT):
            meant = f"{ENVIRONMENT_PREFIX}{nearest[0].upper()}"
            raise PolicyError(f"environment variable {variable} is no setting (did you mean {meant}?)")


def _bound_layers(environment: Mapping[str, str]) -> Iterator[Layer]:
    for variable in sorted(environment):
        if not variable.startswith(BOUND_PREFIX):
            continue
        key = variable.removeprefix(BOUND_PREFIX).lower()
        if key not in BOUND_KEYS:
            allowed = ", ".join(f"{BOUND_PREFIX}{known.upper()}" for known in sorted(BOUND_KEYS))
            raise PolicyError(f"environment variable {variable} is no bound; allowed are {allowed}")
        yield Layer(f"bound {variable}", {key: environment[variable]}, is_bound=True)


def table_layers(properties: Mapping[str, str]) -> Iterator[Layer]:
    """The layers of a table's properties ``icekeeper.<key>``, one for each.

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
            raise UnknownSetting(
                f"unknown policy key '{key}' (from {layer.source}){did_you_mean(key, POLICY_KEYS)}{nearest_keys(key)}"
            )


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


def _allowed(error: Any) -> str:
    text = str(error["msg"]).removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


# The policy file: ordered rules with settings for tables, selected by patterns of bucket, namespace and name::
#
#     rules:
#     - settings:                      # matches every table
#         snapshot_retention_hours: 72
#     - bucket: prod-*
#       namespace: analytics, finance.*
#       table: events_?
#       settings:
#         target_file_size_mb: 512
#
# Later rules win.  The file is read as strict YAML: every value is text, as after ``--set``, and a duplicate key is an
# error.  One mistake makes the whole file invalid: half a policy is another policy.

_RULES = "rules"
_SETTINGS = "settings"
_PATTERNS = ("bucket", "namespace", "table")
_FIELDS = (*_PATTERNS, _SETTINGS)


PolicyRules: TypeAlias = tuple[tuple[Mapping[str, tuple[str, ...]], Layer], ...]
"""The rules of one file in its order: patterns by field, and the settings for the tables that match all of them.  An
omitted pattern matches every table."""


def matching_layers(rules: PolicyRules, warehouse: str, namespace: str, table: str) -> list[Layer]:
    """The layers of the rules that match one table, lowest first; ``warehouse`` is the catalog's."""
    names = dict(zip(_PATTERNS, (bucket_name(warehouse), namespace, table), strict=True))
    return [
        layer
        for patterns, layer in rules
        if all(matches(name, patterns.get(field, ())) for field, name in names.items())
    ]


def parse_policy_file(text: str, source: str) -> PolicyRules:
    """The rules of a file; ``source`` is its address in messages.

    Raises:
        PolicyError: the file is malformed, or a rule has an unknown field or key, a wrong value, or a setting of the
            deployment.  The message names line, rule and key, and what is allowed.
    """
    import strictyaml  # most commands read no policy file

    name = f"policy file {source}"
    try:
        document = strictyaml.load(text)
    except strictyaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f"line {mark.line + 1}: "
        raise PolicyError(f"{name}: {where}{getattr(error, 'problem', None) or error}") from error
    except RecursionError as error:
        raise PolicyError(f"{name} is nested too deeply; a rule has two levels") from error
    except AttributeError as error:  # strictyaml fails while it reports characters that YAML does not allow
        raise PolicyError(f"{name} has characters that YAML does not allow") from error
    if not document.is_mapping() or _RULES not in document.data:
        raise PolicyError(f"{name} has no {_RULES}: it must begin with '{_RULES}:', then a list of rules")
    for field in document.data:
        if field == "bounds":
            raise PolicyError(f"{name} cannot set bounds: they are the deployment's, as ICEKEEPER_BOUND_<KEY>")
        if field != _RULES:
            raise PolicyError(f"{name} has an unknown field '{field}'{did_you_mean(field, [_RULES])}; it has {_RULES}")
    rules = document[_RULES]
    if rules.data == "":
        return ()
    if not rules.is_sequence():
        raise PolicyError(f"{name}: {_RULES} must be a list, each rule beginning with '- '")
    return tuple(_rule(rule.data, f"{name} rule {number}") for number, rule in enumerate(rules, 1))


def _rule(rule: Any, name: str) -> tuple[Mapping[str, tuple[str, ...]], Layer]:
    if not isinstance(rule, Mapping):
        _refuse(name, f"must be fields of {', '.join(_FIELDS)}, not '{rule}'")
    for field in rule:
        if field not in _FIELDS:
            hint = f"; settings stand below '{_SETTINGS}:'" if field in POLICY_KEYS else ""
            _refuse(name, f"has an unknown field '{field}'{did_you_mean(field, _FIELDS)}; fields are "
                    f"{', '.join(_FIELDS)}{hint}")  # fmt: skip
    patterns = {field: _patterns(rule[field], field, name) for field in _PATTERNS if field in rule}
    shown = "/".join(",".join(patterns.get(field, ("*",))) for field in _PATTERNS)
    name = f"{name} ({shown})"
    settings = rule.get(_SETTINGS)
    if not isinstance(settings, Mapping) or not settings:
        _refuse(name, f"needs '{_SETTINGS}:' and below it KEY: VALUE lines")
    for key, value in settings.items():
        if key in DEPLOYMENT_KEYS:
            _refuse(name, f"cannot set {key}: it is a setting of the deployment, as ICEKEEPER_{key.upper()}")
        if not isinstance(value, str):
            _refuse(name, f"has no plain text for {key}; lists are written with commas")
    layer = Layer(name, dict(settings))
    check_layer(layer)
    return patterns, layer


def _patterns(value: object, field: str, name: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()
    if not parts or not all(parts):
        _refuse(name, f"needs for {field} a comma-separated list of patterns (* and ?), for example prod-*")
    return parts


def _refuse(name: str, what: str) -> NoReturn:
    raise PolicyError(f"{name} {what}")


# Where tables may have files: the operator's prefixes per catalog and namespace (rule: bound-every-table).
#
# Patterns may contain the wildcards ``*`` and ``?``, as those of the policy file.  Table properties cannot widen the
# prefixes.  A table that no rule matches gets a default from its catalog (:mod:`icekeeper.catalogs.catalog`).


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns matches the whole name, or there are no patterns.  Case matters."""
    # Only * and ? are wildcards; fnmatch also interprets brackets.
    return not patterns or any(fnmatchcase(name, pattern.replace("[", "[[]")) for pattern in patterns)


def check_patterns(patterns: Iterable[str]) -> None:
    """Check patterns of tables, ``namespace.table`` with the wildcards ``*`` and ``?``, which may stand for dots too.

    Raises:
        PolicyError: one of them matches no name, whatever tables there are.
    """
    for pattern in patterns:
        has_parts = "*" in pattern or "." in pattern or "?" in pattern[1:-1]
        if not has_parts or pattern.startswith(".") or pattern.endswith(".") or ".." in pattern:
            raise PolicyError(
                f"'{pattern}' can match no table: write a namespace, a dot and a name, with the wildcards * and ?, "
                "such as shop.* or *.orders_?"
            )


def bucket_name(warehouse: str) -> str:
    """The name for bucket patterns: the last part of the bucket's address or ARN, or of a folder."""
    parts = urlsplit(warehouse)
    is_bucket_url = parts.scheme in ("s3", "s3a", "s3n") and parts.netloc
    return parts.netloc if is_bucket_url else warehouse.rstrip("/").rsplit("/", 1)[-1]


_SETTING = "environment variable ICEKEEPER_ALLOWED_PREFIXES"
_HELP = (
    "write CATALOG.NAMESPACE=PREFIX,PREFIX;… with * and ? in catalog and namespace, as "
    "lake.sales=s3://lake/sales/;*=s3://lake/{namespace}/"
)
_NAMESPACE, _CATALOG = "{namespace}", "{catalog}"
_NOT_IN_A_FOLDER = re.compile(r"[/\\\x00-\x1f\x7f-\x9f\u2028\u2029]")


def allowed_prefixes(text: str, catalog: str, namespace: tuple[str, ...]) -> tuple[tuple[str, ...], str] | None:
    """The folders in which tables of a namespace may have files; ``None``: no rule matches.

    ``text`` is the value of the environment variable.  ``{catalog}`` and ``{namespace}`` in a prefix stand for the
    table's own; nested namespaces are joined by dots.  A name that would then denote another folder or namespace gets
    no folder, and the second value says why (rule: names-are-not-paths).

    Raises:
        PolicyError: the setting is malformed.
    """
    name = ".".join(namespace)
    for of_catalog, of_namespace, prefixes in _prefix_rules(text):
        if not (matches(catalog, [of_catalog]) and matches(name, [of_namespace])):
            continue
        is_named = any(_NAMESPACE in prefix for prefix in prefixes)
        wrong = None
        if is_named or of_namespace != "*":  # joined by dots, such levels would be the name of another namespace
            wrong = "has an empty level" if not all(namespace) else None
            wrong = "has a level with a dot in it" if any("." in level for level in namespace) else wrong
        if wrong := wrong or (_wrong_as_folder(name) if is_named else None):
            return (), _rename(f"the table's namespace {name!r} {wrong}")
        if any(_CATALOG in prefix for prefix in prefixes) and (wrong := _wrong_as_folder(catalog)):
            return (), _rename(f"the catalog's name {catalog!r} {wrong}")
        return tuple(prefix.replace(_CATALOG, catalog).replace(_NAMESPACE, name) for prefix in prefixes), ""
    return None


def _rename(wrong: str) -> str:
    return f"{wrong}, so {_SETTING} cannot say where its files are; rename it"


def _wrong_as_folder(name: str) -> str | None:
    if not name.strip(".") or name != name.strip():
        return "names no folder"
    return "has a character that no folder's name has" if _NOT_IN_A_FOLDER.search(name) else None


def check_allowed_prefixes(text: str) -> None:
    """Raises PolicyError when the setting is malformed."""
    _prefix_rules(text)


def _prefix_rules(text: str) -> list[tuple[str, str, tuple[str, ...]]]:
    """Patterns of catalog and namespace, and the prefixes of each rule."""
    return [_prefix_rule(part.strip()) for part in text.split(";") if part.strip()]


def _prefix_rule(text: str) -> tuple[str, str, tuple[str, ...]]:
    pattern, separator, listed = text.partition("=")
    prefixes = tuple(prefix.strip().rstrip("/") for prefix in listed.split(",") if prefix.strip())
    catalog, _, namespace = pattern.strip().partition(".")
    if not separator or not catalog or not all(prefixes) or not prefixes:
        raise PolicyError(f"{_SETTING} has the rule '{text}', which names none: {_HELP}")
    for prefix in prefixes:
        if "://" not in prefix and not prefix.startswith(("/", "file:/")):
            raise PolicyError(f"{_SETTING}: '{prefix}' is no location: {_HELP}")
    return catalog, namespace or "*", prefixes
