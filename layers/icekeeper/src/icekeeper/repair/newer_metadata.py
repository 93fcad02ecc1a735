"""A newer metadata file beside the one that the catalog names: reported, and on request the catalog points at it.

It may show a commit whose answer was lost, or a commit that lost; or a person has set the pointer back on purpose.  So
the pointer is only moved to a file that a person names, by a catalog that swaps conditionally, and only if the file
continues the table's state, nothing else does, and everything that it refers to exists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable, MovesPointers
from icekeeper.deletion.neighbours import is_past
from icekeeper.errors import CommitStateUnknown, MaintenanceError, OperationRefused, PolicyError
from icekeeper.metadata.document import STATES_MAY_OVERLAP_MS, TableMetadata, require_writable
from icekeeper.metadata.table_reader import metadata_files
from icekeeper.pass_context.context import OperationContext
from icekeeper.pass_context.metadata_files import listed_metadata, read_listed_metadata
from icekeeper.repair.plan import MendKind, PointerMend, Unmended
from icekeeper.repair.rollback import READABLE_ALL_THE_SAME
from icekeeper.storage.paths import normalise
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.verify import verify_table


def newest_chain(
    table: LoadedTable, unknown: Mapping[str, TableMetadata | None]
) -> tuple[str | None, Mapping[str, str]]:
    """The one metadata file that continues the table's state, and why others rival it (pure).

    ``unknown``: the metadata files that the table does not know, ``None`` where the content cannot be read.

    Returns:
        The newest file of the only chain that begins at the table's current file, ``None`` if there is none; and the
        files that may be another continuation, each with a reason.
    """
    current = normalise(table.metadata_location)
    logs = {path: _log(found) for path, found in unknown.items() if found is not None and _is_same(table, found)}
    children = {path for path, log in logs.items() if current in log}
    tip = max(children, key=lambda path: (len(logs[path]) - logs[path].index(current), path), default=None)
    chain = set() if tip is None else {normalise(tip), *logs[tip][logs[tip].index(current) :]}
    rivals = {path: "it was made from the current state, too" for path in children if normalise(path) not in chain}
    for path, found in unknown.items():
        if found is None:
            rivals[path] = "it cannot be read"
        elif path in logs and path not in children and normalise(path) not in chain and _may_be_newer(table, found):
            rivals[path] = "it is not older than the current state, and does not say that it was made from it"
    return tip, rivals


def newer_metadata_found(context: OperationContext, loaded: LoadedTable) -> Iterator[Unmended]:
    """The report about a newer metadata file, if there is one.

    Raises:
        StorageError: the store does not answer.
    """
    unknown = _unknown(context.stores.storage(loaded), loaded)
    if unknown is None or (tip := newest_chain(loaded, unknown)[0]) is None:
        return
    sentence = (
        f"{tip} was made from {loaded.metadata_location}, which the catalog names, and the catalog does not know it: "
        "its commit may have landed without an answer or may have lost, or the pointer was set back on purpose"
    )
    yield Unmended(kind=MendKind.POINTER.value, path=tip, sentence=sentence, option=f"--point-to {tip}")


def plan_pointer(context: OperationContext, loaded: LoadedTable, path: str) -> PointerMend:
    """The plan to point the catalog at a newer metadata file.

    Raises:
        PolicyError: the catalog cannot do so conditionally, or the file does not continue the table's state.
        OperationRefused: it is unknown whether other files continue it, or the file refers to missing files.
        StorageError: the store does not answer.
    """
    catalog, storage = context.catalogs.own, context.stores.storage(loaded)
    if not isinstance(catalog, MovesPointers):
        raise PolicyError(
            f"catalog {catalog.id} ({type(catalog).__name__}) cannot set the metadata file of a table on condition "
            "that it did not move; SQL catalogs and Glue can"
        )
    unknown = _unknown(storage, loaded)
    if unknown is None:
        raise OperationRefused(
            f"the metadata folders of {loaded.name} cannot be listed, so other newer states are unknown; nothing was "
            "changed"
        )
    tip, rivals = newest_chain(loaded, unknown)
    found = unknown.get(path)
    if tip is None or path != tip or found is None:
        newest = "no file is" if tip is None else f"{tip} is"
        raise PolicyError(
            f"{path} is not the newest metadata file made from {loaded.metadata_location}: {newest}; nothing was "
            "changed"
        )
    if rivals:
        rival = min(rivals)
        raise OperationRefused(f"{rival} may be another newer state: {rivals[rival]}; nothing was changed")
    require_writable(found)
    problems = verify_table(replace(loaded, metadata=found, metadata_location=path), storage).problems
    bad = [problem for problem in problems if problem.kind not in READABLE_ALL_THE_SAME]
    if bad:
        raise OperationRefused(
            f"{path} is damaged, with {counted(len(bad), 'problem')}: {bad[0].path}: {bad[0].detail}; nothing was "
            "changed"
        )
    new = counted(len(found.snapshots.keys() - loaded.metadata.snapshots.keys()), "snapshot")
    gone = counted(len(loaded.metadata.snapshots.keys() - found.snapshots.keys()), "snapshot")
    sentence = f"the catalog points at {path} instead of {loaded.metadata_location}: {new} more, {gone} less"
    return PointerMend(path=path, sentence=sentence)


def move_pointer(context: OperationContext, loaded: LoadedTable, path: str) -> None:
    """Point the catalog at the file, if it still names the file of ``loaded``.

    Raises:
        CommitConflict, StorageError: nothing was changed.
        CommitStateUnknown: it is unknown whether the catalog names the file now.
    """
    catalog = context.catalogs.own
    assert isinstance(catalog, MovesPointers)
    context.limits.require_lease()
    try:
        catalog.point_to(loaded, path)
    except MaintenanceError:
        if normalise(catalog.load(loaded.name).metadata_location) != normalise(path):
            raise
    if normalise((now := catalog.load(loaded.name)).metadata_location) != normalise(path):
        raise CommitStateUnknown(f"the catalog names {now.metadata_location} now, not {path}")


def _unknown(storage: Storage, loaded: LoadedTable) -> dict[str, TableMetadata | None] | None:
    """The metadata files that the table does not know and that may be newer; ``None``: no folder can be listed."""
    listed = listed_metadata(storage, loaded)
    if listed is None:
        return None
    known = set(map(normalise, metadata_files(loaded.metadata, loaded.metadata_location)))
    new = [f.path for f in listed if normalise(f.path) not in known and not is_past(loaded, f.path, f.modified_ms)]
    return {path: read_listed_metadata(storage, path) for path in new}


def _is_same(table: LoadedTable, found: TableMetadata) -> bool:
    same_place = normalise(found.location) == normalise(table.metadata.location)
    return found.uuid is not None and found.uuid == table.metadata.uuid and same_place


def _log(found: TableMetadata) -> list[str]:
    return [normalise(str(entry["metadata-file"])) for entry in found.metadata_log]


def _may_be_newer(table: LoadedTable, found: TableMetadata) -> bool:
    """Whether a file that does not name the current state may continue it; a file made from an older state lost."""
    log, known = _log(found), set(_log(table.metadata))
    if log and log[-1] in known:
        return False
    return found.last_updated_ms >= table.metadata.last_updated_ms - STATES_MAY_OVERLAP_MS
