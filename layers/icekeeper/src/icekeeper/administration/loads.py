"""What writers declare about their loads: files are staged, a commit has adopted them, or the load has failed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from icekeeper.administration.pins import require_name
from icekeeper.errors import CommitConflict, PolicyError
from icekeeper.operations.staging.plan import require_stageable
from icekeeper.pass_context.table_handle import TableHandle
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad

__all__ = ["declare_load", "list_loads", "stage_load"]


def stage_load(handle: TableHandle, name: str, files: Collection[str], prefixes: Collection[str]) -> StagedLoad:
    """Record files that await adoption, or folders whose files all belong to this load; adds to a pending load.

    Raises:
        PolicyError: no such table, a path that is not below its location, or the load has ended; nothing was changed.
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
        PolicyError: no such table or user's load, or the load has failed before, so that its files may be deleted.
        CommitConflict: somebody else changed the record at this moment.
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
        raise CommitConflict(f"load '{name}' was changed by somebody else at this moment; look at it and try again")
    return after


def list_loads(handle: TableHandle) -> Sequence[StagedLoad]:
    """Every load that is on record, those of running and dead jobs too, ordered by name.

    Raises:
        PolicyError: no such table.
        StorageError: catalog or state store failed.
    """
    return handle.memory(handle.load()).staged_loads()
