"""Which partitions are past their retention, and which delete files are dropped with them.  Reads no files.

As in Apache Paimon, the time in the partition's value decides, not the time when its files were written.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TypeAlias

from icekeeper.errors import OperationRefused
from icekeeper.metadata.delete_scope import PartitionKey, named_file, partition_key
from icekeeper.model import DataFile, FileContent, Nothing, PartitionValue
from icekeeper.policy.filters import depends_on_now
from icekeeper.policy.partition_time import PartitionTimes
from icekeeper.policy.values import text_of

NO_RETENTION = "no partition_retention_hours is set"
NOTHING_TO_EXPIRE = "no partitions to expire"
NOTHING_MATCHES = "no partitions to expire whose rows all match where"
WHERE_ALONE = (
    "no partition_retention_hours is set; without it, where chooses partitions only if it comes from the same source "
    "as operations=expire_partitions, for example from the same call"
)

PartitionChoice: TypeAlias = Callable[[int, tuple[PartitionValue, ...]], bool]
"""Whether a partition of a spec id may be dropped."""


@dataclass(slots=True)
class LivePartitions:
    """Collects the partitions of live data files; once all partitions are added, :meth:`plan` decides which expire."""

    times: PartitionTimes
    ends: dict[PartitionKey, int] = field(default_factory=dict)
    unparsed: set[PartitionKey] = field(default_factory=set)
    """The partitions that are kept because the time pattern does not match their value."""
    has_younger: bool = False
    """Whether a partition that was not added is known to be younger than those that expire."""
    is_chosen: PartitionChoice | None = None
    """Whether a partition may expire; ``None``: all may."""
    spared: set[PartitionKey] = field(default_factory=set)

    def add(self, spec_id: int, partition: tuple[PartitionValue, ...]) -> None:
        """Add the partition of a live data file."""
        key = partition_key(spec_id, partition)
        if key in self.ends or key in self.unparsed:
            return
        if self.is_chosen is not None and not self.is_chosen(spec_id, partition):
            self.spared.add(key)
        end = self.times.end_ms(spec_id, partition)
        if end is not None:
            self.ends[key] = end
        elif self.times.is_unparsed(spec_id, partition):
            self.unparsed.add(key)

    def plan(self, cutoff_ms: int, retention_hours: object) -> frozenset[PartitionKey] | Nothing:
        """The partitions that ended before ``cutoff_ms``.

        Raises:
            OperationRefused: no partition with a known time would remain; a wrong clock must not empty a table.
        """
        expired = sorted((end, repr(key), key) for key, end in self.ends.items() if end < cutoff_ms)
        if not expired:
            return Nothing(NOTHING_TO_EXPIRE)
        if len(expired) == len(self.ends) and not self.has_younger:
            raise OperationRefused(
                f"every partition of the table is past partition_retention_hours {text_of(retention_hours)}, the "
                f"newest since {_moment(expired[-1][0])}; nothing was dropped: check the clock, or drop the last "
                "partition yourself"
            )
        expired = [found for found in expired if found[2] not in self.spared]
        if not expired:
            return Nothing(NOTHING_MATCHES)
        return frozenset(key for _, _, key in expired)


def chosen_partitions(
    live: Iterable[tuple[int, tuple[PartitionValue, ...]]], is_chosen: PartitionChoice, where: str
) -> frozenset[PartitionKey] | Nothing:
    """The partitions to drop whatever their age: those that the filter chooses.

    ``live``: spec id and partition of each live data file.

    Raises:
        OperationRefused: all of several partitions would be dropped, or the last partition because of the current time.
            Neither a wrong filter nor a wrong clock must empty a table.
    """
    chosen, staying = set[PartitionKey](), set[PartitionKey]()
    for spec_id, partition in live:
        key = partition_key(spec_id, partition)
        if key not in chosen and key not in staying:
            (chosen if is_chosen(spec_id, partition) else staying).add(key)
    if not chosen:
        return Nothing(NOTHING_MATCHES)
    if not staying and len(chosen) > 1:
        raise OperationRefused(
            f'every partition of the table matches where "{where}"; nothing was dropped: exclude a partition from the '
            "filter; a later filter can drop it alone"
        )
    if not staying and depends_on_now(where):
        raise OperationRefused(
            f'the last partition of the table matches where "{where}", which depends on the current time; nothing was '
            "dropped: name its values to drop it"
        )
    return frozenset(chosen)


def partitions_sharing_files(
    expired: Iterable[tuple[PartitionKey, str]], staying: Collection[int]
) -> frozenset[PartitionKey]:
    """The partitions that share a file with another partition: a file is dropped by path, so dropping it would empty
    both.

    ``expired``: partition and path of each file to drop; ``staying``: the hashes of all other paths.
    """
    partitions: dict[str, set[PartitionKey]] = defaultdict(set)
    for key, path in expired:
        partitions[path].add(key)
    elsewhere = {hash(path) for path in partitions}.intersection(staying)
    shared = (keys for path, keys in partitions.items() if len(keys) > 1 or hash(path) in elsewhere)
    return frozenset(key for keys in shared for key in keys)


def goes_with(
    file: DataFile, spec_id: int, *, is_global: bool, partitions: frozenset[PartitionKey], dropped: frozenset[str]
) -> bool:
    """Whether a delete file is useless once these partitions, with the data files ``dropped``, are removed.

    If it names a data file, that file decides, whatever its own partition.  Global equality deletes are kept
    (rule: deletes-reach-one-partition, named-deletes-reach-anywhere, drop-only-fully-matched-partitions).
    """
    named = named_file(file)
    if named is not None:
        return named in dropped
    if file.content is FileContent.EQUALITY_DELETES and is_global:
        return False
    return partition_key(spec_id, file.partition) in partitions


def _moment(epoch_ms: int) -> str:
    try:
        return f"{datetime.fromtimestamp(epoch_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return f"epoch millisecond {epoch_ms}"
