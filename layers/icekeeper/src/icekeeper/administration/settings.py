"""Settings of one table, kept with it as table properties ``icekeeper.<key>`` (rule 116).

One commit of properties alone changes them.  It is prepared anew on every head, so that changes of other writers stay,
and the policy that is checked is the one that will hold.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import PolicyError
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.format_versions import require_writable
from icekeeper.metadata.requirements import same_table
from icekeeper.metadata.updates import apply_updates
from icekeeper.model import Nothing
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import POLICY_KEYS, TABLE_PREFIX, ResolvedPolicy
from icekeeper.policy.keys import nearest_keys
from icekeeper.policy.layers import table_source
from icekeeper.policy.values import did_you_mean

__all__ = ["ResolvePolicy", "reset_settings", "set_settings", "unset_settings"]

ResolvePolicy = Callable[[LoadedTable], ResolvedPolicy]


def set_settings(handle: TableHandle, settings: Mapping[str, str], resolve_policy: ResolvePolicy) -> ResolvedPolicy:
    """Set these settings on the table; returns the policy that holds afterwards.

    Raises:
        PolicyError: no such table, or the policy would be wrong, or a value would not count (rule 260);
            nothing was changed.
        TableUnsupported: a table that this version must not write.
        StorageError: catalog or state store failed.
    """
    wanted = {f"{TABLE_PREFIX}{key}": value for key, value in settings.items()}

    def check(after: LoadedTable) -> None:
        resolved = resolve_policy(after)
        for key, value in settings.items():
            why = resolved.why_ignored(key)
            if why is not None:
                raise PolicyError(f"policy key {key} cannot be '{value}' (from {table_source(key)}): {why}")

    return _change(handle, lambda properties: (wanted, ()), resolve_policy, check)


def unset_settings(handle: TableHandle, keys: Sequence[str], resolve_policy: ResolvePolicy) -> ResolvedPolicy:
    """Remove these settings from the table, misspelt ones too; returns the policy that holds afterwards.

    Raises:
        PolicyError: no such table, a key that neither exists nor is set on the table, or the policy would be wrong
            without it; nothing was changed.
        TableUnsupported: a table that this version must not write.
        StorageError: catalog or state store failed.
    """

    def changes(properties: Mapping[str, str]) -> tuple[Mapping[str, str], Sequence[str]]:
        for key in keys:
            if key not in POLICY_KEYS and f"{TABLE_PREFIX}{key}" not in properties:
                raise PolicyError(
                    f"unknown policy key '{key}', and {handle.table} has no table property {TABLE_PREFIX}{key}"
                    f"{did_you_mean(key, POLICY_KEYS)}{nearest_keys(key)}"
                )
        return {}, [f"{TABLE_PREFIX}{key}" for key in keys]

    return _change(handle, changes, resolve_policy, resolve_policy)


def reset_settings(handle: TableHandle, resolve_policy: ResolvePolicy) -> ResolvedPolicy:
    """Remove every ``icekeeper.<key>`` from the table; returns the policy that holds then.  Other properties stay.

    Raises:
        PolicyError: no such table, or the policy would be wrong without them; nothing was changed.
        TableUnsupported: a table that this version must not write.
        StorageError: catalog or state store failed.
    """

    def changes(properties: Mapping[str, str]) -> tuple[Mapping[str, str], Sequence[str]]:
        return {}, sorted(name for name in properties if name.startswith(TABLE_PREFIX))

    return _change(handle, changes, resolve_policy, resolve_policy)


def _change(
    handle: TableHandle,
    changes: Callable[[Mapping[str, str]], tuple[Mapping[str, str], Sequence[str]]],
    resolve_policy: ResolvePolicy,
    check: Callable[[LoadedTable], object],
) -> ResolvedPolicy:
    """Commit the changes of properties that make a difference; ``check`` may raise before each attempt.

    ``changes`` gets the properties of the head and returns those to set and those to remove.
    """
    loaded = handle.load()

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        require_writable(metadata)
        wanted, unwanted = changes(metadata.properties)
        changed = {name: value for name, value in wanted.items() if metadata.properties.get(name) != value}
        gone = [name for name in unwanted if name in metadata.properties]
        updates = _updates(changed, gone)
        after = apply_updates(metadata, updates, metadata_location=None, now_ms=handle.clock())
        check(replace(head, metadata=after))
        if not updates:
            return Nothing("the table has these settings already")
        return PreparedCommit(
            requirements=same_table(metadata),
            updates=updates,
            landed=lambda now: _shows(now, changed, gone),
        )

    committed = handle.commit(loaded, handle.memory(loaded), prepare)
    return resolve_policy(handle.load() if isinstance(committed, Nothing) else committed.table)


def _updates(changed: Mapping[str, str], gone: Sequence[str]) -> list[dict[str, Any]]:
    updates: list[dict[str, Any]] = []
    if changed:
        updates.append({"action": "set-properties", "updates": dict(changed)})
    if gone:
        updates.append({"action": "remove-properties", "removals": list(gone)})
    return updates


def _shows(now: TableMetadata, changed: Mapping[str, str], gone: Iterable[str]) -> bool:
    properties = now.properties
    return all(properties.get(name) == value for name, value in changed.items()) and properties.keys().isdisjoint(gone)
