"""Where tables may have files: the operator's prefixes per catalog and namespace (rule: bound-every-table).

Patterns may contain the wildcards ``*`` and ``?``, as those of the policy file.  Table properties cannot widen the
prefixes.  A table that no rule matches gets a default from its catalog (:mod:`icekeeper.catalogs.catalog`).
"""

from __future__ import annotations

import re

from icekeeper.errors import PolicyError
from icekeeper.policy.policy_file import matches

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
    no folder, and the second value says why (rule: bound-every-table).

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
        raise PolicyError(f"{_SETTING} has the rule '{text}', which names no prefix: {_HELP}")
    for prefix in prefixes:
        if "://" not in prefix and not prefix.startswith(("/", "file:/")):
            raise PolicyError(f"{_SETTING}: '{prefix}' is not a location: {_HELP}")
    return catalog, namespace or "*", prefixes
