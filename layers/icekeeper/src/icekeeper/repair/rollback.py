"""``icekeeper rollback``: set a branch back to a snapshot all of whose files exist.

Iceberg has two procedures: ``rollback_to_snapshot`` demands an ancestor of the branch's head, ``set_current_snapshot``
takes any snapshot of the table.  Rollback demands an ancestor too, because a snapshot of another branch, or a staged
one, is rarely what a person means who names a snapshot in an emergency.  The option ``--not-ancestor`` lifts that: it
is needed to undo a rollback, and where the snapshots between have expired.  No option lifts the check of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.commit.attempt import PreparedCommit
from icekeeper.errors import OperationRefused, PlanStale, PolicyError
from icekeeper.machine.clock import iso_utc
from icekeeper.metadata.document import MAIN, Snapshot, TableMetadata, branch_head, require_writable
from icekeeper.metadata.table_reader import TableReader
from icekeeper.metadata.updates import ref_at, same_table
from icekeeper.model import Nothing
from icekeeper.pass_context.table_handle import TableHandle, user_name
from icekeeper.repair.way_back import UNREADABLE, copy_aside, tag_of, tag_update, why_no_tag
from icekeeper.storage.storage import Storage
from icekeeper.text import counted
from icekeeper.verification.checks import Problem, ProblemKind
from icekeeper.verification.verify import verify_table

_ADDED, _DELETED, _TOTAL = "added-records", "deleted-records", "total-records"
READABLE_ALL_THE_SAME = frozenset(
    {
        ProblemKind.DELETE_SCOPE,
        ProblemKind.DELETION_VECTOR,
        ProblemKind.DUPLICATE_FILE,
        ProblemKind.ROW_LINEAGE,
        ProblemKind.STATISTICS,
        ProblemKind.SUMMARY,
        ProblemKind.WRONG_COUNT,
    }
)
"""The problems with which a branch may be set to a snapshot: all its files exist and can be read, and a mend of the
head can follow.  A rollback to a snapshot with any other problem is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """A rollback that is planned or done."""

    table: str
    branch: str
    head: Snapshot
    """The branch's head before."""
    target: Snapshot
    leaving: tuple[Snapshot, ...]
    """The snapshots that the branch loses, newest first."""
    returning: tuple[Snapshot, ...] = ()
    """The snapshots that the branch gains, newest first; empty if the target is an ancestor."""
    problems: tuple[Problem, ...] = ()
    """What ``verify`` finds in the target, all :data:`READABLE_ALL_THE_SAME`."""
    no_tag: str | None = None
    """Why no tag keeps the old head."""
    aside: str | None = None
    """The folder with copies of the old head's metadata, if not all of it can be read."""

    @property
    def tag(self) -> str | None:
        """The tag that keeps the old head."""
        return None if self.no_tag else tag_of(self.head.snapshot_id)

    @property
    def sentence(self) -> str:
        """What it does, for people and the journal."""
        parts = [f"branch '{self.branch}' from snapshot {self.head.snapshot_id} to {self.target.snapshot_id}"]
        if self.leaving:
            parts.append(f"{counted(len(self.leaving), 'snapshot')} that {_rows_text(self.leaving)} left it")
        if self.returning:
            parts.append(f"{counted(len(self.returning), 'snapshot')} that {_rows_text(self.returning)} joined it")
        return "; ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """The document of ``rollback --json``, without its first keys."""
        return {
            "branch": self.branch,
            "from_snapshot": _described(self.head),
            "to_snapshot": _described(self.target),
            "leaving": [_described(snapshot) for snapshot in self.leaving],
            "returning": [_described(snapshot) for snapshot in self.returning],
            "problems": [{"kind": p.kind.value, "path": p.path, "detail": p.detail} for p in self.problems],
            "tag": self.tag,
            "no_tag": self.no_tag,
            "aside": self.aside,
        }


def chosen_snapshot(metadata: TableMetadata, to: str) -> Snapshot:
    """The snapshot of an id, or of a tag or branch.

    Raises:
        PolicyError: the table has neither.
    """
    if to.isascii() and to.isdigit() and int(to) in metadata.snapshots:
        return metadata.snapshots[int(to)]
    ref = metadata.refs.get(to)
    if ref is None or ref.snapshot_id not in metadata.snapshots:
        raise PolicyError(f"the table has no snapshot, tag or branch '{to}'; icekeeper show lists them")
    return metadata.snapshots[ref.snapshot_id]


def plan_rollback(
    metadata: TableMetadata, table: str, branch: str, to: str, *, not_ancestor: bool = False
) -> Rollback | Nothing:
    """Which snapshots a branch would lose and gain (pure); the files are not checked here.

    ``not_ancestor``: the snapshot need not be an ancestor of the branch's head.

    Raises:
        PolicyError: no such branch or snapshot, or the snapshot is no ancestor.
        TableUnsupported: this version must not write the table.
    """
    require_writable(metadata)
    head, target = branch_head(metadata, branch), chosen_snapshot(metadata, to)
    if head is None:
        raise PolicyError(f"branch '{branch}' of {table} has no snapshot yet")
    if head.snapshot_id == target.snapshot_id:
        return Nothing(f"branch '{branch}' is at snapshot {target.snapshot_id} already")
    line, new_line = list(metadata.ancestors(head.snapshot_id)), list(metadata.ancestors(target.snapshot_id))
    before, after = ({snapshot.snapshot_id for snapshot in found} for found in (line, new_line))
    if target.snapshot_id not in before and not not_ancestor:
        raise PolicyError(
            f"snapshot {target.snapshot_id} is not known to be an ancestor of snapshot {head.snapshot_id}, the head of "
            f"branch '{branch}': it is of another branch, was rolled back, or snapshots between have expired; "
            "--not-ancestor sets the branch to it all the same"
        )
    return Rollback(
        table=table,
        branch=branch,
        head=head,
        target=target,
        leaving=tuple(snapshot for snapshot in line if snapshot.snapshot_id not in after),
        returning=tuple(snapshot for snapshot in new_line if snapshot.snapshot_id not in before),
    )


def has_moved(after: TableMetadata, plan: Rollback) -> bool:
    """Whether a document shows the rollback, also below newer commits of other writers (pure)."""
    ref = after.refs.get(plan.branch)
    line = {} if ref is None else {snapshot.snapshot_id for snapshot in after.ancestors(ref.snapshot_id)}
    loses_head = any(snapshot.snapshot_id == plan.head.snapshot_id for snapshot in plan.leaving)
    return plan.target.snapshot_id in line and not (loses_head and plan.head.snapshot_id in line)


def rollback_commit(metadata: TableMetadata, plan: Rollback, now_ms: int) -> PreparedCommit:
    """The commit of a rollback (pure): it asserts the head that was shown, and keeps the branch's own settings.

    Raises:
        PlanStale: the branch has another head by now, or the target has expired.
    """
    ref = metadata.refs.get(plan.branch)
    if ref is None or ref.snapshot_id != plan.head.snapshot_id or plan.target.snapshot_id not in metadata.snapshots:
        raise PlanStale(
            f"since the rollback was planned, branch '{plan.branch}' of {plan.table} has moved or snapshot "
            f"{plan.target.snapshot_id} has expired; nothing was changed; roll back again"
        )
    settings: Mapping[str, Any] = (metadata.document.get("refs") or {}).get(plan.branch) or {"type": "branch"}
    requirements = [*same_table(metadata), ref_at(plan.branch, plan.head.snapshot_id)]
    moved = {**settings, "snapshot-id": plan.target.snapshot_id}
    updates: list[Mapping[str, Any]] = [{"action": "set-snapshot-ref", "ref-name": plan.branch, **moved}]
    if plan.tag is not None:
        known = metadata.refs.get(plan.tag)
        requirements.append(ref_at(plan.tag, None if known is None else known.snapshot_id))
        updates.insert(0, tag_update(metadata, plan.head, now_ms))
    return PreparedCommit(requirements, updates, lambda after: has_moved(after, plan))


def checked(loaded: LoadedTable, plan: Rollback) -> Rollback:
    """The plan with what ``verify`` finds in the target, once every manifest and file of it exists.

    Raises:
        OperationRefused: a file of the target is missing, or cannot be read.
        StorageError: the store does not answer.
    """
    storage = Storage(loaded.io_properties)
    alone = replace(loaded, metadata=_only(loaded.metadata, plan.target))
    problems = verify_table(alone, storage).problems
    bad = [problem for problem in problems if problem.kind not in READABLE_ALL_THE_SAME]
    if bad:
        more = f" and {counted(len(bad) - 1, 'more problem')}" if len(bad) > 1 else ""
        raise OperationRefused(
            f"snapshot {plan.target.snapshot_id} is damaged: {bad[0].path}: {bad[0].detail}{more}; nothing was "
            "changed; restore the file, or choose another snapshot"
        )
    reader = TableReader(loaded.metadata, storage.read)
    return replace(plan, problems=problems, no_tag=why_no_tag(loaded.metadata, reader, plan.head))


def roll_back(handle: TableHandle, loaded: LoadedTable, plan: Rollback, renew: Callable[[], None]) -> Rollback:
    """Swap the branch to the target, and write the journal; ``renew`` extends the lease just before the swap.

    What can be read of an unreadable head is copied aside first.

    Raises:
        PlanStale: as :func:`rollback_commit`; nothing was changed.
        MaintenanceError: as :func:`.commit_with_retries`.
    """
    now_ms, memory = handle.clock(), handle.memory(loaded)
    if plan.no_tag is not None and plan.no_tag.startswith(UNREADABLE):
        plan = replace(plan, aside=copy_aside(loaded, Storage(loaded.io_properties), plan.head, now_ms))
    handle.commit(loaded, memory, lambda head: rollback_commit(head.metadata, plan, now_ms), renew=renew)
    copies = "" if plan.aside is None else f"; {plan.aside} has copies of the old head's metadata"
    handle.journal(loaded, f"rollback: {user_name()} set {plan.sentence}{copies}")
    return plan


def _only(metadata: TableMetadata, snapshot: Snapshot) -> TableMetadata:
    """The document as if the snapshot were its only one."""
    main = {"type": "branch", "snapshot-id": snapshot.snapshot_id}
    nothing = dict.fromkeys(("snapshot-log", "statistics", "partition-statistics"), ())
    alone = {"snapshots": [snapshot.raw], "refs": {MAIN: main}, "current-snapshot-id": snapshot.snapshot_id}
    return TableMetadata({**metadata.document, **nothing, **alone})


def _described(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "snapshot_id": snapshot.snapshot_id,
        "time": iso_utc(snapshot.timestamp_ms),
        "operation": snapshot.operation,
        "added_rows": _rows(snapshot, _ADDED),
        "deleted_rows": _rows(snapshot, _DELETED),
        "total_rows": _rows(snapshot, _TOTAL),
    }


def _rows(snapshot: Snapshot, key: str) -> int | None:
    """A count of the summary, of rows in data files; ``None``: the writer left none."""
    summary = snapshot.summary
    stated = summary.get(key)
    if stated is None and key != _TOTAL and any(count in summary for count in (_ADDED, _DELETED, _TOTAL)):
        return 0  # writers leave out counts of 0
    return int(stated) if isinstance(stated, str) and stated.isascii() and stated.isdigit() else None


def _rows_text(snapshots: Iterable[Snapshot]) -> str:
    """``added 30 rows and deleted 2``, by the summaries of the snapshots that changed rows."""
    changing = [snapshot for snapshot in snapshots if snapshot.operation != "replace"]
    added, deleted = ([_rows(snapshot, key) for snapshot in changing] for key in (_ADDED, _DELETED))
    if None in added or None in deleted:
        return "added and deleted an unknown number of rows"
    return f"added {counted(sum(filter(None, added)), 'row')} and deleted {sum(filter(None, deleted))}"
