"""Delete the files that failed loads and dead jobs staged, once nothing needs them.

Every pass does this, for recorded files and for the folders that a load declared as its own.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from icekeeper.catalogs.catalog import LoadedTable, identity_of
from icekeeper.deletion.delete import delete_unneeded
from icekeeper.deletion.file_needs import GC_DISABLED, FileNeeds, why_left_to_collector
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.shared_references import recorded_files
from icekeeper.deletion.sweep_permission import is_of_iceberg
from icekeeper.errors import MaintenanceError, OperationRefused, SwitchedOff
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.table_reader import reachable_paths
from icekeeper.operations.overdue_loads import MAX_FILES, may_be_staged, plan_cleaning
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import gc_enabled
from icekeeper.report.outcome import StagedOutcome
from icekeeper.state.staging import LoadOrigin, LoadState, StagedLoad
from icekeeper.storage.paths import PathSet, normalise
from icekeeper.storage.storage import Storage
from icekeeper.text import masked

log = logging.getLogger(__name__)

_WHAT = "staged files"
_PARALLEL_LOOKS = 16


def _files_in_folders(
    storage: Storage,
    metadata: TableMetadata,
    folders: Iterable[str],
    *,
    older_than_ms: int,
    protected: Iterable[str] = (),
    endings: Sequence[str] = (),
) -> tuple[tuple[str, ...], bool]:
    """Files below these folders, written before ``older_than_ms`` (epoch milliseconds), and not below ``protected``.

    A younger file may belong to a writer that reuses the folder without a record; a file of unknown age counts as
    young.  A folder that all writers of the table share cannot belong to a load: its files are left to orphan removal.
    So are files whose name is not that of an Iceberg writer and whose ending is not in ``endings``.

    Returns:
        The files that may be deleted, and whether others remain for a later pass.
    """
    paths: list[str] = []
    more = False
    shared = {normalise(place) for place in (metadata.location, metadata.data_location, metadata.metadata_directory)}
    kept = PathSet(protected)
    for folder in folders:
        if normalise(folder) in shared:
            continue
        for found in storage.list(f"{folder.rstrip('/')}/"):
            if kept.may_contain(found.path) or not may_be_staged(metadata, found.path):
                continue
            if not is_of_iceberg(found.path, endings):
                continue
            if found.modified_ms is None or found.modified_ms > older_than_ms or len(paths) >= MAX_FILES:
                more = True
            else:
                paths.append(found.path)
    return tuple(dict.fromkeys(paths)), more


def _unneeded_files(
    context: OperationContext, table: LoadedTable, paths: Sequence[str]
) -> tuple[Sequence[str], FileNeeds]:
    """The ``paths`` that nothing needs, and the :class:`FileNeeds` that checks again before each batch of deletions."""
    needs = FileNeeds(context, table)
    if not paths:
        return (), needs
    reader, home = context.reader(table), table.metadata.location
    needed = ReferencedPaths(home, reachable_paths(reader, table.metadata_location, needs.references))
    free = [path for path in paths if path not in needed and not needed.has_prefix_mismatch(path)]
    if free:
        needs.ask(free)
    return [path for path in free if not needs.need(path)], needs


def may_clean(context: OperationContext) -> bool:
    """Whether a load failed or was adopted longer ago than the grace period, so that there may be work.

    Raises:
        StorageError: the loads cannot be read.
    """
    loads = context.memory.staged_loads()
    return any(plan_cleaning(loads, now_ms=context.memory.clock(), grace_ms=context.policy.orphan_older_than_ms))


def clean_staged_files(context: OperationContext) -> StagedOutcome | None:
    """Delete the files of loads that failed longer ago than the grace period; ``None`` if there are no such loads.

    Errors do not fail the pass.  They are reported, and the next pass tries again.
    """
    if context.resolved.is_stopped:
        return None
    failed: Sequence[StagedLoad] = ()
    try:
        loads = context.memory.staged_loads()
        if not loads:
            return None
        grace_ms = context.policy.orphan_older_than_ms
        failed, adopted = plan_cleaning(loads, now_ms=context.memory.clock(), grace_ms=grace_ms)
        if not failed and not adopted:
            return None
        outcome = _clean(replace(context, may_be_stopped=True), failed, adopted)
        return None if outcome is None else _with_skew(context, outcome)
    except SwitchedOff:
        return None
    except MaintenanceError as error:
        problem = str(error)
    except Exception as error:  # a bug here must not fail the pass
        log.exception("%s: cleaning staged files failed unexpectedly", context.table)
        problem = masked(f"{type(error).__name__}: {error}")
    log.warning("%s: staged files were not cleaned: %s", context.table, problem)
    metrics = {"staged.files_failed": sum(load.file_count for load in failed)}
    sentence = f"staged files of failed loads were not cleaned: {problem}"
    return _with_skew(context, StagedOutcome(summary=sentence, problem=sentence, metrics=metrics))


def _with_skew(context: OperationContext, outcome: StagedOutcome) -> StagedOutcome:
    return replace(outcome, metrics={**outcome.metrics, **context.stores.metrics})


def _clean(
    context: OperationContext, overdue: Sequence[StagedLoad], adopted: Sequence[StagedLoad]
) -> StagedOutcome | None:
    loaded = context.load()
    if not identity_of(context.catalogs.own, loaded).is_same_table(context.memory.identity):
        raise OperationRefused(f"table {loaded.name} was replaced by another table")
    grace_ms = context.policy.orphan_older_than_ms
    now_ms = context.stores.trusted_now_ms(loaded, grace_ms, "orphan_older_than_hours")
    settled = [load for load in adopted if _forget(context, load)]
    storage = context.stores.storage(loaded)
    why_not = why_left_to_collector(storage, loaded) if gc_enabled(loaded.metadata) else GC_DISABLED
    if not overdue or why_not is not None:
        if overdue:
            log.info("%s: %d failed load(s) wait: %s", context.table, len(overdue), why_not)
        return _outcome(context, settled) if settled else None
    if not storage.can_delete(loaded.metadata.location):
        settled += [load for load in overdue if _forget(context, load)]
        left = sum(load.file_count for load in overdue)
        return _outcome(context, settled, counters={"staged.files_left_to_bucket": left})
    declared = overdue if context.dry_run else (_as_failed(context, load) for load in overdue)
    failed = [load for load in declared if load is not None]
    files = {load.name: _files(context, loaded, storage, load) for load in failed}
    unfinished: set[str] = set()
    for load in failed:
        if load.origin is LoadOrigin.USER and load.prefixes:
            inside, are_more = _files_in_folders(
                storage,
                loaded.metadata,
                load.prefixes,
                older_than_ms=now_ms - grace_ms,
                protected=context.policy.orphan_protected_prefixes,
                endings=context.policy.orphan_file_endings,
            )
            files[load.name] += inside
            unfinished.update([load.name] if are_more else ())
    paths = list(dict.fromkeys(path for some in files.values() for path in some))
    unneeded, needs = _unneeded_files(context, loaded, paths)
    if context.dry_run:
        return _outcome(context, failed, planned=unneeded)
    result = delete_unneeded(context, loaded, unneeded, _WHAT, needs)
    for path, reason in result.failed.items():
        log.warning("%s: cannot delete staged file %s: %s", context.table, path, reason)
    deleted = [load for load in failed if result.failed.keys().isdisjoint(files[load.name])]
    done = [load for load in deleted if load.name not in unfinished]
    settled += [load for load in done if _forget(context, load)]
    counters = {
        "staged.files_referenced": len(paths) - len(result.deleted) - len(result.failed),
        "staged.files_failed": len(result.failed),
    }
    return _outcome(context, settled, planned=unneeded, deleted=result.deleted, counters=counters)


def _as_failed(context: OperationContext, load: StagedLoad) -> StagedLoad | None:
    """Mark a dead job as failed, so that it can no longer commit the files that are being deleted.

    Returns the new record; ``None`` if the job has continued meanwhile.
    """
    if load.state is LoadState.FAILED:
        return load
    failed = replace(load, state=LoadState.FAILED, changed_ms=load.expires_ms or load.changed_ms)
    return failed if context.state.staging.change(load, failed) else None


def _forget(context: OperationContext, load: StagedLoad) -> bool:
    """Remove the record; ``False`` if it was changed meanwhile and stays."""
    return context.dry_run or context.state.staging.forget(load)


def _files(context: OperationContext, loaded: LoadedTable, storage: Storage, load: StagedLoad) -> list[str]:
    """The files of a load that may be deleted; for a job, only those that exist."""
    files = [path for path in recorded_files(context.memory, load) if may_be_staged(loaded.metadata, path)]
    if load.origin is LoadOrigin.USER:
        return files
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="staged-look") as pool:
        sizes = pool.map(storage.size, files)
        return [path for path, size in zip(files, sizes, strict=True) if size is not None]


def _outcome(
    context: OperationContext,
    settled: Sequence[StagedLoad],
    *,
    planned: Sequence[str] = (),
    deleted: Sequence[str] = (),
    counters: dict[str, int] | None = None,
) -> StagedOutcome:
    by_state = Counter(load.state is LoadState.ADOPTED for load in settled)
    would, count = ("would delete", len(planned)) if context.dry_run else ("deleted", len(deleted))
    metrics = {
        "staged.files_deleted": len(deleted),
        "staged.loads_settled": 0 if context.dry_run else by_state[False],
        "staged.loads_adopted": 0 if context.dry_run else by_state[True],
        **(counters or {}),
    }
    summary = f"{would} {count} staged file(s) of {by_state[False]} failed load(s)"
    if metrics.get("staged.files_failed"):
        summary += f"; {metrics['staged.files_failed']} could not be deleted"
    return StagedOutcome(summary=summary, metrics=metrics, files_planned=tuple(planned), files_deleted=tuple(deleted))
