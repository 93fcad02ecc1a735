"""Looks at every table of every served catalog, once a run, before the first file of another table goes (rule 220).

Any table may have taken in files of any other one (``add_files``), and only its manifests tell.  The passes of a run
share one look.  It loads the tables that detection has not seen at the head that was looked into last, and reads the
manifests that came since; what it sees is recorded (``claims``).  An entry that cannot be read is known by its last
look; one that nobody has ever looked into stops the deletions in its bucket, until a person excludes it (rule 221).
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.claims import entry_of, first_look, is_seen, look_into, recorded_claims
from icekeeper.deletion.limited_looks import LimitedLooks
from icekeeper.deletion.neighbours import has_its_own_bucket
from icekeeper.deletion.owned_locations import owned_locations
from icekeeper.errors import (
    LocationRefused,
    MaintenanceError,
    OperationRefused,
    PartlyListed,
    PolicyError,
    StorageError,
    is_gone,
)
from icekeeper.machine.clock import HOUR_MS
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import CatalogLook, TableClaims, UnseenEntry, folders_around, store_of, touches
from icekeeper.state.store import StateStore
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise

__all__ = [
    "UNKNOWN_WAREHOUSE",
    "fitting",
    "is_lost",
    "know_every_table",
    "lost_entries",
    "rules_to_write",
    "unseen_entry",
    "why_deletions_wait",
]

log = logging.getLogger(__name__)

UNKNOWN_WAREHOUSE = "?"
"""Stands for the warehouse of a catalog that was never opened; it counts for the run alone that could not open it."""
# An item of DynamoDB holds 400 KB.
_MOST_BYTES = 300_000
_PARALLEL_LOOKS = 16
_TABLE_BUCKET = "arn:"
# Other characters would mean something in a rule, or to a shell.
_IN_A_RULE = re.compile(r"[\w-]+(?:\.[\w-]+)+")
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
    why = why_deletions_wait(context.state, context.catalog, own, done)
    if why is not None:
        raise OperationRefused(why)
    return done


def fitting(look: CatalogLook) -> CatalogLook | None:
    """The look, small enough to be recorded in any state; ``None``: it cannot be.

    Of very many tables that cannot be read, one of each namespace stands for all of it (rule 282).
    """
    if _is_small(look):
        return look
    tried = [one for one in look.unseen if one.reason]
    folded = replace(look, unseen=(*(one for one in look.unseen if not one.reason), *_folded(tried)))
    return folded if _is_small(folded) else None


def _is_small(look: CatalogLook) -> bool:
    return len(json.dumps(look.to_json())) <= _MOST_BYTES


def _folded(unseen: Iterable[UnseenEntry]) -> Iterator[UnseenEntry]:
    groups: defaultdict[tuple[tuple[str, ...], bool, str], list[UnseenEntry]] = defaultdict(list)
    for one in unseen:
        if not one.is_known:  # passes find that out themselves
            groups[one.table.namespace, one.is_gone, one.location and store_of(one.location)].append(one)
    for first, *others in groups.values():
        if not others:
            yield first
            continue
        around = first.location and next(
            folder
            for folder in folders_around(first.location)
            if all(one.location == folder or one.location.startswith(f"{folder.rstrip('/')}/") for one in others)
        )
        told = f"{first.reason}; and so it is with {len(others)} more of its namespace"
        yield replace(first, location=around, reason=told)


def is_lost(error: MaintenanceError) -> bool:
    """Whether a table could not be loaded because the metadata file that its entry names is gone."""
    return isinstance(error, StorageError) and error.pointer is not None and is_gone(error)


def lost_entries(looks: Iterable[CatalogLook]) -> Iterator[tuple[TableClaims, str]]:
    """Entries that nobody has looked into, and whose metadata file is gone: where they lie, and the reason."""
    for look in looks:
        for one in look.unseen:
            if one.is_gone and one.location and not one.is_known:
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
    failure, hidden = "", tuple[tuple[str, ...], ...]()
    try:
        catalog = None if before.warehouse == UNKNOWN_WAREHOUSE else _opened(context, before)
        if catalog is None:  # not served any more: what is recorded of its tables is spared
            return CatalogLook(catalog=before.catalog, warehouse=before.warehouse)
        if is_begun:
            unseen += [one for one in before.unseen if one.reason]
            unseen += _look_at_tables(context, catalog, [one.table for one in before.unseen if not one.reason])
        else:
            listed: list[TableName] = []
            try:
                listed += catalog.list_tables()
            except PartlyListed as error:
                failure, hidden = f"its tables cannot be listed: {error}", error.hidden
            unseen += _look_at_tables(context, catalog, listed)
    except MaintenanceError as error:
        failure, hidden = f"its tables cannot be listed: {error}", ()
    looked_ms = before.looked_ms if is_begun else now_ms
    look = replace(before, run=run, looked_ms=looked_ms, unseen=tuple(unseen), failure=failure, hidden=hidden)
    small = fitting(look)
    if small is None:
        failure = f"{len(unseen)} of its tables cannot be read, as {unseen[0].table}: {unseen[0].reason}"
        small = replace(look, unseen=(), failure=failure, hidden=())
    context.state.claims.record_look(small)
    return small


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
    except Exception as error:  # documents are read as they are; one that breaks the specification stops no other
        log.warning("%s: %s cannot be looked at: %s", context.table, name, error)
        return unseen_entry(name, recorded, error, location)


def unseen_entry(table: TableName, recorded: TableClaims | None, error: Exception, location: str = "") -> UnseenEntry:
    """What a look notes of a table that cannot be read, and of which this is ``recorded``.

    ``location``: its normalised location, where that was read.
    """
    if isinstance(error, MaintenanceError):
        pointer = error.pointer if isinstance(error, StorageError) else None
        place = location or _location_of(pointer)
        failed = UnseenEntry(
            table=table,
            reason=str(error),
            location=place,
            is_gone=is_lost(error),
            pointer=(pointer or "") if isinstance(error, LocationRefused) else "",
        )
    else:
        reason = f"its metadata does not follow the specification: {type(error).__name__} {error}"
        failed = UnseenEntry(table=table, reason=reason, location=location)
    if recorded is None:
        return failed
    if recorded.is_excluded:  # it stops nothing; what lies under its location stays
        return replace(failed, is_gone=True)
    # What its last look recorded is spared where the table is asked for (``near_tables``).
    return replace(failed, is_known=recorded.is_looked_into)


def _location_of(pointer: str | None) -> str:
    """The normalised location of a table of which only the path of its metadata file is known."""
    folder = "" if pointer is None else normalise(pointer).rpartition("/")[0]
    return folder.removesuffix("/metadata")


def why_deletions_wait(
    state: StateStore,
    catalog: Catalog,
    own: LoadedTable,
    looks: Iterable[CatalogLook],
) -> str | None:
    """Why no file of a table is deleted: an entry in its bucket was never looked into, and is not gone (rule 221).

    ``None`` if there is none, but for entries that rules of the operator keep away (rule 280).

    Raises:
        StorageError: the state store failed.
    """
    folders = [normalise(location) for location in owned_locations(own.metadata)]
    for look in looks:
        everywhere = cache(partial(_places, state, look, own))  # it reads what is recorded of all of its tables
        if look.may_hide(own.is_kept_apart_from) and _may_touch(everywhere(), folders):
            return (
                f"whether a table of catalog {look.catalog} needs files of {own.name} is not known, because "
                f"{look.failure}; nothing was deleted"
            )
        for one in look.unseen:
            is_own = (*look.key, one.table.key) == entry_of(catalog, own)
            if (
                one.is_gone
                or one.is_known
                or not one.reason
                or is_own
                or own.is_kept_apart_from(look.catalog, one.table)
            ):
                continue
            places = {_bucket(one.location, look.warehouse)} if one.location else everywhere()
            if _may_touch(places, folders):
                command = shlex.join(
                    ("icekeeper", "claims", "exclude", one.table.key, "--catalog", look.catalog),
                )
                return (
                    f"whether {one.table} of catalog {look.catalog} needs files of {own.name} is not known, because it "
                    f"cannot be read, and nobody has looked at it before: {one.reason}; nothing was deleted; repair "
                    f"it, or drop it from its catalog{rules_to_write(catalog.name, own, look.catalog, one.table)}; "
                    f"or, if it needs no files of other tables: {command}"
                )
    return None


def rules_to_write(catalog: str, own: LoadedTable, other_catalog: str, other: TableName) -> str:
    """What a refusal says where rules could keep both tables apart: those of one namespace no rule can.

    Where the other one may have files, a person says: it names whatever location it likes.
    """
    names = (f"{catalog}.{'.'.join(own.name.namespace)}", f"{other_catalog}.{'.'.join(other.namespace)}")
    if names[0] == names[1] or not all(map(_IN_A_RULE.fullmatch, names)):
        return ""
    mine = own.metadata.location.rstrip("/").rpartition("/")[0]
    return (
        f"; where each namespace has folders of its own, rules keep them apart, and neither waits for the other: set "
        f"{ALLOWED_PREFIXES}='{names[0]}={mine}/;{names[1]}=FOLDER/'"
    )


def _may_touch(places: Iterable[str], folders: Iterable[str]) -> bool:
    """Whether one of the folders lies in one of the places; no place is known: then it may."""
    places = list(places)
    return not places or any(touches(place, folder) for place in places for folder in folders)


def _places(state: StateStore, look: CatalogLook, own: LoadedTable) -> set[str]:
    """The buckets in which the tables of a catalog lie, as far as they are known; those that rules keep away count
    where no other is known."""
    known = [one for one in state.claims.of_catalog(*look.key) if one.location]
    near = {one.location for one in known if not own.is_kept_apart_from(look.catalog, one.table)}
    found = near or {one.location for one in known}
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
