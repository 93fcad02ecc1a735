"""From what a listing came to, to files deleted: every guard of one table, in order (rule 95)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.claims import known_data_roots
from icekeeper.deletion.delete import delete_unneeded, still_old
from icekeeper.deletion.foreign import ForeignMetadata, foreign_metadata, refuse_foreign
from icekeeper.deletion.needs import FileNeeds
from icekeeper.deletion.neighbours import Claims, Neighbours, has_its_own_bucket
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.deletion.shared_references import SharedReferences
from icekeeper.deletion.twins import find_twin, same_path_elsewhere
from icekeeper.errors import OperationRefused
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.metadata.table_reader import TableReader
from icekeeper.operations.orphans.empty_folders import any_empty, removable_folders, remove_empty
from icekeeper.operations.orphans.plan import OrphanPlan, plan_orphans, refuse_mass_deletion, swept_folders
from icekeeper.operations.orphans.sift import Sifted, without_referenced
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.outcome import Metrics, OperationOutcome, succeeded
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import PathSet, may_be_under
from icekeeper.storage.storage import Storage

__all__ = ["Listed", "clear_orphans"]

_OPERATION = Operation.REMOVE_ORPHANS
_WHAT = "remove_orphans: files"


@dataclass(frozen=True, slots=True)
class Listed:
    """A table's files, sifted by the references that the table had before."""

    before: LoadedTable
    sifted: Sifted
    references: References
    """Followed so far; what came since is asked of them."""
    older_than_ms: int
    is_current: bool
    """Whether the files were listed just now; else each is looked at before it goes."""
    foreign: tuple[ForeignMetadata, ...] | None = None
    """Whose the unreferenced metadata files are, where that has been read already."""


def clear_orphans(
    context: OperationContext, listed: Listed, others: Callable[[], Iterable[Claims]]
) -> OperationOutcome:
    """Delete what nothing speaks for; ``others`` tells of the other tables of the catalog, when they matter.

    Raises:
        OperationRefused: a guard saw danger; nothing was deleted, or nothing more.
        MetadataUnreadable: a reference cannot be read; as above.
        StorageError: a store failed.
    """
    table = _after(context, listed.before)  # after the listing (rule 96): what was committed meanwhile is referenced
    needs = FileNeeds(context, table, listed.references)
    new = reachable_paths(context.reader(table), table.metadata_location, listed.references)
    needed = ReferencedPaths(table.metadata.location, chain(new, needs.held.pinned))
    sifted = without_referenced(listed.sifted, needed)
    protected = PathSet((*context.policy.orphan_protected_prefixes, *context.memory.staged_paths()))
    unknown = [found for found in sifted.metadata_files if not protected.may_contain(found.path)]
    foreign = _foreign(context.storage(table), table, listed, unknown)
    folders = removable_folders(table.metadata, listed.older_than_ms, protected)
    neighbours = Neighbours()
    if (sifted.unreferenced or foreign or any_empty(folders)) and not has_its_own_bucket(table.metadata.location):
        neighbours = needs.ask_every_table(tuple(others()))
        foreign = [found for found in foreign if found.path not in needs.shared]
    theirs = PathSet((*neighbours.left_alone, *sifted.other_formats))
    folders = [folder for folder in folders if not theirs.may_contain(folder)]
    needs.look_for_other_heads(unknown if listed.is_current else None)
    sifted = without_referenced(sifted, needs.shared)
    plan = plan_orphans(
        table.metadata,
        sifted.unreferenced,
        protected=protected,
        other_tables=neighbours.left_alone,
        other_formats=sifted.other_formats,
        swept=swept_folders(table.metadata, _data_roots(context, table), context.policy.orphan_sweep_prefixes),
        is_needed=needs.need,
    )
    _refuse_twins(context, table, sifted, needs.shared)
    refuse_foreign(foreign, neighbours.explain)
    return _delete(context, table, listed, sifted, plan, needs, folders)


def _delete(
    context: OperationContext,
    table: LoadedTable,
    listed: Listed,
    sifted: Sifted,
    plan: OrphanPlan,
    needs: FileNeeds,
    folders: Sequence[str],
) -> OperationOutcome:
    """What is left of the orphans when all have been asked: those that are ripe go, unless they are too many."""
    storage, policy = context.storage(table), context.policy
    if not listed.is_current:
        plan = replace(plan, orphans=tuple(still_old(storage, plan.paths, listed.older_than_ms)))
    ripe = _ripe(context, plan)
    refuse_mass_deletion(
        len(ripe), sifted.listed, policy.orphan_max_delete_ratio, context.resolved.sources["orphan_max_delete_ratio"]
    )
    metrics = _metrics(table, sifted, plan, ripe)
    paths = tuple(found.path for found in ripe)
    if context.dry_run:
        summary = f"would remove {len(paths)} orphan file(s)"
        return succeeded(_OPERATION, summary + _left_alone(plan, sifted), metrics=metrics, files_planned=paths)
    # A pass that waits for no further sighting also ends what earlier ones, under another setting, have counted.
    context.memory.remember_orphans(context.run_id, plan.paths if policy.orphan_min_sightings > 1 else ())

    def confirm(batch: Sequence[str]) -> Sequence[str]:
        return [found.path for found in still_old(storage, batch, listed.older_than_ms)]

    result = delete_unneeded(context, table, paths, _WHAT, needs, None if listed.is_current else confirm)
    if policy.orphan_min_sightings > 1:
        context.memory.forget_orphans(result.deleted)
    return succeeded(
        _OPERATION,
        f"removed {len(result.deleted)} orphan file(s){_left_alone(plan, sifted)}",
        metrics={
            "remove_orphans.orphans_removed": len(result.deleted),
            "remove_orphans.files_failed": len(result.failed),
            "remove_orphans.folders_removed": remove_empty(folders),
            **metrics,
        },
        files_planned=paths,
        files_deleted=result.deleted,
    )


def _after(context: OperationContext, before: LoadedTable) -> LoadedTable:
    after = context.load()
    if (after.metadata.uuid, after.metadata.location) != (before.metadata.uuid, before.metadata.location):
        raise OperationRefused(f"{after.name} was replaced or moved during the listing; nothing was deleted")
    return after


def _foreign(
    storage: Storage, table: LoadedTable, listed: Listed, unknown: Sequence[ListedObject]
) -> list[ForeignMetadata]:
    paths = [found.path for found in unknown]
    if listed.foreign is None:
        return foreign_metadata(storage, table.metadata, paths)
    return [found for found in listed.foreign if found.path in set(paths)]


def _data_roots(context: OperationContext, table: LoadedTable) -> Iterable[str]:
    """Folders inside the location in which data files of the table were ever seen, by this pass too."""
    known, home = known_data_roots(context.state, context.catalog, table), table.metadata.location
    return (*known, *(root for root in context.footprint.roots() if may_be_under(root, home)))


def _left_alone(plan: OrphanPlan, sifted: Sifted) -> str:
    """Told, because these files may be of a table that no catalog served here knows."""
    told = ""
    if plan.in_other_folders:
        count, first = len(plan.in_other_folders), plan.in_other_folders[0]
        told += (
            f"; {count} unreferenced file(s) lie in folders where this table never had files, as {first}: they stay, "
            "unless orphan_sweep_prefixes names their folder"
        )
    if plan.of_other_formats:
        count, first = len(plan.of_other_formats), plan.of_other_formats[0]
        folder = min(folder for folder in sifted.other_formats if may_be_under(first, folder))
        told += (
            f"; {count} unreferenced file(s), as {first}, lie in {folder}, a table of another format, which may need "
            "them: they stay, until its log folder is removed"
        )
    return told


def _refuse_twins(context: OperationContext, table: LoadedTable, sifted: Sifted, shared: SharedReferences) -> None:
    """Hashes have said "probably": now the references are read again, for the one that it is."""
    if not sifted.twins:
        return
    tables = (table, *shared.tables)
    readers = ((one, TableReader(one.metadata, context.storage(one).read)) for one in tables)
    needed = chain.from_iterable(
        reachable_paths(reader, one.metadata_location, References()) for one, reader in readers
    )
    twin = find_twin(sifted.twins, chain(needed, context.memory.pinned_metadata()))
    if twin is not None:
        raise same_path_elsewhere(*twin)


def _ripe(context: OperationContext, plan: OrphanPlan) -> Sequence[ListedObject]:
    """Orphans that enough passes have seen, this one counted."""
    wanted = context.policy.orphan_min_sightings
    if wanted == 1:
        return plan.orphans
    seen = context.memory.orphan_sightings(context.run_id, plan.paths)
    return [found for found in plan.orphans if seen.get(found.path, 0) + 1 >= wanted]


def _metrics(table: LoadedTable, sifted: Sifted, plan: OrphanPlan, ripe: Sequence[ListedObject]) -> Metrics:
    # Data and metadata paths elsewhere may be shared with other tables, of which a listing shows no sign.
    elsewhere = [path for path in owned_locations(table.metadata) if not may_be_under(path, table.metadata.location)]
    return {
        "remove_orphans.files_listed": sifted.listed,
        "remove_orphans.files_too_young": sifted.too_young,
        "remove_orphans.files_protected": plan.protected,
        "remove_orphans.files_of_other_tables": plan.of_other_tables,
        "remove_orphans.files_in_other_folders": len(plan.in_other_folders),
        "remove_orphans.files_of_other_formats": len(plan.of_other_formats),
        "remove_orphans.files_quarantined": len(plan.orphans) - len(ripe),
        "remove_orphans.locations_not_swept": len(elsewhere),
        "remove_orphans.orphan_bytes": sum(found.size for found in ripe),
    }
