"""How long a pass of this process may take, and how often it is tried (``job_timeout_s``, ``job_retry_limit``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

from icekeeper.errors import StorageError
from icekeeper.maintenance.table_lease import Turn
from icekeeper.policy import DEFAULT_SOURCE, ResolvedPolicy
from icekeeper.report.outcome import PassOutcome, PassStatus

__all__ = ["AttemptLimits", "attempted"]

_RETRY_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """The limits of all attempts at one pass together."""

    timeout_s: float | None = None
    """A pass that has taken so long begins no further operation or round of file groups; ``None``: never."""
    retries: int = 0
    """Further attempts at a pass that failed."""

    @classmethod
    def said(cls, resolved: ResolvedPolicy) -> AttemptLimits:
        """The limits that somebody has set; the defaults are for processes that nobody watches."""

        def is_said(key: str) -> bool:
            return resolved.sources[key] != DEFAULT_SOURCE

        return cls(
            timeout_s=resolved.policy.job_timeout_s if is_said("job_timeout_s") else None,
            retries=resolved.policy.job_retry_limit if is_said("job_retry_limit") else 0,
        )


def attempted(
    one_pass: Callable[[Turn], PassOutcome],
    turn: Turn,
    limits: AttemptLimits,
    *,
    tell: Callable[[str], object],
    wait: Callable[[float], object],
) -> tuple[PassOutcome, str | None]:
    """Run a pass, again if it fails, and return the last outcome; the text says why operations were left, if they were.

    ``tell`` is called with a sentence before a further attempt, ``wait`` with the seconds until it begins.

    Raises:
        MaintenanceError: as the last attempt raises it.
    """
    deadline_s = None if limits.timeout_s is None else monotonic() + limits.timeout_s

    def why_stop() -> str | None:
        is_late = deadline_s is not None and monotonic() > deadline_s
        return turn.why_stop() or (f"job_timeout_s {limits.timeout_s:g} is over" if is_late else None)

    limited, left = replace(turn, why_stop=why_stop), limits.retries
    while True:
        try:
            outcome = one_pass(limited)
        except StorageError as error:
            if not left or why_stop():
                raise
            tell(f"the pass failed and is tried again in {_RETRY_PAUSE_S:g} s: {error}")
        else:
            if not left or outcome.status is not PassStatus.FAILED or why_stop():
                return outcome, why_stop()
            tell(f"the pass failed and is tried again in {_RETRY_PAUSE_S:g} s: {outcome.summary}")
        limited = replace(limited, why_not=lambda: None)  # what it would see is the attempt before
        left -= 1
        wait(_RETRY_PAUSE_S)
