"""Reads other tables that may need a file, of every served catalog, each within a time limit."""

from __future__ import annotations

import json
import logging
import re
import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import TypeVar

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.deletion.neighbours import TableFolders, has_its_own_bucket, owned_locations, table_folders
from icekeeper.deletion.table_claims import entry_of, first_look, is_seen, look_into, record_first_look, recorded_claims
from icekeeper.errors import (
    LocationRefused,
    MaintenanceError,
    OperationRefused,
    PartlyListed,
    PolicyError,
    StorageError,
    is_gone,
)
from icekeeper.machine.clock import HOUR_MS, at_work, in_limited_time
from icekeeper.machine.metering import WorkThreads
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import (
    LATEST_LOOK_S,
    LEAST_LIMIT_S,
    CatalogLook,
    CutWork,
    Entry,
    TableClaims,
    UnseenEntry,
    cut_again,
    folders_around,
    look_reason,
    store_of,
    touches,
    waiting_cuts,
)
from icekeeper.state.store import StateStore
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.paths import is_under, may_be_under, normalise

# How long a pass may read another table: one that is never done with holds up nobody else's maintenance
# (rule: cut-off-endless-tables).
#
# A look that takes too long is an error like any other: what that table may need stays.  It is remembered, and such a
# table is not looked at again for a while.

log = logging.getLogger(__name__)

Result = TypeVar("Result")

# Beside so many tables that hang, each of the others has a short time: a function ends after 15 minutes.
_MOST_GIVEN_UP = 16
_SHORT_S = 5.0


class LimitedLooks:
    """The looks of a pass at the tables of one catalog, each for at most ``detection_timeout_s``."""

    def __init__(self, context: OperationContext, catalog: Catalog) -> None:
        """Raises StorageError if the state cannot be read."""
        self.catalog = catalog
        self._context = context
        self._limit_s = context.policy.detection_timeout_s
        self._given_up = 0
        cuts = context.state.cut_offs.of_catalog(catalog.name, catalog.warehouse)
        self._once_cut = {one.entry[2] for one in cuts if one.work is CutWork.LOOK}
        self._waiting = waiting_cuts(cuts, CutWork.LOOK, context.clock())

    def look(self, name: TableName, work: Callable[[], Result]) -> Result:
        """The result of work that reads a table, or what it raises.

        Raises:
            StorageError: it took too long, now or a short while ago.
        """
        if (cut := self._waiting.get(name.key)) is not None:
            raise StorageError(f"{name} is not read: {cut.sentence}")
        why = look_reason(self._limit_s)
        entry = self.catalog.name, self.catalog.warehouse, name.key
        is_short = self._given_up >= _MOST_GIVEN_UP
        limit_s = min(_SHORT_S, self._limit_s) if is_short else self._limit_s
        cut_offs = self._context.state.cut_offs
        try:
            result = in_limited_time(_shown(work, entry, limit_s, why), limit_s, "table-look")
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
    """The result of work that reads all references of another table, which may take half of the pass' own time.

    Raises:
        StorageError: it took longer.
    """
    limit_s = context.policy.job_timeout_s / 2
    why = f"reading what {name} references did not end within half of job_timeout_s {context.policy.job_timeout_s}"
    entry = catalog.name, catalog.warehouse, name.key
    try:
        return in_limited_time(_shown(work, entry, limit_s, why), limit_s, "table-look")
    except TimeoutError:
        raise StorageError(why) from None


def _shown(work: Callable[[], Result], entry: Entry, limit_s: float, why: str) -> Callable[[], Result]:
    """The work, which shows its table for as long as its thread is at it, also once nobody waits for it."""

    def shown() -> Result:
        with at_work(CutWork.LOOK, entry, limit_s=limit_s + LATEST_LOOK_S, why=why):
            return work()

    return shown


# Looks at every table of every served catalog, once a run, before the first file of another table goes
# (rule: look-at-every-served-table).
#
# Any table may have taken in files of any other one (``add_files``), and only its manifests tell.  The passes of a run
# share one look.  It loads the tables that detection has not seen at the head that was looked into last, and reads the
# manifests that came since; what it sees is recorded (``claims``).  An entry that cannot be read is known by its last
# look; one that nobody has ever looked into stops the deletions in its bucket, until a person excludes it
# (rule: never-seen-tables-stop-their-bucket).

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
    others (platform: s3tables-own-bucket).

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

    Of very many tables that cannot be read, one of each namespace stands for all of it
    (rule: hostile-names-stop-nobody).
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
        catalog = None if before.warehouse == UNKNOWN_WAREHOUSE else _reopened(context, before)
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


def _reopened(context: OperationContext, look: CatalogLook) -> Catalog | None:
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
    """Why no file of a table is deleted: an entry in its bucket was never looked into, and is not gone
    (rule: never-seen-tables-stop-their-bucket).

    ``None`` if there is none, but for entries that rules of the operator keep away
    (rule: separated-tables-stop-nothing).

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


# Loads the tables that may have files in some folders, of its own catalog and of every other one that is served here.
#
# The state knows in which folders each table has files: every one was looked at in this run (``served_tables``).  So
# only tables whose folders touch are loaded, and what they reference by now is read.

_PARALLEL_LOADS = 8


@dataclass(frozen=True, slots=True)
class CatalogTables:
    """The tables of a catalog: where each may have files, and those that cannot be loaded, with the reason."""

    tables: tuple[TableFolders, ...]
    unreadable: tuple[tuple[TableName, str], ...]
    is_gone: bool = False
    """Whether the metadata files of all that cannot be loaded are gone."""

    @property
    def loaded(self) -> Sequence[LoadedTable]:
        return [one.table for one in self.tables]


@dataclass(frozen=True, slots=True)
class NearTables:
    """Tables that may have files in some folders, and entries that may but cannot be read, with the reason."""

    tables: tuple[TableFolders, ...] = ()
    unreadable: tuple[tuple[TableClaims, str], ...] = ()
    given_up: tuple[tuple[TableClaims, str], ...] = ()
    """As ``unreadable``, but nobody can read the table by the entry: its metadata file is gone, or its catalog is not
    served any more."""
    kept_apart: tuple[tuple[TableClaims, str], ...] = ()
    """As ``unreadable`` or ``given_up``, of tables that the operator's rules keep away
    (rule: separated-tables-stop-nothing)."""
    pointers: tuple[str, ...] = ()
    """Metadata files in the folders of the table that asks at which entries of such tables stand."""


def load_all(
    catalog: Catalog, names: Iterable[TableName], state: StateStore, known: Mapping[TableName, TableClaims]
) -> CatalogTables:
    """Load many tables in parallel, and record where they have files; one dropped meanwhile is left out.

    Raises:
        StorageError: the names cannot be listed, or the state store failed.
    """

    # By UUID: a table may have had another name when it was looked at.
    seen_in: defaultdict[str, set[str]] = defaultdict(set)
    for claims in known.values():
        seen_in[claims.uuid] |= claims.folders

    lost: list[bool] = []

    def load(name: TableName) -> TableFolders | tuple[TableName, str] | None:
        try:
            loaded = catalog.load(name)
            return table_folders(catalog, loaded, seen_in.get(identity_of(catalog, loaded).uuid, ()))
        except PolicyError:
            return None
        except MaintenanceError as error:
            lost.append(is_lost(error))
            return name, str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            lost.append(False)
            return name, f"its metadata does not follow the specification: {type(error).__name__} {error}"

    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        found = list(pool.map(load, names))
    readable = tuple(one for one in found if isinstance(one, TableFolders))
    for one in readable:
        if one.table.name not in known:
            same = [claims for claims in known.values() if claims.uuid == _uuid_of(one)]
            record_first_look(state, catalog, one.table, same)
    return CatalogTables(
        readable,
        tuple(one for one in found if isinstance(one, tuple)),
        is_gone=bool(lost) and all(lost),
    )


def near_tables(context: OperationContext, own: LoadedTable, folders: Sequence[str]) -> NearTables:
    """Every other table, of any catalog served here, that may have files in the (normalised) folders.

    Raises:
        OperationRefused: there is a table of which it is not known whether it has.
        StorageError: the state store failed.
    """
    looks = know_every_table(context, own)
    claimed: dict[tuple[str, str, str], TableClaims] = {}
    for folder in folders:
        for one in context.state.claims.touching(folder):
            claimed.setdefault(one.entry, one)
    own_entry = entry_of(context.catalog, own)
    claimed.pop(own_entry, None)
    lost = (one for one in lost_entries(looks) if any(one[0].touch(folder) for folder in folders))
    near = [NearTables(given_up=(one,)) for one in lost if _counts(context, own, one[0])]
    failed = {(*look.key, one.table.key): one for look in looks for one in look.unseen if one.is_known}
    catalogs = {entry[:2]: _opened(context, one) for entry, one in claimed.items()}
    # What waits is read once for each catalog, and tables of one that hang shorten each other's time.
    ways = {
        key: catalog if catalog is None or isinstance(catalog, str) else LimitedLooks(context, catalog)
        for key, catalog in catalogs.items()
    }
    with WorkThreads(_PARALLEL_LOADS, thread_name_prefix="table-load") as pool:
        entries = sorted(claimed)
        near += pool.map(
            lambda entry: _near_one(context, own, ways[entry[:2]], claimed[entry], folders, failed.get(entry)),
            entries,
        )
    # A table that was renamed is found twice.
    found = _joined(near)
    others = {entry_of(table.catalog, table.table): table for table in found.tables}
    homes = owned_locations(own.metadata)
    pointers = {
        one.pointer
        for look in looks
        for one in look.unseen
        if any(is_under(one.pointer, home) for home in homes) and own.is_kept_apart_from(look.catalog, one.table)
    }
    tables = tuple(table for entry, table in others.items() if entry != own_entry)
    return replace(found, tables=tables, pointers=tuple(sorted(pointers)))


def _near_one(
    context: OperationContext,
    own: LoadedTable,
    way: LimitedLooks | str | None,
    claims: TableClaims,
    folders: Sequence[str],
    failed: UnseenEntry | None,
) -> NearTables:
    """What one entry leads to; ``way`` leads to its catalog: the looks there, else as :func:`_opened` says.

    ``failed``: how the look of the run failed; what cannot be read takes long, and is not read again for each pass.
    """
    is_kept_apart = partial(own.is_kept_apart_from, claims.catalog)

    def lost(reason: str, table: TableName = claims.table, *, is_gone: bool = False) -> NearTables:
        entry = ((claims, reason),)
        if is_kept_apart(claims.table) and is_kept_apart(table):
            return NearTables(kept_apart=entry)
        return NearTables(given_up=entry) if is_gone else NearTables(unreadable=entry)

    if failed is not None:
        return lost(failed.reason, is_gone=failed.is_gone)
    if way is None:
        return lost(f"catalog {claims.catalog} cannot be opened from here", is_gone=True)
    if isinstance(way, str):
        return lost(way)

    def look() -> tuple[CatalogTables, list[tuple[TableFolders, MaintenanceError | None]]]:
        found = _loaded_by_claims(context, own, way.catalog, claims)
        return found, [_looked_into(context, table, claims) for table in found.tables]

    try:
        found, looked = way.look(claims.table, look)
    except MaintenanceError as error:
        return lost(str(error))
    near = [lost(reason, table, is_gone=found.is_gone) for table, reason in found.unreadable]
    for table, unread in looked:
        if unread is not None:
            near.append(lost(str(unread), table.table.name))
        if any(map(table.overlap, folders)):
            apart = is_kept_apart(table.table.name)  # what it names stays, but no folder is its own here
            near.append(NearTables((replace(table, folders={}, is_kept_apart=True) if apart else table,)))
    return _joined(near)


def _counts(context: OperationContext, own: LoadedTable, lost: TableClaims) -> bool:
    """Whether an entry that nobody has ever looked into is spared under its location, of which only its pointer tells.

    Not where the operator's rules keep it away, nor one around ``own`` that a person has excluded.
    """
    if own.is_kept_apart_from(lost.catalog, lost.table):
        return False
    if not may_be_under(own.metadata.location, lost.location):
        return True
    recorded = context.state.claims.of_entry(lost.entry)
    return recorded is None or not recorded.is_excluded


def _joined(near: Sequence[NearTables]) -> NearTables:
    return NearTables(
        tuple(chain.from_iterable(one.tables for one in near)),
        tuple(chain.from_iterable(one.unreadable for one in near)),
        tuple(chain.from_iterable(one.given_up for one in near)),
        tuple(chain.from_iterable(one.kept_apart for one in near)),
    )


def _looked_into(
    context: OperationContext, one: TableFolders, recorded: TableClaims
) -> tuple[TableFolders, MaintenanceError | None]:
    """A table with every folder in which it has files now; with an error where its manifests cannot be read."""
    if one.table.name == recorded.table and is_seen(recorded, one.table):
        return one, None
    try:
        return replace(one, files_in=one.files_in | look_into(context, one.catalog, one.table)), None
    except MaintenanceError as error:
        return one, error


def _opened(context: OperationContext, claims: TableClaims) -> Catalog | str | None:
    """The catalog of an entry; ``None``: it is not served any more; else why it cannot be opened."""
    if (claims.catalog, claims.warehouse) == (context.catalog.name, context.catalog.warehouse):
        return context.catalog
    try:
        return context.other_catalog(claims.catalog, claims.warehouse)
    except MaintenanceError as error:
        return f"catalog {claims.catalog} cannot be opened from here: {error}"


def _loaded_by_claims(
    context: OperationContext, own: LoadedTable, catalog: Catalog, claims: TableClaims
) -> CatalogTables:
    """The table that was seen under a name, also under the one that it has by now; the claims of one that is gone go.

    Raises:
        StorageError: the catalog cannot be listed, or the state store failed.
    """
    found = load_all(catalog, [claims.table], context.state, {claims.table: claims})
    if found.unreadable or any(_uuid_of(one) == claims.uuid for one in found.tables):
        return found
    recorded = recorded_claims(context.state, catalog)
    unknown = [name for name in catalog.list_tables() if name not in recorded]
    renamed = load_all(catalog, unknown, context.state, recorded)
    if not renamed.unreadable and not found.tables:
        context.state.claims.forget(claims.entry)
    # One that cannot be loaded may be the one that is looked for.
    lost = [(name, f"it may be {name}, which cannot be loaded: {why}") for name, why in renamed.unreadable]
    near = [one for one in lost if not own.is_kept_apart_from(catalog.name, one[0])]
    return CatalogTables((*found.tables, *renamed.tables), tuple((near or lost)[:1]), renamed.is_gone)


def _uuid_of(one: TableFolders) -> str:
    return identity_of(one.catalog, one.table).uuid
