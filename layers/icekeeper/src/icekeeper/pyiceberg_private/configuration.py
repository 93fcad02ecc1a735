"""PyIceberg's configuration: ``.pyiceberg.yaml``, the environment, and how one overlays the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import strictyaml
from pyiceberg.utils.config import PYICEBERG_YML, Config, merge_config
from strictyaml import YAMLError

__all__ = ["catalogs_of", "configured_catalogs", "merged"]


def configured_catalogs() -> dict[str, dict[str, Any]]:
    """Properties by catalog name, read anew from ``.pyiceberg.yaml`` and the environment.

    Raises:
        ValueError: the configuration is not what PyIceberg expects.
    """
    try:
        config = Config()  # not load_catalog(): it keeps what it read when it was imported
    except YAMLError as error:
        raise ValueError(f"{PYICEBERG_YML} is not valid: {_where(error)}") from None
    return {name: dict(config.get_catalog_config(name) or {}) for name in config.get_known_catalogs()}


def merged(configured: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Configured properties overlaid with given ones, as PyIceberg merges them."""
    return dict(merge_config(dict(configured), dict(given)))


def catalogs_of(text: str) -> dict[str, dict[str, Any]]:
    """Properties by lower-case catalog name, of a text in the format of ``.pyiceberg.yaml``.

    Raises:
        ValueError: it is not valid.
    """
    try:
        content = strictyaml.load(text).data if text.strip() else {}
    except YAMLError as error:
        raise ValueError(_where(error)) from None
    sections = {key.lower(): value for key, value in content.items()} if isinstance(content, dict) else None
    catalogs = sections.get("catalog", {}) if sections is not None else None
    if not isinstance(catalogs, dict) or not all(isinstance(value, dict) for value in catalogs.values()):
        raise ValueError("it has no mapping of names to properties under 'catalog:'")
    return {
        name.lower(): {key.lower(): value for key, value in properties.items()} for name, properties in catalogs.items()
    }


def _where(error: YAMLError) -> str:
    """The problem and its line; the error's own text quotes what stands there, which may be a password."""
    problem = str(getattr(error, "problem", None) or "it cannot be parsed")
    mark = getattr(error, "problem_mark", None)
    return problem if mark is None else f"{problem} in line {mark.line + 1}"
