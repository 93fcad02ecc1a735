"""The policy file: ordered rules with settings for tables, selected by patterns of bucket, namespace and name.

::

    rules:
    - settings:                      # matches every table
        snapshot_retention_hours: 72
    - bucket: prod-*
      namespace: analytics, finance.*
      table: events_?
      settings:
        target_file_size_mb: 512

Later rules win.  The file is read as strict YAML: every value is text, as after ``--set``, and a duplicate key is an
error.  One mistake makes the whole file invalid, because a part of a policy is a different policy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NoReturn, TypeAlias
from urllib.parse import urlsplit

from icekeeper.errors import PolicyError
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS, Policy
from icekeeper.policy.layers import Layer, check_layer
from icekeeper.policy.values import did_you_mean, text_of

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
            raise PolicyError(f"{name} cannot set bounds: the deployment sets them as ICEKEEPER_BOUND_<KEY>")
        if field != _RULES:
            raise PolicyError(f"{name} has an unknown field '{field}'{did_you_mean(field, [_RULES])}; it has {_RULES}")
    rules = document[_RULES]
    if rules.data == "":
        return ()
    if not rules.is_sequence():
        raise PolicyError(f"{name}: {_RULES} must be a list, each rule beginning with '- '")
    return tuple(_rule(rule.data, f"{name} rule {number}") for number, rule in enumerate(rules, 1))


_STARTER_KEYS = (
    "snapshot_retention_hours",
    "max_snapshots_to_keep",
    "orphan_older_than_hours",
    "target_file_size_mb",
    "min_input_files",
)


def starter_file() -> str:
    """A policy file that changes nothing: usual keys with their defaults, and an example of patterns, as comments."""
    fields = Policy.model_fields
    usual = (
        f"#     # {fields[key].description}\n#     {key}: {text_of(fields[key].default)}\n" for key in _STARTER_KEYS
    )
    return f"""\
# Settings of Icekeeper for tables.  A rule applies to the tables that match all its patterns; later rules win.
# To use a line, remove the '# ' at its beginning.  'icekeeper policy check' shows which rule matches which table,
# and 'icekeeper docs policy' has every key.
rules:
# - settings:                    # no pattern: every table
{"".join(usual)}# - bucket: prod-*               # the bucket of the catalog's warehouse, or its last folder
#   namespace: scratch, tmp_*
#   table: load_?
#   settings:
#     maintenance_enabled: false
"""


def _rule(rule: Any, name: str) -> tuple[Mapping[str, tuple[str, ...]], Layer]:
    if not isinstance(rule, Mapping):
        _refuse(name, f"must be fields of {', '.join(_FIELDS)}, not '{rule}'")
    for field in rule:
        if field not in _FIELDS:
            hint = f"; write settings below '{_SETTINGS}:'" if field in POLICY_KEYS else ""
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
            _refuse(name, f"needs plain text for {key}; write lists with commas")
    layer = Layer(name, dict(settings))
    check_layer(layer)
    return patterns, layer


def _patterns(value: object, field: str, name: str) -> tuple[str, ...]:
    parts = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else ()
    if not parts or not all(parts):
        _refuse(name, f"needs a comma-separated list of patterns (* and ?) for {field}, for example prod-*")
    return parts


def _refuse(name: str, what: str) -> NoReturn:
    raise PolicyError(f"{name} {what}")


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
