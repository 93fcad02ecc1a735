"""The orphans of a whole bucket: a single listing, compared with the references of all tables of a catalog.

Each table has its own policy and checks, as in a pass of its own.  The differences: all tables share one listing, and a
file that any table references is not an orphan.  Users of Iceberg asked for this (issue 7111).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.foreign_tables import ForeignMetadata, foreign_metadata, metadata_owner
from icekeeper.deletion.near_tables import CatalogTables, load_all
from icekeeper.deletion.referenced_paths import ReferencedPaths, UnlistedPaths
from icekeeper.deletion.table_claims import recorded_claims
from icekeeper.errors import LeaseHeld, MaintenanceError, PartlyListed, PolicyError, StorageError
from icekeeper.maintenance.pass_steps import PassStart, conclude, run_operation
from icekeeper.maintenance.run_pass import Turn, leased
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.metadata.table_reader import References, documents
from icekeeper.model import TableName
from icekeeper.operations.orphans.delete_orphans import TableCandidates, delete_orphans, folders_elsewhere
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.orphan_rules import OrphanCandidates, TableLocations
from icekeeper.operations.orphans.remove_orphans import why_skipped
from icekeeper.pass_context.context import OperationContext, PassLimits
from icekeeper.policy import Operation
from icekeeper.report.outcome import (
    BucketOutcome,
    OperationOutcome,
    PassOutcome,
    Status,
    failed,
    refused,
    skipped,
    succeeded,
)
from icekeeper.state.store import StateStore
from icekeeper.storage.listing import Listed, ListedObject
from icekeeper.storage.paths import may_be_under, normalise
from icekeeper.storage.storage import FileSource, ListedLocations, Storage

_OPERATION = Operation.REMOVE_ORPHANS
_FIRST_PATHS = 20
_AT_ONCE = 10_000
# The most folders of foreign tables to report; a single metadata file of a folder identifies its table.
_FOREIGN_FOLDERS = 1_000


@dataclass(slots=True)
class _TableSearch:
    context: OperationContext
    table: LoadedTable
    references: References = field(default_factory=References)
    candidates: OrphanCandidates = field(default_factory=OrphanCandidates)
    older_than_ms: int = 0
    elsewhere: tuple[str, ...] = ()
    """Folders of the table's data path outside its location, which are also swept."""


@dataclass(slots=True)
class _Outside:
    """The listed files outside all tables' locations."""

    files: int = 0
    size: int = 0
    first: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    """Folder → a metadata file in it."""

    def add(self, found: ListedObject) -> None:
        self.files += 1
        self.size += found.size
        if len(self.first) < _FIRST_PATHS:
            self.first.append(found.path)
        if is_metadata_file(found.path) and len(self.metadata) < _FOREIGN_FOLDERS:
            self.metadata.setdefault(found.path.rpartition("/")[0], found.path)


def run_bucket_pass(
    catalog: Catalog,
    state: StateStore,
    make_context: Callable[[LoadedTable], OperationContext],
    bucket: str,
    *,
    inventory: str | None,
    run_id: str,
    dry_run: bool,
) -> BucketOutcome:
    """Remove the orphans of every table of a catalog whose location is below the address ``bucket``.

    Tables with deletions are recorded in the journal.  ``inventory``: the address of a list of files, or of an S3
    Inventory, to read instead of listing the bucket.

    Raises:
        PolicyError: the catalog has no table below the address.
        StorageError: the catalog or the bucket cannot be listed.
    """
    listed: list[TableName] = []
    warnings: list[str] = []
    try:
        listed.extend(catalog.list_tables())
    except PartlyListed as error:  # each sweep checks whether an unlisted table may need files
        warnings.append(str(error))
    tables = load_all(catalog, listed, state, recorded_claims(state, catalog))
    if not any(may_be_under(known.table.metadata.location, bucket) for known in tables.tables):
        raise PolicyError(f"catalog {catalog.id} has no table whose location is below {bucket}")
    outcomes: dict[str, OperationOutcome] = {
        str(name): refused(_OPERATION, f"{name} cannot be loaded: {reason}") for name, reason in tables.unreadable
    }
    referenced = ReferencedPaths(bucket)
    searches, unsearched = _prepared(make_context, bucket, tables, referenced)
    outcomes |= unsearched
    outside, foreign = _Outside(), list[ForeignMetadata]()
    if searches:
        search = next(iter(searches.values()))
        storage = search.context.stores.storage(search.table).operators()  # an operator names the bucket
        source = _source(storage, bucket, inventory)
        _assign_to_tables(source.objects(), tables, searches, outside, referenced)
        unlisted = referenced.unlisted()
        owners = (metadata_owner(storage, path) for path in outside.metadata.values())
        foreign += (owner for owner in owners if owner is not None)
        for name, search in searches.items():
            outcome, strangers = _delete_in_turn(search, unlisted, is_current=source.is_current)
            outcomes[str(name)] = outcome
            foreign += strangers
            if not dry_run:
                warnings += _recorded(search.context, outcome)
    return BucketOutcome(
        catalog=catalog.id.name,
        bucket=bucket,
        run_id=run_id,
        dry_run=dry_run,
        tables=dict(sorted(outcomes.items())),
        outside={"files": outside.files, "bytes": outside.size, "first": outside.first},
        foreign=_by_table(foreign, {known.table.metadata.uuid for known in tables.tables}),
        warnings=tuple(warnings),
    )


def _source(storage: Storage, bucket: str, inventory: str | None) -> FileSource:
    if inventory is None:
        return ListedLocations(storage, (bucket,))
    return InventoryFiles(storage, inventory, bucket)


def _prepared(
    make_context: Callable[[LoadedTable], OperationContext],
    bucket: str,
    tables: CatalogTables,
    referenced: ReferencedPaths,
) -> tuple[dict[TableName, _TableSearch], dict[str, OperationOutcome]]:
    """The loaded tables that are searched, and the outcomes of the others.

    Adds the references of all tables, because the files of a table that is not swept may be in another table's
    location.  If a table has several catalog entries, only the first is searched.
    """
    searches: dict[TableName, _TableSearch] = {}
    outcomes: dict[str, OperationOutcome] = {}
    first_of: dict[tuple[str, str], TableName] = {}
    for table in (known.table for known in tables.tables):
        name = table.name
        try:
            search = _TableSearch(make_context(table), table)
        except MaintenanceError as error:
            outcome = failed(_OPERATION, str(error))
        else:
            outcome = run_operation(_OPERATION, search.context, partial(_know_references, search, bucket, referenced))
        first = first_of.setdefault((table.metadata.uuid or str(name), normalise(table.metadata.location)), name)
        if first != name:
            outcomes[str(name)] = skipped(_OPERATION, f"{name} is a second entry of {first}")
        elif outcome.status is Status.SUCCEEDED:
            searches[name] = search
        else:
            outcomes[str(name)] = outcome
    return searches, outcomes


def _know_references(
    search: _TableSearch, bucket: str, referenced: ReferencedPaths, context: OperationContext
) -> OperationOutcome:
    """Add a table's references to those of the whole bucket; skipped, with the reason, if the table must not be
    swept."""
    table, references, location = search.table, search.references, search.table.metadata.location
    reader, snapshots = context.reader(table), table.metadata.snapshots.values()
    referenced.update(documents(table.metadata, table.metadata_location))
    manifests = references.listed(reader, snapshots)
    referenced.update(manifests)
    referenced.expect(references.held(reader, manifests.values()))
    referenced.update(context.memory.pinned_metadata())
    reason = context.resolved.why_not(_OPERATION)
    if reason is None and not may_be_under(location, bucket):
        reason = f"its location {location} is not below {bucket}"
    if reason is not None:
        return skipped(_OPERATION, reason)
    skip = why_skipped(context, table)
    if skip is not None:
        return skip
    search.elsewhere = folders_elsewhere(table.metadata, context.policy.orphan_sweep_prefixes)
    grace_ms = context.policy.orphan_older_than_ms
    search.older_than_ms = context.stores.trusted_now_ms(table, grace_ms, "orphan_older_than_hours") - grace_ms
    return succeeded(_OPERATION, "its references are known")


def _assign_to_tables(
    objects: Iterable[Listed],
    tables: CatalogTables,
    searches: Mapping[TableName, _TableSearch],
    outside: _Outside,
    referenced: ReferencedPaths,
) -> None:
    locations = TableLocations(
        (
            *((known.table.name, known.table.metadata.location) for known in tables.tables),
            *((name, folder) for name, search in searches.items() for folder in search.elsewhere),
        )
    )
    rest = iter(objects)
    while some := list(islice(rest, _AT_ONCE)):
        of_searches: defaultdict[TableName, list[Listed]] = defaultdict(list)
        of_others: list[Listed] = []
        for found in some:
            owners = locations.tables_around(found.path)
            if not owners and (read := found.read()) is not None:
                outside.add(read)
            searched = [owner for owner in owners if owner in searches]
            for owner in searched:  # the deletion refuses tables that share a location
                of_searches[owner].append(found)
            if not searched:
                of_others.append(found)
        for owner, files in of_searches.items():
            searches[owner].candidates.add(files, referenced, searches[owner].older_than_ms)
        # These files are not candidates, but a searched table may reference them, so they must not count as missing.
        if of_others:
            referenced.unreferenced(of_others)


def _delete_in_turn(
    search: _TableSearch, unlisted: UnlistedPaths, *, is_current: bool
) -> tuple[OperationOutcome, list[ForeignMetadata]]:
    """Delete the orphans of a table under its lease; a table that another run maintains now is skipped
    (rule: lost-lease-changes-nothing).

    References and listing are older than the lease; the deletion checks again.
    """
    found: list[ForeignMetadata] = []

    def delete(context: OperationContext) -> OperationOutcome:
        candidates = replace(search.candidates, unlisted=unlisted)
        paths = [file.path for file in candidates.metadata_files]
        found.extend(foreign_metadata(context.stores.storage(search.table), search.table.metadata, paths))
        listed = TableCandidates(
            search.table, candidates, search.references, search.older_than_ms, is_current, tuple(found)
        )
        return delete_orphans(context, listed)

    if search.context.dry_run:
        return run_operation(_OPERATION, search.context, delete), found
    try:
        with leased(search.context, Turn(command="icekeeper orphans")) as lease:
            return run_operation(_OPERATION, replace(search.context, limits=PassLimits(lease=lease)), delete), found
    except LeaseHeld as held:
        return skipped(_OPERATION, f"another run maintains the table: {held}"), []
    except StorageError as error:
        return failed(_OPERATION, str(error)), []


def _by_table(foreign: Iterable[ForeignMetadata], known: Container[str | None]) -> tuple[dict[str, str | None], ...]:
    """The tables that the catalog does not know, each once; an unreadable metadata file counts as a table."""
    by_table = {
        (found.uuid, found.location or found.path): {
            "uuid": found.uuid,
            "location": found.location,
            "metadata_file": found.path,
        }
        for found in foreign
        if found.uuid is None or found.uuid not in known
    }
    return tuple(by_table.values())


def _recorded(context: OperationContext, outcome: OperationOutcome) -> tuple[str, ...]:
    """Record the sweep of a table, also in the journal if it deleted something; return warnings."""
    started = PassStart(context.memory.identity, None, context.started_ms)
    done = PassOutcome(
        table=str(context.table),
        catalog=context.catalogs.own.id.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=(outcome,),
    )
    recorded = conclude(context.state, started, done, context.engine.name, context.clock())
    return tuple(f"{context.table}: {warning}" for warning in recorded.warnings)
