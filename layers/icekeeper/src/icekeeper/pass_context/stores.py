"""The stores of a pass and their clocks, and the metadata files that its operations read once and share."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TypeAlias, TypeVar

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.catalogs.pointer import keeping_documents
from icekeeper.errors import OperationRefused
from icekeeper.machine.clock import HOUR_MS, LOGGED_SKEW_MS, Clock, ahead_ms, steady_s
from icekeeper.metadata.table_reader import DecodedList
from icekeeper.report.outcome import CLOCK_SKEW, skew_sentence
from icekeeper.storage.allowed_locations import ALLOWED_LOCATIONS, AllowedLocations
from icekeeper.storage.storage import Storage, StoreClock

log = logging.getLogger(__name__)

_MAGIC = b"Obj\x01"
_MARKER_BYTES = 16


def is_whole_avro(data: bytes) -> bool:
    """Whether an Avro container file looks whole; false for a file without blocks.

    Source: Apache Avro specification, "Object Container Files": the header and each block end with the same random
    marker of 16 bytes.  So a file that was cut between two blocks looks whole, too.
    """
    return data.startswith(_MAGIC) and data.find(data[-_MARKER_BYTES:]) < len(data) - _MARKER_BYTES


_MOST_BYTES = 32 * 1024 * 1024
_Key: TypeAlias = tuple[tuple[str, str], str]
_Kept = TypeVar("_Kept")
# The memory of a kept list without its entries, and of the reference to an entry.
_LIST_BYTES, _ITEM_BYTES = 512, 8


class MetadataCache:
    """Keeps the bytes of manifests, and decoded manifest lists, by store and path until it is full; safe to share
    between threads.

    These files never change (specification, "File System Operations").  Files that the pass writes are also read from
    the store, because a truncated file must stop deletions (rule: cache-only-immutable-metadata).  Another catalog's
    store may have a different file at the same path, so the store is part of the key.

    Nothing is evicted.  Operations read the same files in the same order, so evicting the oldest file would always
    remove the next file to be read.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._lock = Lock()
        self.files: dict[_Key, bytes] = {}
        self.lists: dict[_Key, DecodedList] = {}
        self._room = most_bytes

    def keep_file(self, place: tuple[str, str], path: str, data: bytes) -> None:
        """Keep a file of a place (:attr:`.Storage.place`), if it fits.

        A file that does not look like a whole Avro file is read again the next time.
        """
        if is_whole_avro(data):
            self._keep(self.files, (place, path), data, len(data))

    def keep_list(self, place: tuple[str, str], path: str, found: DecodedList, size: int) -> bool:
        """Keep a decoded manifest list, if it fits; ``size``: of those of its entries that no kept list has.

        A list without entries is read again the next time, because a truncated file looks like it.
        """
        return bool(found[1]) and self._keep(
            self.lists, (place, path), found, size + _LIST_BYTES + _ITEM_BYTES * len(found[1])
        )

    def _keep(self, kept: dict[_Key, _Kept], key: _Key, value: _Kept, size: int) -> bool:
        with self._lock:
            if key in kept or size > self._room:  # another thread may have read the same file
                return False
            self._room -= size
            kept[key] = value
            return True


@dataclass(frozen=True, slots=True)
class CachedFiles:
    """Reads manifests and manifest lists of a table through the cache, within the bound of ``storage``."""

    cache: MetadataCache
    storage: Storage

    def read(self, path: str) -> bytes:
        """The bytes of a manifest."""
        known = self.cache.files.get((self.storage.place, path))
        if known is not None:
            self.storage.require([path])  # another table's pass may have read it
            return known
        data = self.storage.read(path)
        self.cache.keep_file(self.storage.place, path, data)
        return data

    def read_list(self, path: str) -> DecodedList | bytes:
        """See :class:`.KnownLists`."""
        known = self.cache.lists.get((self.storage.place, path))
        if known is None:
            return self.storage.read(path)
        self.storage.require([path])
        return known

    def keep_list(self, path: str, found: DecodedList, size: int) -> bool:
        """See :class:`.KnownLists`."""
        return self.cache.keep_list(self.storage.place, path, found, size)


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
    """Contexts created inside the (outermost) block share what they read, including metadata files.

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


@dataclass(frozen=True, slots=True)
class _Skew:
    """How far our clock is ahead of a store's (negative: behind it), and when that was measured: by our clock, and by
    the steady clock."""

    ahead_ms: int
    ours_ms: int
    steady_ms: int

    @property
    def is_reported(self) -> bool:
        """Whether the difference is large enough to report."""
        return abs(self.ahead_ms) > LOGGED_SKEW_MS

    @property
    def ahead_s(self) -> int:
        """The difference in seconds, rounded towards zero."""
        return int(self.ahead_ms / 1000)

    def holds_at(self, ours_ms: int, steady_ms: int) -> bool:
        """Whether our clock was not set since the measurement: it advanced as much as the steady clock."""
        return ahead_ms(ours_ms - self.ours_ms, steady_ms - self.steady_ms) == 0


class Stores:
    """The stores of a pass, and the time by the clock of each store.

    Only a store's own clock shows how old a file is: a machine whose clock is days ahead would mistake files that are
    just being written for old files.  So the pass asks each store for its time once, and again if our clock was set
    meanwhile.  In between, the store's time is our clock minus the difference.  A difference of more than a minute is
    reported.
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

        ``as_of_ms``: ages count until this time at most.
        """
        self._as_of_ms = as_of_ms
        self._shared = shared or SharedReads()
        self.manifests = self._shared.manifests
        """The manifests and manifest lists that this pass has read."""
        self._clock, self._store_clock, self._may_write = clock, store_clock, may_write
        self._measured: dict[str, _Skew] = {}
        self._reported: list[int] = []

    def storage(self, loaded: LoadedTable) -> Storage:
        """Access to the table's files."""
        return self._shared.storage(loaded.io_properties)

    def now_ms(self, loaded: LoadedTable) -> int:
        """Epoch milliseconds by the clock of the table's store, or by ours if the store has none."""
        skew, ours_ms = self._look(loaded)
        return ours_ms - skew.ahead_ms

    def aged_until_ms(self, loaded: LoadedTable) -> int:
        """The time until which ages count: :meth:`now_ms`, or the time of the saved plan that the pass applies."""
        now_ms = self.now_ms(loaded)
        return now_ms if self._as_of_ms is None else min(now_ms, self._as_of_ms)

    def trusted_now_ms(self, loaded: LoadedTable, period_ms: int, key: str) -> int:
        """As :meth:`aged_until_ms`, for deletions; ``key``: the policy key of the waiting period ``period_ms``.

        Raises:
            OperationRefused: our clock and the store's differ by more than the period.
        """
        skew, _ = self._look(loaded)
        if skew.is_reported and abs(skew.ahead_ms) > period_ms:
            raise OperationRefused(
                f"{skew_sentence(skew.ahead_s)}, or the store's: with a difference of more than {key} "
                f"({period_ms / HOUR_MS:g} h) no age can be trusted; nothing was deleted"
            )
        return self.aged_until_ms(loaded)

    @property
    def metrics(self) -> Mapping[str, int]:
        """The largest reported difference of clocks so far."""
        return {CLOCK_SKEW: max(self._reported, key=abs)} if self._reported else {}

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
            if skew.is_reported:
                self._reported.append(skew.ahead_s)
                log.warning("%s: %s", location, skew_sentence(skew.ahead_s))
        return skew, ours_ms
