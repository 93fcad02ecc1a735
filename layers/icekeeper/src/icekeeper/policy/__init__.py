"""Settings: every key, the layers that set it, where a value came from, and which values contradict each other."""

from __future__ import annotations

from icekeeper.operation_facts import ALL_OPERATIONS, Operation
from icekeeper.policy.keys import MEGABYTE, POLICY_KEYS, Policy
from icekeeper.policy.layers import TABLE_PREFIX, Layer, gc_enabled, layers_for
from icekeeper.policy.resolve import DEFAULT_SOURCE, ResolvedPolicy, resolve
from icekeeper.policy.values import Ownership, Strategy

__all__ = [
    "ALL_OPERATIONS",
    "DEFAULT_SOURCE",
    "MEGABYTE",
    "POLICY_KEYS",
    "TABLE_PREFIX",
    "Layer",
    "Operation",
    "Ownership",
    "Policy",
    "ResolvedPolicy",
    "Strategy",
    "gc_enabled",
    "layers_for",
    "resolve",
]
