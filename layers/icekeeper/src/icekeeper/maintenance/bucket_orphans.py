"""The orphans of a whole bucket: one listing, compared with the references of all tables of a catalog.

Each table has its own policy and checks, as in a pass of its own.  The differences: all tables share one listing, and a
file that any table references is no orphan.  Users of Iceberg asked for this (issue 7111).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.foreign_tables import ForeignMetadata, foreign_metadata, metadata_owner
from icekeeper.deletion.other_tables import CatalogTables, load_all
from icekeeper.deletion.referenced_paths import ReferencedPaths, UnlistedPaths
from icekeeper.deletion.table_claims import recorded_claims
from icekeeper.errors import LeaseHeld, MaintenanceError, PartlyListed, PolicyError, StorageError
from icekeeper.maintenance.begin_and_end_pass import PassStart, conclude
from icekeeper.maintenance.run_operation import run_guarded
from icekeeper.maintenance.table_lease import Turn, leased
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.metadata.table_reader import References, documents
from icekeeper.model import TableName
from icekeeper.operations.orphans.delete_orphans import TableCandidates, delete_orphans, folders_elsewhere
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.orphan_rules import CandidateCollector, TableLocations
from icekeeper.operations.orphans.remove_orphans import why_skipped
from icekeeper.pass_context.context import OperationContext
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
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import FolderNames, may_be_under, normalise
from icekeeper.storage.storage import FileSource, ListedLocations, Storage

_OPERATION = Operation.REMOVE_ORPHANS
_FIRST_PATHS = 20
_AT_ONCE = 10_000
# The most folders of foreign tables to report; one metadata file of a folder shows its table.
_FOREIGN_FOLDERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSweep:
    """The request: sweep every table of a catalog whose location is below the address ``bucket``."""

    catalog: Catalog
    state: StateStore
    make_context: Callable[[LoadedTable], OperationContext]
    bucket: str
    inventory: str | None
    """The address of a list of files, or of an S3 Inventory, to read instead of listing the bucket."""
    run_id: str
    dry_run: bool


@dataclass(slots=True)
class _TableSearch:
    context: OperationContext
    table: LoadedTable
    references: References
    collector: CandidateCollector
    older_than_ms: int
    elsewhere: tuple[str, ...]
    """Folders of its data path outside its location that are swept, too."""


@dataclass(slots=True)
class _Outside:
    """The listed files outside all tables' locations."""

    files: int = 0
    size: int = 0
    first: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    """Folder → one metadata file in it."""

    def add(self, found: ListedObject) -> None:
        self.files += 1
        self.size += found.size
        if len(self.first) < _FIRST_PATHS:
            self.first.append(found.path)
        if is_metadata_file(found.path) and len(self.metadata) < _FOREIGN_FOLDERS:
            self.metadata.setdefault(found.path.rpartition("/")[0], found.path)


def run_bucket_pass(asked: BucketSweep) -> BucketOutcome:
    """Remove the orphans of every table of the bucket; tables with deletions are recorded in the journal.

    Raises:
        PolicyError: the catalog has no table below the address.
        StorageError: the catalog or the bucket cannot be listed.
    """
    catalog, state = asked.catalog, asked.state
    listed: list[TableName] = []
    warnings: list[str] = []
    try:
        listed.extend(catalog.list_tables())
    except PartlyListed as error:  # each sweep checks whether an unlisted table may need files
        warnings.append(str(error))
    tables = load_all(catalog, listed, state, recorded_claims(state, catalog))
    if not any(may_be_under(table.metadata.location, asked.bucket) for table in tables.loaded):
        raise PolicyError(f"catalog {catalog.name} has no table whose location is below {asked.bucket}")
    outcomes: dict[str, OperationOutcome] = {
        str(name): refused(_OPERATION, f"{name} cannot be loaded: {reason}") for name, reason in tables.unreadable
    }
    searches: dict[TableName, _TableSearch] = {}
    referenced = ReferencedPaths(asked.bucket)
    for name, one in _prepared(asked, tables, referenced):
        if isinstance(one, _TableSearch):
            searches[name] = one
        else:
            outcomes[str(name)] = one
    outside = _Outside()
    foreign: list[ForeignMetadata] = []
    if searches:
        one = next(iter(searches.values()))
        storage = one.context.storage(one.table).operators()  # an operator names the bucket
        source = _source(storage, asked)
        _assign_to_tables(source.objects(), tables, searches, outside, referenced)
        unlisted = referenced.unlisted()
        foreign += _foreign_outside(storage, outside)
        for name, one in searches.items():
            outcome, strangers = _delete_in_turn(one, unlisted, is_current=source.is_current)
            outcomes[str(name)] = outcome
            foreign += strangers
            if not asked.dry_run:
                warnings += _recorded(one, outcome)
    return BucketOutcome(
        catalog=catalog.name,
        bucket=asked.bucket,
        run_id=asked.run_id,
        dry_run=asked.dry_run,
        tables=dict(sorted(outcomes.items())),
        outside={"files": outside.files, "bytes": outside.size, "first": outside.first},
        foreign=_by_table(foreign, {table.metadata.uuid for table in tables.loaded}),
        warnings=tuple(warnings),
    )


def _source(storage: Storage, asked: BucketSweep) -> FileSource:
    if asked.inventory is None:
        return ListedLocations(storage, (asked.bucket,))
    return InventoryFiles(storage, asked.inventory, asked.bucket)


def _prepared(
    asked: BucketSweep, tables: CatalogTables, referenced: ReferencedPaths
) -> Iterator[tuple[TableName, _TableSearch | OperationOutcome]]:
    """Every loaded table with its search, or with the outcome if it is not searched; adds to ``referenced``.

    If a table has several catalog entries, only the first is searched.
    """
    first_of: dict[tuple[str, str], TableName] = {}
    for table in tables.loaded:
        one = _prepare(asked, table, referenced)
        metadata = table.metadata
        first = first_of.setdefault((metadata.uuid or str(table.name), normalise(metadata.location)), table.name)
        yield (
            table.name,
            one if first == table.name else skipped(_OPERATION, f"{table.name} is a second entry of {first}"),
        )


def _prepare(asked: BucketSweep, table: LoadedTable, referenced: ReferencedPaths) -> _TableSearch | OperationOutcome:
    """Read a table's references before the listing, even if it is not swept: its files may be in another's location."""
    try:
        context = asked.make_context(table)
    except MaintenanceError as error:
        return failed(_OPERATION, str(error))
    preparation = _Preparation(asked, table, referenced)
    outcome = run_guarded(_OPERATION, context, preparation.run)
    if outcome.status is not Status.SUCCEEDED:
        return outcome
    collector = CandidateCollector(referenced, preparation.older_than_ms)
    return _TableSearch(
        context, table, preparation.references, collector, preparation.older_than_ms, preparation.elsewhere
    )


@dataclass(slots=True)
class _Preparation:
    """Adds a table's references to those of the whole bucket (``referenced``), and decides whether to sweep it."""

    asked: BucketSweep
    table: LoadedTable
    referenced: ReferencedPaths
    references: References = field(default_factory=References)
    older_than_ms: int = 0
    elsewhere: tuple[str, ...] = ()

    def run(self, context: OperationContext) -> OperationOutcome:
        """Succeeded, or skipped with the reason why the table is not swept."""
        table, location = self.table, self.table.metadata.location
        reader, snapshots = context.reader(table), table.metadata.snapshots.values()
        self.referenced.update(documents(table.metadata, table.metadata_location))
        manifests = self.references.listed(reader, snapshots)
        self.referenced.update(manifests)
        self.referenced.expect(self.references.held(reader, manifests.values()))
        self.referenced.update(context.memory.pinned_metadata())
        reason = context.resolved.why_not(_OPERATION)
        if reason is None and not may_be_under(location, self.asked.bucket):
            reason = f"its location {location} is not below {self.asked.bucket}"
        if reason is not None:
            return skipped(_OPERATION, reason)
        skip = why_skipped(context, table)
        if skip is not None:
            return skip
        self.elsewhere = folders_elsewhere(table.metadata, context.policy.orphan_sweep_prefixes)
        grace_ms = context.policy.orphan_older_than_ms
        self.older_than_ms = context.stores.trusted_now_ms(table, grace_ms, "orphan_older_than_hours") - grace_ms
        return succeeded(_OPERATION, "its references are known")


def _assign_to_tables(
    objects: Iterable[ListedObject],
    tables: CatalogTables,
    searches: Mapping[TableName, _TableSearch],
    outside: _Outside,
    referenced: ReferencedPaths,
) -> None:
    locations = TableLocations(
        (
            *((table.name, table.metadata.location) for table in tables.loaded),
            *((name, folder) for name, one in searches.items() for folder in one.elsewhere),
        )
    )
    rest, names = iter(objects), FolderNames()
    while some := list(islice(rest, _AT_ONCE)):
        of_searches: defaultdict[TableName, list[ListedObject]] = defaultdict(list)
        of_others: list[ListedObject] = []
        for found in some:
            owners = locations.tables_around(found.path)
            if not owners:
                outside.add(found)
            searched = [owner for owner in owners if owner in searches]
            for owner in searched:  # tables that share a location are refused at the deletion
                of_searches[owner].append(found)
            if not searched:
                of_others.append(found)
        for owner, files in of_searches.items():
            searches[owner].collector.add_all(files)
        # These are no candidates, but a searched table may reference them, so they must not count as missing.
        if of_others:
            referenced.unreferenced(of_others, names)


def _delete_in_turn(
    one: _TableSearch, unlisted: UnlistedPaths, *, is_current: bool
) -> tuple[OperationOutcome, list[ForeignMetadata]]:
    """Delete the orphans of one table under its lease; a table that another run maintains now is skipped
    (rule: lost-lease-changes-nothing).

    References and listing are older than the lease; the deletion checks again.
    """
    if one.context.dry_run:
        return _delete(one, one.context, unlisted, is_current=is_current)
    try:
        with leased(one.context, Turn(command="icekeeper orphans")) as lease:
            return _delete(one, replace(one.context, lease=lease), unlisted, is_current=is_current)
    except LeaseHeld as held:
        return skipped(_OPERATION, f"it is left to the run at work: {held}"), []
    except StorageError as error:
        return failed(_OPERATION, str(error)), []


def _delete(
    one: _TableSearch, context: OperationContext, unlisted: UnlistedPaths, *, is_current: bool
) -> tuple[OperationOutcome, list[ForeignMetadata]]:
    candidates = replace(one.collector.candidates(), unlisted=unlisted)
    found: list[ForeignMetadata] = []

    def delete(context: OperationContext) -> OperationOutcome:
        found.extend(
            foreign_metadata(
                context.storage(one.table), one.table.metadata, [one.path for one in candidates.metadata_files]
            )
        )
        listed = TableCandidates(one.table, candidates, one.references, one.older_than_ms, is_current, tuple(found))
        return delete_orphans(context, listed)

    outcome = run_guarded(_OPERATION, context, delete)
    return outcome, found


def _foreign_outside(storage: Storage, outside: _Outside) -> list[ForeignMetadata]:
    owners = (metadata_owner(storage, path) for path in outside.metadata.values())
    return [owner for owner in owners if owner is not None]


def _by_table(foreign: Iterable[ForeignMetadata], known: Container[str | None]) -> tuple[dict[str, str | None], ...]:
    """The tables that the catalog does not know, each once; an unreadable metadata file counts as one."""
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


def _recorded(one: _TableSearch, outcome: OperationOutcome) -> tuple[str, ...]:
    """Record the sweep of a table, also in the journal if it deleted something; return warnings."""
    context = one.context
    started = PassStart(context.memory.identity, None, context.started_ms)
    done = PassOutcome(
        table=str(context.table),
        catalog=context.catalog.name,
        run_id=context.run_id,
        dry_run=context.dry_run,
        operations=(outcome,),
    )
    recorded = conclude(context.state, started, done, (), context.engine.name, context.clock())
    return tuple(f"{context.table}: {warning}" for warning in recorded.warnings)
