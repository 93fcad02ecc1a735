"""What rewriting operations may find, by what the last pass left and what came since (pure).

A pass remembers what each operation lacked (:class:`icekeeper.state.slack.Slack`).  An operation is *settled* as long
as less than that came: then it is no reason for a pass, whatever the table's averages look like.  Where enough may have
come, or that is not known, a pass looks, also where averages look well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from icekeeper.detection.came_since import Came, came_since
from icekeeper.detection.moving_scope import partitions_came_into_scope
from icekeeper.detection.signals import Signal, rewrites_are_blocked
from icekeeper.health.counters import listed_manifests, summary_counter, summary_counters
from icekeeper.metadata.document import Snapshot, TableMetadata
from icekeeper.metadata.table_digest import table_digest
from icekeeper.operations.compaction.missing_bins import may_make_a_bin
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of
from icekeeper.state.slack import Slack
from icekeeper.state.store import LastSeen
from icekeeper.text import counted, size_text

__all__ = ["Outlook", "outlook", "time_has_come"]

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
