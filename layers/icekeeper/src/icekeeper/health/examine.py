"""How a table looks: counters, warnings and settings in force; totals of a lake (pure)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from icekeeper.errors import PolicyError
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import MAIN, PREVIOUS_VERSIONS_MAX_DEFAULT, Snapshot, TableMetadata
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.values import text_of
from icekeeper.state.claims import CutOff
from icekeeper.state.identity import TableIdentity
from icekeeper.state.store import LakeStats, UnreadableFile
from icekeeper.text import counted, size_text

# Counters of a table's files, snapshots and manifests, from its metadata document (pure).
#
# Counters in snapshot summaries are optional in the specification, and every engine writes them in its own way.  So one
# that is missing or no number is unknown: it is left out, never 0.

AGE_COUNTER = "lake_oldest_snapshot_age_hours"
"""The one counter that changes although the table does not."""

DEPTH_COUNTER = "lake_clustering_depth"
"""Files that a lookup in the clustering columns opens on average, as the last pass that clustered files left it."""

_FROM_SUMMARY: Mapping[str, str] = {
    "lake_data_files": "total-data-files",
    "lake_delete_files": "total-delete-files",
    "lake_position_deletes": "total-position-deletes",
    "lake_equality_deletes": "total-equality-deletes",
    "lake_records": "total-records",
    "lake_bytes": "total-files-size",
}
# A number with more digits is no long in Java.
_MAX_DIGITS = 19


def summary_counters(snapshot: Snapshot) -> Mapping[object, object]:
    """The summary of a snapshot as it stands, empty where there is none."""
    summary = snapshot.raw.get("summary")
    return summary if isinstance(summary, dict) else {}  # as JSON has it; any Mapping takes eight times as long


def summary_counter(counters: Mapping[Any, object], key: str) -> int | None:
    """One counter of a summary; ``None`` when it is missing or no whole number."""
    return _whole_number(counters.get(key))


def _whole_number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def average_file_bytes(counters: Mapping[object, object]) -> float | None:
    """The mean size of the files, delete files too, by a snapshot's summary; ``None``: it has none, or does not say.

    Java counts delete files into ``total-files-size``, but not into ``total-data-files``.
    """
    files, size = summary_counter(counters, "total-data-files"), summary_counter(counters, "total-files-size")
    deletes = summary_counter(counters, "total-delete-files") or 0
    return size / (files + deletes) if files and size is not None else None


def listed_manifests(counters: Mapping[object, object]) -> int | None:
    """How many manifests a snapshot has, by its summary; ``None``: it does not say."""
    created, kept = (summary_counter(counters, f"manifests-{name}") for name in ("created", "kept"))
    return None if created is None or kept is None else created + kept


def lake_counters(
    metadata: TableMetadata,
    head: Snapshot | None,
    *,
    now_ms: int,
    manifests: Sequence[ManifestFile] | None = None,
) -> dict[str, int | float]:
    """Counters by metric name; ``manifests`` are those of the head, where the caller has read its manifest list."""
    counters: dict[str, int | float] = {
        "lake_snapshots": len(metadata.snapshots),
        "lake_refs": len(metadata.refs),
        "lake_metadata_log": len(metadata.metadata_log),
        "lake_statistics_files": len(metadata.statistics) + len(metadata.partition_statistics),
    }
    if metadata.snapshots:
        counters[AGE_COUNTER] = round(max(0, now_ms - min(metadata.snapshot_times_ms)) / HOUR_MS, 1)
    if head is not None:
        counters |= _of_summary(metadata, summary_counters(head))
        counters |= _clustering_depth(metadata, head)
        if (history := _history_bytes(metadata, head)) is not None:
            counters["lake_history_bytes"] = history
    if manifests is not None:
        counters["lake_manifests"] = len(manifests)
        counters["lake_delete_manifests"] = sum(m.content is ManifestContent.DELETES for m in manifests)
    return counters


def _clustering_depth(metadata: TableMetadata, head: Snapshot) -> dict[str, float]:
    """Only files say how deep they lie now, and manifests are not read here."""
    if not any(DEPTH_KEY in summary_counters(one) for one in metadata.snapshots.values()):
        return {}  # as in most tables, whose history need not be walked
    for snapshot in metadata.ancestors(head.snapshot_id):
        text = summary_counters(snapshot).get(DEPTH_KEY)
        if text is not None and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", str(text)):
            return {DEPTH_COUNTER: float(str(text))}
    return {}


def _history_bytes(metadata: TableMetadata, head: Snapshot) -> int | None:
    """The size of the data and delete files that other snapshots than the head hold alone; ``None``: it is not told.

    What a snapshot removed, its parent still holds; of another branch, what its snapshots added.
    """
    size, own = 0, set[int]()
    removed: object = None
    for snapshot in metadata.ancestors(head.snapshot_id):
        if removed is not None:  # by the snapshot before this one, its child
            size += _whole_number(removed) or 0
        summary = summary_counters(snapshot)
        removed = summary.get("removed-files-size")  # nearly always absent, and this runs for every table of a scan
        own.add(snapshot.snapshot_id)
        if "total-files-size" not in summary:
            return None
    if summary_counter(summary_counters(head), "total-files-size") is None:
        return None
    if len(own) == len(metadata.snapshots):
        return size
    for snapshot_id, snapshot in metadata.snapshots.items():
        if snapshot_id in own:
            continue
        if snapshot.parent_id not in metadata.snapshots:
            return None  # which of its files were removed since, expired snapshots told
        size += summary_counter(summary_counters(snapshot), "added-files-size") or 0
    return size


def _of_summary(metadata: TableMetadata, summary: Mapping[object, object]) -> dict[str, int | float]:
    counters: dict[str, int | float] = {}
    for name, key in _FROM_SUMMARY.items():
        if (value := summary_counter(summary, key)) is not None:
            counters[name] = value
    if metadata.format_version == 1:  # which has no delete files
        counters["lake_delete_files"] = 0
    if "lake_delete_files" in counters and (average := average_file_bytes(summary)) is not None:
        counters["lake_average_file_bytes"] = round(average)
    if (listed := listed_manifests(summary)) is not None:
        counters["lake_manifests"] = listed
    return counters


# The totals of a lake, from the lake stats of its tables (pure).

_AVERAGE = "lake_average_file_bytes"
_GREATEST = frozenset({AGE_COUNTER, DEPTH_COUNTER})
_OF_AVERAGE = ("lake_bytes", "lake_data_files", "lake_delete_files")


def lake_totals(lake: Iterable[LakeStats]) -> dict[str, int | float]:
    """Sums of the tables' counters, their number (``lake_tables``), and how many have a warning
    (``lake_tables_warned``).

    The age of the oldest snapshot and the clustering depth are the maximum over all tables; the average file size is
    that over all files of those tables whose own average is known.  A counter that no table has is left out.
    """
    totals: defaultdict[str, int | float] = defaultdict(int)
    of_average: Counter[str] = Counter()
    greatest: dict[str, float] = {}
    tables = warned = 0
    for stats in lake:
        tables += 1
        warned += bool(stats.warnings)
        for name, value in stats.counters.items():
            totals[name] += value
        for name in _GREATEST & stats.counters.keys():
            greatest[name] = max(greatest.get(name, 0.0), float(stats.counters[name]))
        if _AVERAGE in stats.counters:
            of_average.update({name: int(stats.counters[name]) for name in _OF_AVERAGE})
    found: dict[str, int | float] = {"lake_tables": tables, "lake_tables_warned": warned, **totals}
    found |= greatest
    if _AVERAGE in found:
        size, *files = (of_average[name] for name in _OF_AVERAGE)
        found[_AVERAGE] = round(size / sum(files))
    return found


# Warnings about a table's health, one sentence per kind (pure).
#
# Warnings are for people, and logged when they appear.  So their thresholds are higher than those of detection, which
# proposes a pass at the first sign of need: a state that a pass repairs within a day should not raise a warning each
# day.

Counters = Mapping[str, int | float]

# Java's commit.manifest.target-size-bytes is 8 MB, which holds some ten thousand entries: at a tenth of that, merging
# manifests saves most of the requests of a planner.
SPARSE_MANIFEST_FILES = 1000
# Every reader opens the delete files of the data that it reads: at one for ten data files that is slow (our estimate).
DATA_FILES_PER_DELETE_FILE = 10
# Expiry runs hourly: if a snapshot is a day late, nothing expires it.
LATE_EXPIRY_MS = 24 * HOUR_MS
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def lake_warnings(metadata: TableMetadata, counters: Counters, policy: Policy, *, now_ms: int) -> dict[str, str]:
    """Kind → sentence; ``counters`` are those of :func:`icekeeper.health.examine.lake_counters`."""
    return {
        kind: sentence
        for kind, sentences in (
            ("delete_debt", _delete_debt(counters, policy)),
            ("manifest_sprawl", _manifest_sprawl(counters, policy)),
            ("small_files", _small_files(counters, policy)),
            ("snapshot_sprawl", _snapshot_sprawl(metadata, policy, now_ms)),
            ("metadata_sprawl", _metadata_sprawl(metadata)),
        )
        for sentence in sentences
    }


def unreadable_warning(files: Mapping[str, UnreadableFile]) -> str | None:
    """What to tell people of files that passes could not read, and leave alone; ``None``: there are none."""
    if not files:
        return None
    first = next(iter(files.values()))
    verb = "is" if len(files) == 1 else "are"
    return f"{counted(len(files), 'file')} could not be read and {verb} left alone, but for a try a week: {first.why}"


def _delete_debt(counters: Counters, policy: Policy) -> Iterator[str]:
    files, deletes = counters.get("lake_data_files"), counters.get("lake_delete_files", 0)
    records = counters.get("lake_records", 0)
    rows = counters.get("lake_position_deletes", 0) + counters.get("lake_equality_deletes", 0)
    if rows and records and rows >= policy.delete_compaction_min_ratio * int(records):
        yield (
            f"{rows} deletes stand against {records} records, which reaches delete_compaction_min_ratio "
            f"{text_of(policy.delete_compaction_min_ratio)}: every reader has to apply them"
        )
    elif files is not None and deletes >= max(policy.min_input_files, files / DATA_FILES_PER_DELETE_FILE):
        yield f"{deletes} delete files lie beside {files} data files: every reader has to apply them"


def _manifest_sprawl(counters: Counters, policy: Policy) -> Iterator[str]:
    count, files = counters.get("lake_manifests"), counters.get("lake_data_files")
    if count is None or count < policy.min_manifests_to_rewrite:
        return
    if files is not None and files / count >= SPARSE_MANIFEST_FILES:
        return
    each = "" if files is None else f" for {files} data files"
    yield f"{count} manifests{each} reach min_manifests_to_rewrite {policy.min_manifests_to_rewrite}"


def _small_files(counters: Counters, policy: Policy) -> Iterator[str]:
    files, average = counters.get("lake_data_files"), counters.get("lake_average_file_bytes")
    if files is None or average is None or files < policy.min_input_files or average >= policy.min_file_size_bytes:
        return
    yield f"{files} data files of {size_text(average)} on average are below {size_text(policy.min_file_size_bytes)}"


def _snapshot_sprawl(metadata: TableMetadata, policy: Policy, now_ms: int) -> Iterator[str]:
    if len(metadata.snapshots) <= policy.max_snapshots_to_keep:
        return
    late_ms = now_ms - policy.snapshot_retention_ms - LATE_EXPIRY_MS
    if min(metadata.snapshot_times_ms) >= late_ms:
        return
    heads = {ref.snapshot_id for ref in metadata.refs.values()}
    late = sum(s.timestamp_ms < late_ms for i, s in metadata.snapshots.items() if i not in heads)
    if late > policy.max_snapshots_to_keep:
        hours = text_of(policy.snapshot_retention_hours)
        yield f"{late} snapshots are more than a day past snapshot_retention_hours {hours}"


def _metadata_sprawl(metadata: TableMetadata) -> Iterator[str]:
    count = len(metadata.metadata_log)
    if not deletes_old_metadata(metadata) and count >= metadata_log_limit(metadata):
        yield (
            f"the metadata log is full with {count} files and {_DELETE_AFTER_COMMIT} is off: every commit leaves a "
            "metadata file behind; set that property to true"
        )


def deletes_old_metadata(metadata: TableMetadata) -> bool:
    """Whether each commit deletes the metadata files that fall out of the log."""
    return metadata.property_flag(_DELETE_AFTER_COMMIT, default=False)


def metadata_log_limit(metadata: TableMetadata) -> int:
    """How many former metadata files the log holds at most; the default where the property is no number."""
    text = str(metadata.properties.get(_PREVIOUS_VERSIONS_MAX, "")).strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) else PREVIOUS_VERSIONS_MAX_DEFAULT


# One table's health: its counters, its warnings, and the settings that hold for it (pure).

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
