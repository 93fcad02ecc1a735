"""Which pending request a pass serves: that for its table, if the pass does all that was asked for (rule 117)."""

from __future__ import annotations

from collections.abc import Mapping

from icekeeper.policy import Operation, Policy
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest, RequestStore

__all__ = ["is_served", "served_request"]

_OPERATIONS = "operations"


def served_request(
    requests: RequestStore, identity: TableIdentity, settings: Mapping[str, str], policy: Policy | None
) -> MaintenanceRequest | None:
    """The request that is pending for the table, ``None`` where there is none or the pass does not serve it.

    Raises:
        StorageError: the state does not answer.
    """
    for request in requests.pending():
        if request.identity.is_same_table(identity):
            return request if is_served(request.settings, settings, policy) else None
    return None


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
