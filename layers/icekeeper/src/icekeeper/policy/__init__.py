"""Settings: every key, the layers that set it, where a value came from, and which values contradict each other."""

from __future__ import annotations

from icekeeper.operation_facts import ALL_OPERATIONS, OPT_IN_OPERATIONS, Operation
from icekeeper.policy.keys import DEPLOYMENT_KEYS, MEGABYTE, POLICY_KEYS, Policy
from icekeeper.policy.layers import TABLE_PREFIX, Layer, gc_enabled, layers_for
from icekeeper.policy.resolve import DEFAULT_SOURCE, ResolvedPolicy, Schedule, resolve
from icekeeper.policy.values import OutputSpec, Ownership, Proof, Strategy

__all__ = [
    "ALL_OPERATIONS",
    "DEFAULT_SOURCE",
    "DEPLOYMENT_KEYS",
    "MEGABYTE",
    "OPT_IN_OPERATIONS",
    "POLICY_KEYS",
    "TABLE_PREFIX",
    "Layer",
    "Operation",
    "OutputSpec",
    "Ownership",
    "Policy",
    "Proof",
    "ResolvedPolicy",
    "Schedule",
    "Strategy",
    "gc_enabled",
    "layers_for",
    "resolve",
]
