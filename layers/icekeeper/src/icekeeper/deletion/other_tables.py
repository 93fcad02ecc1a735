"""The look: it brings up to date in which folders each table of all served catalogs has files.

Any table may have adopted files of another one (``add_files``), and only its manifests show it.  So before the first
deletion, each run looks once at every table of every served catalog (rule: look-at-every-served-table): it loads the
tables whose head is new, reads their new manifests and records the folders that they name (their *claims*).  Then only
tables whose claims touch the cleaned table are loaded (``near_tables``).  An entry that cannot be read is known by its
last look.  An entry that nobody has ever read stops the deletions in its bucket until a person excludes it
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
    LocationRefused,
    MaintenanceError,
    OperationRefused,
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

# After so many tables that hang, each further table gets a short time: a function ends after 15 minutes.
_MOST_GIVEN_UP = 16
_SHORT_S = 5.0


class LimitedLooks:
    """Reads the tables of one catalog, each for at most ``detection_timeout_s`` (rule: cut-off-endless-tables).

    A look that takes too long is an error like any other, so files that the table may need are kept.  It is recorded,
    and the table is not read again for a while.
    """

    def __init__(self, context: OperationContext, catalog: Catalog) -> None:
        """Raises StorageError if the state cannot be read."""
        self.catalog = catalog
        self._context = context
        self._limit_s = context.policy.detection_timeout_s
        self._given_up = 0
        cuts = context.state.cut_offs.of_catalog(catalog.id)
        self._once_cut = {one.entry.table for one in cuts if one.work is CutWork.LOOK}
        self._waiting = waiting_cuts(cuts, CutWork.LOOK, context.clock())

    def look(self, name: TableName, work: Callable[[], Result]) -> Result:
        """The result of ``work``, which reads a table, or its error.

        Raises:
            StorageError: it takes too long, or did recently.
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
                raise StorageError(f"{name} is not read: {self._given_up - 1} others took too long") from None
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
        StorageError: it took longer than half of the pass's own time.
    """
    limit_s = context.policy.job_timeout_s / 2
    why = f"reading what {name} references did not end within half of job_timeout_s {context.policy.job_timeout_s}"
    try:
        return in_limited_time(work, limit_s, "table-look")
    except TimeoutError:
        raise StorageError(why) from None


UNKNOWN_WAREHOUSE = "?"
"""The warehouse of a catalog that was never opened.  Such a look counts only in the run that could not open it."""
# An item of DynamoDB holds 400 KB.
_MOST_BYTES = 300_000
_PARALLEL_LOOKS = 16
_TABLE_BUCKET = "arn:"
# Other characters have a meaning in a rule or in a shell.
_IN_A_RULE = re.compile(r"[\w-]+(?:\.[\w-]+)+")
# A run that is restarted after this time (a redriven execution), or that lasts longer, looks again.
_HOLDS_MS = 6 * HOUR_MS


def know_every_table(context: OperationContext, own: LoadedTable) -> Sequence[CatalogLook]:
    """Look at every table of the catalogs that share the state, unless this run has done so.

    Tables in buckets of their own are left out: they cannot share files (platform: buckets-have-second-names).

    Raises:
        OperationRefused: a table that may need files of ``own`` cannot be read.
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
        raise OperationRefused(why)
    return done


def fitting(look: CatalogLook) -> CatalogLook | None:
    """The look, made small enough for any state store; ``None``: it stays too large.

    If very many tables cannot be read, one of each namespace represents all of them.
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
        if not one.is_known:  # passes find known ones by their claims
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
    """Whether a load failed because the metadata file that the entry names is gone."""
    return isinstance(error, StorageError) and error.pointer is not None and is_gone(error)


def lost_entries(looks: Iterable[CatalogLook]) -> Iterator[tuple[TableClaims, str]]:
    """Entries that were never read and whose metadata file is gone, as claims on their location; and the reason."""
    for look in looks:
        for one in look.unseen:
            if one.is_gone and one.location and not one.is_known:
                claims = TableClaims(catalog=look.catalog, table=one.table, uuid="", location=one.location)
                yield claims, one.reason


def _is_near_nobody(context: OperationContext, look: CatalogLook) -> bool:
    """Whether each table of the catalog has a bucket of its own, so that none can share files."""
    found = context.state.claims.of_catalog(look.catalog) if look.catalog.warehouse.startswith(_TABLE_BUCKET) else ()
    return any(has_its_own_bucket(one.location) for one in found)


def _look(context: OperationContext, before: CatalogLook, run: str) -> CatalogLook:
    """This run's look at a catalog: the recorded one, completed where it has tables without a result, or a new one."""
    now_ms = context.clock()
    is_begun = before.run == run and abs(now_ms - before.looked_ms) <= _HOLDS_MS
    if is_begun and all(one.reason for one in before.unseen):
        return before
    unseen: list[UnseenEntry] = []
    failure, hidden = "", tuple[tuple[str, ...], ...]()
    try:
        is_known = before.catalog.warehouse != UNKNOWN_WAREHOUSE
        catalog = context.catalogs.open(before.catalog) if is_known else None
        if catalog is None:  # no longer served: the recorded claims of its tables are spared
            return CatalogLook(catalog=before.catalog)
        if is_begun:
            unseen += [one for one in before.unseen if one.reason]
            unseen += _look_at_tables(context, catalog, [one.table for one in before.unseen if not one.reason])
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
        failure = f"{len(unseen)} of its tables cannot be read, as {unseen[0].table}: {unseen[0].reason}"
        small = replace(look, unseen=(), failure=failure, hidden=())
    context.state.claims.record_look(small)
    return small


def _require_own(context: OperationContext, catalog: Catalog, listed: Iterable[TableName]) -> None:
    """Raises StorageError if a listing lacks the table of this pass, which was loaded
    (rule: trust-only-own-answers); some catalogs spell names in their own case."""
    is_own = catalog.id == context.catalogs.own.id
    if is_own and all(one.key.lower() != context.table.key.lower() for one in listed):
        raise StorageError(
            f"the listing of catalog {catalog.id} lacks {context.table}, which can be loaded, so other tables may be "
            "missing as well; have the right to list granted, or the server repaired"
        )


def listed_anew(context: OperationContext, catalog: Catalog) -> Sequence[TableName]:
    """Every table of a catalog, by a listing that begins now.

    Raises:
        StorageError: it is not complete.
    """
    listed = [*catalog.list_tables()]
    _require_own(context, catalog, listed)
    return listed


def _look_at_tables(context: OperationContext, catalog: Catalog, tables: Sequence[TableName]) -> Sequence[UnseenEntry]:
    """Read those of the tables that have a new head; return the entries that cannot be read.

    A missing table that a listing which began afterwards lacks needs nothing, unless it was looked into before; then
    its claims decide.

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
                "%s: whether catalog %s still lists its missing tables: %s", context.table, catalog.id.name, error
            )
            missing.clear()
    return [one for one in seen if one is not None and one.table not in missing]


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
            return None  # ``near_tables`` asks again
        missing.add(name)
        return unseen_entry(name, recorded, StorageError(DENIED))
    except Exception as error:  # a document that breaks the specification must not stop the other tables
        log.warning("%s: %s cannot be looked at: %s", context.table, name, error)
        return unseen_entry(name, recorded, error, location)


DENIED = "its catalog lists it, and answers that there is no such table"
"""Why a table that was never looked at stops deletions while it is listed."""


def unseen_entry(table: TableName, recorded: TableClaims | None, error: Exception, location: str = "") -> UnseenEntry:
    """The result of a look at a table that cannot be read.

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
    # ``near_tables`` spares the claims of its last look.
    return replace(failed, is_known=recorded.is_looked_into)


def why_deletions_wait(
    state: StateStore,
    catalog: Catalog,
    own: LoadedTable,
    looks: Iterable[CatalogLook],
) -> str | None:
    """Why no file of a table is deleted: an entry in its bucket was never read, and is not gone
    (rule: never-seen-tables-stop-their-bucket).

    ``None``: no such entry, or the operator's rules keep all of them apart (rule: separated-tables-stop-nothing).

    Raises:
        StorageError: the state store failed.
    """
    folders = [normalise(location) for location in owned_locations(own.metadata)]
    for look in looks:
        everywhere = cache(partial(_places, state, look, own))  # reads the claims of all its tables
        if look.may_hide(own.is_kept_apart_from) and _may_touch(everywhere(), folders):
            return (
                f"whether a table of catalog {look.catalog} needs files of {own.name} is not known, because "
                f"{look.failure}; nothing was deleted"
            )
        for one in look.unseen:
            is_own = Entry(look.catalog, one.table.key) == entry_of(catalog, own)
            if (
                one.is_gone
                or one.is_known
                or not one.reason
                or is_own
                or own.is_kept_apart_from(look.catalog, one.table)
            ):
                continue
            places = {_bucket(one.location, look.catalog.warehouse)} if one.location else everywhere()
            if _may_touch(places, folders):
                command = shlex.join(
                    ("icekeeper", "claims", "exclude", one.table.key, "--catalog", look.catalog.name),
                )
                return (
                    f"whether {one.table} of catalog {look.catalog} needs files of {own.name} is not known, because it "
                    f"cannot be read, and nobody has looked at it before: {one.reason}; nothing was deleted; repair "
                    f"it, or drop it from its catalog{rules_to_write(catalog.id, own, look.catalog, one.table)}; "
                    f"or, if it needs no files of other tables: {command}"
                )
    return None


def rules_to_write(catalog: CatalogId, own: LoadedTable, other_catalog: CatalogId, other: TableName) -> str:
    """A refusal's advice which rules keep both tables apart; empty if they have one namespace, so that no rule can.

    The other table's folder is left open: its own metadata could name any location.
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
    """Whether one of the folders touches one of the places, or no place is known."""
    places = list(places)
    return not places or any(touches(place, folder) for place in places for folder in folders)


def _places(state: StateStore, look: CatalogLook, own: LoadedTable) -> set[str]:
    """The known buckets of a catalog's tables; tables that rules keep apart count only if no other is known."""
    known = [one for one in state.claims.of_catalog(look.catalog) if one.location]
    near = {one.location for one in known if not own.is_kept_apart_from(look.catalog, one.table)}
    found = near or {one.location for one in known}
    warehouse = look.catalog.warehouse
    if "://" in warehouse or warehouse.startswith("/"):
        found.add(normalise(warehouse))
    return {_bucket(folder, warehouse) for folder in found}


def _bucket(folder: str, warehouse: str) -> str:
    """The bucket of a normalised folder; for local files the catalog's warehouse."""
    store = store_of(folder)
    if store != "/":
        return store
    place = normalise(warehouse) if "://" in warehouse or warehouse.startswith("/") else store
    return place if touches(place, folder) and len(place) <= len(folder) else store
