"""Pins and records of staged loads, as people and jobs set them.

A pin keeps a snapshot, all newer ones, and its metadata file for a reader (rule: pin-is-a-horizon).  It may also be
written as an Iceberg tag, for engines that do not read Icekeeper's state store.  The record of a staged load keeps a
writer's files until a commit adopts them or the load fails.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.errors import (
    CommitConflict,
    CommitStateUnknown,
    MaintenanceError,
    OperationRefused,
    PolicyError,
    StorageError,
)
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Ref, TableMetadata, require_writable
from icekeeper.metadata.updates import ref_at, same_table
from icekeeper.model import Nothing, TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.operations.overdue_loads import require_stageable
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.policy.ownership import why_bucket_expires
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from icekeeper.state.store import Pin
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.storage import Storage

CURRENT = "current"
_LONGEST_MS = 366 * 24 * HOUR_MS
# Without colons: the names of jobs' pins contain a colon, so that they never equal a person's.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def add_pin(handle: TableHandle, *, snapshot: str, ttl_ms: int, name: str | None = None, with_tag: bool = False) -> Pin:
    """Pin a snapshot (an id, or ``current``) for ``ttl_ms``; if the name exists, that pin is extended.

    Raises:
        PolicyError: no such table or snapshot, another pin or ref has the name, or the time is 0, negative or above 366
            days; nothing was changed.
        OperationRefused: the snapshot expired while it was being pinned; the pin was removed again.
        StorageError: catalog or state store failed.
    """
    if not 0 < ttl_ms <= _LONGEST_MS:
        raise PolicyError(f"a pin holds for more than 0 s and at most 366 days, not {ttl_ms / 1000:g} s")
    chosen = f"pin-{uuid.uuid4().hex[:8]}" if name is None else require_name(name, "pin")
    loaded = handle.load()
    memory, metadata = handle.memory(loaded), loaded.metadata
    snapshot_id = _snapshot_id(loaded, snapshot)
    before = next((pin for pin in memory.pins() if pin.name == chosen), None)
    if before is not None and before.snapshot_id != snapshot_id:
        raise PolicyError(
            f"pin '{chosen}' holds snapshot {before.snapshot_id}, not {snapshot_id}; choose another name, or remove it"
        )
    tag = chosen if with_tag else None if before is None else before.tag
    expires_ms = memory.clock() + ttl_ms
    pin = Pin(
        identity=memory.identity,
        name=chosen,
        snapshot_id=snapshot_id,
        # The holder of an existing pin already reads by its metadata file.
        metadata_location=loaded.metadata_location if before is None else before.metadata_location,
        expires_ms=expires_ms if before is None else max(expires_ms, before.expires_ms),
        tag=tag,
    )
    has_tag = before is not None and before.tag is not None
    if tag is not None:
        _check_tag(metadata, pin, is_ours=has_tag)
    handle.state.add_pin(pin)
    try:
        if tag is not None:
            _write_tag(handle, memory, loaded, pin, is_ours=has_tag)
        _require_still_there(handle, pin)
    except CommitStateUnknown:
        raise  # the tag may exist: the pin stays, so that remove_pin removes the tag
    except MaintenanceError:
        if before is not None:
            handle.state.add_pin(before)
        else:
            if tag is not None:
                _remove_tag(handle, memory, loaded, pin)
            handle.state.remove_pin(memory.identity, chosen)
        raise
    return pin


def list_pins(handle: TableHandle) -> Sequence[Pin]:
    """The pins in force, including those of running jobs, ordered by name.

    Raises:
        PolicyError: no such table.
        StorageError: catalog or state store failed.
    """
    return handle.memory(handle.load()).pins()


def remove_pin(handle: TableHandle, name: str) -> Pin:
    """Remove a pin, and the tag that was written for it.

    Raises:
        PolicyError: no such table or pin.
        StorageError: catalog or state store failed; the pin stays.
    """
    loaded = handle.load()
    memory = handle.memory(loaded)
    pins = {pin.name: pin for pin in memory.pins()}
    pin = pins.get(name)
    if pin is None:
        raise PolicyError(f"there is no pin '{name}' on {handle.table}; pins are: {', '.join(pins) or 'none'}")
    if pin.tag is not None:
        _remove_tag(handle, memory, loaded, pin)
    handle.state.remove_pin(memory.identity, name)
    return pin


def require_name(name: str, what: str) -> str:
    """Return the name of a pin or load; raises PolicyError for characters that are not allowed."""
    if not _NAME.fullmatch(name):
        raise PolicyError(
            f"{what} name '{name}' must be 1 to 128 letters, digits, dots, hyphens and underscores, and begin with a "
            "letter or digit"
        )
    return name


def _snapshot_id(loaded: LoadedTable, text: str) -> int:
    metadata = loaded.metadata
    if text == CURRENT:
        if metadata.current_snapshot is None:
            raise PolicyError(f"{loaded.name} has no current snapshot to pin")
        return metadata.current_snapshot.snapshot_id
    if not (text.isascii() and text.isdigit()):
        raise PolicyError(f"a pin takes a snapshot id or '{CURRENT}', not '{text}'")
    if int(text) not in metadata.snapshots:
        raise PolicyError(f"{loaded.name} has no snapshot {text}; icekeeper show {loaded.name} lists them")
    return int(text)


def _require_still_there(handle: TableHandle, pin: Pin) -> None:
    """Raise OperationRefused if snapshot or metadata file is gone: an expiry may have read the pins before this pin."""
    now = handle.load()
    if not handle.memory(now).identity.is_same_table(pin.identity) or pin.snapshot_id not in now.metadata.snapshots:
        raise OperationRefused(f"snapshot {pin.snapshot_id} expired while it was being pinned; pin a newer one")
    if Storage(now.io_properties).size(pin.metadata_location) is None:
        raise OperationRefused(f"{pin.metadata_location} was removed while it was being pinned; try again")


def _check_tag(metadata: TableMetadata, pin: Pin, *, is_ours: bool) -> None:
    require_writable(metadata)
    if metadata.format_version < 2:
        raise PolicyError("tables of format version 1 cannot have tags; pin without a tag")
    # "Snapshot management … if you configure branches or tags with a retention … is skipped" (Amazon S3 user guide,
    # "Considerations and limitations").
    if has_its_own_bucket(metadata.location):
        raise PolicyError("a tag would switch off the table bucket's own snapshot management; pin without a tag")
    found = metadata.refs.get(pin.tag or "")
    if found is not None and not (is_ours and _is_tag_of(found, pin)):
        raise PolicyError(f"the table has a {found.type} '{found.name}' already; choose another name for the pin")


def _is_tag_of(ref: Ref, pin: Pin) -> bool:
    return ref.type == "tag" and ref.name == pin.tag and ref.snapshot_id == pin.snapshot_id


def _write_tag(handle: TableHandle, memory: TableMemory, loaded: LoadedTable, pin: Pin, *, is_ours: bool) -> None:
    name = pin.tag or ""

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        _check_tag(metadata, pin, is_ours=is_ours)
        if pin.snapshot_id not in metadata.snapshots:
            raise OperationRefused(f"snapshot {pin.snapshot_id} expired while it was being pinned; pin a newer one")
        # The age of a ref counts from its snapshot (specification, "Snapshot Retention Policy").
        age_ms = max(1, pin.expires_ms - metadata.snapshots[pin.snapshot_id].timestamp_ms)
        tag: dict[str, Any] = {"type": "tag", "snapshot-id": pin.snapshot_id, "max-ref-age-ms": age_ms}
        wanted, found = Ref(name, "tag", pin.snapshot_id, max_ref_age_ms=age_ms), metadata.refs.get(name)
        return PreparedCommit(
            requirements=[*same_table(metadata), ref_at(name, None if found is None else found.snapshot_id)],
            updates=[{"action": "set-snapshot-ref", "ref-name": name, **tag}],
            landed=lambda after: after.refs.get(name) == wanted,
        )

    handle.commit(loaded, memory, prepare)


def _remove_tag(handle: TableHandle, memory: TableMemory, loaded: LoadedTable, pin: Pin) -> None:
    """Remove the pin's tag, unless it is gone or was moved."""

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        found = head.metadata.refs.get(pin.tag or "")
        if found is None or not _is_tag_of(found, pin):
            return Nothing("there is no such tag any more")
        return PreparedCommit(
            requirements=[*same_table(head.metadata), ref_at(found.name, found.snapshot_id)],
            updates=[{"action": "remove-snapshot-ref", "ref-name": found.name}],
            landed=lambda after: found.name not in after.refs,
        )

    handle.commit(loaded, memory, prepare)


def stage_load(handle: TableHandle, name: str, files: Collection[str], prefixes: Collection[str]) -> StagedLoad:
    """Record files that await adoption, or folders whose files all belong to this load; adds to a pending load.

    Raises:
        PolicyError: no such table, a path outside its location, or the load has ended; nothing was changed.
        StorageError: catalog or state store failed.
    """
    require_name(name, "load")
    if not files and not prefixes:
        raise PolicyError("a load has files or prefixes; none were given")
    loaded = handle.load()
    require_stageable(loaded.metadata, files, prefixes)
    memory = handle.memory(loaded)
    before = next((load for load in memory.staged_loads() if load.name == name), None)
    known: set[str] = set()
    if before is not None:
        if before.state is not LoadState.PENDING:
            raise PolicyError(f"load '{name}' is {before.state.value} already; choose another name")
        known.update(memory.staged_files(before))
    load = StagedLoad(
        identity=memory.identity,
        name=name,
        prefixes=tuple(dict.fromkeys((*(() if before is None else before.prefixes), *prefixes))),
        changed_ms=memory.clock(),
    )
    return handle.state.staging.stage(load, (path for path in dict.fromkeys(files) if path not in known))


def declare_load(handle: TableHandle, name: str, state: LoadState) -> StagedLoad:
    """Record that a commit adopted a load, or that the load failed; a repetition changes nothing.

    Raises:
        PolicyError: no such table or user's load, or the load failed earlier, so that its files may be deleted already.
        CommitConflict: another process changed the record at the same time.
        StorageError: catalog or state store failed.
    """
    memory = handle.memory(handle.load())
    loads = {load.name: load for load in memory.staged_loads() if load.origin is LoadOrigin.USER}
    before = loads.get(name)
    if before is None:
        raise PolicyError(f"there is no load '{name}' on {handle.table}; loads are: {', '.join(loads) or 'none'}")
    if before.state is state:
        return before
    if before.state is LoadState.FAILED:
        raise PolicyError(f"load '{name}' failed, so its files may be deleted already; stage them under another name")
    after = replace(before, state=state, changed_ms=memory.clock())
    if not handle.state.staging.change(before, after):
        raise CommitConflict(f"load '{name}' was changed by another process at the same time; check it and try again")
    return after


def list_loads(handle: TableHandle) -> Sequence[StagedLoad]:
    """All recorded loads, including those of running and dead jobs, ordered by name.

    Raises:
        PolicyError: no such table.
        StorageError: catalog or state store failed.
    """
    return handle.memory(handle.load()).staged_loads()


def pin_warnings(catalog: Catalog, table: TableName) -> Sequence[str]:
    """Why a pinned snapshot may expire nevertheless: a table bucket's own expiry ignores pins.

    Never raises, because the pin is recorded whatever the bucket's settings are.
    """
    built_in = catalog.built_in_maintenance
    if built_in is None:
        return ()
    try:
        bucket = built_in.read(table)
        if bucket.does(BuiltIn.SNAPSHOT_MANAGEMENT):
            bucket = built_in.with_jobs(bucket, table)
    except StorageError as error:
        return (
            f"it is not known whether the table bucket expires snapshots itself ({error}); a pin does not prevent that",
        )
    why = why_bucket_expires(bucket)
    return () if why is None else (why,)
