"""One table's health: its counters, its warnings, and the settings that hold for it (pure)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from icekeeper.errors import PolicyError
from icekeeper.health.counters import lake_counters
from icekeeper.health.warnings import lake_warnings, unreadable_warning
from icekeeper.metadata.document import MAIN, Snapshot, TableMetadata
from icekeeper.model import ManifestFile
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.state.cut_offs import CutOff
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.unreadable_files import UnreadableFile

__all__ = ["examine", "health_head"]

_MOST_NAMED = 3
_LONGEST = 500
# Warning → the operations of which at least one would do something about it.
_WORK_OF = {
    "delete_debt": (Operation.COMPACT, Operation.REWRITE_POSITION_DELETES),
    "manifest_sprawl": (Operation.REWRITE_MANIFESTS,),
    "small_files": (Operation.COMPACT,),
}


def health_head(metadata: TableMetadata, resolved: ResolvedPolicy | PolicyError) -> Snapshot | None:
    """The head of the maintained branch; that of ``main`` if the table's settings are wrong or name no branch of it."""
    branch = resolved.policy.branch if isinstance(resolved, ResolvedPolicy) else MAIN
    return metadata.head(branch if branch in metadata.refs else MAIN)


def examine(
    identity: TableIdentity,
    metadata: TableMetadata,
    resolved: ResolvedPolicy | PolicyError,
    *,
    now_ms: int,
    manifests: Sequence[ManifestFile] | None = None,
    idle: Callable[[ResolvedPolicy], Collection[Operation]] = lambda resolved: (),
    deletes_elsewhere: int = 0,
    unreadable: Mapping[str, UnreadableFile] | None = None,
    has_former_table: bool = False,
    cut_off: CutOff | None = None,
    twins: Sequence[str] = (),
    waits: str | None = None,
) -> LakeStats:
    """The health of a table at ``now_ms`` (epoch milliseconds), whether or not it is maintained.

    If its settings are wrong, ``resolved`` is the error: that becomes a warning too, and the other warnings go by the
    default settings.  ``manifests`` are those of the head, if the caller has read them.  ``idle`` is called where files
    look as if they needed work, and returns the operations that surely find none: then there is no warning.
    ``deletes_elsewhere`` counts the deletes that stand under another spec or partition than the data file that they
    name; ``unreadable`` files are those that passes could not read.  ``cut_off`` says that a pass over the table took
    too long, ``twins`` are other tables with its UUID.
    ``has_former_table``: whether the last sweep was left out for what a dropped table has left at the same location.
    ``waits``: why deletions wait for a table that cannot be read.
    """
    head = health_head(metadata, resolved)
    counters = lake_counters(metadata, head, now_ms=now_ms, manifests=manifests)
    policy = resolved.policy if isinstance(resolved, ResolvedPolicy) else Policy()
    warnings = lake_warnings(metadata, counters, policy, now_ms=now_ms)
    if deletes_elsewhere:
        warnings["delete_scope"] = (
            f"{deletes_elsewhere} delete(s) stand under another spec or partition than the data file that they name: "
            "Iceberg after 1.11 refuses to read the table; rewrite_position_deletes moves them"
        )
    if (told := unreadable_warning(unreadable or {})) is not None:
        warnings["unreadable_files"] = told
    if has_former_table:
        warnings["former_table"] = (
            "a dropped table has left metadata at this table's location, so its orphans stay; icekeeper maintain "
            f"{identity.table} --operations remove_orphans says which, and what to do"
        )
    warnings |= dict(_of_others(cut_off, twins))
    if waits is not None:
        warnings["deletions_wait"] = waits
    if isinstance(resolved, ResolvedPolicy):
        warnings = {**_of_work(warnings, resolved, idle), **resolved.owners.warnings, **_of_settings(resolved)}
    else:
        warnings["wrong_settings"] = f"the table's settings are wrong, so it is not maintained: {resolved}"
    return LakeStats(
        identity=identity,
        observed_ms=now_ms,
        snapshot_id=None if head is None else head.snapshot_id,
        counters=counters,
        warnings=warnings,
        policy=dict(resolved.documents(defaults=False)) if isinstance(resolved, ResolvedPolicy) else {},
    )


def _of_others(cut_off: CutOff | None, twins: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Warnings that no metadata tell of."""
    if cut_off is not None:
        yield "cut_off", f"the table is not maintained: {cut_off.sentence}"
    if twins:
        yield (
            "uuid_twice",
            f"the table's UUID is also that of {_some(twins)}: pins and staged loads of one hold for the other; "
            "drop the one that nobody needs, or create the copy anew",
        )


def _of_settings(resolved: ResolvedPolicy) -> dict[str, str]:
    """The warning of the table's settings that do not count, short enough to be kept for each table."""
    if not resolved.ignored:
        return {}
    told, more = resolved.ignored[0].sentence(), len(resolved.ignored) - 1
    cut = told if len(told) <= _LONGEST else f"{told[:_LONGEST]}…"
    return {"ignored_settings": cut + (f"; nor do {more} more: icekeeper policy show says why" if more else "")}


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _of_work(
    warnings: dict[str, str], resolved: ResolvedPolicy, idle: Callable[[ResolvedPolicy], Collection[Operation]]
) -> dict[str, str]:
    """The warnings without those of what a pass has looked at, and leaves as it is."""
    if _WORK_OF.keys().isdisjoint(warnings):
        return warnings
    found = frozenset(idle(resolved))
    runs = {kind: [one for one in operations if resolved.runs(one)] for kind, operations in _WORK_OF.items()}
    left = {kind for kind, operations in runs.items() if operations and found.issuperset(operations)}
    return {kind: sentence for kind, sentence in warnings.items() if kind not in left}
