"""Settings: every key, where its value came from, and what contradicts what."""

from __future__ import annotations

from icekeeper.operation_facts import ALL_OPERATIONS, OPT_IN_OPERATIONS, Operation
from icekeeper.policy.choices import OutputSpec, Ownership, Proof, Strategy
from icekeeper.policy.keys import DEPLOYMENT_KEYS, POLICY_KEYS, Policy
from icekeeper.policy.layers import TABLE_PREFIX, Layer, gc_enabled, layers_for
from icekeeper.policy.resolve import resolve
from icekeeper.policy.resolved_policy import DEFAULT_SOURCE, ResolvedPolicy, Schedule
from icekeeper.policy.rewrite_keys import MEGABYTE

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
