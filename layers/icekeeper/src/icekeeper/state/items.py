"""Items, the form in which all records are stored, and the interface of a table of items.

An item has a partition key ``pk``, a sort key ``sk``, and attributes: text, whole numbers, booleans, sets of text, and
bytes in ``paths``.  An attribute that is ``None`` is not stored.  Values with fractions are stored as JSON text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from icekeeper.errors import PolicyError, StorageError

Item: TypeAlias = dict[str, Any]
Stored = TypeVar("Stored")

REMOVED: Item = {}
"""A decision returns this to remove the item."""

Decision: TypeAlias = Callable[[Item | None], Item | None]
"""Maps the stored item (``None``: there is none) to its replacement, ``REMOVED``, or ``None`` to change nothing."""


class ItemTable(Protocol):
    """A table of items; threads may share it.

    Every method raises StorageError when the table cannot be used.  A read sees all earlier writes.
    """

    is_local: bool
    """Whether a read costs almost nothing, and inside :meth:`together` sees the items that the block replaces."""

    def get(self, pk: str, sk: str) -> Item | None: ...

    def query(
        self,
        pk: str,
        prefix: str = "",
        *,
        attributes: tuple[str, ...] = (),
        passed_over: Callable[[StorageError], None] | None = None,
    ) -> Iterator[Item]:
        """The items of a partition whose sort keys start with ``prefix``, ordered by sort key (as UTF-8 bytes).

        A few megabytes are read at a time.  ``attributes`` are those that the caller needs, if not all.  If
        ``passed_over`` is given, items with values of a wrong type are skipped, and it is called with the error.
        """
        ...

    def newest(self, pk: str, limit: int) -> Iterator[Item]:
        """The items of a partition with the largest ``finished_ms``, largest first."""
        ...

    def put(self, item: Item) -> None:
        """Write an item, replacing an item of the same key."""
        ...

    def put_all(self, items: Iterable[Item]) -> None:
        """Write items, whose keys must differ, replacing those of the same keys; on an error, some may be written."""
        ...

    def add(self, pk: str, sk: str, more: Mapping[str, int], *, keep_ms: int) -> None:
        """Add numbers to the attributes of an item, which is created if it does not exist.

        A repeated request may count twice: use this for figures only, never for decisions.
        """
        ...

    def delete(self, pk: str, sk: str) -> None:
        """Remove an item, if there is one."""
        ...

    def delete_all(self, pk: str, sks: Iterable[str]) -> None:
        """Remove the items of these sort keys, which must differ, if they exist."""
        ...

    def clear(self, pk: str) -> None:
        """Remove all items of a partition."""
        ...

    def change(self, pk: str, sk: str, decide: Decision, *, is_likely_new: bool = False) -> bool:
        """Replace or remove an item as ``decide`` returns, and return whether the item was changed.

        ``decide`` is called again if another writer was faster.  If it raises, nothing was changed.  With
        ``is_likely_new`` a remote store saves a read: it calls ``decide`` with ``None`` before it knows the item.
        """
        ...

    def set_if(
        self, pk: str, sk: str, values: Item, *, equal: Item, outside: Mapping[str, tuple[int, int]]
    ) -> Item | None:
        """Set attributes of an item if those of ``equal`` are equal, and none of ``outside`` is within its two bounds.

        Return the item as it is then.  If the answer to a request is lost, the condition may fail although the values
        were set: compare the item.
        """
        ...

    def together(self, *, to_read: bool = False) -> AbstractContextManager[None]:
        """Inside the block, a store with transactions (not DynamoDB) does all calls of this thread in one transaction.

        ``to_read``: nothing is written, and all reads see one state.
        """
        ...

    def kept_open(self) -> AbstractContextManager[None]:
        """Inside the block, calls of this thread open the store only once."""
        ...

    def require_writable(self) -> None:
        """Raise StorageError if nothing can be written."""
        ...

    def expires_s(self, keep_ms: int, *, at_least_ms: int = 0) -> int | None:
        """The TTL (epoch seconds) that keeps an item for ``keep_ms`` after now and after ``at_least_ms``.

        ``None``: the store removes no items by itself.
        """
        ...

    def to_table_clock(self, now_ms: int) -> int:
        """Convert a time of this machine's clock to the clock that decides when leases of this table expire."""
        ...


class Records:
    """Records of one kind in a table of items."""

    def __init__(self, table: ItemTable) -> None:
        self.table = table


_TYPE_NAMES: Mapping[type, str] = {int: "a whole number", str: "text", bool: "a boolean", bytes: "binary"}
# The types of attributes that code computes with, parses or compares.  Others are only shown, or not Icekeeper's.
_TYPES: Mapping[str, type] = {
    name: kind
    for kind, names in {
        int: "until_ms changed_ms run_out_ms counted_ms ended_ms observed_ms planned_ms requested_ms started_ms "
        "finished_ms tried_ms at_ms problems verified_ms cut_ms missing_ms snapshot_id file_count turn times",
        str: "name holder kind origin state prefixes list_id metadata_location version "
        "entry folder folders data_roots seen uuid location counters warnings policy metrics settings table_name "
        "catalog warehouse verdict timeline facts run_id status summary engine path why schema_digest digest look "
        "work failures passes values",
        bool: "impossible former_table from_content",
        bytes: "paths",
    }.items()
    for name in names.split()
}


class FoundItem(Item):
    """An item that was read from a store; errors about its attributes name it (rule: bad-state-items-stop-readers)."""

    def __init__(self, store: str, values: Mapping[str, Any]) -> None:
        """``store``: the name of the store in messages.

        Raises:
            StorageError: an attribute that Icekeeper writes has a wrong type; later: a missing attribute is looked up.
        """
        super().__init__(values)
        self.store = store
        for name, value in values.items():
            kind = _TYPES.get(name)
            if kind is not None and type(value) is not kind:
                raise damaged(self, f"its {name} is not {_TYPE_NAMES[kind]}")

    def __missing__(self, name: str) -> Any:
        raise damaged(self, f"it has no {name}")


def damaged(item: Mapping[str, Any], what: str) -> StorageError:
    """The error for a malformed item: it names the item's key and what to do."""
    return StorageError(
        f"{named(item)} is damaged ({what}); restore it from a backup, or delete it, and create the pin or staged "
        "load that it held again before anything is deleted"
    )


def named(item: Mapping[str, Any]) -> str:
    """An item as messages name it."""
    store = item.store if isinstance(item, FoundItem) else "the state"
    return f"the item {item.get('pk', '?')} / {item.get('sk', '?')} of {store}"


@contextmanager
def understood(item: Mapping[str, Any]) -> Iterator[None]:
    """Report an error about a value inside the block as damage of the item (rule: bad-state-items-stop-readers).

    Raises:
        StorageError: the block raised an error about a value.
    """
    try:
        yield
    except (AttributeError, OverflowError, PolicyError, RecursionError, TypeError, ValueError) as error:
        raise damaged(item, str(error)) from error


def decoded_items(
    found: Iterable[Stored], decode: Callable[[Stored], Item], passed_over: Callable[[StorageError], None] | None
) -> Iterator[Item]:
    """The items of a table's answer; a damaged item raises, unless there is ``passed_over`` (:meth:`ItemTable.query`).

    Raises:
        StorageError: as ``decode`` does.
    """
    for stored in found:
        try:
            item = decode(stored)
        except StorageError as error:
            if passed_over is None:
                raise
            passed_over(error)
        else:
            yield item
