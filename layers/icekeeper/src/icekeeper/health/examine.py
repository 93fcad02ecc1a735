"""The health of a table: counters, warnings and changed settings; totals of a lake (pure).

Counters in snapshot summaries are optional in the specification, and engines differ in writing them.  So a counter that
is missing or not a number is unknown: it is left out, never 0.

Warnings are for people, and are logged when they appear.  So their thresholds are higher than those of detection, which
proposes a pass at the first sign of need: what a pass repairs within a day should not raise a warning each day.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from icekeeper.errors import MaintenanceError, PolicyError
from icekeeper.health.layout import timeline
from icekeeper.health.table_state import DAMAGE, WarningKind
from icekeeper.machine.clock import HOUR_MS
from icekeeper.metadata.document import MAIN, Snapshot, TableMetadata, history_digest
from icekeeper.metadata.overlap_depth import DEPTH_KEY
from icekeeper.metadata.updates import PREVIOUS_VERSIONS_MAX_DEFAULT
from icekeeper.model import ManifestContent, ManifestFile
from icekeeper.policy import Operation, Policy, ResolvedPolicy
from icekeeper.policy.sweep_rhythm import has_former_table
from icekeeper.policy.values import text_of
from icekeeper.state.claims import CutOff
from icekeeper.state.findings import MOST_PROBLEMS, UNREADABLE, FileFinding, RefusedExpiry
from icekeeper.state.identity import TableIdentity
from icekeeper.state.lake_stats import LakeStats
from icekeeper.state.store import Glance
from icekeeper.text import counted, size_text

AGE_COUNTER = "lake_oldest_snapshot_age_hours"
"""The only counter that changes without a change of the table."""

DEPTH_COUNTER = "lake_clustering_depth"
"""Files that a lookup by the clustering columns opens on average, measured by the last pass that clustered files."""

_FROM_SUMMARY: Mapping[str, str] = {
    "lake_data_files": "total-data-files",
    "lake_delete_files": "total-delete-files",
    "lake_position_deletes": "total-position-deletes",
    "lake_equality_deletes": "total-equality-deletes",
    "lake_records": "total-records",
    "lake_bytes": "total-files-size",
}
# A number with more digits does not fit a Java long.
_MAX_DIGITS = 19


def summary_counters(snapshot: Snapshot) -> Mapping[object, object]:
    """The unparsed summary of a snapshot; empty if there is none."""
    summary = snapshot.raw.get("summary")
    return summary if isinstance(summary, dict) else {}  # isinstance with Mapping takes eight times as long


def summary_counter(counters: Mapping[Any, object], key: str) -> int | None:
    """One counter of a summary; ``None`` if it is missing or not a whole number."""
    return _whole_number(counters.get(key))


def _whole_number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


def average_file_bytes(counters: Mapping[object, object]) -> float | None:
    """The mean size of data and delete files, from a snapshot's summary; ``None``: no files, or unknown.

    In Java, ``total-files-size`` includes delete files, and ``total-data-files`` does not.
    """
    files, size = summary_counter(counters, "total-data-files"), summary_counter(counters, "total-files-size")
    deletes = summary_counter(counters, "total-delete-files") or 0
    return size / (files + deletes) if files and size is not None else None


def listed_manifests(counters: Mapping[object, object]) -> int | None:
    """The number of manifests of a snapshot, from its summary; ``None``: unknown."""
    created, kept = (summary_counter(counters, f"manifests-{name}") for name in ("created", "kept"))
    return None if created is None or kept is None else created + kept


def lake_counters(
    metadata: TableMetadata,
    head: Snapshot | None,
    *,
    now_ms: int,
    manifests: Sequence[ManifestFile] | int | None = None,
) -> dict[str, int | float]:
    """Counters by metric name; ``manifests`` are those of the head, or how many there are, if the caller knows it."""
    counters: dict[str, int | float] = {
        "lake_snapshots": len(metadata.snapshots),
        "lake_refs": len(metadata.refs),
        "lake_metadata_log": len(metadata.metadata_log),
        "lake_statistics_files": len(metadata.statistics) + len(metadata.partition_statistics),
    }
    if metadata.snapshots:
        counters[AGE_COUNTER] = round(max(0, now_ms - min(metadata.snapshot_times_ms)) / HOUR_MS, 1)
    if head is not None:
        summary = summary_counters(head)
        for name, key in _FROM_SUMMARY.items():
            if (value := summary_counter(summary, key)) is not None:
                counters[name] = value
        if metadata.format_version == 1:  # v1 has no delete files
            counters["lake_delete_files"] = 0
        if "lake_delete_files" in counters and (average := average_file_bytes(summary)) is not None:
            counters["lake_average_file_bytes"] = round(average)
        if (listed := listed_manifests(summary)) is not None:
            counters["lake_manifests"] = listed
        counters |= _clustering_depth(metadata, head)
        if (history := _history_bytes(metadata, head)) is not None:
            counters["lake_history_bytes"] = history
    if isinstance(manifests, int):
        counters["lake_manifests"] = manifests
    elif manifests is not None:
        counters["lake_manifests"] = len(manifests)
        counters["lake_delete_manifests"] = sum(m.content is ManifestContent.DELETES for m in manifests)
    return counters


def _clustering_depth(metadata: TableMetadata, head: Snapshot) -> dict[str, float]:
    """The depth that the newest summary records: the depth now would need all manifests."""
    if not any(DEPTH_KEY in summary_counters(snapshot) for snapshot in metadata.snapshots.values()):
        return {}  # as for most tables, without a walk through the history
    for snapshot in metadata.ancestors(head.snapshot_id):
        text = summary_counters(snapshot).get(DEPTH_KEY)
        if text is not None and re.fullmatch(r"[0-9]{1,9}(\.[0-9]{1,9})?", str(text)):
            return {DEPTH_COUNTER: float(str(text))}
    return {}


def _history_bytes(metadata: TableMetadata, head: Snapshot) -> int | None:
    """The size of the data and delete files that are referenced, but not by the head; ``None``: unknown.

    These are the files that an ancestor's child removed, and the files that snapshots of other branches added.
    """
    size, own = 0, set[int]()
    removed: object = None
    for snapshot in metadata.ancestors(head.snapshot_id):
        if removed is not None:  # by the child of this snapshot
            size += _whole_number(removed) or 0
        summary = summary_counters(snapshot)
        removed = summary.get("removed-files-size")  # parsed above only if present: this runs for all tables of a scan
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
            return None  # only expired snapshots recorded which of its files were removed since
        size += summary_counter(summary_counters(snapshot), "added-files-size") or 0
    return size


_AVERAGE = "lake_average_file_bytes"
_GREATEST = frozenset({AGE_COUNTER, DEPTH_COUNTER})
_OF_AVERAGE = ("lake_bytes", "lake_data_files", "lake_delete_files")


def lake_totals(lake: Iterable[LakeStats]) -> dict[str, int | float]:
    """Sums of the tables' counters, the number of tables, and the number of tables with a warning.

    Records of tables that could not be read are left out: they have no counters.  The age of the oldest snapshot and
    the clustering depth are maxima over all tables.  The average file size is over all files of the tables whose own
    average is known.  A counter that no table has is left out.
    """
    totals: defaultdict[str, int | float] = defaultdict(int)
    of_average: Counter[str] = Counter()
    greatest: dict[str, float] = {}
    tables = warned = 0
    for stats in lake:
        if stats.verdict.is_unread:
            continue
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


Counters = Mapping[str, int | float]

# Java's commit.manifest.target-size-bytes is 8 MB, about ten thousand entries: below a tenth of that, merging manifests
# saves most of a planner's requests.
SPARSE_MANIFEST_FILES = 1000
# Readers open the delete files of the data that they read: one per ten data files makes them slow (our estimate).
DATA_FILES_PER_DELETE_FILE = 10
# Expiry runs hourly: if a snapshot is a day late, expiry does not run.
LATE_EXPIRY_MS = 24 * HOUR_MS
_PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
_DELETE_AFTER_COMMIT = "write.metadata.delete-after-commit.enabled"


def lake_warnings(metadata: TableMetadata, counters: Counters, policy: Policy, *, now_ms: int) -> dict[str, str]:
    """Warnings of :class:`.WarningKind`, kind → sentence; ``counters`` are those of :func:`lake_counters`."""
    return {
        kind: sentence
        for kind, sentences in (
            (WarningKind.DELETE_DEBT, _delete_debt(counters, policy)),
            (WarningKind.MANIFEST_SPRAWL, _manifest_sprawl(counters, policy)),
            (WarningKind.SMALL_FILES, _small_files(counters, policy)),
            (WarningKind.SNAPSHOT_SPRAWL, _snapshot_sprawl(metadata, policy, now_ms)),
            (WarningKind.METADATA_SPRAWL, _metadata_sprawl(metadata)),
        )
        for sentence in sentences
    }


def finding_warnings(findings: Mapping[str, FileFinding]) -> dict[WarningKind, str]:
    """The warnings about files in which ``verify`` found damage, and about those that passes could not read."""
    found: dict[WarningKind, str] = {}
    damaged = [file for file in findings.values() if file.kind != UNREADABLE]
    unread = [file for file in findings.values() if file.kind == UNREADABLE]
    if damaged:
        least = "at least " if len(damaged) >= MOST_PROBLEMS else ""
        first = f"{damaged[0].kind}: {damaged[0].why}"
        found[WarningKind.DAMAGED] = f"verify found damage in {least}{counted(len(damaged), 'file')}: {first}"
    if unread:
        verb = "is" if len(unread) == 1 else "are"
        found[WarningKind.UNREADABLE_FILES] = (
            f"{counted(len(unread), 'file')} {verb} left alone, except for one attempt a week: {unread[0].why}"
        )
    return found


def refused_expiry_warning(metadata: TableMetadata, refused: RefusedExpiry | None) -> str | None:
    """The warning about an expiry that unreadable metadata stopped; ``None``: there is none in this history."""
    if refused is None or refused.history != history_digest(metadata, refused.needed_by):
        return None
    return f"no snapshot expires, except for one attempt a week: {refused.why}"


def _delete_debt(counters: Counters, policy: Policy) -> Iterator[str]:
    files, deletes = counters.get("lake_data_files"), counters.get("lake_delete_files", 0)
    records = counters.get("lake_records", 0)
    rows = counters.get("lake_position_deletes", 0) + counters.get("lake_equality_deletes", 0)
    if rows and records and rows >= policy.delete_compaction_min_ratio * int(records):
        yield (
            f"there are {rows} deletes for {records} records, which reaches delete_compaction_min_ratio "
            f"{text_of(policy.delete_compaction_min_ratio)}: every reader has to apply them"
        )
    elif files is not None and deletes >= max(policy.min_input_files, files / DATA_FILES_PER_DELETE_FILE):
        yield f"there are {deletes} delete files for {counted(int(files), 'data file')}: every reader has to apply them"


def _manifest_sprawl(counters: Counters, policy: Policy) -> Iterator[str]:
    count, files = counters.get("lake_manifests"), counters.get("lake_data_files")
    if count is None or count < policy.min_manifests_to_rewrite:
        return
    if files is not None and files / count >= SPARSE_MANIFEST_FILES:
        return
    each = "" if files is None else f" for {counted(int(files), 'data file')}"
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
    """The most former metadata files in the log; the default if the property is not a number."""
    text = str(metadata.properties.get(_PREVIOUS_VERSIONS_MAX, "")).strip()
    return int(text) if text.isascii() and text.isdigit() and int(text) else PREVIOUS_VERSIONS_MAX_DEFAULT


_MOST_NAMED = 3
_LONGEST = 500
# Warning → the operations that can remove its cause.
_WORK_OF = {
    WarningKind.DELETE_DEBT: (Operation.COMPACT, Operation.REWRITE_POSITION_DELETES),
    WarningKind.MANIFEST_SPRAWL: (Operation.REWRITE_MANIFESTS,),
    WarningKind.SMALL_FILES: (Operation.COMPACT,),
}


def health_head(metadata: TableMetadata, resolved: ResolvedPolicy | PolicyError) -> Snapshot | None:
    """The head of the maintained branch; of ``main`` if the settings are wrong or the branch does not exist."""
    branch = resolved.policy.branch if isinstance(resolved, ResolvedPolicy) else MAIN
    return metadata.head(branch if branch in metadata.refs else MAIN)


def examine(
    identity: TableIdentity,
    metadata: TableMetadata,
    resolved: ResolvedPolicy | PolicyError,
    *,
    now_ms: int,
    manifests: Sequence[ManifestFile] | int | MaintenanceError | None = None,
    idle: Callable[[ResolvedPolicy], Collection[Operation]] = lambda resolved: (),
    deletes_elsewhere: int = 0,
    memory: Glance | None = None,
    cut_off: CutOff | None = None,
    twins: Sequence[str] = (),
    waits: str | None = None,
) -> LakeStats:
    """The health of a table at ``now_ms`` (epoch milliseconds), maintained or not.

    ``resolved``: if the settings are wrong, the error; it becomes a warning, and the others use the default settings.
    ``manifests``: those of the head, or their number, if the caller knows it; or why its manifest list cannot be read.
    ``idle``: called if files seem to need work; returns the operations that find none, whose warnings are left out.
    ``deletes_elsewhere``: the number of deletes with another spec or partition than the data file that they name.
    ``memory``: what passes have recorded about the table.
    ``cut_off``: set if a pass over the table took too long.
    ``twins``: other tables with the same UUID.
    ``waits``: why deletions wait for a table that cannot be read.
    """
    head = health_head(metadata, resolved)
    listed = None if isinstance(manifests, MaintenanceError) else manifests
    counters = lake_counters(metadata, head, now_ms=now_ms, manifests=listed)
    policy = resolved.policy if isinstance(resolved, ResolvedPolicy) else Policy()
    warnings = lake_warnings(metadata, counters, policy, now_ms=now_ms)
    if deletes_elsewhere:
        warnings[WarningKind.DELETE_SCOPE] = (
            f"{deletes_elsewhere} delete(s) have another spec or partition than the data file that they name: Iceberg "
            "after 1.11 refuses to read the table; rewrite_position_deletes moves them"
        )
    if isinstance(manifests, MaintenanceError):
        warnings[WarningKind.MANIFESTS_UNREAD] = f"the number of the table's manifests is unknown: {manifests}"
    if memory is not None:
        warnings |= dict(_of_passes(identity, metadata, memory))
    warnings |= dict(_of_state(cut_off, twins, waits))
    if isinstance(resolved, ResolvedPolicy):
        warnings = {**_of_work(warnings, resolved, idle), **resolved.owners.warnings, **_of_settings(resolved)}
    else:
        warnings[WarningKind.WRONG_SETTINGS] = f"the table's settings are wrong, so it is not maintained: {resolved}"
    return LakeStats(
        identity=identity,
        observed_ms=now_ms,
        snapshot_id=None if head is None else head.snapshot_id,
        counters=counters,
        warnings={str(kind): warnings[kind] for kind in sorted(warnings, key=lambda kind: kind not in DAMAGE)},
        policy=dict(resolved.documents(defaults=False)) if isinstance(resolved, ResolvedPolicy) else {},
        timeline=timeline(metadata),
        verified_ms=0 if memory is None or memory.verified is None else memory.verified.at_ms,
    )


def _of_passes(identity: TableIdentity, metadata: TableMetadata, memory: Glance) -> Iterator[tuple[WarningKind, str]]:
    """Warnings about what passes and ``verify`` found."""
    yield from finding_warnings(memory.findings).items()
    if (sentence := refused_expiry_warning(metadata, memory.refused_expiry)) is not None:
        yield WarningKind.EXPIRY_REFUSED, sentence
    if has_former_table(memory.sweeps):
        yield (
            WarningKind.FORMER_TABLE,
            "a dropped table has left metadata at this table's location, so orphans are kept; icekeeper maintain "
            f"{identity.table} --operations remove_orphans shows which metadata, and what to do",
        )
    if memory.seen is not None and memory.seen.failures:
        found = (
            f"{operation} failed in {'the last pass' if count == 1 else f'{count} passes in a row'}"
            for operation, count in sorted(memory.seen.failures.items())
        )
        yield WarningKind.FAILING, f"{', '.join(found)}; icekeeper history says why"


def _of_state(cut_off: CutOff | None, twins: Sequence[str], waits: str | None) -> Iterator[tuple[WarningKind, str]]:
    if cut_off is not None:
        yield WarningKind.CUT_OFF, f"the table is not maintained: {cut_off.sentence}"
    if twins:
        more = len(twins) - _MOST_NAMED
        named = ", ".join(twins[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        yield (
            WarningKind.UUID_TWICE,
            f"the table's UUID is also that of {named}: pins and staged loads of each apply to both; "
            "drop the table that is not needed, or create the copy again",
        )
    if waits is not None:
        yield WarningKind.DELETIONS_WAIT, waits


def _of_settings(resolved: ResolvedPolicy) -> dict[str, str]:
    """The warning about the table's settings that are ignored, short enough to be stored for each table."""
    if not resolved.ignored:
        return {}
    first, more = resolved.ignored[0].sentence(), len(resolved.ignored) - 1
    cut = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}…"
    return {WarningKind.IGNORED_SETTINGS: cut + (f"; and {more} more (icekeeper policy show says why)" if more else "")}


def _of_work(
    warnings: dict[str, str], resolved: ResolvedPolicy, idle: Callable[[ResolvedPolicy], Collection[Operation]]
) -> dict[str, str]:
    """The warnings without those for which all operations that run have nothing to do."""
    if _WORK_OF.keys().isdisjoint(warnings):
        return warnings
    found = frozenset(idle(resolved))
    runs = {kind: [op for op in operations if resolved.runs(op)] for kind, operations in _WORK_OF.items()}
    left = {kind for kind, operations in runs.items() if operations and found.issuperset(operations)}
    return {kind: sentence for kind, sentence in warnings.items() if kind not in left}
