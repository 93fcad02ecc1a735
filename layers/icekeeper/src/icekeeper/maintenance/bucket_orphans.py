"""The orphans of a whole bucket: one listing against the references of all tables of a catalog.

Each table keeps its own policy, guards and re-checks; what differs is only that its files come out of one listing, and
that a file which any table references is nobody's orphan.  Asked for by users of Iceberg (issue 7111).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.foreign import ForeignMetadata, foreign_metadata, metadata_owner
from icekeeper.deletion.other_tables import CatalogTables, load_all, recorded_claims
from icekeeper.deletion.referenced_paths import ReferencedPaths
from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.maintenance.run_operation import attempt
from icekeeper.metadata.document_files import is_metadata_file
from icekeeper.metadata.reachability import References, reachable_paths
from icekeeper.model import TableName
from icekeeper.operations.orphans.candidates import CandidateCollector
from icekeeper.operations.orphans.delete_orphans import TableCandidates, delete_orphans
from icekeeper.operations.orphans.inventory import InventoryFiles
from icekeeper.operations.orphans.remove_orphans import why_skipped
from icekeeper.operations.orphans.table_locations import TableLocations
from icekeeper.pass_context.context import OperationContext
from icekeeper.policy import Operation
from icekeeper.report.bucket_outcome import BucketOutcome, ForeignTable, Outside
from icekeeper.report.outcome import OperationOutcome, Status, failed, refused, skipped, succeeded
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import may_be_under, normalise
from icekeeper.storage.sources import FileSource, ListedLocation
from icekeeper.storage.storage import Storage

__all__ = ["BucketSweep", "run_bucket_pass"]

_OPERATION = Operation.REMOVE_ORPHANS
_FIRST_PATHS = 20
# One metadata file of a folder tells whose it is; a bucket full of foreign tables is still told by these.
_FOREIGN_FOLDERS = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSweep:
    """What is asked for: the orphans of every table of a catalog whose location is below ``bucket``, an address."""

    catalog: Catalog
    state: StateStore
    make_context: Callable[[LoadedTable], OperationContext]
    bucket: str
    inventory: str | None
    """The address of a list of files, or of an S3 Inventory, that is read instead of listing the bucket."""
    run_id: str
    dry_run: bool


@dataclass(slots=True)
class _Swept:
    """A table whose orphans may go."""

    context: OperationContext
    table: LoadedTable
    references: References
    collector: CandidateCollector
    older_than_ms: int


@dataclass(slots=True)
class _Beyond:
    """What lies under no table's location."""

    files: int = 0
    size: int = 0
    first: list[str] = field(default_factory=list)
    metadata: dict[str, str] = field(default_factory=dict)
    """One metadata file of each folder."""

    def add(self, found: ListedObject) -> None:
        self.files += 1
        self.size += found.size
        if len(self.first) < _FIRST_PATHS:
            self.first.append(found.path)
        if is_metadata_file(found.path) and len(self.metadata) < _FOREIGN_FOLDERS:
            self.metadata.setdefault(found.path.rpartition("/")[0], found.path)


def run_bucket_pass(asked: BucketSweep) -> BucketOutcome:
    """Sweep every table of the bucket; the journal gets every table of which something was deleted.

    Raises:
        PolicyError: the catalog has no table below the address.
        StorageError: the catalog or the bucket cannot be listed.
    """
    catalog, state = asked.catalog, asked.state
    tables = load_all(catalog, catalog.list_tables(), state, recorded_claims(state, catalog))
    if not any(may_be_under(table.metadata.location, asked.bucket) for table in tables.loaded):
        raise PolicyError(f"catalog {catalog.name} has no table whose location is below {asked.bucket}")
    outcomes: dict[str, OperationOutcome] = {
        str(name): refused(_OPERATION, f"{name} cannot be loaded: {reason}") for name, reason in tables.unreadable
    }
    swept: dict[TableName, _Swept] = {}
    for name, one in _prepared(asked, tables):
        if isinstance(one, _Swept):
            swept[name] = one
        else:
            outcomes[str(name)] = one
    beyond = _Beyond()
    foreign: list[ForeignMetadata] = []
    if swept:
        one = next(iter(swept.values()))
        storage = one.context.storage(one.table)
        source = _source(storage, asked)
        _deal_out(source.objects(), tables, swept, beyond)
        foreign += _foreign_beyond(storage, beyond)
        for name, one in swept.items():
            outcome, strangers = _clear(one, tables, is_current=source.is_current)
            outcomes[str(name)] = outcome
            foreign += strangers
            if outcome.files_deleted:
                _record(one, outcome)
    return BucketOutcome(
        catalog=catalog.name,
        bucket=asked.bucket,
        run_id=asked.run_id,
        dry_run=asked.dry_run,
        tables=dict(sorted(outcomes.items())),
        outside=Outside(beyond.files, beyond.size, tuple(beyond.first)),
        foreign=_by_table(foreign, {table.metadata.uuid for table in tables.loaded}),
    )


def _source(storage: Storage, asked: BucketSweep) -> FileSource:
    if asked.inventory is None:
        return ListedLocation(storage, asked.bucket)
    return InventoryFiles(storage, asked.inventory, asked.bucket)


def _prepared(asked: BucketSweep, tables: CatalogTables) -> Iterator[tuple[TableName, _Swept | OperationOutcome]]:
    """Every table that could be loaded, each once however many entries of the catalog name it."""
    referenced = ReferencedPaths(asked.bucket)
    first_of: dict[tuple[str, str], TableName] = {}
    for table in tables.loaded:
        one = _prepare(asked, table, referenced)
        metadata = table.metadata
        first = first_of.setdefault((metadata.uuid or str(table.name), normalise(metadata.location)), table.name)
        yield (
            table.name,
            one if first == table.name else skipped(_OPERATION, f"{table.name} is a second entry of {first}"),
        )


def _prepare(asked: BucketSweep, table: LoadedTable, referenced: ReferencedPaths) -> _Swept | OperationOutcome:
    """Read what a table needs, before the listing, whether it is swept or not: other tables could hold its files.

    The outcome already, where nothing of the table may go.
    """
    try:
        context = asked.make_context(table)
    except MaintenanceError as error:
        return failed(_OPERATION, str(error))
    references, grace_ms = References(), context.policy.orphan_older_than_ms
    older_than_ms = 0

    def follow(context: OperationContext) -> OperationOutcome:
        nonlocal older_than_ms
        referenced.update(reachable_paths(context.reader(table), table.metadata_location, references))
        referenced.update(context.memory.pinned_metadata())
        reason = context.resolved.why_not(_OPERATION)
        if reason is None and not may_be_under(table.metadata.location, asked.bucket):
            reason = f"its location {table.metadata.location} is not below {asked.bucket}"
        if reason is not None:
            return skipped(_OPERATION, reason)
        skip = why_skipped(context, table)
        if skip is not None:
            return skip
        older_than_ms = context.stores.trusted_now_ms(table, grace_ms, "orphan_older_than_hours") - grace_ms
        return succeeded(_OPERATION, "its references are known")

    outcome = attempt(_OPERATION, context, follow)
    if outcome.status is not Status.SUCCEEDED:
        return outcome
    return _Swept(context, table, references, CandidateCollector(referenced, older_than_ms), older_than_ms)


def _deal_out(
    objects: Iterable[ListedObject], tables: CatalogTables, swept: Mapping[TableName, _Swept], beyond: _Beyond
) -> None:
    table_locations = TableLocations((table.name, table.metadata.location) for table in tables.loaded)
    for found in objects:
        owners = table_locations.tables_around(found.path)
        if not owners:
            beyond.add(found)
        for owner in owners:  # those that share a location are refused when it comes to deleting
            if owner in swept:
                swept[owner].collector.add(found)


def _clear(one: _Swept, tables: CatalogTables, *, is_current: bool) -> tuple[OperationOutcome, list[ForeignMetadata]]:
    candidates = one.collector.candidates()
    found: list[ForeignMetadata] = []

    def clear(context: OperationContext) -> OperationOutcome:
        found.extend(
            foreign_metadata(
                context.storage(one.table), one.table.metadata, [one.path for one in candidates.metadata_files]
            )
        )
        listed = TableCandidates(one.table, candidates, one.references, one.older_than_ms, is_current, tuple(found))
        return delete_orphans(context, listed, partial(tables.others_of, one.table.name))

    outcome = attempt(_OPERATION, one.context, clear)
    return outcome, found


def _foreign_beyond(storage: Storage, beyond: _Beyond) -> list[ForeignMetadata]:
    owners = (metadata_owner(storage, path) for path in beyond.metadata.values())
    return [owner for owner in owners if owner is not None]


def _by_table(foreign: Iterable[ForeignMetadata], known: Container[str | None]) -> tuple[ForeignTable, ...]:
    """Tables that the catalog does not know; a metadata file that cannot be read stands for itself."""
    by_table = {
        (found.uuid, found.location or found.path): ForeignTable(found.uuid, found.location, found.path)
        for found in foreign
        if found.uuid is None or found.uuid not in known
    }
    return tuple(by_table.values())


def _record(one: _Swept, outcome: OperationOutcome) -> None:
    context = one.context
    context.state.record_pass(
        PassRecord(
            identity=context.memory.identity,
            run_id=context.run_id,
            started_ms=one.older_than_ms + context.policy.orphan_older_than_ms,
            finished_ms=context.clock(),
            status=outcome.status.value,
            summary=f"{_OPERATION.value}: {outcome.summary}",
            metrics=outcome.metrics,
            engine=context.engine.name,
        )
    )
