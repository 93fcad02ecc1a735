"""Looks at every table of every served catalog, once a run, before the first file of another table goes (rule 220).

Any table may have taken in files of any other one (``add_files``), and only its manifests tell.  The passes of a run
share one look.  It loads the tables that detection has not seen at the head that was looked into last, and reads the
manifests that came since; what it sees is recorded (``claims``).  An entry that cannot be read is known by its last
look; one that nobody has ever looked into stops the deletions in its bucket, until a person excludes it (rule 221).
"""

from __future__ import annotations

import json
import logging
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.clock import HOUR_MS
from icekeeper.deletion.claims import entry_of, first_look, is_seen, look_into, recorded_claims
from icekeeper.deletion.limited_looks import LimitedLooks
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.errors import MaintenanceError, OperationRefused, PolicyError, StorageError, is_gone
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.request_count import WorkThreads
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry, store_of, touches
from icekeeper.storage.paths import normalise

__all__ = ["UNKNOWN_WAREHOUSE", "fits", "is_lost", "know_every_table", "lost_entries"]

log = logging.getLogger(__name__)

UNKNOWN_WAREHOUSE = "?"
"""Stands for the warehouse of a catalog that was never opened; it counts for the run alone that could not open it."""
# An item of DynamoDB holds 400 KB.
_MOST_BYTES = 300_000
_PARALLEL_LOOKS = 16
_TABLE_BUCKET = "arn:"
# A run that is begun anew after days (a redriven execution), or that lasts so long, looks again.
_HOLDS_MS = 6 * HOUR_MS


def know_every_table(context: OperationContext, own: LoadedTable) -> Sequence[CatalogLook]:
    """Look at every table of the catalogs that share the state, unless this run has done so.

    Nobody looks for others at a table all of whose folders lie in a bucket of its own, nor at such a table for files of
    others (platform 109).

    Raises:
        OperationRefused: what a table needs that may need files of ``own`` is not known.
        StorageError: the state store failed.
    """
    if all(map(has_its_own_bucket, owned_locations(own.metadata))):
        return ()
    with context.run.lock:
        looks = {look.key: look for look in context.state.claims.looks()}
        here = context.catalog.name, context.catalog.warehouse
        looks.setdefault(here, CatalogLook(catalog=here[0], warehouse=here[1]))
        run = context.run.name
        done = [_look(context, look, run) for look in looks.values() if not _is_near_nobody(context, look)]
    _refuse_unknown(context, own, done)
    return done


def fits(look: CatalogLook) -> bool:
    """Whether a look is small enough to be recorded in any state."""
    return len(json.dumps(look.to_json())) <= _MOST_BYTES


def is_lost(error: MaintenanceError) -> bool:
    """Whether a table could not be loaded because the metadata file that its entry names is gone."""
    return isinstance(error, StorageError) and error.pointer is not None and is_gone(error)


def lost_entries(looks: Iterable[CatalogLook]) -> Iterator[tuple[TableClaims, str]]:
    """Entries that nobody has looked into, and whose metadata file is gone: where they lie, and the reason."""
    for look in looks:
        for one in look.unseen:
            if one.is_gone and one.location:
                claims = TableClaims(
                    catalog=look.catalog, warehouse=look.warehouse, table=one.table, uuid="", location=one.location
                )
                yield claims, one.reason


def _is_near_nobody(context: OperationContext, look: CatalogLook) -> bool:
    """Whether the tables of a catalog have a bucket of their own each, so that nobody looks at them for files."""
    found = context.state.claims.of_catalog(*look.key) if look.warehouse.startswith(_TABLE_BUCKET) else ()
    return any(has_its_own_bucket(one.location) for one in found)


def _look(context: OperationContext, before: CatalogLook, run: str) -> CatalogLook:
    """The look that this run has taken at a catalog; what it left for later, or all, is looked at now."""
    now_ms = context.clock()
    is_begun = before.run == run and abs(now_ms - before.looked_ms) <= _HOLDS_MS
    if is_begun and all(one.reason for one in before.unseen):
        return before
    unseen: list[UnseenEntry] = []
    failure = ""
    try:
        catalog = None if before.warehouse == UNKNOWN_WAREHOUSE else _opened(context, before)
        if catalog is None:  # not served any more: what is recorded of its tables is spared
            return CatalogLook(catalog=before.catalog, warehouse=before.warehouse)
        if is_begun:
            unseen += [one for one in before.unseen if one.reason]
            unseen += _look_at_tables(context, catalog, [one.table for one in before.unseen if not one.reason])
        else:
            unseen += _look_at_tables(context, catalog, list(catalog.list_tables()))
    except MaintenanceError as error:
        failure = f"its tables cannot be listed: {error}"
    looked_ms = before.looked_ms if is_begun else now_ms
    look = replace(before, run=run, looked_ms=looked_ms, unseen=tuple(unseen), failure=failure)
    if not fits(look):
        failure = f"{len(unseen)} of its tables cannot be read, as {unseen[0].table}: {unseen[0].reason}"
        look = replace(look, unseen=(), failure=failure)
    context.state.claims.record_look(look)
    return look


def _opened(context: OperationContext, look: CatalogLook) -> Catalog | None:
    if look.key == (context.catalog.name, context.catalog.warehouse):
        return context.catalog
    return context.other_catalog(look.catalog, look.warehouse)


def _look_at_tables(context: OperationContext, catalog: Catalog, tables: Sequence[TableName]) -> Sequence[UnseenEntry]:
    """Look into those of the tables that moved since anybody did; the entries of which that failed.

    Raises:
        StorageError: the state store failed.
    """
    known, looks = recorded_claims(context.state, catalog), LimitedLooks(context, catalog)
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="table-look") as pool:
        seen = pool.map(partial(_look_at_table, context, looks, known), tables)
        return [one for one in seen if one is not None]


def _look_at_table(
    context: OperationContext, looks: LimitedLooks, known: Mapping[TableName, TableClaims], name: TableName
) -> UnseenEntry | None:
    recorded, catalog, location = known.get(name), looks.catalog, ""

    def look() -> None:
        nonlocal location
        loaded = catalog.load(name)
        location = normalise(loaded.metadata.location)
        if has_its_own_bucket(location):
            return
        if not is_seen(recorded, loaded):
            look_into(context, catalog, loaded)
        elif (new := first_look(catalog, loaded, recorded)) is not None:  # properties may name other folders
            context.state.claims.record(new, replaces=recorded)

    try:
        looks.look(name, look)
        return None
    except PolicyError:
        return None  # dropped meanwhile, or no table
    except MaintenanceError as error:
        pointer = error.pointer if isinstance(error, StorageError) else None
        failed = UnseenEntry(
            table=name, reason=str(error), location=location or _location_of(pointer), is_gone=is_lost(error)
        )
    except Exception as error:  # documents are read as they are; one that breaks the specification stops no other
        reason = f"its metadata does not follow the specification: {type(error).__name__} {error}"
        failed = UnseenEntry(table=name, reason=reason, location=location)
    log.warning("%s: %s cannot be looked at: %s", context.table, name, failed.reason)
    if recorded is None:
        return failed
    if recorded.is_excluded:  # it stops nothing; what lies under its location stays
        return replace(failed, is_gone=True)
    # What its last look recorded is spared where the table is asked for (``near_tables``).
    return None if recorded.is_looked_into else failed


def _location_of(pointer: str | None) -> str:
    """The normalised location of a table of which only the path of its metadata file is known."""
    folder = "" if pointer is None else normalise(pointer).rpartition("/")[0]
    return folder.removesuffix("/metadata")


def _refuse_unknown(context: OperationContext, own: LoadedTable, looks: Iterable[CatalogLook]) -> None:
    """Raise OperationRefused while an entry in a bucket of this table's was never looked into, and is not gone."""
    folders = [normalise(location) for location in owned_locations(own.metadata)]
    for look in looks:
        everywhere = partial(_places, context, look)
        if look.failure and _may_touch(everywhere(), folders):
            raise OperationRefused(
                f"whether a table of catalog {look.catalog} needs files of {own.name} is not known, because "
                f"{look.failure}; nothing was deleted"
            )
        for one in look.unseen:
            if one.is_gone or (*look.key, str(one.table)) == entry_of(context.catalog, own):
                continue
            places = {_bucket(one.location, look.warehouse)} if one.location else everywhere()
            if _may_touch(places, folders):
                command = shlex.join(
                    ("icekeeper", "claims", "exclude", str(one.table), "--catalog", look.catalog),
                )
                raise OperationRefused(
                    f"whether {one.table} of catalog {look.catalog} needs files of {own.name} is not known, because it "
                    f"cannot be read, and nobody has looked at it before: {one.reason}; nothing was deleted; repair "
                    f"it, drop it from its catalog, or, if it needs no files of other tables: {command}"
                )


def _may_touch(places: Iterable[str], folders: Iterable[str]) -> bool:
    """Whether one of the folders lies in one of the places; no place is known: then it may."""
    places = list(places)
    return not places or any(touches(place, folder) for place in places for folder in folders)


def _places(context: OperationContext, look: CatalogLook) -> set[str]:
    """The buckets in which the tables of a catalog lie, as far as they are known."""
    found = {one.location for one in context.state.claims.of_catalog(*look.key) if one.location}
    if "://" in look.warehouse or look.warehouse.startswith("/"):
        found.add(normalise(look.warehouse))
    return {_bucket(folder, look.warehouse) for folder in found}


def _bucket(folder: str, warehouse: str) -> str:
    """The bucket of a normalised folder; on this machine its catalog's warehouse stands for one."""
    store = store_of(folder)
    if store != "/":
        return store
    place = normalise(warehouse) if "://" in warehouse or warehouse.startswith("/") else store
    return place if touches(place, folder) and len(place) <= len(folder) else store
