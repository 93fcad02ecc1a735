"""The report of a compaction: counters and a summary of the committed, dropped, failed and waiting groups.

Summary and metric keys are those of SeaweedFS's worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from icekeeper.errors import MaintenanceError
from icekeeper.metadata.table_reader import TableReader
from icekeeper.model import DataFile
from icekeeper.operations.compaction.land.commit_groups import GroupOutcomes
from icekeeper.operations.compaction.plan.candidates import TableState
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan, counters, done_depth, kept_sentence
from icekeeper.operations.compaction.terms.rewrite_task import ROW_GROUP_MEMORY_BYTES
from icekeeper.operations.compaction.terms.write_properties import row_group_bytes
from icekeeper.policy import Operation
from icekeeper.report.outcome import OperationOutcome, Status, skipped, with_left_out
from icekeeper.text import counted, size_text

log = logging.getLogger(__name__)


def outcome_of(plan: CompactionPlan, outcomes: GroupOutcomes, properties: Mapping[str, str]) -> OperationOutcome:
    """The outcome of a pass that rewrote a plan's groups."""
    groups = [group for group in plan.groups if group.group_id in outcomes.committed]
    results = [outcomes.committed[group.group_id] for group in groups]
    written = [file for result in results for file in result.written]
    merged = sum(len(group.files) for group in groups)
    bytes_dropped = sum(group.total_bytes for group in plan.groups if group.group_id in outcomes.dropped)
    # Copied row groups keep the size that writers gave them.
    cut = cut_row_groups((file for result in results if not result.bytes_copied for file in result.written), properties)
    metrics = {
        **counters(plan),
        "compact.files_merged": merged,
        "compact.files_written": len(written),
        "compact.bins": len(groups),
        "compact.bytes_read": sum(group.total_bytes for group in groups),
        "compact.bytes_written": sum(file.file_size_in_bytes for file in written),
        "compact.bytes_copied": sum(result.bytes_copied for result in results),
        "compact.bytes_unread": sum(result.bytes_unread for result in results),
        "compact.bytes_read_again": sum(result.bytes_read_again for result in results),
        "compact.rows_rewritten": sum(group.record_count for group in groups),
        "compact.rows_deleted": sum(result.rows_deleted for result in results),
        "compact.delete_files_removed": outcomes.deletes_removed,
        "compact.bins_dropped": len(outcomes.dropped),
        "compact.bytes_dropped": bytes_dropped,
        "compact.rows_forwarded": outcomes.rows_forwarded,
        "compact.bins_failed": outcomes.failed_groups,
        "compact.bins_waiting": plan.groups_waiting + outcomes.groups_left,
        "compact.commits": len(outcomes.snapshot_ids),
        "compact.row_groups_cut": len(cut),
        **done_depth(plan, outcomes.depth),
    }
    overtaken = _overtaken(outcomes, bytes_dropped)
    summary = _summary(plan, outcomes, merged, len(written), cut_sentence(cut, properties) + overtaken)
    problems = [f"{outcomes.failed_groups} bin(s) failed: {outcomes.errors[0]}"] if outcomes.errors else []
    if not outcomes.snapshot_ids and outcomes.dropped and not outcomes.errors:
        problems.append(f"every bin was overtaken by other commits: {outcomes.nothing}")
    elif len(outcomes.dropped) > len(groups):
        problems.append(f"most bins were overtaken by other commits{overtaken}")
    if not outcomes.snapshot_ids and not problems and not outcomes.groups_left:
        return with_left_out(skipped(Operation.COMPACT, outcomes.nothing, metrics=metrics), outcomes.unreadable)
    ended = OperationOutcome(
        operation=Operation.COMPACT,
        status=Status.FAILED if problems else Status.SUCCEEDED,
        reason="; ".join(problems) or None,
        summary="; ".join(problems) if problems and not outcomes.snapshot_ids else summary,
        snapshot_ids=tuple(outcomes.snapshot_ids),
        metrics=metrics,
        files_planned=() if plan.is_packed else plan.input_files,
    )
    return with_left_out(ended, outcomes.unreadable)


def _summary(plan: CompactionPlan, outcomes: GroupOutcomes, merged: int, written: int, notes: str) -> str:
    if not plan.groups:
        summary = f"dropped {outcomes.deletes_removed} delete file(s) that no data file needs"
    else:
        summary = f"compacted {merged} files into {written} (across {len(outcomes.committed)} bins)" + notes
        if outcomes.rows_forwarded:
            summary += f"; forwarded concurrent deletes of {counted(outcomes.rows_forwarded, 'row')}"
        if outcomes.groups_left:
            summary += f"; {outcomes.groups_left} bin(s) wait for the next run, {outcomes.why_left}"
    if plan.files_unsupported:
        summary += f"; left {plan.files_unsupported} file(s) unchanged: {plan.first_unsupported}"
    return summary + kept_sentence(plan)


def _overtaken(outcomes: GroupOutcomes, bytes_dropped: int) -> str:
    if not outcomes.dropped:
        return ""
    why = next(iter(outcomes.dropped.values()))
    return f"; {counted(len(outcomes.dropped), 'bin')} of {size_text(bytes_dropped)} rewritten in vain: {why}"


def leaves_work(plan: CompactionPlan, outcomes: GroupOutcomes) -> bool:
    """Whether a later pass has more to do: a group was not committed, or waits."""
    # Unreadable and unsupported files do not count.  A group that was given up may have left readable files.
    troubles = outcomes.errors or outcomes.groups_given_up or outcomes.dropped or outcomes.groups_left
    return bool(plan.groups_waiting or troubles or not outcomes.snapshot_ids)


def too_late(reader: TableReader, state: TableState, plan: CompactionPlan) -> Mapping[str, str]:
    """As :func:`.late_deletes`; empty if the history cannot be read, because late deletes are only reported."""
    if state.snapshot is None or 0 not in plan.delete_needs.values():
        return {}
    # Imported here, because few tables have such deletes.
    from icekeeper.operations.compaction.land.forward_deletes import late_deletes

    try:
        return late_deletes(reader, state.snapshot, state.deletes, plan.delete_needs)
    except MaintenanceError as error:
        log.warning("cannot check whether deletes came too late: %s", error)
        return {}


def with_late(outcome: OperationOutcome, late: Mapping[str, str]) -> OperationOutcome:
    """Report the deletes that came after their data files had been rewritten; they are dropped as dangling deletes."""
    outcome = replace(outcome, metrics={**outcome.metrics, "compact.deletes_late": len(late)})
    if not late:
        return outcome
    path, delete = min(late.items())
    note = (
        f"{counted(len(late), 'delete file')} deleted nothing, because compaction had already rewritten the data files "
        f"that they name and their writer does not check that; repeat the deletes, such as {delete}, which names {path}"
    )
    log.warning("%s", note)
    return replace(outcome, summary=f"{outcome.summary}; {note}")


# A row group ends with a batch, and the size of the first batch is a guess.  A row group below this share of the wanted
# size was cut because of the memory limit.
_CUT = 0.75
_PROPERTY = "write.parquet.row-group-size-bytes"
_MEGABYTE = 1024 * 1024


def cut_row_groups(files: Iterable[DataFile], properties: Mapping[str, str]) -> list[int]:
    """The encoded bytes of the row groups that memory cut; a file's first and last row group do not count."""
    wanted = row_group_bytes(properties)
    offsets = (list(pairwise(file.split_offsets or ()))[1:] for file in files)
    return [after - before for pairs in offsets for before, after in pairs if after - before < _CUT * wanted]


def cut_sentence(sizes: list[int], properties: Mapping[str, str]) -> str:
    """A clause for the summary; empty unless the table sets a row group size that was not reached."""
    if not sizes or _PROPERTY not in properties:
        return ""
    average = sum(sizes) / len(sizes) / _MEGABYTE
    return (
        f"; row groups have {average:.0f} MB on average, below {_PROPERTY}, because they may fill at most "
        f"{ROW_GROUP_MEMORY_BYTES // _MEGABYTE} MB of memory"
    )
