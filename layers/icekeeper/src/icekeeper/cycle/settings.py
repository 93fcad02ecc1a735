"""What ``icekeeper run`` goes by: the deployment's settings for scheduling, read anew before each detection (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from icekeeper.policy import Policy

__all__ = ["CycleSettings"]


@dataclass(frozen=True, slots=True)
class CycleSettings:
    """How often tables are looked at, how many are maintained at once, and how long one may take."""

    interval_s: float
    workers: int
    """Tables that this process maintains at once."""
    slots: int
    """Tables that all processes sharing the state maintain at once."""
    timeout_s: float
    """A pass that has taken so long begins no further operation or round of file groups."""
    retries: int
    """Further attempts at a pass that failed."""

    @classmethod
    def of(cls, policy: Policy) -> CycleSettings:
        """The settings that a deployment's policy holds; no process has more workers than there are slots."""
        return cls(
            interval_s=policy.detection_interval_s,
            workers=min(policy.max_concurrent_jobs_per_worker, policy.max_concurrent_jobs),
            slots=policy.max_concurrent_jobs,
            timeout_s=policy.job_timeout_s,
            retries=policy.job_retry_limit,
        )
