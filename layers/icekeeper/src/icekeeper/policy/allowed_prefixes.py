"""Where a deployment lets tables read, write and delete: prefixes per catalog and namespace (rule 92).

Table properties name locations, and whoever may set them could name another tenant's.  No table property can widen what
the deployment allows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from icekeeper.errors import PolicyError

__all__ = ["ALLOWED_PREFIXES", "allowed_prefixes", "check_allowed_prefixes"]

ALLOWED_PREFIXES = "ICEKEEPER_ALLOWED_PREFIXES"
"""The environment variable: ``CATALOG.NAMESPACE=PREFIX,PREFIX;…``, the first rule that fits a table holds."""
_HELP = (
    "write CATALOG.NAMESPACE=PREFIX,PREFIX;… with * and ? in catalog and namespace, as "
    "lake.sales=s3://lake/sales/;*=s3://lake/{namespace}/"
)


@dataclass(frozen=True, slots=True)
class _Rule:
    catalog: str
    namespace: str
    prefixes: tuple[str, ...]


def allowed_prefixes(
    environment: Mapping[str, str], catalog: str, namespace: tuple[str, ...]
) -> tuple[str, ...] | None:
    """The folders in which tables of a namespace may have files; ``None``: the deployment allows any.

    ``{catalog}`` and ``{namespace}`` in a prefix stand for the table's own; nested namespaces are joined by dots.

    Raises:
        PolicyError: the setting is malformed.
    """
    name = ".".join(namespace)
    for rule in _rules(environment.get(ALLOWED_PREFIXES, "")):
        if fnmatchcase(catalog, rule.catalog) and fnmatchcase(name, rule.namespace):
            return tuple(prefix.replace("{catalog}", catalog).replace("{namespace}", name) for prefix in rule.prefixes)
    return None


def check_allowed_prefixes(environment: Mapping[str, str]) -> None:
    """Raises PolicyError when the setting is malformed."""
    _rules(environment.get(ALLOWED_PREFIXES, ""))


def _rules(text: str) -> tuple[_Rule, ...]:
    return tuple(_rule(part.strip()) for part in text.split(";") if part.strip())


def _rule(text: str) -> _Rule:
    pattern, separator, listed = text.partition("=")
    prefixes = tuple(prefix.strip().rstrip("/") for prefix in listed.split(",") if prefix.strip())
    catalog, _, namespace = pattern.strip().partition(".")
    if not separator or not catalog or not prefixes:
        raise PolicyError(f"environment variable {ALLOWED_PREFIXES} has the rule '{text}', which names none: {_HELP}")
    for prefix in prefixes:
        if "://" not in prefix and not prefix.startswith(("/", "file:/")):
            raise PolicyError(f"environment variable {ALLOWED_PREFIXES}: '{prefix}' is no location: {_HELP}")
    return _Rule(catalog, namespace or "*", prefixes)
