"""Decides whether a catalog entry is at the newest state of its table, by metadata files it does not know (rule 90).

The same table may be registered in two catalogs (a migration), and a catalog's database may come back from a backup:
then an entry points at an older state, and what the newer state needs looks like orphans.  The evidence lies beside the
table's own metadata.  Metadata that follows directly on the entry's may be a swap that crashed, or another head: what
it needs is spared.  Metadata that follows on metadata which the table does not know was swapped in somewhere: another
head.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.errors import OperationRefused
from icekeeper.metadata.document import TableMetadata
from icekeeper.storage.paths import normalise

__all__ = ["StrayMetadata", "is_past", "refuse_other_head"]

# "00012-<uuid>.metadata.json" of Iceberg-Java and PyIceberg, "v12.metadata.json" of Hadoop catalogs and SeaweedFS.
_NUMBER = re.compile(r"v?(\d+)[-.]")
# Between the clock of whoever made a commit and that of the store which stamped its metadata file.
_CLOCKS_DIFFER_MS = 15 * 60 * 1000
# Iceberg-Java's TableMetadata allows that a state is so much older than the one before it, by its writer's clock.
_STATES_MAY_OVERLAP_MS = 60 * 1000


@dataclass(frozen=True, slots=True)
class StrayMetadata:
    """A metadata file of the table that is neither the catalog entry's current one, nor in its metadata log."""

    path: str
    metadata: TableMetadata

    @property
    def base(self) -> str | None:
        """The normalised path of the metadata file that it was made from; ``None`` where its metadata log is empty."""
        log = self.metadata.metadata_log
        return normalise(str(log[-1]["metadata-file"])) if log else None


def is_past(table: LoadedTable, path: str, modified_ms: int | None) -> bool:
    """Whether a metadata file is surely older than every entry of the table's metadata log.

    Long histories leave very many of these; they are not read.
    """
    log = table.metadata.metadata_log
    oldest = min((int(entry["timestamp-ms"]) for entry in log), default=table.metadata.last_updated_ms)
    numbers = [_number(str(entry["metadata-file"])) for entry in log] + [_number(table.metadata_location)]
    number, known = _number(path), [known for known in numbers if known is not None]
    if number is not None and known and number >= min(known):
        return False
    return modified_ms is not None and modified_ms < oldest - _CLOCKS_DIFFER_MS


def refuse_other_head(table: LoadedTable, strays: Iterable[StrayMetadata]) -> Sequence[StrayMetadata]:
    """The metadata files that may be a newer head, whose references are to be spared: those one step beyond the entry.

    Raises:
        OperationRefused: a metadata file follows on another one that the table does not know either.
    """
    metadata = table.metadata
    known = {normalise(str(entry["metadata-file"])): int(entry["timestamp-ms"]) for entry in metadata.metadata_log}
    known[normalise(table.metadata_location)] = metadata.last_updated_ms
    made_ms = _made_ms(known)
    spared = []
    for stray in sorted(strays, key=lambda one: one.metadata.last_updated_ms, reverse=True):  # the newest is told
        number, base_number = _number(stray.path), None if stray.base is None else _number(stray.base)
        # Some catalogs leave entries out of the log: a number that is missing there is one of the table's own past.
        is_own_past = number is not None and number not in made_ms and _was_followed(stray, number, made_ms)
        # So is what lost a swap so long ago that the log does not reach back to it.
        reaches_back = base_number is None or base_number >= min(made_ms, default=0)
        lost_long_ago = not reaches_back and _was_followed(stray, base_number, made_ms)
        if is_own_past or lost_long_ago or normalise(stray.path) in known:
            continue
        is_unknown = stray.base is not None and stray.base not in known
        # What shows no more than the table knows may be all that another head has: then the numbers must tell.
        if _is_ancestor(metadata, stray.metadata) and (not is_unknown or base_number is None):
            continue
        if is_unknown:
            raise OperationRefused(
                f"{stray.path} is metadata of {table.name} that follows on metadata which its entry does not know "
                f"(that is at {table.metadata_location}): another catalog, or a newer state of this one, has a "
                "newer head of the table; nothing was deleted; point the entry at the newest metadata file, or drop "
                "the entry that is out of date; if that newer head is given up for good, delete its metadata files"
            )
        # One that follows on an older state lost against the commits that the table has made since.
        if stray.base is None or stray.base == normalise(table.metadata_location):
            spared.append(stray)
    return spared


def _made_ms(known: Mapping[str, int]) -> dict[int, int]:
    """Number of a metadata file → when it was made (epoch milliseconds); the last time where numbers began anew."""
    made_ms: dict[int, int] = {}
    for path, time_ms in known.items():
        number = _number(path)
        if number is not None:
            made_ms[number] = max(time_ms, made_ms.get(number, time_ms))
    return made_ms


def _was_followed(stray: StrayMetadata, number: int | None, made_ms: Mapping[int, int]) -> bool:
    """Whether a metadata file was made before the table went beyond a number.

    One that was made later, although its number is smaller, is of a head that went its own way and has moved since.
    """
    if number is None:
        return False
    following = min((known for known in made_ms if known > number), default=None)
    if following is None:
        return False
    return stray.metadata.last_updated_ms <= made_ms[following] + _STATES_MAY_OVERLAP_MS


def _is_ancestor(now: TableMetadata, then: TableMetadata) -> bool:
    """Whether everything that the older metadata refers to is in the newer one, too."""
    return then.snapshots.keys() <= now.snapshots.keys() and then.last_updated_ms <= now.last_updated_ms


def _number(path: str) -> int | None:
    match = _NUMBER.match(path.rpartition("/")[2])
    return int(match.group(1)) if match else None
