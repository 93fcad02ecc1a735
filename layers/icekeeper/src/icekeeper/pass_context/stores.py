"""The stores of one pass and their clocks, the reads and folders that its operations share, and the metadata files in a
table's store."""

from __future__ import annotations

import getpass
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from threading import Lock

from icekeeper.catalogs.catalog import Catalog, LoadedTable, identity_of
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.commit.transaction import Committed, CommitTerms, commit_with_retries
from icekeeper.errors import MaintenanceError, MetadataUnreadable, OperationRefused, StorageError
from icekeeper.machine.clock import HOUR_MS, TOLD_SKEW_MS, Clock, ahead_ms, steady_s
from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.document_files import is_metadata_file, parse_document
from icekeeper.metadata.table_reader import metadata_files
from icekeeper.model import CatalogId, Nothing, TableName
from icekeeper.policy import Policy
from icekeeper.report.outcome import CLOCK_SKEW, skew_sentence
from icekeeper.state.identity import Entry
from icekeeper.state.store import PassRecord, StateStore
from icekeeper.state.table_memory import TableMemory
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, AllowedLocations
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.paths import authority, compared, is_under, may_be_under, normalise
from icekeeper.storage.storage import Storage, StoreClock, store_now_ms

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16


def is_whole_avro(data: bytes) -> bool:
    """Whether an Avro container file looks whole; false for a file without blocks.

    Source: Apache Avro specification, "Object Container Files": the header and each block end with the same random
    marker of 16 bytes.  So a file that was cut between two blocks looks whole, too.
    """
    return data.startswith(_MAGIC) and data.find(data[-_MARKER_BYTES:]) < len(data) - _MARKER_BYTES


# The *root* of a data file shows which table owns it: ``<location>/data``, a ``write.data.path``, or the folder of an
# imported table.  Below the root the file is in partition folders (``day=2026-01-01``) and, with an object-storage
# layout, in hash folders.  Sources: Iceberg-Java's ``LocationProviders`` (``ObjectStoreLocationProvider``) and Hive's
# partition layout.
#
# A hash is four folders of 4, 4, 4 and 8 binary digits, or three folders and the beginning of the file's name
# (``write.object-storage.partitioned-paths=false``).  Hashes of earlier versions (eight hexadecimal digits, then six
# characters of Base64) could be any folder's name.  They are recognised only in the table's own data folders; elsewhere
# each such folder is a root, because too large a root would let the table sweep other folders.

_PARTITION = re.compile(r"[^/=]+=[^/]*")
_HASH = re.compile(r"/[01]{4}/[01]{4}/[01]{4}/[01]{8}\Z")
_BEGINNING_OF_HASH = re.compile(r"/[01]{4}/[01]{4}/[01]{4}\Z")
_REST_OF_HASH = re.compile(r"[01]{8}-")
# A table with more roots than this has an unknown folder layout.
_MOST_ROOTS = 1_000


def data_root(path: str) -> str:
    """The root of a data file: its normalised folder, without partition and hash folders."""
    return _normalised(spelled_root(path))


def spelled_root(path: str) -> str:
    """As :func:`data_root`, spelled as the path is."""
    folder, _, name = path.rpartition("/")
    return _root_of_folder(folder, _BEGINNING_OF_HASH if _REST_OF_HASH.match(name) else _HASH)


def data_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """The normalised folders in which the table keeps only data files; each counts as one root."""
    places = {normalise(metadata.data_location), normalise(f"{metadata.location}/data")}
    others = (metadata.location, metadata.metadata_directory)
    return tuple(sorted(place for place in places if not any(may_be_under(other, place) for other in others)))


@lru_cache(maxsize=4096)
def _normalised(folder: str) -> str:
    return normalise(folder)


@lru_cache(maxsize=4096)
def _root_of_folder(folder: str, hashed: re.Pattern[str]) -> str:
    # Not normalised: a partition's value may have an encoded slash.
    while (parts := folder.rpartition("/"))[2] and _PARTITION.fullmatch(parts[2]):
        folder = parts[0]
    found = hashed.search(folder)
    return folder if found is None else folder[: found.start()]


class Footprint:
    """The roots of the table's data and delete files that this pass has seen; after 1,000 roots, only buckets."""

    def __init__(self) -> None:
        self._folders: set[str] = set()
        self._roots: set[str] = set()
        self._told: set[str] = set()

    def see(self, path: str, own: Sequence[str] = ()) -> None:
        """Note a data or delete file; ``own``: the table's :func:`data_folders`."""
        folder = path[: path.rfind("/")]
        if folder in self._folders:
            return
        if len(self._folders) > _MOST_ROOTS:
            self._folders.clear()
        self._folders.add(folder)
        root = data_root(path)
        self._add(next((place for place in own if root.startswith(f"{place}/")), root))

    def add(self, roots: Iterable[str]) -> None:
        """Note roots that workers have seen."""
        for root in roots:
            self._add(root)

    def _add(self, root: str) -> None:
        if root not in self._roots:
            self._roots.add(root if len(self._roots) < _MOST_ROOTS else normalise(authority(root)) or "/")

    def roots(self) -> frozenset[str]:
        """All seen roots, normalised."""
        return frozenset(self._roots)

    def news(self) -> frozenset[str]:
        """The roots seen since the last call."""
        new = self.roots() - self._told
        self._told |= new
        return new


_MOST_BYTES = 32 * 1024 * 1024


class MetadataCache:
    """Keeps manifests and manifest lists by store and path until it is full; safe to share between threads.

    They never change (specification, "File System Operations").  Files that the pass writes are read from the store,
    too: a truncated file must stop deletions (rule: cache-only-immutable-metadata).  Another catalog's store may have a
    different file at the same path, so the store is part of the key (rule: key-caches-by-store).

    Nothing is evicted.  Operations read the same files in the same order, so evicting the oldest file would always
    remove the next one that is needed.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = Lock()
        self._files: dict[tuple[tuple[str, str], str], bytes] = {}
        self._room = most_bytes

    def read(self, place: tuple[str, str], path: str, read: Callable[[str], bytes]) -> bytes:
        """The bytes of a file in a place (:attr:`.Storage.place`); ``read`` reads an unknown file, and may raise.

        A file that does not look like a whole Avro file is read again the next time.
        """
        known = self._files.get((place, path))
        if known is not None:
            return known
        data = read(path)
        if is_whole_avro(data):
            with self._lock:
                if (place, path) not in self._files and len(data) <= self._room:
                    self._files[place, path] = data
                    self._room -= len(data)
        return data


class SharedReads:
    """Cached manifests, and one client per set of credentials; safe to share between threads."""

    def __init__(self) -> None:
        self.manifests = MetadataCache()
        self._lock = Lock()
        self._clients: dict[tuple[tuple[str, str], ...], Storage] = {}

    def storage(self, properties: Mapping[str, str]) -> Storage:
        """The client for these credentials, within the bound in the properties."""
        key = tuple(sorted((k, v) for k, v in properties.items() if k != ALLOWED_LOCATIONS))
        with self._lock:
            if key not in self._clients:
                self._clients[key] = Storage(properties)
            return self._clients[key].within(AllowedLocations.of(properties))


_current: ContextVar[SharedReads | None] = ContextVar("icekeeper_shared_reads", default=None)


@contextmanager
def sharing_reads() -> Iterator[None]:
    """Contexts that are made inside the (outermost) block share what they read, metadata files included.

    The operations of ``icekeeper maintain`` share one context; the steps of the pipeline need this block.
    """
    before = _current.set(_current.get() or SharedReads())
    try:
        with keeping_documents():
            yield
    finally:
        _current.reset(before)


def shared_reads() -> SharedReads:
    """What is shared in this block; outside a block, a new object for the caller alone."""
    return _current.get() or SharedReads()


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Skew:
    """How far our clock is ahead of a store's (negative: behind it), and when that was measured: by our clock, and by
    the steady clock."""

    ahead_ms: int
    ours_ms: int
    steady_ms: int

    @property
    def is_told(self) -> bool:
        """Whether the difference is large enough to report."""
        return abs(self.ahead_ms) > TOLD_SKEW_MS

    @property
    def ahead_s(self) -> int:
        """In seconds, towards zero."""
        return int(self.ahead_ms / 1000)

    def holds_at(self, ours_ms: int, steady_ms: int) -> bool:
        """Whether our clock has not been set since: it advanced as much as the steady clock."""
        return ahead_ms(ours_ms - self.ours_ms, steady_ms - self.steady_ms) == 0


class Stores:
    """The stores of one pass, and the time by the clock of each.

    Only a store's own clock shows how old a file is: a machine whose clock is days ahead would take files in flight for
    old ones.  So each store is asked once for its time, and again if our clock was set meanwhile.  Between, its time is
    our clock minus the difference.  A difference of more than a minute is reported.
    """

    def __init__(
        self,
        clock: Clock,
        store_clock: StoreClock,
        *,
        may_write: bool,
        shared: SharedReads | None = None,
        as_of_ms: int | None = None,
    ) -> None:
        """``may_write``: whether a probe may be written to find the time; ``shared``: has the clients.

        ``as_of_ms``: nothing counts as older than it was then.
        """
        self._as_of_ms = as_of_ms
        self._shared = shared or SharedReads()
        self._clock, self._store_clock, self._may_write = clock, store_clock, may_write
        self._measured: dict[str, _Skew] = {}
        self._told: list[int] = []

    def storage(self, loaded: LoadedTable) -> Storage:
        """Access to the table's files."""
        return self._shared.storage(loaded.io_properties)

    def now_ms(self, loaded: LoadedTable) -> int:
        """Epoch milliseconds by the clock of the table's store, or by ours if the store has none."""
        skew, ours_ms = self._look(loaded)
        return ours_ms - skew.ahead_ms

    def aged_until_ms(self, loaded: LoadedTable) -> int:
        """The time until which ages count: :meth:`now_ms`, or that of the plan which the pass applies."""
        now_ms = self.now_ms(loaded)
        return now_ms if self._as_of_ms is None else min(now_ms, self._as_of_ms)

    def trusted_now_ms(self, loaded: LoadedTable, period_ms: int, key: str) -> int:
        """As :meth:`aged_until_ms`, for deletions; ``key``: the policy key of the waiting period ``period_ms``.

        Raises:
            OperationRefused: our clock and the store's differ by more than the period.
        """
        skew, _ = self._look(loaded)
        if skew.is_told and abs(skew.ahead_ms) > period_ms:
            raise OperationRefused(
                f"{skew_sentence(skew.ahead_s)}, or the store's: with a difference of more than {key} "
                f"({period_ms / HOUR_MS:g} h) no age can be trusted; nothing was deleted"
            )
        return self.aged_until_ms(loaded)

    @property
    def metrics(self) -> Mapping[str, int]:
        """The largest reported difference of clocks so far."""
        return {CLOCK_SKEW: max(self._told, key=abs)} if self._told else {}

    def _look(self, loaded: LoadedTable) -> tuple[_Skew, int]:
        """The current difference, and our time (epoch milliseconds); a large difference is logged once."""
        location = loaded.metadata.location
        ours_ms, steady_ms = self._clock(), int(steady_s() * 1000)
        skew = self._measured.get(location)
        if skew is None or not skew.holds_at(ours_ms, steady_ms):
            stores_ms = self._store_clock(self.storage(loaded), location, self._may_write)
            ours_ms = self._clock()
            skew = _Skew(ahead_ms(ours_ms, stores_ms), ours_ms, int(steady_s() * 1000))
            self._measured[location] = skew
            if skew.is_told:
                self._told.append(skew.ahead_s)
                log.warning("%s: %s", location, skew_sentence(skew.ahead_s))
        return skew, ours_ms


_RETRIES = Policy().max_commit_retries


def user_name() -> str:
    """The name of the user of this process, for the journal."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return "somebody"


@dataclass(frozen=True, slots=True)
class TableHandle:
    """Catalog, state store and clocks for one table, for commands outside a pass."""

    catalog: Catalog
    table: TableName
    state: StateStore
    clock: Clock
    sleep: Callable[[float], None] = time.sleep
    store_clock: StoreClock = store_now_ms

    def load(self) -> LoadedTable:
        """The newest state of the table.

        Raises:
            PolicyError: there is no such table.
            StorageError: it cannot be loaded.
        """
        return self.catalog.load(self.table)

    def memory(self, loaded: LoadedTable) -> TableMemory:
        """The table's records in the state store, by the clock of its store."""
        stores = Stores(self.clock, self.store_clock, may_write=True)
        return TableMemory(self.state, identity_of(self.catalog, loaded), partial(stores.now_ms, loaded))

    def journal(self, loaded: LoadedTable, summary: str) -> None:
        """Record in the table's journal what a person did.

        Raises:
            StorageError: the state store cannot be written.
        """
        now_ms = self.clock()
        self.state.record_pass(
            PassRecord(
                identity=identity_of(self.catalog, loaded),
                run_id=str(uuid.uuid4()),
                started_ms=now_ms,
                finished_ms=now_ms,
                status="succeeded",
                summary=summary,
                engine="none",
            )
        )

    def commit(
        self,
        loaded: LoadedTable,
        memory: TableMemory,
        prepare: Callable[[LoadedTable], PreparedCommit | Nothing],
    ) -> Committed | Nothing:
        """Commit changes of refs or properties, without new files.

        It deletes no metadata files, whatever the table's properties say, because only passes check who else needs
        them; orphan removal deletes them later (rule: metadata-deleted-only-if-own).

        Raises:
            MaintenanceError: as :func:`commit_with_retries` does.
        """

        def discard(paths: Sequence[str]) -> None:  # the metadata file of a refused commit; nothing else was written
            Storage(loaded.io_properties).delete(paths)

        logged: set[str] = set()

        def prepared(head: LoadedTable) -> PreparedCommit | Nothing:
            logged.update(str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
            return prepare(head)

        terms = CommitTerms(
            max_retries=_RETRIES,
            discard=discard,
            pinned_metadata=lambda: (*memory.pinned_metadata(), *logged),
            sleep=self.sleep,
        )
        return commit_with_retries(self.catalog, loaded, prepared, terms)


# The metadata files of a table: those in its store, and those that other catalog entries need.


def metadata_folders(metadata: TableMetadata) -> tuple[str, ...]:
    """The folders of the table's metadata files: ``write.metadata.path`` and the default one.

    Another head of the table may have set or removed the property.  Some writers keep the slash at the end of a
    location, and the default folder of their files is another one in S3 (rule: keys-are-text).
    """
    own, usual = metadata.metadata_directory, f"{metadata.location}/metadata"
    literal = f"{metadata.document['location']}/metadata"
    by_key = {(place.authority, place.key): one for one in (literal, usual, own) for place in [compared(one)]}
    return tuple(reversed(by_key.values()))


def listed_metadata(
    storage: Storage, table: LoadedTable, *, apart_from: str | None = None
) -> Sequence[ListedObject] | None:
    """The metadata files in the table's metadata folders; ``None``: a folder cannot be listed, as in S3 table buckets.

    ``apart_from``: a folder that the caller has listed already, with all below it.

    Raises:
        StorageError: the store does not answer.
    """
    files: list[ListedObject] = []
    for folder in metadata_folders(table.metadata):
        if apart_from is not None and is_under(folder, apart_from):
            continue
        listed = storage.list_if_allowed(folder)
        if listed is None:
            return None
        files += (found for found in listed if is_metadata_file(found.path))
    return files


def read_listed_metadata(storage: Storage, path: str) -> TableMetadata | None:
    """The content of a listed metadata file; ``None``: it is gone by now, or damaged.

    Raises:
        StorageError: the store does not answer.
    """
    try:
        return parse_document(storage.read(path), path)
    except MetadataUnreadable:
        return None
    except StorageError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise


# If the age of the current metadata file is unknown, this many of the youngest others are read.
_MOST = 16


def newer_metadata(storage: Storage, table: LoadedTable) -> Iterator[TableMetadata]:
    """The metadata files that the table does not know and that are not older than its current one.

    They show commits that a lagging replica of the catalog hides; a store does not lag.  Read only if a refused commit
    may have landed (rule: keep-files-while-commit-may-land).  Empty if nothing can be listed.

    Raises:
        StorageError: the store does not answer.
    """
    listed = {normalise(found.path): found for found in listed_metadata(storage, table) or ()}
    current = listed.get(normalise(table.metadata_location))
    known = set(map(normalise, metadata_files(table.metadata, table.metadata_location)))
    unknown = [found for path, found in listed.items() if path not in known]
    unknown.sort(key=lambda found: found.modified_ms or 0, reverse=True)
    if current is None or current.modified_ms is None:
        unknown = unknown[:_MOST]
    else:  # both times are by the store's clock
        oldest_ms = current.modified_ms
        unknown = [found for found in unknown if found.modified_ms is None or found.modified_ms >= oldest_ms]
    for found in unknown:
        metadata = read_listed_metadata(storage, found.path)
        if metadata is not None:
            yield metadata


def deletes_after_commit(metadata: TableMetadata) -> bool:
    """Whether commits delete the metadata files that leave the table's metadata log."""
    return metadata.property_flag("write.metadata.delete-after-commit.enabled", default=False)


def metadata_of_other_entries(
    state: StateStore,
    catalog: Catalog,
    head: LoadedTable,
    other_catalog: Callable[[CatalogId], Catalog | None],
    run: str,
) -> Iterator[str]:
    """The metadata files that other entries of the table point at or log, which a commit must not delete.

    With ``write.metadata.delete-after-commit.enabled``, a commit deletes the metadata files that leave the log.  An
    entry of the table in another catalog, or under another name, may still point at one of them.  A copy with the
    table's UUID and location looks like such an entry, so the files in its log are kept, too
    (rule: metadata-deleted-only-if-own).  If an entry cannot be loaded, or the look of this ``run`` missed a table that
    no rule keeps apart, the whole log is kept.

    Raises:
        StorageError: the state store failed.
    """
    if not deletes_after_commit(head.metadata):
        return
    looks = [look for look in state.claims.looks() if look.run == run]
    yield from (one.pointer for look in looks for one in look.unseen if one.pointer)
    if any(look.is_blind(head.is_kept_apart_from) for look in looks):
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
        return
    identity = identity_of(catalog, head)
    for claims in state.claims.touching(identity.location):
        if claims.copy != identity.copy or claims.entry == Entry(catalog.id, head.name.key):
            continue
        try:
            other = catalog if claims.catalog == catalog.id else other_catalog(claims.catalog)
        except MaintenanceError:
            other = None
        try:
            if other is not None:
                there = other.load(claims.table)
                yield there.metadata_location
                yield from (str(entry["metadata-file"]) for entry in there.metadata.metadata_log)
                continue
        except MaintenanceError:  # also if it is missing: it may be hidden
            pass
        yield from (str(entry["metadata-file"]) for entry in head.metadata.metadata_log)
