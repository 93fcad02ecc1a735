"""Keeps Apache Iceberg tables in S3 table buckets healthy: plan, rewrite, commit, clean, report."""

from typing import TYPE_CHECKING

# Sets what Arrow and the C library read when they are loaded.
from icekeeper.machine import resources as resources

if TYPE_CHECKING:
    from icekeeper.api import Icekeeper as Icekeeper
    from icekeeper.policy import Policy as Policy


def __getattr__(name: str) -> object:
    """Import the library's face when a program asks for it: the command and the workers start without it."""
    if name == "Icekeeper":
        from icekeeper.api import Icekeeper

        return Icekeeper
    if name == "Policy":
        from icekeeper.policy import Policy

        return Policy
    raise AttributeError(f"module 'icekeeper' has no attribute '{name}'")
