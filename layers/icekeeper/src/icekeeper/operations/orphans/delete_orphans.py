"""Deletes the orphans among a table's candidates, after every guard was asked, in this order (rule 95)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.claims import known_data_roots
from icekeeper.deletion.delete import delete_unneeded, still_old
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.deletion.foreign import ForeignMetadata, foreign_metadata, refuse_foreign
from icekeeper.deletion.neighbours import Neighbours, TableFolders, has_its_own_bucket
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.deletion.prefix_mismatch import find_prefix_mismatch, prefix_mismatch_error
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.shared_references import SharedReferences
from icekeeper.errors import OperationRefused
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.metadata.table_reader import TableReader
from icekeeper.operations.orphans.candidates import OrphanCandidates, without_referenced
from icekeeper.operations.orphans.empty_folders import any_empty, removable_folders, remove_empty
from icekeeper.operations.orphans.plan import OrphanPlan, plan_orphans, refuse_mass_deletion, swept_folders
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import Metrics, OperationOutcome, failed, succeeded
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.path_set import PathSet, may_be_under
from icekeeper.storage.storage import Storage

__all__ = ["TableCandidates", "delete_orphans"]

_OPERATION = Operation.REMOVE_ORPHANS
_WHAT = "remove_orphans: files"


@dataclass(frozen=True, slots=True)
class TableCandidates:
    """The candidates among a table's files, compared with the references that the table had before the listing."""

    before: LoadedTable
    """The table as it was loaded before the listing."""
    candidates: OrphanCandidates
    references: References
    """What has been read of the table's references; the newer ones are read on top."""
    older_than_ms: int
    """Epoch milliseconds; only files that were modified before are old."""
    is_current: bool
    """Whether the files were listed just now; else the store is asked about each before it is deleted."""
    foreign: tuple[ForeignMetadata, ...] | None = None
    """Whose the unreferenced metadata files are, where that has been read already."""


@dataclass(frozen=True, slots=True)
class _Cleared:
    """What every guard has let through."""

    table: LoadedTable
    candidates: OrphanCandidates
    plan: OrphanPlan
    needs: FileNeeds
    folders: Sequence[str]
    """Folders of this machine to remove if they are empty, the deepest first."""


def delete_orphans(
    context: OperationContext, found: TableCandidates, others: Callable[[], Iterable[TableFolders]]
) -> OperationOutcome:
    """Ask every guard about the candidates and delete those that nobody needs.

    ``others`` loads the other tables of the catalog; it is called only when there is something to delete.

    Raises:
        OperationRefused: a guard saw danger; nothing was deleted, or nothing more.
        MetadataUnreadable: a reference cannot be read; as above.
        StorageError: a store failed.
    """
    return _delete(context, found, _ask_guards(context, found, others))


def _ask_guards(
    context: OperationContext, found: TableCandidates, others: Callable[[], Iterable[TableFolders]]
) -> _Cleared:
    table = _after(context, found.before)  # after the listing (rule 96): what was committed meanwhile is referenced
    needs = FileNeeds(context, table, found.references)
    new = reachable_paths(context.reader(table), table.metadata_location, found.references)
    needed = ReferencedPaths(table.metadata.location, chain(new, needs.held.pinned))
    candidates = without_referenced(found.candidates, needed)
    protected = PathSet((*context.policy.orphan_protected_prefixes, *context.memory.staged_paths()))
    unknown = [one for one in candidates.metadata_files if not protected.may_contain(one.path)]
    foreign = _foreign(context.storage(table), table, found, unknown)
    folders = removable_folders(table.metadata, found.older_than_ms, protected)
    neighbours = Neighbours()
    if (candidates.unreferenced or foreign or any_empty(folders)) and not has_its_own_bucket(table.metadata.location):
        neighbours = needs.ask_every_table(tuple(others()))
        foreign = [one for one in foreign if one.path not in needs.shared]
    theirs = PathSet((*neighbours.left_alone, *candidates.other_formats))
    folders = [folder for folder in folders if not theirs.may_contain(folder)]
    # Those that somebody protects may be of another head, too.
    needs.look_for_other_heads(found.candidates.metadata_files if found.is_current else None)
    candidates = without_referenced(candidates, needs.shared)
    plan = plan_orphans(
        table.metadata,
        candidates.unreferenced,
        protected=protected,
        other_tables=neighbours.left_alone,
        other_formats=candidates.other_formats,
        swept=swept_folders(table.metadata, _data_roots(context, table), context.policy.orphan_sweep_prefixes),
        is_needed=needs.need,
    )
    _refuse_prefix_mismatches(context, table, candidates, needs.shared)
    refuse_foreign(foreign, neighbours.explain)
    return _Cleared(table, candidates, plan, needs, folders)


def _delete(context: OperationContext, found: TableCandidates, cleared: _Cleared) -> OperationOutcome:
    """Delete the orphans that enough passes have seen, unless they are too many; in a dry run only report them."""
    table, candidates, plan = cleared.table, cleared.candidates, cleared.plan
    storage, policy = context.storage(table), context.policy
    if not found.is_current:
        plan = replace(plan, orphans=tuple(still_old(storage, plan.paths, found.older_than_ms)))
    ripe = _ripe(context, plan)
    ratio_source = context.resolved.sources["orphan_max_delete_ratio"]
    refuse_mass_deletion(len(ripe), candidates.listed, policy.orphan_max_delete_ratio, ratio_source)
    metrics = _metrics(table, candidates, plan, ripe)
    paths = tuple(orphan.path for orphan in ripe)
    if context.dry_run:
        summary = f"would remove {len(paths)} orphan file(s)"
        return succeeded(_OPERATION, summary + _left_alone(plan, candidates), metrics=metrics, files_planned=paths)
    # A pass that waits for no further sighting also ends what earlier ones, under another setting, have counted.
    context.memory.remember_orphans(context.run_id, plan.paths if policy.orphan_min_sightings > 1 else ())

    def confirm(batch: Sequence[str]) -> Sequence[str]:
        return [orphan.path for orphan in still_old(storage, batch, found.older_than_ms)]

    result = delete_unneeded(context, table, paths, _WHAT, cleared.needs, None if found.is_current else confirm)
    if policy.orphan_min_sightings > 1:
        context.memory.forget_orphans(result.deleted)
    metrics = {
        "remove_orphans.orphans_removed": len(result.deleted),
        "remove_orphans.files_failed": len(result.failed),
        "remove_orphans.folders_removed": remove_empty(cleared.folders),
        **metrics,
    }
    if result.is_in_vain:
        return failed(_OPERATION, "; ".join(result.failures), metrics=metrics)
    return succeeded(
        _OPERATION,
        "; ".join([f"removed {len(result.deleted)} orphan file(s){_left_alone(plan, candidates)}", *result.failures]),
        metrics=metrics,
        files_planned=paths,
        files_deleted=result.deleted,
    )


def _after(context: OperationContext, before: LoadedTable) -> LoadedTable:
    """The table as it is after the listing.  Raises OperationRefused when it was replaced or moved."""
    after = context.load()
    if (after.metadata.uuid, after.metadata.location) != (before.metadata.uuid, before.metadata.location):
        raise OperationRefused(f"{after.name} was replaced or moved during the listing; nothing was deleted")
    return after


def _foreign(
    storage: Storage, table: LoadedTable, found: TableCandidates, unknown: Sequence[ListedObject]
) -> list[ForeignMetadata]:
    paths = [one.path for one in unknown]
    if found.foreign is None:
        return foreign_metadata(storage, table.metadata, paths)
    return [one for one in found.foreign if one.path in set(paths)]


def _data_roots(context: OperationContext, table: LoadedTable) -> Iterable[str]:
    """Folders inside the location in which data files of the table were ever seen, by this pass too."""
    known, home = known_data_roots(context.state, context.catalog, table), table.metadata.location
    return (*known, *(root for root in context.footprint.roots() if may_be_under(root, home)))


def _left_alone(plan: OrphanPlan, candidates: OrphanCandidates) -> str:
    """What the summary says of unreferenced files that stay: they may be of a table that no catalog here knows."""
    told = ""
    if plan.in_other_folders:
        count, first = len(plan.in_other_folders), plan.in_other_folders[0]
        told += (
            f"; {count} unreferenced file(s) lie in folders where this table never had files, as {first}: they stay, "
            "unless orphan_sweep_prefixes names their folder"
        )
    if plan.of_other_formats:
        count, first = len(plan.of_other_formats), plan.of_other_formats[0]
        folder = min(folder for folder in candidates.other_formats if may_be_under(first, folder))
        told += (
            f"; {count} unreferenced file(s), as {first}, lie in {folder}, a table of another format, which may need "
            "them: they stay, until its log folder is removed"
        )
    return told


def _refuse_prefix_mismatches(
    context: OperationContext, table: LoadedTable, candidates: OrphanCandidates, shared: SharedReferences
) -> None:
    """Read the references again to find a real prefix mismatch: the candidates were compared by hashes only.

    Raises:
        OperationRefused: a candidate is referenced under another scheme, bucket or host.
    """
    if not candidates.prefix_mismatches:
        return
    tables = (table, *shared.tables)
    readers = ((one, TableReader(one.metadata, context.storage(one).read)) for one in tables)
    needed = chain.from_iterable(
        reachable_paths(reader, one.metadata_location, References()) for one, reader in readers
    )
    mismatch = find_prefix_mismatch(candidates.prefix_mismatches, chain(needed, context.memory.pinned_metadata()))
    if mismatch is not None:
        raise prefix_mismatch_error(*mismatch)


def _ripe(context: OperationContext, plan: OrphanPlan) -> Sequence[ListedObject]:
    """The orphans that ``orphan_min_sightings`` passes have seen, this one included."""
    wanted = context.policy.orphan_min_sightings
    if wanted == 1:
        return plan.orphans
    seen = context.memory.orphan_sightings(context.run_id, plan.paths)
    return [found for found in plan.orphans if seen.get(found.path, 0) + 1 >= wanted]


def _metrics(
    table: LoadedTable, candidates: OrphanCandidates, plan: OrphanPlan, ripe: Sequence[ListedObject]
) -> Metrics:
    # Data and metadata paths elsewhere may be shared with other tables, of which a listing shows no sign.
    elsewhere = [path for path in owned_locations(table.metadata) if not may_be_under(path, table.metadata.location)]
    return {
        "remove_orphans.files_listed": candidates.listed,
        "remove_orphans.files_too_young": candidates.too_young,
        "remove_orphans.files_protected": plan.protected,
        "remove_orphans.files_of_other_tables": plan.of_other_tables,
        "remove_orphans.files_in_other_folders": len(plan.in_other_folders),
        "remove_orphans.files_of_other_formats": len(plan.of_other_formats),
        "remove_orphans.files_quarantined": len(plan.orphans) - len(ripe),
        "remove_orphans.locations_not_swept": len(elsewhere),
        "remove_orphans.orphan_bytes": sum(found.size for found in ripe),
        "remove_orphans.bytes_left": candidates.too_young_bytes
        + sum(found.size for found in plan.orphans)
        - sum(found.size for found in ripe),
    }
