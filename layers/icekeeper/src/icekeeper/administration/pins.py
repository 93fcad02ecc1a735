"""Pins: a reader asks that a snapshot, all newer ones, and its metadata file stay for a while (rule 74).

A pin may also be written as an Iceberg tag, for engines that do not know Icekeeper's state store.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import CommitStateUnknown, MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.document import Ref, TableMetadata
from icekeeper.metadata.format_versions import require_writable
from icekeeper.metadata.requirements import ref_at, same_table
from icekeeper.model import Nothing
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.state.store import Pin
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.paths import split_path
from icekeeper.storage.storage import Storage

__all__ = ["CURRENT", "add_pin", "list_pins", "remove_pin", "require_name"]

CURRENT = "current"
# Names of jobs' pins contain a colon, so that no name of a person's pin is the same.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Amazon S3 Tables keeps each table in a bucket of its own, whose name ends so.  "Snapshot management … if you configure
# branches or tags with a retention … is skipped" (Amazon S3 user guide, "Considerations and limitations").
_AWS_TABLE_BUCKET = "--table-s3"


def add_pin(handle: TableHandle, *, snapshot: str, ttl_ms: int, name: str | None = None, with_tag: bool = False) -> Pin:
    """Pin a snapshot (an id, or ``current``) for ``ttl_ms``; a pin of that name is prolonged, never shortened.

    Raises:
        PolicyError: no such table or snapshot, or the name is another pin's or ref's; nothing was changed.
        OperationRefused: the snapshot expired while it was being pinned; the pin is gone again.
        StorageError: catalog or state store failed.
    """
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
        # The holder of an earlier pin of this name already reads by that file.
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
        raise  # the tag may be there: the pin stays, and removing it looks for the tag
    except MaintenanceError:
        _undo(handle, memory, loaded, pin, before)
        raise
    return pin


def list_pins(handle: TableHandle) -> Sequence[Pin]:
    """The pins that hold now, those of running jobs too, by name.

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
    """Raises PolicyError for a name of a pin or load that is not plain."""
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
        raise PolicyError(f"--snapshot takes a snapshot id or '{CURRENT}', not '{text}'")
    if int(text) not in metadata.snapshots:
        raise PolicyError(f"{loaded.name} has no snapshot {text}")
    return int(text)


def _require_still_there(handle: TableHandle, pin: Pin) -> None:
    """Raise OperationRefused if snapshot or metadata file is gone: an expiry may have read the pins before this one."""
    now = handle.load()
    if not handle.memory(now).identity.is_same_table(pin.identity) or pin.snapshot_id not in now.metadata.snapshots:
        raise OperationRefused(f"snapshot {pin.snapshot_id} expired while it was being pinned; pin a newer one")
    if Storage(now.io_properties).size(pin.metadata_location) is None:
        raise OperationRefused(f"{pin.metadata_location} was removed while it was being pinned; try again")


def _undo(handle: TableHandle, memory: TableMemory, loaded: LoadedTable, pin: Pin, before: Pin | None) -> None:
    if before is not None:
        handle.state.add_pin(before)
        return
    if pin.tag is not None:
        _remove_tag(handle, memory, loaded, pin)
    handle.state.remove_pin(memory.identity, pin.name)


def _check_tag(metadata: TableMetadata, pin: Pin, *, is_ours: bool) -> None:
    require_writable(metadata)
    if metadata.format_version < 2:
        raise PolicyError("tables of format version 1 cannot have tags; pin without --tag")
    if split_path(metadata.location).authority.endswith(_AWS_TABLE_BUCKET):
        raise PolicyError("a tag would switch off the table bucket's own snapshot management; pin without --tag")
    found = metadata.refs.get(pin.tag or "")
    if found is not None and not (is_ours and _is_tag_of(found, pin)):
        raise PolicyError(f"the table has a {found.type} '{found.name}' already; choose another name for the pin")


def _is_tag_of(ref: Ref, pin: Pin) -> bool:
    return ref.type == "tag" and ref.name == pin.tag and ref.snapshot_id == pin.snapshot_id


def _write_tag(handle: TableHandle, memory: TableMemory, loaded: LoadedTable, pin: Pin, *, is_ours: bool) -> None:
    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        metadata = head.metadata
        _check_tag(metadata, pin, is_ours=is_ours)
        if pin.snapshot_id not in metadata.snapshots:
            raise OperationRefused(f"snapshot {pin.snapshot_id} expired while it was being pinned; pin a newer one")
        # The age of a ref counts from its snapshot (specification, "Snapshot Retention Policy").
        age_ms = max(1, pin.expires_ms - metadata.snapshots[pin.snapshot_id].timestamp_ms)
        tag: dict[str, Any] = {"type": "tag", "snapshot-id": pin.snapshot_id, "max-ref-age-ms": age_ms}
        wanted = Ref(pin.tag or "", "tag", pin.snapshot_id, max_ref_age_ms=age_ms)
        found = metadata.refs.get(wanted.name)
        return _ref_commit(
            metadata,
            wanted.name,
            None if found is None else found.snapshot_id,
            {"action": "set-snapshot-ref", "ref-name": wanted.name, **tag},
            lambda after: after.refs.get(wanted.name) == wanted,
        )

    handle.commit(loaded, memory, prepare)


def _remove_tag(handle: TableHandle, memory: TableMemory, loaded: LoadedTable, pin: Pin) -> None:
    """Remove the pin's tag, unless it is gone already, or somebody moved it."""

    def prepare(head: LoadedTable) -> PreparedCommit | Nothing:
        found = head.metadata.refs.get(pin.tag or "")
        if found is None or not _is_tag_of(found, pin):
            return Nothing("there is no such tag any more")
        return _ref_commit(
            head.metadata,
            found.name,
            found.snapshot_id,
            {"action": "remove-snapshot-ref", "ref-name": found.name},
            lambda after: found.name not in after.refs,
        )

    handle.commit(loaded, memory, prepare)


def _ref_commit(
    metadata: TableMetadata,
    name: str,
    at: int | None,
    update: dict[str, Any],
    landed: Callable[[TableMetadata], bool],
) -> PreparedCommit:
    requirements = [*same_table(metadata), ref_at(name, at)]
    return PreparedCommit(requirements=requirements, updates=[update], landed=landed)
