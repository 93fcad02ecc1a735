"""Checks whether a bucket in which files are deleted is a second name of a bucket in which other tables have files.

An access point, a proxy or a replica shows the objects of a bucket under another name, with the same keys
(platform: buckets-have-second-names).  Paths under the two names never compare as equal, so neither claims nor
references protect the files of those tables.  If another table has files at the same keys of another bucket, nothing
is deleted until a file of that bucket proves that the two names denote two buckets (rule: second-names-of-buckets).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain, islice

from icekeeper.catalogs.catalog import Catalog, LoadedTable
from icekeeper.deletion.near_tables import opened
from icekeeper.deletion.neighbours import behind_authority, has_its_own_bucket, owned_locations
from icekeeper.deletion.other_tables import LimitedLooks, rules_to_write
from icekeeper.errors import MaintenanceError, OperationRefused, StorageError
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import TableName
from icekeeper.pass_context.context import OperationContext
from icekeeper.state.claims import TableClaims, store_of, touches
from icekeeper.storage.paths import authority, is_s3, normalise, split_path
from icekeeper.storage.s3_reads import ObjectPart
from icekeeper.storage.storage import Storage

# At most so many tables of a bucket are searched for a file in it, and at most so many files of each.
_MOST_TABLES = 8
_MOST_FILES = 1000


def refuse_second_names(context: OperationContext, own: LoadedTable) -> None:
    """Refuse deletions if a bucket of ``own`` may be a second name of a bucket with files of other tables.  Two names
    are compared once a run, after its look at all tables.

    Raises:
        OperationRefused: a bucket of ``own`` shows a file of another table, which names another bucket; or this cannot
            be determined.
        StorageError: the state store failed.
    """
    homes = [normalise(place) for place in owned_locations(own.metadata) if is_s3(place)]
    with context.catalogs.run.lock:
        for home in homes:
            if not has_its_own_bucket(home):
                _refuse_in(context, own, home)


def _refuse_in(context: OperationContext, own: LoadedTable, home: str) -> None:
    run, here = context.catalogs.run, store_of(home)
    looks = context.state.claims.looks()
    looked_ms = {look.catalog: look.looked_ms for look in looks}
    if run.claims is None or run.claims[0] != looked_ms:
        found_claims = chain.from_iterable(context.state.claims.of_catalog(look.catalog) for look in looks)
        run.claims = looked_ms, [claims for claims in found_claims if claims.location]
    all_claims = run.claims[1]
    near: dict[str, list[TableClaims]] = {}
    for known in all_claims:
        for there in {store_of(folder) for folder in _folders(known) if _has_same_keys(folder, home)}:
            near.setdefault(there, []).append(known)
    for there, claims in sorted(near.items()):
        names, first, why = (here, there), claims[0], ""
        if names not in run.same_buckets:
            others = (known for known in all_claims if any(store_of(folder) == there for folder in _folders(known)))
            asked = list({known.entry: known for known in (*claims, *others)}.values())[:_MOST_TABLES]
            found, why = _are_same(context, own, names, asked)
            if found is not None:
                run.same_buckets[names] = found
        what = f"a second name of {there}, where {first.table} of catalog {first.catalog} has files at the same keys"
        if run.same_buckets.get(names):
            raise OperationRefused(
                f"{here} is {what} as {own.name}: both names show the same file; nothing was deleted; "
                f"register {own.name} under {there}"
            )
        if why and not all(own.is_kept_apart_from(known.catalog, known.table) for known in claims):
            forget = ("icekeeper", "claims", "forget", str(own.name), "--catalog", context.catalogs.own.id.name)
            entry = ("--by-catalog", first.catalog.name, "--by-table", str(first.table))
            raise OperationRefused(
                f"{here} may be {what} as {own.name}, and this cannot be checked: {why}; nothing was deleted; repair "
                f"that table{rules_to_write(context.catalogs.own.id, own, first.catalog, first.table)}; if it is gone "
                f"for good: {shlex.join((*forget, *entry))}"
            )


def _folders(claims: TableClaims) -> tuple[str, ...]:
    return (claims.location, *claims.folders)


def _has_same_keys(folder: str, home: str) -> bool:
    """Whether a folder of another bucket, apart from its bucket's name, touches ``home``."""
    if not is_s3(folder) or store_of(folder) == store_of(home) or has_its_own_bucket(folder):
        return False
    return touches(behind_authority(folder), behind_authority(home))


def _are_same(
    context: OperationContext, own: LoadedTable, names: tuple[str, str], asked: Sequence[TableClaims]
) -> tuple[bool | None, str]:
    """Whether two names denote the same bucket; ``None``: not known, and the reason."""
    why = ""
    for claims in asked:
        catalog = opened(context, claims)
        if catalog is None or isinstance(catalog, str):
            why = catalog or f"catalog {claims.catalog} cannot be opened"
            continue
        ask = partial(_ask, context, context.stores.storage(own).operators(), names, catalog, claims.table)
        try:
            found = LimitedLooks(context, catalog).look(claims.table, ask)
        except (MaintenanceError, AttributeError, KeyError, TypeError, ValueError) as error:  # or invalid metadata
            why = str(error)
            continue
        if found is not None:
            return found, ""
        why = f"no file of {claims.table} was found there"
    return None, why


def _ask(
    context: OperationContext, here_store: Storage, names: tuple[str, str], catalog: Catalog, table: TableName
) -> bool | None:
    """Whether the bucket ``names[0]`` shows a file that this table has in ``names[1]``; ``None``: the table has no
    file there, or the file is gone."""
    here, there = names
    loaded = catalog.load(table)
    there_store = context.stores.storage(loaded)
    path = next((file for file in islice(_files(loaded, there_store), _MOST_FILES) if authority(file) == there), None)
    if path is None:
        return None
    # Look under ``here`` first: a file that is missing there and then found under ``there`` was never under ``here``.
    shown, known = _shown(here_store, f"{here}/{split_path(path).key}"), _seen(there_store, path)
    if known is None:
        return None
    return shown is not None and shown.size == known.size and shown.etag in (None, known.etag)


def _files(loaded: LoadedTable, storage: Storage) -> Iterator[str]:
    yield loaded.metadata_location
    snapshot = loaded.metadata.current_snapshot
    if snapshot is not None:
        reader = TableReader(loaded.metadata, storage.read)
        yield from reader.live_paths(reader.manifests_of([snapshot]))


def _shown(storage: Storage, path: str) -> ObjectPart | None:
    """Like :func:`_seen`, for a path that is probably missing."""
    try:
        return _seen(storage, path)
    except StorageError as error:
        if not isinstance(error.__cause__, PermissionError):
            raise
        # S3 answers 403 for a missing object if listing is allowed only below a prefix (vended credentials).
        listed = (found for found in storage.list_folder(path.rpartition("/")[0]) if found.path == path)
        return next((ObjectPart(b"", found.size) for found in listed), None)


def _seen(storage: Storage, path: str) -> ObjectPart | None:
    """The object's size and ETag; ``None``: there is no such object.

    Raises:
        StorageError: the store failed, or did not answer whether the object exists.
    """
    try:
        return storage.read_end(path, 1)
    except StorageError as error:
        if storage.shows_missing(path, error):
            return None
        raise
