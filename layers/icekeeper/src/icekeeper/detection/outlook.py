"""What rewriting operations may find, by what the last pass left and what came since (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.detection.moving_scope import partitions_came_into_scope
from icekeeper.detection.signals import Signal, rewrites_are_blocked
from icekeeper.health.examine import listed_manifests, summary_counter, summary_counters
from icekeeper.metadata.document import Snapshot, TableMetadata, table_digest
from icekeeper.operations.compaction.missing import may_make_a_bin
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of
from icekeeper.state.slack import Slack
from icekeeper.state.store import LastSeen
from icekeeper.text import counted, size_text

# What came into a table since a pass looked, at most, as the summaries of the snapshots since then tell (pure).
#
# Counters are optional in the specification.  They are believed where totals and changes agree with the parent's
# totals; where they do not, or where history is gone, nothing is known.

# (total, what adds to it, what takes from it), as Java's SnapshotProducer.updateTotal pairs them.
_FILES = ("total-data-files", "added-data-files", "deleted-data-files")
_DELETES = ("total-delete-files", "added-delete-files", "removed-delete-files")
_BYTES = ("total-files-size", "added-files-size", "removed-files-size")


@dataclass(frozen=True, slots=True)
class Came:
    """What came at most; commits that only moved entries between manifests brought nothing."""

    data_files: int = 0
    in_one_partition: int = 0
    """Data files, at most, in any one partition."""
    bytes: int = 0
    delete_files: int = 0
    manifests: int | None = 0
    """``None``: not known."""
    removed: int = 0
    """Data files that are gone."""
    deletes_removed: int = 0
    """Delete files that are gone, but for deletion vectors that others replaced."""
    had_deletes: bool = False
    """Whether there were delete files when data files were removed, which perhaps nothing needs any more."""
    arrivals: tuple[tuple[int, int], ...] = ()
    """For each commit with data files: its time in epoch milliseconds, and ``in_one_partition`` up to it."""

    def reached_ms(self, files: int) -> int | None:
        """When a partition may first have got so many of the data files, in epoch milliseconds; ``None``: never."""
        return next((time_ms for time_ms, count in self.arrivals if count >= files), None)


def came_since(
    metadata: TableMetadata,
    head: Snapshot,
    snapshot_id: int,
    *,
    run_id: str | None = None,
    of_age_ms: int | None = None,
) -> Came | None:
    """What came after a snapshot, up to ``head``; ``None``: that cannot be told.

    Rewrites of data files by ``run_id`` are left out.  With ``of_age_ms`` only data files that came up to then count,
    which is for files that are looked at once they are old enough (epoch milliseconds).
    """
    since: list[Snapshot] = []
    for snapshot in metadata.ancestors(head.snapshot_id):
        if snapshot.snapshot_id == snapshot_id:
            break
        since.append(snapshot)
    else:
        return None
    came = Came()
    for snapshot in reversed(since):
        parent = metadata.snapshots[snapshot.parent_id] if snapshot.parent_id is not None else None
        if parent is None:
            return None
        if _is_own_rewrite(snapshot, run_id):
            continue
        added = _added(metadata, snapshot, parent)
        if added is None:
            return None
        if of_age_ms is not None and snapshot.timestamp_ms > of_age_ms:
            added = replace(added, data_files=0, in_one_partition=0, bytes=0)  # not in scope yet
        came = _together(came, added, snapshot.timestamp_ms)
    return came


def _is_own_rewrite(snapshot: Snapshot, run_id: str | None) -> bool:
    counters = summary_counters(snapshot)
    return run_id is not None and counters.get(RUN_ID_KEY) == run_id and "added-delete-files" not in counters


def _together(came: Came, added: Came, time_ms: int) -> Came:
    in_one = came.in_one_partition + added.in_one_partition
    unknown = came.manifests is None or added.manifests is None
    return Came(
        came.data_files + added.data_files,
        in_one,
        came.bytes + added.bytes,
        came.delete_files + added.delete_files,
        None if unknown else (came.manifests or 0) + (added.manifests or 0),
        came.removed + added.removed,
        came.deletes_removed + added.deletes_removed,
        came.had_deletes or added.had_deletes,
        (*came.arrivals, (time_ms, in_one)) if added.data_files else came.arrivals,
    )


def _added(metadata: TableMetadata, snapshot: Snapshot, parent: Snapshot) -> Came | None:
    """What one commit brought; ``None`` where its counters are not to be believed."""
    counters, before = summary_counters(snapshot), summary_counters(parent)
    changes = [_change(counters, before, keys, metadata.format_version) for keys in (_FILES, _DELETES, _BYTES)]
    if None in changes:
        return None
    (files, gone), (deletes, deletes_gone), (size, _) = (change or (0, 0) for change in changes)
    partitions = summary_counter(counters, "changed-partition-count")
    # Each partition takes one of the changed files; rows of older specs may go to one partition of the current spec.
    apart = partitions if partitions and len(metadata.specs) == 1 else 1
    in_one = max(0, min(files, files + gone + deletes + deletes_gone - apart + 1))
    created = summary_counter(counters, "manifests-created")
    # Merged manifests, and those that files were taken out of, hold old entries.
    is_plain = not (gone or deletes_gone or summary_counter(counters, "manifests-replaced"))
    return Came(
        data_files=files,
        in_one_partition=in_one,
        bytes=size,
        delete_files=deletes,
        manifests=(files + deletes if created is None else created) if is_plain else None,
        removed=gone,
        deletes_removed=deletes_gone - min(deletes_gone, summary_counter(counters, "removed-dvs") or 0),
        had_deletes=gone > 0 and summary_counter(before, _DELETES[0]) != 0 and metadata.format_version > 1,
    )


def _change(
    counters: Mapping[object, object], before: Mapping[object, object], keys: Sequence[str], version: int
) -> tuple[int, int] | None:
    """What was added and removed of one kind; a counter that is not there is 0 if that fits the totals."""
    total, plus, minus = keys
    added, removed = (summary_counter(counters, key) if key in counters else 0 for key in (plus, minus))
    if added is None or removed is None:
        return None
    then, now = (summary_counter(found, total) for found in (before, counters))
    if version == 1 and total == _DELETES[0] and total not in before and total not in counters:
        then = now = 0  # v1 has no delete files
    return (added, removed) if None not in (then, now) and (then or 0) + added - removed == now else None


# What rewriting operations may find, by what the last pass left and what came since (pure).
#
# A pass remembers what each operation lacked (:class:`icekeeper.state.slack.Slack`).  An operation is *settled* as long
# as less than that came: then it is no reason for a pass, whatever the table's averages look like.  Where enough may
# have come, or that is not known, a pass looks, also where averages look well.

# A look that may find nothing: every table with a sign of need comes first.
_LOOK_WEIGHT = 0.05
_SINCE = "since the last pass"
_UNKNOWN = f"what came {_SINCE} cannot be told from the snapshots"


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the operations may find that rewrite files."""

    settled: Mapping[Operation, str] = field(default_factory=dict)
    """Those that can find nothing, and why not."""
    looks: tuple[Signal, ...] = ()
    """Why a pass should look although nothing else may tell that there is work."""


@dataclass(frozen=True, slots=True)
class _Verdict:
    is_settled: bool
    words: str


def time_has_come(metadata: TableMetadata, seen: LastSeen, now_ms: int) -> bool:
    """Whether there may be work at the very head at which a pass found none.

    The table's own settings may have changed since, or a partition may have come to rest.
    """
    digest = table_digest(metadata)
    return any(
        one.table_digest != digest or (one.rests_ms is not None and one.rests_ms <= now_ms)
        for one in seen.slack.values()
    )


def outlook(
    metadata: TableMetadata,
    head: Snapshot,
    resolved: ResolvedPolicy,
    seen: LastSeen | None,
    *,
    clusters: bool,
    now_ms: int,
    refused: Mapping[Operation, str] = MappingProxyType({}),
) -> Outlook:
    """The outlook at ``now_ms`` (epoch milliseconds); ``seen`` is what the last pass under these settings left.

    ``clusters``: compaction would cluster files.  ``refused``: operations that leave this table alone, and why.
    """
    settled = dict(refused)
    looks: list[Signal] = []
    for operation, judge in _JUDGES.items():
        if not resolved.runs(operation) or operation in refused:
            continue
        slack = None if seen is None else seen.slack.get(operation.value)
        if slack is None:
            verdict = _unseen(operation, head, resolved.policy, seen, clusters=clusters)
        else:
            verdict = _verdict(judge, _Look(metadata, head, resolved.policy, slack, now_ms))
        if verdict is None:
            continue
        if verdict.is_settled:
            settled[operation] = verdict.words
        elif _is_possible(operation, head, resolved.policy):
            looks.append(Signal(verdict.words, _LOOK_WEIGHT))
    return Outlook(settled, tuple(looks))


def _unseen(
    operation: Operation, head: Snapshot, policy: Policy, seen: LastSeen | None, *, clusters: bool
) -> _Verdict | None:
    """What is to be thought of an operation of which no slack is known; ``None``: only the table's averages count."""
    if operation is not Operation.COMPACT or (seen is not None and seen.idle):
        return None
    counters = summary_counters(head)
    files = summary_counter(counters, "total-data-files")
    # At least one of these is large where they are large enough on average; two may be runs that lie over one another.
    least = 2 if clusters else policy.min_input_files + 1
    if files is None or files < least or summary_counter(counters, "total-files-size") is None:
        return None
    if not policy.rewrite_enabled:
        return None
    if seen is None:
        return _Verdict(False, f"no pass under these settings has looked at the {counted(files, 'data file')}")
    return _Verdict(False, "the last pass left files to rewrite")


def _is_possible(operation: Operation, head: Snapshot, policy: Policy) -> bool:
    """Whether an operation can have work at all, by what the head counts."""
    counters = summary_counters(head)
    if operation is Operation.COMPACT:
        return not rewrites_are_blocked(counters, policy)
    if operation is Operation.REWRITE_MANIFESTS:
        files = [summary_counter(counters, f"total-{kind}-files") for kind in ("data", "delete")]
        known = listed_manifests(counters)
        # A manifest holds a file at least.
        most = known if known is not None else None if None in files else sum(count or 0 for count in files)
        return most is None or most >= policy.min_manifests_to_rewrite
    return summary_counter(counters, "total-delete-files") != 0


@dataclass(frozen=True, slots=True)
class _Look:
    """A table, and what the last pass left of one operation."""

    metadata: TableMetadata
    head: Snapshot
    policy: Policy
    slack: Slack
    now_ms: int

    def came(self) -> Came | None:
        """What came that counts for compaction: files that were too young before, too."""
        age_ms, planned_ms = self.policy.min_data_age_ms, self.slack.planned_ms
        run_id, base = self.slack.run_id, self.slack.snapshot_id
        if not age_ms or planned_ms is None:
            return came_since(self.metadata, self.head, base, run_id=run_id)
        older = (s for s in self.metadata.ancestors(base) if s.timestamp_ms <= planned_ms - age_ms)
        before = next(iter(older), None)
        if before is None:
            return None
        of_age_ms = self.now_ms - age_ms
        return came_since(self.metadata, self.head, before.snapshot_id, run_id=run_id, of_age_ms=of_age_ms)


def _verdict(judge: Callable[[_Look, Came], _Verdict], look: _Look) -> _Verdict:
    if look.slack.table_digest != table_digest(look.metadata):
        return _Verdict(False, f"the table's own settings changed {_SINCE}")
    looked_ms = look.slack.planned_ms
    if looked_ms is not None and partitions_came_into_scope(
        look.metadata, look.head, look.policy, looked_ms=looked_ms, now_ms=look.now_ms
    ):
        return _Verdict(False, "more partitions may be old enough than at the last pass")
    came = look.came()
    return _Verdict(False, _UNKNOWN) if came is None else judge(look, came)


def _compaction(look: _Look, came: Came) -> _Verdict:
    slack = look.slack
    if came.delete_files and slack.delete_files is not None:
        return _Verdict(False, f"{counted(came.delete_files, 'delete file')} came {_SINCE}")
    if came.deletes_removed or (came.removed and (slack.gains_by_removals or came.had_deletes)):
        return _Verdict(False, f"{counted(came.removed + came.deletes_removed, 'file')} left the table {_SINCE}")
    files = counted(came.data_files, "data file")
    least = min((enough for enough, _ in slack.data_files), default=0)
    if may_make_a_bin(slack.data_files, came.in_one_partition, came.bytes):
        return _Verdict(False, f"{files} came {_SINCE}, after which a partition lacked {least}")
    begun_ms = None if slack.files_to_rest is None else came.reached_ms(slack.files_to_rest)
    rests = [slack.rests_ms, None if begun_ms is None else begun_ms + slack.rest_ms]
    if any(rests_ms is not None and rests_ms <= look.now_ms for rests_ms in rests):
        hours = text_of(look.policy.partition_rest_hours)
        return _Verdict(False, f"a partition may have got no file for partition_rest_hours {hours}")
    if not came.data_files or not slack.data_files:
        return _Verdict(True, f"{files if came.data_files else 'no data file'} came {_SINCE}")
    if came.data_files < least:
        return _Verdict(True, f"{files} came {_SINCE}, fewer than the {least} that a partition lacks")
    if came.in_one_partition < least:
        return _Verdict(
            True, f"{files} came {_SINCE}, at most {came.in_one_partition} into one partition, which lacks {least}"
        )
    return _Verdict(True, f"{files} of {size_text(came.bytes)} came {_SINCE}, less than a partition lacks")


def _position_deletes(look: _Look, came: Came) -> _Verdict:
    least = look.slack.delete_files or 0
    files = counted(came.delete_files, "delete file")
    if came.deletes_removed or came.delete_files >= least:
        return _Verdict(False, f"{files} came {_SINCE}, after which a partition lacked {least}")
    return _Verdict(True, f"{files} came {_SINCE}, fewer than the {least} that a partition lacks")


def _manifests(look: _Look, came: Came) -> _Verdict:
    least = look.slack.manifests or 0
    if came.manifests is None:
        return _Verdict(False, f"manifests were written anew {_SINCE}")
    manifests = counted(came.manifests, "manifest")
    if came.manifests >= least:
        return _Verdict(False, f"up to {manifests} came {_SINCE}, after which {least} lacked")
    return _Verdict(True, f"{manifests} came {_SINCE}, fewer than the {least} that are worth a rewrite")


_JUDGES: Mapping[Operation, Callable[[_Look, Came], _Verdict]] = {
    Operation.COMPACT: _compaction,
    Operation.REWRITE_POSITION_DELETES: _position_deletes,
    Operation.REWRITE_MANIFESTS: _manifests,
}
