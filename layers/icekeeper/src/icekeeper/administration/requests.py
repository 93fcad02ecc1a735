"""Requests for a pass that are pending: withdraw the one for a table, also when the table or its catalog is gone."""

from __future__ import annotations

from collections.abc import Sequence

from icekeeper.catalogs.table_identity import identity_of
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.state.identity import TableIdentity
from icekeeper.state.requests import MaintenanceRequest

__all__ = ["withdraw_request"]


def withdraw_request(handle: TableHandle) -> MaintenanceRequest:
    """Take back the request that is pending for a table: by its identity, or by the name under which it was filed.

    Raises:
        PolicyError: none is pending, or a run has taken it just now.
        StorageError: the state does not answer.
    """
    pending = handle.state.requests.pending()
    for request in _meant(handle, pending):
        if handle.state.requests.claim(request):
            return request
    raise PolicyError(
        f"no request is pending for {handle.table} of catalog {handle.catalog.name}; icekeeper requests list shows them"
    )


def _meant(handle: TableHandle, pending: Sequence[MaintenanceRequest]) -> list[MaintenanceRequest]:
    try:
        identity: TableIdentity | None = identity_of(handle.catalog, handle.load())
    except MaintenanceError:  # a table that is gone, or cannot be loaded, is known by its name alone
        identity = None
    if identity is not None:
        return [request for request in pending if request.identity.is_same_copy(identity)]
    name = handle.catalog.name, str(handle.table)
    return [request for request in pending if (request.identity.catalog, str(request.identity.table)) == name]
