"""Keeps Apache Iceberg tables in S3 table buckets healthy: plan, rewrite, commit, clean, report."""

from importlib import import_module
from typing import TYPE_CHECKING

# Sets what Arrow and the C library read when they are loaded.
from icekeeper.machine import resources as resources

if TYPE_CHECKING:
    from icekeeper import errors as errors
    from icekeeper.api import Icekeeper as Icekeeper
    from icekeeper.policy import Policy as Policy

__all__ = ("Icekeeper", "Policy", "errors")
_MODULES = {"Icekeeper": "icekeeper.api", "Policy": "icekeeper.policy"}


def __getattr__(name: str) -> object:
    """Import the library's face when a program asks for it: the command and the workers start without it."""
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if name == "errors":
        return import_module("icekeeper.errors")
    raise AttributeError(f"module 'icekeeper' has no attribute '{name}'")


def __dir__() -> list[str]:
    """The library's names too, imported or not."""
    return sorted({*globals(), *__all__})
