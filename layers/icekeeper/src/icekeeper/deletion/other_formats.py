"""Finds tables of other formats in a table's folders: Delta Lake, Hudi and Paimon, by the folder of their log.

Which files they need is written in their logs, which are not read here; so all files in their folders may be needed.
Sources: Delta Lake's protocol ("Delta Log Entries", ``_delta_log``), Hudi's technical specification ("Storage Format",
``.hoodie``), Paimon's specification ("Schema" and "Snapshot": ``schema/schema-0``, ``snapshot/snapshot-1``)
(rule 124).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice

from icekeeper.machine.metering import WorkThreads
from icekeeper.pass_context.footprint import spelled_root
from icekeeper.storage.paths import is_under
from icekeeper.storage.storage import Storage

__all__ = ["find_other_formats", "other_format_at"]

_PARALLEL_LOOKS = 16
# So many files of a folder are looked at for a marker; one answer of a store holds more.
_FILES_LOOKED_AT = 100
# So many roots beside each other are no tables, but days or hashes of one: only the folder around them is looked at.
_MOST_SIBLINGS = 50
_MARKER = re.compile(r"/(?:(?:_delta_log|\.hoodie)/|schema/schema-\d+\Z|snapshot/snapshot-\d+\Z)")
# Where a file shows a marker: Paimon keeps every schema, but not every snapshot.
_MARKED = ("_delta_log", ".hoodie", "schema")


def other_format_at(path: str) -> str | None:
    """The folder of another format's table if the path is a file of its log; else ``None``."""
    found = _MARKER.search(path)
    return None if found is None else path[: found.start()]


def find_other_formats(storage: Storage, locations: Sequence[str], paths: Iterable[str]) -> frozenset[str]:
    """Look for tables of other formats in the folders of these data files, and in those above, up to the locations.

    Raises:
        StorageError: the store does not answer.
    """
    folders = sorted({folder for root in _few_roots(paths) for folder in _up_to(root, locations)})
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="format-look") as pool:
        found = pool.map(partial(_is_other_format, storage), folders)
        return frozenset(folder for folder, is_one in zip(folders, found, strict=True) if is_one)


def _few_roots(paths: Iterable[str]) -> Iterator[str]:
    siblings: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        root = spelled_root(path)
        siblings[root.rpartition("/")[0]].add(root)
    for parent, roots in siblings.items():
        yield from (parent,) if len(roots) > _MOST_SIBLINGS else roots


def _up_to(folder: str, locations: Sequence[str]) -> Iterator[str]:
    """The folder, and every folder above it up to the location that contains it, included."""
    yield folder
    while any(is_under(folder, location) for location in locations):
        folder = folder.rpartition("/")[0]
        yield folder


def _is_other_format(storage: Storage, folder: str) -> bool:
    there = storage.folders_in(folder)  # hardly ever one of them
    marked = _MARKED if there is None else [name for name in _MARKED if name in there]
    listed = (islice(storage.list_folder(f"{folder}/{name}"), _FILES_LOOKED_AT) for name in marked)
    return any(other_format_at(found.path) == folder for found in chain.from_iterable(listed))
