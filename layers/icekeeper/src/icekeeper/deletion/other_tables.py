"""The look: brings the record of the folders in which each table of all served catalogs has files up to date.

Any table may have adopted files of another table (``add_files``), which only its manifests show.  So before the first
deletion, each run looks once at every table of every served catalog (rule: look-at-every-served-table): it loads the
tables whose head is new, reads their new manifests and records the folders that they name (their *claims*).  Then only
tables whose claims touch the cleaned table are loaded (``near_tables``).  For an entry that cannot be read, the last
look counts.  An entry that was never read stops the deletions in its bucket until a person excludes it
(rule: never-seen-tables-stop-their-bucket).
"""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.neighbours import has_its_own_bucket, owned_locations
from icekeeper.deletion.table_claims import entry_of, first_look, is_seen, look_into, recorded_claims
from icekeeper.errors import (
    DeletionsWait,
    LocationRefused,
    MaintenanceError,
    PartlyListed,
    StorageError,
    TableNotFound,
    is_gone,
)
from icekeeper.machine.clock import HOUR_MS, in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import CatalogId, TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import (
    LEAST_LIMIT_S,
    CatalogLook,
    CutWork,
    TableClaims,
    UnseenEntry,
    cut_again,
    folders_around,
    look_reason,
    store_of,
    touches,
    waiting_cuts,
)
from icekeeper.state.identity import Entry
from icekeeper.state.store import StateStore
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import normalise

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# After so many tables that hang, each further table gets this short time, because a function ends after 15 minutes.
_MOST_GIVEN_UP = 16
_SHORT_S = 5.0


class LimitedLooks:
    """Reads the tables of a catalog, each for at most ``detection_timeout_s``.

    A look that takes too long counts as a failed read, so files that the table may need are kept.  It is recorded, and
    the table is not read again for a while.
    """

    def __init__(self, context: OperationContext, catalog: Catalog) -> None:
        """Raises StorageError if the state cannot be read."""
        self.catalog = catalog
        self._context = context
        self._limit_s = context.policy.detection_timeout_s
        self._given_up = 0
        cuts = context.state.cut_offs.of_catalog(catalog.id)
        self._once_cut = {cut.entry.table for cut in cuts if cut.work is CutWork.LOOK}
        self._waiting = waiting_cuts(cuts, CutWork.LOOK, context.clock())

    def look(self, name: TableName, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which reads a table; errors of ``work`` are raised.

        Raises:
            StorageError: it takes too long, or took too long recently.
        """
        if (cut := self._waiting.get(name.key)) is not None:
            raise StorageError(f"{name} is not read: {cut.sentence}")
        why = look_reason(self._limit_s)
        entry = Entry(self.catalog.id, name.key)
        is_short = self._given_up >= _MOST_GIVEN_UP
        limit_s = min(_SHORT_S, self._limit_s) if is_short else self._limit_s
        cut_offs = self._context.state.cut_offs
        try:
            result = in_limited_time(work, limit_s, "table-look")
        except TimeoutError:
            self._given_up += 1
            if is_short:
                raise StorageError(f"{name} is not read: {self._given_up - 1} other tables took too long") from None
            if limit_s < LEAST_LIMIT_S:
                raise StorageError(f"{name} is not read: {why}") from None
            cut = cut_again(cut_offs, entry, CutWork.LOOK, why, now_ms=self._context.clock())
            raise StorageError(f"{name} is not read: {cut.sentence}") from None
        if name.key in self._once_cut:
            cut_offs.forget(entry, CutWork.LOOK)
        return result


def follow_for_a_while(
    context: OperationContext, catalog: Catalog, name: TableName, work: Callable[[], Result]
) -> Result:
    """The result of ``work``, which reads all references of another table.

    Raises:
        StorageError: it took longer than half of the pass's time limit.
    """
    limit_s = context.policy.job_timeout_s / 2
    why = f"reading the references of {name} took longer than half of job_timeout_s {context.policy.job_timeout_s}"
    try:
        return in_limited_time(work, limit_s, "table-look")
    except TimeoutError:
        raise StorageError(why) from None


UNKNOWN_WAREHOUSE = "?"
"""The warehouse of a catalog that was never opened.  Such a look counts only in the run that failed to open it."""
# An item of DynamoDB holds 400 KB.
_MOST_BYTES = 300_000
_PARALLEL_LOOKS = 16
_TABLE_BUCKET = "arn:"
# Other characters have a meaning in a rule or in a shell.
_IN_A_RULE = re.compile(r"[\w-]+(?:\.[\w-]+)+")
# A run looks again if it lasts longer than this, or is restarted after this time (a redriven execution).
_HOLDS_MS = 6 * HOUR_MS


def know_every_table(context: OperationContext, own: LoadedTable) -> Sequence[CatalogLook]:
    """Look at every table of the catalogs that share the state store, unless this run has done so.

    Tables in buckets of their own are left out: they cannot share files (platform: buckets-have-second-names).

    Raises:
        DeletionsWait: a table that may need files of ``own`` cannot be read.
        StorageError: the state store failed.
    """
    if all(map(has_its_own_bucket, owned_locations(own.metadata))):
        return ()
    with context.catalogs.run.lock:
        looks = {look.catalog: look for look in context.state.claims.looks()}
        looks.setdefault(context.catalogs.own.id, CatalogLook(catalog=context.catalogs.own.id))
        run = context.catalogs.run.name
        done = [_look(context, look, run) for look in looks.values() if not _is_near_nobody(context, look)]
    why = why_deletions_wait(context.state, context.catalogs.own, own, done)
    if why is not None:
        raise DeletionsWait(why)
    return done


def fitting(look: CatalogLook) -> CatalogLook | None:
    """The look, shortened to fit into any state store; ``None``: it stays too large.

    If very many tables cannot be read, one table represents all of its namespace.
    """
    if _is_small(look):
        return look
    tried = [entry for entry in look.unseen if entry.reason]
    folded = replace(look, unseen=(*(entry for entry in look.unseen if not entry.reason), *_folded(tried)))
    return folded if _is_small(folded) else None


def _is_small(look: CatalogLook) -> bool:
    return len(json.dumps(look.to_json())) <= _MOST_BYTES


def _folded(unseen: Iterable[UnseenEntry]) -> Iterator[UnseenEntry]:
    groups: defaultdict[tuple[tuple[str, ...], bool, str], list[UnseenEntry]] = defaultdict(list)
    for entry in unseen:
        if not entry.is_known:  # passes find known tables by their claims
            groups[entry.table.namespace, entry.is_gone, entry.location and store_of(entry.location)].append(entry)
    for first, *others in groups.values():
        if not others:
            yield first
            continue
        around = first.location and next(
            folder
            for folder in folders_around(first.location)
            if all(entry.location == folder or entry.location.startswith(f"{folder.rstrip('/')}/") for entry in others)
        )
        reason = f"{first.reason}; {len(others)} more tables of its namespace cannot be read either"
        yield replace(first, location=around, reason=reason)


def is_lost(error: MaintenanceError) -> bool:
    """Whether a load failed because the metadata file that the entry names is gone."""
    return isinstance(error, StorageError) and error.pointer is not None and is_gone(error)


def lost_entries(looks: Iterable[CatalogLook]) -> Iterator[tuple[TableClaims, str]]:
    """Entries that were never read and whose metadata file is gone: claims on their location, and the reason."""
    for look in looks:
        for entry in look.unseen:
            if entry.is_gone and entry.location and not entry.is_known:
                claims = TableClaims(catalog=look.catalog, table=entry.table, uuid="", location=entry.location)
                yield claims, entry.reason


def _is_near_nobody(context: OperationContext, look: CatalogLook) -> bool:
    """Whether each table of the catalog has a bucket of its own, so that none can share files."""
    found = context.state.claims.of_catalog(look.catalog) if look.catalog.warehouse.startswith(_TABLE_BUCKET) else ()
    return any(has_its_own_bucket(claims.location) for claims in found)


def _look(context: OperationContext, before: CatalogLook, run: str) -> CatalogLook:
    """This run's look at a catalog: the recorded look, completed for tables without a result, or a new look."""
    now_ms = context.clock()
    is_begun = before.run == run and abs(now_ms - before.looked_ms) <= _HOLDS_MS
    if is_begun and all(entry.reason for entry in before.unseen):
        return before
    unseen: list[UnseenEntry] = []
    failure, hidden = "", tuple[tuple[str, ...], ...]()
    try:
        is_known = before.catalog.warehouse != UNKNOWN_WAREHOUSE
        catalog = context.catalogs.open(before.catalog) if is_known else None
        if catalog is None:  # no longer served: files in the recorded claims of its tables are kept
            return CatalogLook(catalog=before.catalog)
        if is_begun:
            unseen += [entry for entry in before.unseen if entry.reason]
            unseen += _look_at_tables(context, catalog, [entry.table for entry in before.unseen if not entry.reason])
        else:
            listed: list[TableName] = []
            try:
                listed += catalog.list_tables()
                _require_own(context, catalog, listed)
            except PartlyListed as error:
                failure, hidden = f"its tables cannot be listed: {error}", error.hidden
            unseen += _look_at_tables(context, catalog, listed)
    except MaintenanceError as error:
        failure, hidden = f"its tables cannot be listed: {error}", ()
    looked_ms = before.looked_ms if is_begun else now_ms
    look = replace(before, run=run, looked_ms=looked_ms, unseen=tuple(unseen), failure=failure, hidden=hidden)
    small = fitting(look)
    if small is None:
        failure = f"{len(unseen)} of its tables cannot be read, for example {unseen[0].table}: {unseen[0].reason}"
        small = replace(look, unseen=(), failure=failure, hidden=())
    context.state.claims.record_look(small)
    return small


def _require_own(context: OperationContext, catalog: Catalog, listed: Iterable[TableName]) -> None:
    """Raises StorageError if a listing lacks the table of this pass, which was loaded
    (rule: trust-only-own-answers).  Case is ignored, because some catalogs change the case of names."""
    is_own = catalog.id == context.catalogs.own.id
    if is_own and all(name.key.lower() != context.table.key.lower() for name in listed):
        raise StorageError(
            f"the listing of catalog {catalog.id} lacks {context.table}, which can be loaded, so other tables may be "
            "missing as well; grant the right to list, or repair the server"
        )


def listed_anew(context: OperationContext, catalog: Catalog) -> Sequence[TableName]:
    """Every table of a catalog, from a new listing.

    Raises:
        StorageError: the listing is not complete.
    """
    listed = [*catalog.list_tables()]
    _require_own(context, catalog, listed)
    return listed


def _look_at_tables(context: OperationContext, catalog: Catalog, tables: Sequence[TableName]) -> Sequence[UnseenEntry]:
    """Read the tables that have a new head; return the entries that cannot be read.

    If a later listing lacks a missing table, the table needs nothing, unless it was read before: then its claims
    decide.

    Raises:
        StorageError: the state store failed.
    """
    known, looks = recorded_claims(context.state, catalog), LimitedLooks(context, catalog)
    missing: set[TableName] = set()
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="table-look") as pool:
        seen = list(pool.map(partial(_look_at_table, context, looks, known, missing), tables))
    if missing:
        try:
            missing.difference_update(listed_anew(context, catalog))
        except StorageError as error:
            log.warning(
                "%s: it is unknown whether catalog %s still lists its missing tables: %s",
                context.table,
                catalog.id.name,
                error,
            )
            missing.clear()
    return [entry for entry in seen if entry is not None and entry.table not in missing]


def _look_at_table(
    context: OperationContext,
    looks: LimitedLooks,
    known: Mapping[TableName, TableClaims],
    missing: set[TableName],
    name: TableName,
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
    except TableNotFound:
        if recorded is not None and recorded.is_looked_into:
            if recorded.missing_ms != -1:  # it is listed again
                context.state.claims.record(replace(recorded, missing_ms=-1), replaces=recorded)
            return None  # ``near_tables`` checks again
        missing.add(name)
        return unseen_entry(name, recorded, StorageError(DENIED))
    except Exception as error:  # a document that violates the specification must not stop the other tables
        log.warning("%s: table %s cannot be read: %s", context.table, name, error)
        return unseen_entry(name, recorded, error, location)


DENIED = "its catalog lists it, but answers that it does not exist"
"""Why a table that was never read stops deletions while it is listed."""


def unseen_entry(table: TableName, recorded: TableClaims | None, error: Exception, location: str = "") -> UnseenEntry:
    """The result of a look at an unreadable table.

    ``recorded``: its claims; ``location``: its normalised location, if that was read.
    """
    if isinstance(error, MaintenanceError):
        pointer = error.pointer if isinstance(error, StorageError) else None
        folder = "" if pointer is None else normalise(pointer).rpartition("/")[0]
        failed = UnseenEntry(
            table=table,
            reason=str(error),
            location=location or folder.removesuffix("/metadata"),
            is_gone=is_lost(error),
            pointer=(pointer or "") if isinstance(error, LocationRefused) else "",
        )
    else:
        reason = f"its metadata does not follow the specification: {type(error).__name__} {error}"
        failed = UnseenEntry(table=table, reason=reason, location=location)
    if recorded is None:
        return failed
    if recorded.is_excluded:  # it stops nothing; files under its location are kept
        return replace(failed, is_gone=True)
    # ``near_tables`` keeps files in the claims of its last look.
    return replace(failed, is_known=recorded.is_looked_into)


def why_deletions_wait(
    state: StateStore, catalog: Catalog, own: LoadedTable, looks: Iterable[CatalogLook]
) -> str | None:
    """Why no file of a table is deleted: an entry in its bucket was never read, and is not gone
    (rule: never-seen-tables-stop-their-bucket).

    ``None``: there is no such entry, or the operator's rules separate all of them
    (rule: separated-tables-stop-nothing).

    Raises:
        StorageError: the state store failed.
    """
    folders = [normalise(location) for location in owned_locations(own.metadata)]
    for look in looks:
        everywhere = cache(partial(_places, state, look, own))  # reads the claims of all its tables
        if look.may_hide(own.is_kept_apart_from) and _may_touch(everywhere(), folders):
            return (
                f"a table of catalog {look.catalog} may need files of {own.name}, because {look.failure}; nothing was "
                "deleted"
            )
        for entry in look.unseen:
            is_own = Entry(look.catalog, entry.table.key) == entry_of(catalog, own)
            if (
                entry.is_gone
                or entry.is_known
                or not entry.reason
                or is_own
                or own.is_kept_apart_from(look.catalog, entry.table)
            ):
                continue
            places = {_bucket(entry.location, look.catalog.warehouse)} if entry.location else everywhere()
            if _may_touch(places, folders):
                command = shlex.join(
                    ("icekeeper", "claims", "exclude", entry.table.key, "--catalog", look.catalog.name)
                )
                return (
                    f"{entry.table} of catalog {look.catalog} may need files of {own.name}, because it cannot be read "
                    f"and no run has read it before: {entry.reason}; nothing was deleted; repair it, or drop it from "
                    f"its catalog{rules_to_write(catalog.id, own, look.catalog, entry.table)}; or, if it needs no "
                    f"files of other tables: {command}"
                )
    return None


def rules_to_write(catalog: CatalogId, own: LoadedTable, other_catalog: CatalogId, other: TableName) -> str:
    """For a refusal: the rules that would separate both tables; empty if they share a namespace, which no rule splits.

    The other table's folder is left to the reader, because its own metadata could name any location.
    """
    names = (f"{catalog}.{'.'.join(own.name.namespace)}", f"{other_catalog}.{'.'.join(other.namespace)}")
    if names[0] == names[1] or not all(map(_IN_A_RULE.fullmatch, names)):
        return ""
    mine = own.metadata.location.rstrip("/").rpartition("/")[0]
    return (
        f"; if each namespace has folders of its own, rules can separate them, so that neither stops the other: set "
        f"{ALLOWED_PREFIXES}='{names[0]}={mine}/;{names[1]}=FOLDER/'"
    )


def _may_touch(places: Iterable[str], folders: Iterable[str]) -> bool:
    """Whether any of the folders touches any of the places, or no place is known."""
    places = list(places)
    return not places or any(touches(place, folder) for place in places for folder in folders)


def _places(state: StateStore, look: CatalogLook, own: LoadedTable) -> set[str]:
    """The known buckets of a catalog's tables; tables that rules separate count only if no other table is known."""
    known = [claims for claims in state.claims.of_catalog(look.catalog) if claims.location]
    near = {claims.location for claims in known if not own.is_kept_apart_from(look.catalog, claims.table)}
    found = near or {claims.location for claims in known}
    warehouse = look.catalog.warehouse
    if "://" in warehouse or warehouse.startswith("/"):
        found.add(normalise(warehouse))
    return {_bucket(folder, warehouse) for folder in found}


def _bucket(folder: str, warehouse: str) -> str:
    """The bucket of a normalised folder; for local files, the catalog's warehouse."""
    store = store_of(folder)
    if store != "/":
        return store
    place = normalise(warehouse) if "://" in warehouse or warehouse.startswith("/") else store
    return place if touches(place, folder) and len(place) <= len(folder) else store
