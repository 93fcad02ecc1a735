"""What policy keys already promise but this version does not do yet: asking for it is an error, never ignored."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.policy.choices import Ownership

__all__ = ["ANY_OTHER", "NOT_YET_AVAILABLE", "unavailable"]

ANY_OTHER: frozenset[object] = frozenset({"any value but the default"})
"""Refuses every value but the default."""

NOT_YET_AVAILABLE: Mapping[str, frozenset[object]] = {
    "ownership": frozenset({Ownership.ICEKEEPER}),
    "detection_interval_s": ANY_OTHER,
    "max_concurrent_jobs": ANY_OTHER,
    "max_concurrent_jobs_per_worker": ANY_OTHER,
    "job_timeout_s": ANY_OTHER,
    "job_retry_limit": ANY_OTHER,
}
"""Key → the values of it that are refused.  Remove an entry when its feature arrives."""


def unavailable(key: str, value: object, default: object) -> object | None:
    """The part of a value that this version cannot do, ``None`` when it can do all of it."""
    if key not in NOT_YET_AVAILABLE or value == default:
        return None
    refused = NOT_YET_AVAILABLE[key]
    if refused is ANY_OTHER:
        return value
    parts = value if isinstance(value, tuple) else (value,)
    return next((part for part in parts if part in refused), None)
