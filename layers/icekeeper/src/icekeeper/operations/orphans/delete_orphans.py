"""Delete the orphans among a table's candidates, after all checks (rule: orphans-outlive-the-grace-period)."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain, islice

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.delete import DeletedFiles, delete_unneeded, still_old
from icekeeper.deletion.file_needs import FileNeeds
from icekeeper.deletion.foreign_tables import (
    WAIVER,
    ForeignMetadata,
    foreign_metadata,
    former_tables,
    refuse_foreign,
    unexplained,
)
from icekeeper.deletion.near_tables import near_tables
from icekeeper.deletion.neighbours import (
    find_prefix_mismatch,
    has_its_own_bucket,
    owned_locations,
    prefix_mismatch_error,
)
from icekeeper.deletion.referenced_paths import Hashes, ReferencedPaths, UnlistedPaths, path_hash
from icekeeper.deletion.shared_references import SharedReferences
from icekeeper.deletion.sweep_permission import ending_of, is_aside
from icekeeper.deletion.table_claims import known_data_roots
from icekeeper.errors import OperationRefused, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.metadata.table_reader import References, TableReader, manifests_of, reachable_paths
from icekeeper.model import LiveFile, ManifestFile
from icekeeper.operations.orphans.orphan_rules import (
    OrphanCandidates,
    OrphanPlan,
    is_hidden,
    kept_for_damaged,
    live_files,
    partition_folders_like_hidden,
    plan_orphans,
    refuse_mass_deletion,
    swept_folders,
    without_copies,
    without_referenced,
    without_young_asides,
)
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.policy.sweep_rhythm import FORMER_TABLES
from icekeeper.report.outcome import Metrics, OperationOutcome, refused_besides, skipped, succeeded
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.local_files import is_empty, old_folders
from icekeeper.storage.paths import PathSet, any_spelling, is_local, may_be_under, normalise, split_path
from icekeeper.storage.storage import Storage
from icekeeper.text import counted

_OPERATION = Operation.REMOVE_ORPHANS
# The most files that an outcome names; the log has all of them.
_NAMED = 1_000
_ENDINGS_NAMED = 5

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableCandidates:
    """The files of a listing that the table, as loaded ``before`` the listing, does not reference."""

    before: LoadedTable
    candidates: OrphanCandidates
    references: References
    """The references that were read; newer references are read in addition."""
    older_than_ms: int
    """Epoch milliseconds; files that were modified before this time are past the grace period."""
    is_current: bool
    """Whether the files were listed just now; else each file's age is read from the store before its deletion."""
    foreign: tuple[ForeignMetadata, ...] | None = None
    """The owners of the unreferenced metadata files, if they have already been read."""


def delete_orphans(context: OperationContext, found: TableCandidates) -> OperationOutcome:
    """Check the candidates and delete those that nothing needs.

    Raises:
        OperationRefused: a check found a danger; nothing (more) was deleted.
        MetadataUnreadable: a reference cannot be read; nothing (more) was deleted.
        StorageError: a store failed.
    """
    # Load after the listing (rule: orphans-outlive-the-grace-period), so that files committed meanwhile are referenced.
    table = _after(context, found.before)
    needs = FileNeeds(context, table, found.references)
    needs.permit_sweep()
    new = reachable_paths(context.reader(table), table.metadata_location, found.references)
    needed = ReferencedPaths(table.metadata.location, chain(new, needs.held.pinned))
    candidates = without_referenced(found.candidates, needed)
    protected = PathSet((*context.policy.orphan_protected_prefixes, *context.memory.staged_paths()))
    # A table property may protect files, but not waive them: a waiver turns another table's data into orphans, so only
    # operators may set it (rule: unknown-metadata-stops-sweeps).
    waived = PathSet((*context.resolved.waived_prefixes, *context.memory.staged_paths()))
    unknown = [file for file in candidates.metadata_files if not waived.may_contain(file.path)]
    foreign = _foreign(context.stores.storage(table), table, found, unknown)
    folders = removable_folders(table.metadata, found.older_than_ms, protected)
    left_alone: Sequence[str] = ()
    elsewhere = folders_elsewhere(table.metadata, context.policy.orphan_sweep_prefixes)
    is_alone = has_its_own_bucket(table.metadata.location) and not elsewhere
    if (candidates.unreferenced or foreign or any(map(is_empty, folders))) and not is_alone:
        if any(may_be_under(file.path, folder) for file in candidates.unreferenced for folder in elsewhere):
            refuse_shared_folders(context, table, elsewhere)
        left_alone = needs.ask_neighbours()
        foreign = [owner for owner in foreign if owner.path not in needs.shared and not needs.leave_alone(owner.path)]
    foreign = unexplained(foreign, left_alone)
    unparsed = {owner.path for owner in foreign if owner.is_damaged}
    damaged = [file for file in unknown if file.path in unparsed]
    of_damaged, since_ms = kept_for_damaged(table.metadata, damaged)
    protected.add((*(file.path for file in damaged), *of_damaged))
    theirs = PathSet((*left_alone, *candidates.other_formats, *of_damaged))
    folders = [folder for folder in folders if not theirs.may_contain(folder)]
    # Protected metadata files may also belong to another head.
    needs.look_for_other_heads(found.candidates.metadata_files if found.is_current else None)
    candidates = without_referenced(candidates, needs.shared)
    plan = plan_orphans(
        table.metadata,
        without_young_asides(table.metadata, candidates.unreferenced, context.stores.aged_until_ms(table)),
        protected=protected,
        other_tables=left_alone,
        other_formats=candidates.other_formats,
        swept=swept_folders(table.metadata, known_data_roots(context, table), context.policy.orphan_sweep_prefixes),
        elsewhere=elsewhere,
        since_ms=since_ms,
        is_needed=needs.need,
        may_sweep=lambda path: is_aside(path, table.metadata) or needs.may_sweep(path),
    )
    _refuse_prefix_mismatches(context, table, candidates, needs.shared)
    strangers = [owner for owner in foreign if owner.path not in unparsed]
    former = former_tables(table.metadata, strangers)
    if former and len(former) == len(strangers):
        return _left_to_a_former_table(former)
    refuse_foreign(strangers)
    return _delete(context, found, table, candidates, plan, _damaged_sentence(damaged, since_ms), needs, folders)


def _left_to_a_former_table(found: Sequence[ForeignMetadata]) -> OperationOutcome:
    """The outcome if a dropped table had the same location: nothing is deleted, and nothing failed."""
    more = f" and {counted(len(found) - 1, 'more metadata file')} of dropped tables" if len(found) > 1 else ""
    return skipped(
        _OPERATION,
        f"{found[0].path} belongs to a dropped table (UUID {found[0].uuid}), at whose location this table was "
        "created: it is unknown which files the dropped table left, so no orphan was removed; if its files are not "
        f"needed, delete that metadata file{more}, or name it in {WAIVER}: its data then counts as orphans",
        metrics={FORMER_TABLES: len(found)},
    )


def _delete(
    context: OperationContext,
    found: TableCandidates,
    table: LoadedTable,
    candidates: OrphanCandidates,
    plan: OrphanPlan,
    about_damaged: str,
    needs: FileNeeds,
    folders: Sequence[str],
) -> OperationOutcome:
    """Delete the orphans, unless there are too many; in a dry run, only report them.

    ``about_damaged``: as :func:`_damaged_sentence`; ``folders``: local folders to remove if they are empty, the deepest
    first.
    """
    storage, policy = context.stores.storage(table), context.policy
    missing = _missing(context, found, table) if plan.orphans else None
    if not found.is_current:
        plan = replace(plan, orphans=tuple(still_old(storage, plan.paths, found.older_than_ms)))
    if missing is not None:
        missing.refuse_too_many(policy.orphan_max_missing_ratio, context.resolved.sources["orphan_max_missing_ratio"])
        plan = without_copies(plan, missing.resembles)
    ratio_source = context.resolved.sources["orphan_max_delete_ratio"]
    refuse_mass_deletion(
        len(plan.orphans),
        candidates.listed,
        policy.orphan_max_delete_ratio,
        ratio_source,
        any_missing=missing is not None,
    )
    metrics = _metrics(context, table, candidates, plan, missing)
    paths = plan.paths
    left = (
        _left_alone(plan, candidates)
        + about_damaged
        + unswept_sentence(table.metadata, policy.orphan_sweep_prefixes)
        + "".join(f"; {sentence}" for sentence in needs.shared.left)
    )
    if context.dry_run:
        summary = f"would remove {len(paths)} orphan file(s){left}"
        return _with_copies(succeeded(_OPERATION, summary, metrics=metrics, files_planned=paths), plan, missing)
    paths, left = _reviewed(context, paths, left)
    context.require_reviewed(table, paths)
    confirm = None if found.is_current else partial(_still_old_paths, storage, found.older_than_ms)
    result = delete_unneeded(context, table, paths, "remove_orphans: files", needs, confirm)
    metrics = {
        **_deleted_metrics(plan.orphans, result),
        "remove_orphans.folders_removed": sum(map(storage.remove_if_empty, folders)),
        **metrics,
    }
    if (in_vain := result.in_vain(_OPERATION, metrics)) is not None:
        return in_vain
    outcome = succeeded(
        _OPERATION,
        "; ".join([f"removed {len(result.deleted)} orphan file(s){left}", *result.failures]),
        metrics=metrics,
        files_planned=paths,
        files_deleted=result.deleted,
    )
    return _with_copies(outcome, plan, missing)


def _reviewed(context: OperationContext, paths: tuple[str, ...], left: str) -> tuple[tuple[str, ...], str]:
    """Leave out metadata files that a saved plan does not name, because the plan's own commits drop them from the log;
    add a sentence about them to ``left``."""
    if context.reviewed is None:
        return paths, left
    known = context.reviewed.files
    named = tuple(path for path in paths if path in known or not is_metadata_file(path))
    waiting = len(paths) - len(named)
    return named, f"{left}; left {waiting} metadata file(s) that the plan does not name" if waiting else left


def _deleted_metrics(orphans: Iterable[ListedObject], result: DeletedFiles) -> dict[str, int]:
    deleted = frozenset(result.deleted)
    return {
        "remove_orphans.orphans_removed": len(deleted),
        "remove_orphans.bytes_freed": sum(orphan.size for orphan in orphans if orphan.path in deleted),
        "remove_orphans.files_failed": len(result.failed),
    }


def _still_old_paths(storage: Storage, older_than_ms: int, paths: Sequence[str]) -> Sequence[str]:
    return [found.path for found in still_old(storage, paths, older_than_ms)]


def _missing(context: OperationContext, found: TableCandidates, after: LoadedTable) -> MissingFiles | None:
    """The missing files; ``None`` if no file is missing."""
    unlisted = found.candidates.unlisted
    if not unlisted:
        return None
    newest_ms = None if found.is_current else found.candidates.newest_ms
    missing = find_missing(
        context.stores.storage(after), context.reader(found.before), after.metadata, unlisted, newest_ms
    )
    return missing if missing.count else None


def _with_copies(outcome: OperationOutcome, plan: OrphanPlan, missing: MissingFiles | None) -> OperationOutcome:
    """The outcome; a refusal if orphans are kept because they may be copies of missing files."""
    if missing is None or not plan.like_missing:
        return outcome
    for path in plan.like_missing:
        log.warning("%s stays: it has the size or the name of a missing file", path)
    sentence = (
        f"{len(plan.like_missing)} unreferenced file(s), such as {plan.like_missing[0]}, stay: they have the size or "
        f"the name of missing referenced files ({missing.count}, such as {missing.first}) and may be their only copies"
    )
    refused = refused_besides(outcome, sentence)
    return replace(refused, plan={"like_missing": list(plan.like_missing[:_NAMED])})


def _after(context: OperationContext, before: LoadedTable) -> LoadedTable:
    """The table after the listing.  Raises OperationRefused if it was replaced or moved."""
    after = context.load()
    if (after.metadata.uuid, after.metadata.location) != (before.metadata.uuid, before.metadata.location):
        raise OperationRefused(f"{after.name} was replaced or moved during the listing; nothing was deleted")
    return after


def _foreign(
    storage: Storage, table: LoadedTable, found: TableCandidates, unknown: Sequence[ListedObject]
) -> list[ForeignMetadata]:
    paths = [file.path for file in unknown]
    if found.foreign is None:
        return foreign_metadata(storage, table.metadata, paths)
    return [owner for owner in found.foreign if owner.path in set(paths)]


def _left_alone(plan: OrphanPlan, candidates: OrphanCandidates) -> str:
    """The summary's sentences about unreferenced files that are kept, because they may belong to an unknown table."""
    text = ""
    if plan.in_other_folders:
        count, first = len(plan.in_other_folders), plan.in_other_folders[0]
        text += (
            f"; {count} unreferenced file(s), such as {first}, are in folders where this table never had files: they "
            "stay, unless orphan_sweep_prefixes names their folder"
        )
    if plan.of_other_formats:
        count, first = len(plan.of_other_formats), plan.of_other_formats[0]
        folder = min(folder for folder in candidates.other_formats if may_be_under(first, folder))
        text += (
            f"; {count} unreferenced file(s), such as {first}, are in {folder}, a table of another format, which may "
            "need them: they stay until its log folder is removed"
        )
    if plan.of_other_names:
        count, endings = len(plan.of_other_names), Counter(map(ending_of, plan.of_other_names))
        kinds = [f"{ending} {number}" for ending, number in endings.most_common(_ENDINGS_NAMED)]
        more = ", …" if len(endings) > _ENDINGS_NAMED else ""
        text += (
            f"; {count} unreferenced file(s), such as {plan.of_other_names[0]}, have names that no Iceberg writer "
            f"gives ({', '.join(kinds)}{more}): they stay, unless orphan_file_endings names their ending"
        )
    return text


def _damaged_sentence(damaged: Sequence[ListedObject], since_ms: int | None) -> str:
    """The summary's sentence about metadata files that cannot be parsed."""
    if not damaged:
        return ""
    newer = "" if since_ms is None else ", with all files that are newer than the table's metadata in the catalog"
    paths = ", ".join(file.path for file in damaged)
    return f"; {paths} cannot be parsed and stay(s){newer}: if no table uses it, delete it"


def _refuse_prefix_mismatches(
    context: OperationContext, table: LoadedTable, candidates: OrphanCandidates, shared: SharedReferences
) -> None:
    """Read the references again to confirm a prefix mismatch, which was found by hashes only.

    Raises:
        OperationRefused: a candidate is referenced under another scheme, bucket or host.
    """
    if not candidates.prefix_mismatches:
        return
    tables = (table, *shared.tables)
    readers = ((loaded, TableReader(loaded.metadata, context.stores.storage(loaded).read)) for loaded in tables)
    needed = chain.from_iterable(
        reachable_paths(reader, loaded.metadata_location, References()) for loaded, reader in readers
    )
    mismatch = find_prefix_mismatch(candidates.prefix_mismatches, chain(needed, context.memory.pinned_metadata()))
    if mismatch is not None:
        raise prefix_mismatch_error(*mismatch)


def _metrics(
    context: OperationContext,
    table: LoadedTable,
    candidates: OrphanCandidates,
    plan: OrphanPlan,
    missing: MissingFiles | None,
) -> Metrics:
    # Data and metadata paths outside the location may be shared with other tables; a listing does not show that.
    swept = (table.metadata.location, *folders_elsewhere(table.metadata, context.policy.orphan_sweep_prefixes))
    elsewhere = [
        path for path in owned_locations(table.metadata) if not any(may_be_under(path, folder) for folder in swept)
    ]
    return {
        "remove_orphans.files_listed": candidates.listed,
        "remove_orphans.files_too_young": candidates.too_young,
        "remove_orphans.files_protected": plan.protected,
        "remove_orphans.files_of_other_tables": plan.of_other_tables,
        "remove_orphans.files_in_other_folders": len(plan.in_other_folders),
        "remove_orphans.files_of_other_formats": len(plan.of_other_formats),
        "remove_orphans.files_of_other_names": len(plan.of_other_names),
        "remove_orphans.files_missing": 0 if missing is None else missing.count,
        "remove_orphans.files_like_missing": len(plan.like_missing),
        "remove_orphans.locations_not_swept": len(elsewhere),
        "remove_orphans.orphan_bytes": sum(found.size for found in plan.orphans),
        "remove_orphans.bytes_left": candidates.too_young_bytes,
    }


# Data files outside the table's location.  ``write.data.path`` may be any folder, and nothing in it shows which table
# owns a file.  So such a folder is swept only if ``orphan_sweep_prefixes`` names it, and no known table has files in it
# (rule: sweep-only-table-folders).


def folders_elsewhere(metadata: TableMetadata, named: Iterable[str]) -> tuple[str, ...]:
    """The folders of a data path outside the location that are swept because ``orphan_sweep_prefixes`` names them.

    Raises:
        OperationRefused: a named folder contains the data path and more.
    """
    home, data = metadata.location, metadata.data_location
    if may_be_under(data, home):
        return ()
    folders: list[str] = []
    for folder in sorted(named, key=len):
        if may_be_under(folder, home) or may_be_under(home, folder):
            continue  # the setting concerns the location, not the data path outside it
        if may_be_under(folder, data):
            if not any(may_be_under(folder, other) for other in folders):
                folders.append(folder)
        elif may_be_under(data, folder):
            raise OperationRefused(
                f"orphan_sweep_prefixes names {folder}, which is outside the table's location and contains more than "
                f"its write.data.path {data}; nothing was deleted; name that path itself, or a folder in it"
            )
    return tuple(folders)


def unswept_sentence(metadata: TableMetadata, named: Iterable[str]) -> str:
    """The summary's sentence about a data path outside the location that is not swept; else empty."""
    home, data = metadata.location, metadata.data_location
    if may_be_under(data, home) or folders_elsewhere(metadata, named):
        return ""
    if may_be_under(home, data):
        return f"; write.data.path {data} contains the table's location and is not swept"
    return (
        f"; write.data.path {data} is outside the table's location and is not swept, unless orphan_sweep_prefixes "
        "names it"
    )


def refuse_shared_folders(context: OperationContext, table: LoadedTable, folders: Iterable[str]) -> None:
    """Refuse to sweep folders in which any known table except ``table`` may have files.

    Raises:
        OperationRefused: names the folder and the table.
        StorageError: the state store failed.
    """
    folders = tuple(folders)
    near = near_tables(context, table, list(map(normalise, folders)))
    for other in near.tables:
        if not other.is_table_of(table) and not other.is_kept_apart:
            for folder in filter(other.overlap, folders):
                _refuse(context, folder, f"{other.table.name} of catalog {other.catalog.id}")
    for claims, reason in (*near.unreadable, *near.given_up):
        for folder in filter(claims.touch, map(normalise, folders)):
            _refuse(context, folder, f"{claims.table} of catalog {claims.catalog}, which cannot be loaded ({reason}),")


def _refuse(context: OperationContext, folder: str, who: str) -> None:
    raise OperationRefused(
        f"orphan_sweep_prefixes names {folder}, in the write.data.path of {context.table}, where {who} may have files, "
        "so the owner of a file there is unknown; nothing was deleted; give each table a data path of its own, or "
        "take the folder out of orphan_sweep_prefixes"
    )


# Empty local folders; object stores have none.


def removable_folders(metadata: TableMetadata, older_than_ms: int, protected: PathSet) -> Sequence[str]:
    """Folders below a local table's location that may be removed once they are empty, the deepest first.

    A writer creates a folder and then a file in it, and fails if the folder disappears in between.  So a folder is
    removable only if nothing was created or removed in it within the grace period, before any file is deleted here.

    Raises:
        StorageError: a folder cannot be read.
    """
    if not is_local(metadata.location):
        return ()
    # Writers rely on these folders.
    roots = {normalise(f"{metadata.location}/{name}") for name in ("data", "metadata")}
    roots |= {normalise(metadata.data_location), normalise(metadata.metadata_directory)}
    like_hidden = partition_folders_like_hidden(metadata)
    return [
        folder
        for folder in old_folders(split_path(metadata.location).key, older_than_ms)
        if normalise(folder) not in roots
        and not protected.may_contain(folder)
        and not is_hidden(f"{folder}/file", metadata.location, like_hidden)
    ]


# Missing files: referenced, but not in the listing (rule: keep-possible-last-copies).
#
# A faulty copy of a table may have its data files under wrong names.  They look like orphans, but are the last copies
# of their rows.  So an orphan with the size or the base name of a missing file is kept, and if much of the table is
# missing, nothing is swept.

_PARALLEL_LOOKS = 16
# The most missing files that are checked in the store, which takes about ten seconds; further files count as missing.
_MOST_LOOKS = 10_000
# A single missing file may be an accident.
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The data and delete files that a table references and that do not exist."""

    count: int
    """The missing files of all snapshots."""
    in_head: int
    """The missing files of the head of main, or of all branches if there is no main."""
    head_files: int
    """The number of all files of that head."""
    first: str
    """The path of a missing file; empty if there is none."""
    sizes: Hashes
    """Sizes in bytes."""
    names: Hashes
    """Hashes of base names."""

    def resembles(self, found: ListedObject) -> bool:
        """Whether a file has the size or the base name of a missing file."""
        return bool(self.count) and (found.size in self.sizes or path_hash(_base_name(found.path)) in self.names)

    def refuse_too_many(self, limit: Fraction, source: str) -> None:
        """Refuse a sweep if more than ``limit`` of the head's files are missing, and at least two.

        Raises:
            OperationRefused: names both numbers and the key.
        """
        if self.in_head < _FEWEST or self.in_head <= limit * self.head_files:
            return
        raise OperationRefused(
            f"{self.in_head} of the {self.head_files} files of the table are missing, such as {self.first}, more than "
            f"orphan_max_missing_ratio {float(limit):g} ({source}) allows: unreferenced files may be their only "
            "copies; nothing was deleted; restore the missing files, or, if their rows are permanently lost, run once "
            "with orphan_max_missing_ratio=1"
        )


def find_missing(
    storage: Storage, before: TableReader, after: TableMetadata, unlisted: UnlistedPaths, newest_ms: int | None
) -> MissingFiles:
    """The unlisted files that the store does not have either.

    The manifests are read again, because their paths were kept only as hashes.

    Args:
        storage: access to the table's files.
        before: reads the table as it was before the listing.
        after: the table after the listing; files of snapshots that it lacks may have been deleted meanwhile.
        unlisted: the expected paths that the listing lacks.
        newest_ms: the time of the youngest file of an older inventory (epoch milliseconds); files that were added later
            do not count.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
    """
    snapshots = {number: known for number, known in before.metadata.snapshots.items() if number in after.snapshots}
    of_head = manifests_of(before, [snapshots[number] for number in before.metadata.head_ids if number in snapshots])
    others = {path: listed for path, listed in manifests_of(before, snapshots.values()).items() if path not in of_head}
    in_order = chain(
        ((True, file) for file in _added_before(newest_ms, before, of_head, snapshots)),
        ((False, file) for file in _added_before(newest_ms, before, others, snapshots)),
    )
    lacking = _unlisted_files(in_order, unlisted)
    asked = list(islice(lacking, _MOST_LOOKS))
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="missing-look") as pool:
        gone = list(pool.map(partial(_is_gone, storage), (file.path for _, file in asked)))
    count = in_head = 0
    first, sizes, names = "", Hashes(), Hashes()
    for is_of_head, file in chain((found for found, is_gone in zip(asked, gone, strict=True) if is_gone), lacking):
        count, in_head, first = count + 1, in_head + is_of_head, first or file.path
        sizes.add((file.size,))
        names.add((path_hash(_base_name(file.path)),))
    files = live_files(of_head.values())
    return MissingFiles(count, in_head, files, first, sizes, names)


def _added_before(
    newest_ms: int | None, reader: TableReader, manifests: Mapping[str, ManifestFile], snapshots: Mapping[int, Snapshot]
) -> Iterator[LiveFile]:
    """The live files of the manifests, without those that a snapshot after ``newest_ms`` added."""
    for path, files in reader.live_files(manifests):
        adder = manifests[path].added_snapshot_id
        for file in files:
            added = snapshots.get(file.snapshot_id or adder or 0)
            if newest_ms is None or added is None or added.timestamp_ms <= newest_ms:
                yield file


def _unlisted_files(files: Iterable[tuple[bool, LiveFile]], unlisted: UnlistedPaths) -> Iterator[tuple[bool, LiveFile]]:
    """The files that the listing lacks, each once."""
    seen = bytearray(len(unlisted))
    for is_of_head, file in files:
        place = unlisted.place(file.path)
        if place is not None and not seen[place]:
            seen[place] = 1
            yield is_of_head, file


def _is_gone(storage: Storage, path: str) -> bool:
    try:
        return storage.status(path) is None
    except StorageError:  # it may be missing
        return True


def _base_name(path: str) -> str:
    return any_spelling(path).rpartition("/")[2]
