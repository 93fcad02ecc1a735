"""Pauses: no operation runs on a table until a time, however it is started.

A pause is the table property ``icekeeper.paused_until``, so it holds for every deployment that maintains the table, and
ends by itself.  It is set without the table's lease, because it is needed most while a pass runs: that pass reads it
before its next commit or batch of deletions, and stops (rule: switches-stop-at-once).
"""

from __future__ import annotations

from icekeeper.administration.settings import ResolvePolicy, set_settings, unset_settings
from icekeeper.errors import PolicyError
from icekeeper.machine.clock import iso_utc
from icekeeper.pass_context.table_handle import TableHandle, user_name
from icekeeper.policy.layers import PAUSED_UNTIL, TABLE_PREFIX


def pause(handle: TableHandle, until_ms: int, resolve_policy: ResolvePolicy, reason: str = "") -> str:
    """Pause a table until ``until_ms`` (epoch milliseconds), and return the time as text; a later call replaces it.

    Raises:
        PolicyError: no such table, or the time is past; nothing was changed.
        TableUnsupported: this version must not write the table.
        StorageError: catalog or state store failed.
    """
    until = iso_utc(until_ms)
    if until_ms <= handle.clock():
        raise PolicyError(f"the table cannot be paused until {until}: that is past; give a later time")
    set_settings(handle, {PAUSED_UNTIL: until}, resolve_policy)
    why = f": {reason}" if reason else ""
    handle.journal(handle.load(), f"pause: {user_name()} paused the table until {until}{why}")
    return until


def end_pause(handle: TableHandle, resolve_policy: ResolvePolicy) -> str | None:
    """End a pause, and return the time until which it would have held; ``None``: the table has no pause of its own.

    Raises:
        PolicyError: no such table.
        TableUnsupported: this version must not write the table.
        StorageError: catalog or state store failed.
    """
    loaded = handle.load()
    until = loaded.metadata.properties.get(f"{TABLE_PREFIX}{PAUSED_UNTIL}")
    if until is not None:
        unset_settings(handle, [PAUSED_UNTIL], resolve_policy)
        handle.journal(loaded, f"pause: {user_name()} ended the pause until {until}")
    return until
