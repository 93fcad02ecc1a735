"""Deletes planned orphans, batch by batch, each after another look at every table that could need them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.deletion.guard import Confirm, DeletedFiles, delete_unreferenced
from icekeeper.deletion.shared_references import SharedReferences
from icekeeper.metadata.reachability import References
from icekeeper.pass_context.context import OperationContext
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.storage import Storage

__all__ = ["delete_orphans", "still_old"]

_WHAT = "remove_orphans: files"
_PARALLEL_LOOKS = 16


def delete_orphans(
    context: OperationContext,
    known: LoadedTable,
    paths: Sequence[str],
    references: References,
    shared: SharedReferences | None,
    confirm: Confirm | None,
    what: str = _WHAT,
) -> DeletedFiles:
    """As :func:`delete_unreferenced`, and nothing that a table sharing the location, or ``confirm``, speaks for.

    Raises:
        OperationRefused: a table was replaced, or cannot be loaded any more; the rest stays.
        MetadataUnreadable: new references cannot be read; the rest stays.
    """

    def still_wanted(batch: Sequence[str]) -> Sequence[str]:
        if shared:
            shared.refresh()
            batch = [path for path in batch if path not in shared]
        return batch if confirm is None else confirm(batch)

    return delete_unreferenced(context, known, paths, what, references, still_wanted)


def still_old(storage: Storage, paths: Iterable[str], older_than_ms: int) -> list[ListedObject]:
    """The files as they are now, those left out that are gone, or younger than a list from yesterday says.

    Raises:
        StorageError: the store could not tell.
    """
    with ThreadPoolExecutor(_PARALLEL_LOOKS, thread_name_prefix="orphan-look") as pool:
        found = pool.map(storage.status, paths)
        return [f for f in found if f is not None and f.modified_ms is not None and f.modified_ms < older_than_ms]
