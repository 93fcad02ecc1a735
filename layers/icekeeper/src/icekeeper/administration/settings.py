"""Settings of one table, its safety bounds now, and withdrawn requests.

Settings are table properties ``icekeeper.<key>``.  A commit of properties alone changes them; it is prepared again on
every new head, so that changes of other writers stay, and the checked policy is the policy that will apply
(rule: commit-on-newest-head).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.metadata.document import TableMetadata, require_writable
from icekeeper.metadata.updates import apply_updates, same_table
from icekeeper.model import Nothing
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy import POLICY_KEYS, TABLE_PREFIX, ResolvedPolicy, gc_enabled
from icekeeper.policy.keys import nearest_keys
from icekeeper.policy.layers import table_source
from icekeeper.report.outcome import MAX_INLINE_PATHS, ListingWriter
from icekeeper.state.requests import MaintenanceRequest
from icekeeper.state.table_memory import TableMemory

ResolvePolicy = Callable[[LoadedTable], ResolvedPolicy]


def set_settings(handle: TableHandle, settings: Mapping[str, str], resolve_policy: ResolvePolicy) -> ResolvedPolicy:
    """Set these settings on the table, and return the policy afterwards.

    Raises:
        PolicyError: no such table, the policy would be wrong, or a value would be ignored
            (rule: properties-never-loosen); nothing was changed.
        TableUnsupported: this version must not write the table.
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
    """Remove these settings from the table, including misspelt keys, and return the policy afterwards.

    Raises:
        PolicyError: no such table, a key neither exists nor is set on the table, or the policy would be wrong; nothing
            was changed.
        TableUnsupported: this version must not write the table.
        StorageError: catalog or state store failed.
    """

    def changes(properties: Mapping[str, str]) -> tuple[Mapping[str, str], Sequence[str]]:
        for key in keys:
            if key not in POLICY_KEYS and f"{TABLE_PREFIX}{key}" not in properties:
                raise PolicyError(
                    f"unknown policy key '{key}', and {handle.table} has no table property {TABLE_PREFIX}{key}"
                    f"{nearest_keys(key)}"
                )
        return {}, [f"{TABLE_PREFIX}{key}" for key in keys]

    return _change(handle, changes, resolve_policy, resolve_policy)


def reset_settings(handle: TableHandle, resolve_policy: ResolvePolicy) -> ResolvedPolicy:
    """Remove all properties ``icekeeper.<key>`` from the table, and return the policy afterwards.

    Raises:
        PolicyError: no such table, or the policy would be wrong; nothing was changed.
        TableUnsupported: this version must not write the table.
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
    """Commit changes of properties; ``check`` gets the table as it would be, and may raise.

    ``changes`` maps the properties of the head to those to set and those to remove.
    """
    loaded = handle.load()

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        require_writable(metadata)
        wanted, unwanted = changes(metadata.properties)
        changed = {name: value for name, value in wanted.items() if metadata.properties.get(name) != value}
        gone = [name for name in unwanted if name in metadata.properties]
        updates: list[dict[str, Any]] = []
        if changed:
            updates.append({"action": "set-properties", "updates": changed})
        if gone:
            updates.append({"action": "remove-properties", "removals": gone})
        after = apply_updates(metadata, updates, metadata_location=None, now_ms=handle.clock())
        check(replace(head, metadata=after))
        if not updates:
            return Nothing("the table has these settings already")

        def landed(now: TableMetadata) -> bool:
            properties = now.properties
            is_set = all(properties.get(name) == value for name, value in changed.items())
            return is_set and properties.keys().isdisjoint(gone)

        return PreparedCommit(requirements=same_table(metadata), updates=updates, landed=landed)

    committed = handle.commit(loaded, handle.memory(loaded), prepare)
    return resolve_policy(handle.load() if isinstance(committed, Nothing) else committed.table)


def withdraw_request(handle: TableHandle) -> MaintenanceRequest:
    """Withdraw the pending request for a table: by its identity, or by name if the table cannot be loaded.

    Raises:
        PolicyError: none is pending, or a run has just claimed it.
        StorageError: the state store does not answer.
    """
    requests = handle.state.requests
    try:
        request = requests.of_table(identity_of(handle.catalog, handle.load()))
        meant = [] if request is None else [request]
    except MaintenanceError:  # the table or its catalog is gone
        name = handle.catalog.id.name, str(handle.table)
        meant = [req for req in requests.pending() if (req.identity.catalog.name, str(req.identity.table)) == name]
    for request in meant:
        if requests.claim(request):
            return request
    raise PolicyError(
        f"no request is pending for {handle.table} of catalog {handle.catalog.id}; icekeeper request list shows them"
    )


def safety_bounds(
    loaded: LoadedTable, resolved: ResolvedPolicy, memory: TableMemory, now_ms: int, listing: ListingWriter
) -> dict[str, Any]:
    """``bounds`` in ``plan --json``: what no deletion may touch now; times are epoch milliseconds by the store's clock.

    For an engine that executes a plan later: readers may pin a snapshot and loads may stage files after the plan was
    made, so it reads the bounds again before it deletes or expires.  ``listing`` stores the staged files if they are
    too many for the document.

    Raises:
        StorageError: the state store cannot be read, or the list cannot be written.
    """
    metadata, policy = loaded.metadata, resolved.policy
    pins, loads = memory.pins(), [load for load in memory.staged_loads() if load.is_protected]
    pinned = {pin.snapshot_id for pin in pins}
    oldest = next((snap.snapshot_id for snap in metadata.in_commit_order if snap.snapshot_id in pinned), None)
    files = list(chain.from_iterable(map(memory.staged_files, loads)))
    staged: dict[str, Any] = {"prefixes": sorted({prefix for load in loads for prefix in load.prefixes})}
    if len(files) <= MAX_INLINE_PATHS:
        staged["files"] = files
    else:
        name = f"{loaded.name}-staged"
        staged |= {"files_count": len(files), "listing": listing(name, {"staged": files})}
    return {
        "now_ms": now_ms,
        "metadata_location": loaded.metadata_location,
        "gc_enabled": gc_enabled(metadata) and not loaded.versioned_by,
        "oldest_pinned_snapshot_id": oldest,
        "pinned_metadata": sorted({pin.metadata_location for pin in pins}),
        "staged": staged,
        "protected_prefixes": list(policy.orphan_protected_prefixes),
        "allowed_prefixes": list(loaded.allowed.prefixes),
        "orphans_modified_before_ms": now_ms - policy.orphan_older_than_ms,
        "snapshots_committed_before_ms": now_ms - policy.snapshot_retention_ms,
        "snapshots_kept": policy.max_snapshots_to_keep,
    }


def setting_changes(
    before: ResolvedPolicy | None, after: ResolvedPolicy, properties_before: Mapping[str, str]
) -> list[dict[str, Any]]:
    """``{"key", "before", "after"}`` of every key that changed.

    Each side is ``{"value", "source"}`` or ``None``.  ``before`` is ``None`` if the settings were wrong; the table's
    properties replace it.  ``after`` is ``None`` for a key that is no longer set or does not exist.
    """
    new = after.documents()
    if before is not None:
        old: Mapping[str, Any] = before.documents()
        keys = [key for key in new if old.get(key) != new[key]]
    else:
        old = {
            name.removeprefix(TABLE_PREFIX): {"value": value, "source": f"table property {name}"}
            for name, value in properties_before.items()
            if name.startswith(TABLE_PREFIX)
        }
        now = {key: _bare(value) for key, value, source, _ in after.rows() if source == table_source(key)}
        keys = [key for key in new if now.get(key) != (_bare(old[key]["value"]) if key in old else None)]
    changed = [{"key": key, "before": old.get(key), "after": new[key]} for key in keys]
    gone = [key for key in sorted(old) if key not in new]
    return [*changed, *({"key": key, "before": old[key], "after": None} for key in gone)]


def _bare(value: str) -> str:
    return "".join(value.split()).lower()
