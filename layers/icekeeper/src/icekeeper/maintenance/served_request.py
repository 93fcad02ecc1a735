"""Which pending request a pass serves: that for its table, if the pass does all that was asked for (rule 117)."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.policy import Operation, Policy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest, RequestStore
from icekeeper.state.store import StateStore

__all__ = ["is_served", "served_request", "why_needless"]

_OPERATIONS = "operations"


def served_request(
    requests: RequestStore, identity: TableIdentity, settings: Mapping[str, str], policy: Policy | None
) -> MaintenanceRequest | None:
    """The request that is pending for the table, ``None`` where there is none or the pass does not serve it.

    Raises:
        StorageError: the state does not answer.
    """
    for request in requests.pending():
        if request.identity.is_same_copy(identity):
            return request if is_served(request.settings, settings, policy) else None
    return None


def why_needless(
    state: StateStore, identity: TableIdentity, detected_ms: int, *, now_ms: int, is_pending: bool | None
) -> str | None:
    """Why a table needs no pass any more: another run has seen to it since it was proposed (rule 127).

    ``is_pending`` says whether its request still is; ``None``: nobody requested the pass.  A pass that ended later than
    now was recorded by a clock that was ahead, and says nothing (rule 170).

    Raises:
        StorageError: the state does not answer.
    """
    if is_pending is not None:
        return None if is_pending else "the request was served or withdrawn since it was detected"
    seen = state.last_seen(identity)
    is_served = seen is not None and detected_ms <= seen.finished_ms <= now_ms
    return f"another run has maintained {identity.table} since it was detected" if is_served else None


def is_served(asked: Mapping[str, str], settings: Mapping[str, str], policy: Policy | None) -> bool:
    """Whether a pass with ``settings``, which make ``policy``, does what a request with the settings ``asked`` wants.

    It runs every operation that was asked for, and everything else is set alike.  Without a policy, because the
    settings are wrong, it serves the request that has the same ones.
    """
    others = [{key: value for key, value in one.items() if key != _OPERATIONS} for one in (asked, settings)]
    if others[0] != others[1]:
        return False
    if asked.get(_OPERATIONS) == settings.get(_OPERATIONS):
        return True
    if policy is None or _OPERATIONS not in asked:
        return False
    return {*_operations(asked)} <= {*policy.operations}


def _operations(asked: Mapping[str, str]) -> tuple[Operation, ...]:
    return Policy.model_validate({_OPERATIONS: asked[_OPERATIONS]}).operations
