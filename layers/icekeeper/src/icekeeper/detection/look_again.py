"""Whether an operation that had nothing to do may have work again.

A pass records the snapshot at which an operation had nothing more to do (:mod:`icekeeper.state.store`).  The operation
is idle until the snapshots since then added as many files as the policy requires, by their summaries.  It is idle for
at most a day, or for as long as the head was old at the time of the record if that is longer.  Then a pass looks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

from icekeeper.commit.attempt import RUN_ID_KEY
from icekeeper.detection.priority import Signal
from icekeeper.detection.signals import rewrites_are_blocked
from icekeeper.health.examine import listed_manifests, summary_counter, summary_counters
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import Snapshot, TableMetadata, table_digest
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.state.store import IdleSince, LastSeen
from icekeeper.text import counted

_SINCE = "since the last pass"
_DAY_MS = 24 * HOUR_MS


def outlook(
    metadata: TableMetadata,
    head: Snapshot,
    resolved: ResolvedPolicy,
    seen: LastSeen | None,
    *,
    clusters: bool,
    now_ms: int,
    refused: Mapping[Operation, str] | None = None,
    manifests: int | None = None,
) -> tuple[Mapping[Operation, str], Sequence[Signal]]:
    """Which rewriting operations have nothing to do at ``now_ms`` (epoch milliseconds), and why; and reasons why a pass
    should look for work without another sign of it.

    ``seen`` is the record of the last pass with these settings.  ``clusters``: compaction would cluster files.
    ``refused``: operations that cannot work on this table, and why.  ``manifests``: the number of manifests where the
    head's summary lacks it.
    """
    idle, looks, policy = dict(refused or {}), [], resolved.policy
    for operation in (Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.REWRITE_MANIFESTS):
        if not resolved.runs(operation) or operation in idle:
            continue
        since = None if seen is None else seen.idle_since.get(operation.value)
        if since is not None:
            is_idle, words = _since_then(operation, metadata, head, policy, since, now_ms)
        else:
            is_idle, words = False, _never_idle(operation, head, policy, seen, clusters=clusters)
        if is_idle:
            idle[operation] = words
        elif words and _is_possible(operation, head, policy, manifests):
            looks.append(Signal(words, 0.05))  # tables with a sign of need come first
    return idle, looks


def _never_idle(operation: Operation, head: Snapshot, policy: Policy, seen: LastSeen | None, *, clusters: bool) -> str:
    """Why a pass should look for small files that the average hides, as no record excludes them; empty: no reason."""
    # If the average is large enough, at least one of the files is large.  With clustering, two files may overlap.
    least, files = 2 if clusters else policy.min_input_files + 1, _counter(head, "total-data-files") or 0
    is_sized = _counter(head, "total-files-size") is not None
    if operation is not Operation.COMPACT or not policy.rewrite_enabled or files < least or not is_sized:
        return ""
    if seen is not None:
        return "" if seen.idle else "the last pass left files to rewrite"
    return f"no pass under these settings has looked at the {counted(files, 'data file')}"


def _since_then(
    operation: Operation, metadata: TableMetadata, head: Snapshot, policy: Policy, since: IdleSince, now_ms: int
) -> tuple[bool, str]:
    """Whether the operation is still idle, and the reason."""
    if since.table_digest != table_digest(metadata):
        return False, f"the table's own settings changed {_SINCE}"
    if time_has_come(head, policy, since.looked_ms, now_ms):
        return False, f"time alone may have brought work {_SINCE}"
    commits = list(takewhile(lambda one: one.snapshot_id != since.snapshot_id, metadata.ancestors(head.snapshot_id)))
    base_id = commits[-1].parent_id if commits else head.snapshot_id
    if base_id != since.snapshot_id or _counter(head, "total-data-files") is None:
        return False, f"what came {_SINCE} cannot be told from the snapshots"
    came = [one for one in commits if (RUN_ID_KEY, since.run_id) not in summary_counters(one).items()]
    files, wanted = 1 if policy.rewrite_all else policy.min_input_files, dict[str, int]()
    if operation is Operation.REWRITE_MANIFESTS:
        wanted["manifest"] = policy.min_manifests_to_rewrite
    if operation is Operation.COMPACT and policy.rewrite_enabled:
        wanted["data file"] = 1 if policy.rewrite_reason else files
    if operation is Operation.REWRITE_POSITION_DELETES or (operation is Operation.COMPACT and policy.apply_deletes):
        converts = operation is Operation.REWRITE_POSITION_DELETES and policy.convert_equality_deletes
        wanted["delete file"] = 1 if converts else files
    words: list[str] = []
    for what, least in wanted.items():
        number = sum(_added(what, one, metadata) for one in came)
        if number >= least:
            return False, f"{counted(number, what)} came {_SINCE}"
        if number or not words:
            words.append(f"{counted(number, what)} came {_SINCE}, fewer than {least}")
    return True, "; ".join(words) or "rewrites are disabled"


def _added(what: str, snapshot: Snapshot, metadata: TableMetadata) -> int:
    """The most files of a kind that a commit added; data files: to any one partition."""
    data, deletes = (_counter(snapshot, f"added-{kind}-files") or 0 for kind in ("data", "delete"))
    if what != "data file":
        return deletes if what == "delete file" else _counter(snapshot, "manifests-created") or data + deletes
    gone = sum(_counter(snapshot, key) or 0 for key in ("deleted-data-files", "removed-delete-files"))
    # Each changed partition got or lost a file.  With several specs, all files may belong to one current partition.
    partitions = _counter(snapshot, "changed-partition-count") if len(metadata.specs) == 1 else None
    return max(0, min(data, data + deletes + gone + 1 - (partitions or 1)))


def _counter(snapshot: Snapshot, key: str) -> int | None:
    return summary_counter(summary_counters(snapshot), key)


def _is_possible(operation: Operation, head: Snapshot, policy: Policy, manifests: int | None) -> bool:
    """Whether an operation can have work at all, by the counters of the head's summary."""
    if operation is Operation.COMPACT:
        return not rewrites_are_blocked(summary_counters(head), policy)
    if operation is Operation.REWRITE_POSITION_DELETES:
        return _counter(head, "total-delete-files") != 0
    listed = listed_manifests(summary_counters(head))
    listed = manifests if listed is None else listed
    return listed is None or listed >= policy.min_manifests_to_rewrite


def time_has_come(head: Snapshot, policy: Policy, looked_ms: int, now_ms: int) -> bool:
    """Whether time alone may have caused work since a pass at ``looked_ms`` (epoch milliseconds).

    It may if the partition of the newest file is at rest.  Otherwise it may after a
    day, or once the head is twice as old as at the last pass, whichever is later.
    """
    rest_ms = policy.partition_rest_ms
    is_at_rest = bool(rest_ms) and looked_ms < head.timestamp_ms + rest_ms <= now_ms
    return is_at_rest or now_ms - looked_ms >= max(_DAY_MS, looked_ms - head.timestamp_ms)
