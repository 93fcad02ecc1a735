"""Referenced files that a listing lacks, and the orphans that may be damaged copies of them (rule 227).

A faulty copy of a table leaves its data files under wrong names: to a sweep they look like orphans, though they are the
last copies of rows.  So an orphan stays that has the size or the base name of a referenced file which is missing, and
nothing is swept where much of the table is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, islice

from icekeeper.deletion.referenced_paths import Hashes, UnlistedPaths, path_hash
from icekeeper.errors import OperationRefused, StorageError
from icekeeper.machine.metering import WorkThreads
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_reader import TableReader, manifests_of
from icekeeper.model import LiveFile, ManifestFile
from icekeeper.storage.listing import ListedObject
from icekeeper.storage.merged_spellings import any_spelling
from icekeeper.storage.storage import Storage

__all__ = ["MissingFiles", "find_missing"]

_PARALLEL_LOOKS = 16
# The store is asked about so many missing files, for ten seconds or so; more count as missing unasked.
_MOST_LOOKS = 10_000
# One file may be lost by an accident of its own.
_FEWEST = 2


@dataclass(frozen=True, slots=True)
class MissingFiles:
    """The data and delete files that a table references and that are not there."""

    count: int
    """Of all snapshots."""
    in_head: int
    """Of the newest state of main; of a table without main, of its branches."""
    head_files: int
    """How many files that state has."""
    first: str
    """The path of one of them, empty if there is none."""
    sizes: Hashes
    """Their sizes in bytes."""
    names: Hashes
    """Their base names, as hashes."""

    def resembles(self, found: ListedObject) -> bool:
        """Whether a file has the size or the base name of a missing one."""
        return bool(self.count) and (found.size in self.sizes or path_hash(_base_name(found.path)) in self.names)

    def refuse_too_many(self, limit: Fraction, source: str) -> None:
        """Refuse a sweep where more than ``limit`` of the newest state's files are missing, two at least.

        Raises:
            OperationRefused: names both numbers and the key.
        """
        if self.in_head < _FEWEST or self.in_head <= limit * self.head_files:
            return
        raise OperationRefused(
            f"{self.in_head} of the {self.head_files} files of the table are missing, as {self.first}, more than "
            f"orphan_max_missing_ratio {float(limit):g} ({source}) allows: unreferenced files may be the only copies "
            "of them; nothing was deleted; restore the missing files, or, if their rows are lost for good, run once "
            "with --set orphan_max_missing_ratio=1"
        )


def find_missing(
    storage: Storage, before: TableReader, after: TableMetadata, unlisted: UnlistedPaths, newest_ms: int | None
) -> MissingFiles:
    """The missing ones among the unlisted files: those that the store does not have, either.

    The manifests are read again, for their paths were kept as hashes only.

    Args:
        storage: the table's.
        before: reads the table as it was before the listing.
        after: the table after it; what no snapshot of both needs may have been deleted meanwhile.
        unlisted: the expected paths that the listing lacks.
        newest_ms: of a list made earlier, epoch milliseconds of its youngest file; files that were added later do not
            count.

    Raises:
        MetadataUnreadable: a manifest cannot be read.
    """
    snapshots = {number: one for number, one in before.metadata.snapshots.items() if number in after.snapshots}
    of_head = manifests_of(before, [snapshots[number] for number in before.metadata.head_ids if number in snapshots])
    others = {path: one for path, one in manifests_of(before, snapshots.values()).items() if path not in of_head}
    in_order = chain(
        ((True, file) for file in _added_before(newest_ms, before, of_head, snapshots)),
        ((False, file) for file in _added_before(newest_ms, before, others, snapshots)),
    )
    lacking = _unlisted_ones(in_order, unlisted)
    asked = list(islice(lacking, _MOST_LOOKS))
    with WorkThreads(_PARALLEL_LOOKS, thread_name_prefix="missing-look") as pool:
        gone = list(pool.map(partial(_is_gone, storage), (file.path for _, file in asked)))
    count = in_head = 0
    first, sizes, names = "", Hashes(), Hashes()
    for is_of_head, file in chain((one for one, is_gone in zip(asked, gone, strict=True) if is_gone), lacking):
        count, in_head, first = count + 1, in_head + is_of_head, first or file.path
        sizes.add((file.size,))
        names.add((path_hash(_base_name(file.path)),))
    files = sum((one.added_files_count or 0) + (one.existing_files_count or 0) for one in of_head.values())
    return MissingFiles(count, in_head, files, first, sizes, names)


def _added_before(
    newest_ms: int | None,
    reader: TableReader,
    manifests: Mapping[str, ManifestFile],
    snapshots: Mapping[int, Snapshot],
) -> Iterator[LiveFile]:
    """The live files of the manifests without those that a snapshot after ``newest_ms`` has added."""
    for path, files in reader.live_files(manifests):
        adder = manifests[path].added_snapshot_id
        for file in files:
            added = snapshots.get(file.snapshot_id or adder or 0)
            if newest_ms is None or added is None or added.timestamp_ms <= newest_ms:
                yield file


def _unlisted_ones(files: Iterable[tuple[bool, LiveFile]], unlisted: UnlistedPaths) -> Iterator[tuple[bool, LiveFile]]:
    """Those of the files that the listing lacks, each once."""
    told = bytearray(len(unlisted))
    for is_of_head, file in files:
        place = unlisted.place(file.path)
        if place is not None and not told[place]:
            told[place] = 1
            yield is_of_head, file


def _is_gone(storage: Storage, path: str) -> bool:
    try:
        return storage.status(path) is None
    except StorageError:  # what cannot be asked may be missing
        return True


def _base_name(path: str) -> str:
    return any_spelling(path).rpartition("/")[2]
