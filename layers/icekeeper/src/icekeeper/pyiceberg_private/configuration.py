"""PyIceberg's configuration: ``.pyiceberg.yaml``, and the environment, which overrides it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import strictyaml
from pyiceberg.utils.config import PYICEBERG_HOME, PYICEBERG_YML, Config, merge_config
from strictyaml import YAMLError


def configured_catalogs() -> dict[str, dict[str, Any]]:
    """Properties by catalog name, from ``.pyiceberg.yaml`` and the environment as they are now.

    Raises:
        ValueError: the configuration is not valid for PyIceberg, or belongs to another user.
    """
    _refuse_strangers_file()
    try:
        config = Config()  # not load_catalog(), which reads the configuration once, at its import
    except YAMLError as error:
        raise ValueError(f"{PYICEBERG_YML} is not valid: {_where(error)}") from None
    return {name: dict(config.get_catalog_config(name) or {}) for name in config.get_known_catalogs()}


def _refuse_strangers_file() -> None:
    """Refuse another user's file in the working directory, which PyIceberg also reads.

    A configuration may name commands: anybody who can put a file there, as in ``/tmp``, could run them as this user.
    """
    folders = (os.environ.get(PYICEBERG_HOME), os.path.expanduser("~"))
    if not hasattr(os, "getuid") or any(folder and _has_text(folder) for folder in folders) or not _has_text("."):
        return
    for found in (os.lstat(PYICEBERG_YML), os.stat(PYICEBERG_YML)):
        if found.st_uid not in (os.getuid(), 0):
            here = os.path.abspath(PYICEBERG_YML)
            raise ValueError(
                f"{here} in the working directory belongs to another user (id {found.st_uid}), and a configuration may "
                f"name commands to run; if it is yours, set {PYICEBERG_HOME} to its folder, or change its owner"
            )


def _has_text(folder: str) -> bool:
    path = os.path.join(folder, PYICEBERG_YML)
    return os.path.isfile(path) and os.path.getsize(path) > 0


def merged(configured: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Configured properties, overridden by given properties as in PyIceberg."""
    return dict(merge_config(dict(configured), dict(given)))


def catalogs_of(text: str) -> dict[str, dict[str, Any]]:
    """Properties by lower-case catalog name, from a text in the format of ``.pyiceberg.yaml``.

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
        raise ValueError("it contains no mapping of names to properties under 'catalog:'")
    return {
        name.lower(): {key.lower(): value for key, value in properties.items()} for name, properties in catalogs.items()
    }


def _where(error: YAMLError) -> str:
    """The problem and its line; the error's own text quotes the line, which may contain a password."""
    problem = str(getattr(error, "problem", None) or "it cannot be parsed")
    mark = getattr(error, "problem_mark", None)
    return problem if mark is None else f"{problem} in line {mark.line + 1}"
