"""The files that a rewrite is expected to write, and their commit to the planned table of a dry run.

The operations that follow in the dry run plan on these files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from icekeeper.catalogs.catalog import LoadedTable
from icekeeper.metadata.types import comparable, decode
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.land.commit_groups import GroupOutcomes, commit_results
from icekeeper.operations.compaction.land.group_entries import OVERTAKEN, GroupEntries
from icekeeper.operations.compaction.land.rounds import in_commits
from icekeeper.operations.compaction.plan.bins import FileGroup
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.plan.preview import expected_outputs, expected_rows
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult
from icekeeper.pass_context.context import OperationContext
from icekeeper.rows.arrow_schema import leaf_columns


def commit_expected(context: OperationContext, loaded: LoadedTable, plan: CompactionPlan) -> None:
    """Commit the expected output files to the planned table of a dry run."""
    outcomes = GroupOutcomes(dict(plan.delete_needs))
    stem = f"{loaded.metadata.data_location}/expected-{plan.snapshot_id}"
    types = {leaf.field_id: leaf.iceberg_type for leaf in leaf_columns(loaded.metadata.current_schema)}
    entries = GroupEntries(context.reader(loaded), plan)
    # The first commit after an upgrade to v3 gives ids to all rows.  A pass continues with them; a dry run has no such
    # commit.
    lacks_ids = loaded.metadata.format_version >= 3 and not all(group.has_lineage for group in plan.groups)
    for groups in in_commits(plan.groups, 0 if lacks_ids else context.policy.partial_progress):
        results = []
        for group in groups:
            found = entries.of([group])
            inputs = [found[c.file_path] for c in group.files if c.file_path in found]
            if len(inputs) < len(group.files):
                results.append(RewriteResult(group_id=group.group_id, overtaken=OVERTAKEN))
            else:
                results.append(expected_result(group, inputs, stem, types))
        commit_results(context, loaded, plan, results, outcomes)


def expected_result(group: FileGroup, inputs: Sequence[DataFile], stem: str, types: Mapping[int, str]) -> RewriteResult:
    """The files that a worker is expected to write for a group; ``stem`` starts their paths, ``types`` are the column
    types by field id.

    ``inputs`` are the files of the group with their column metrics.

    Rows that are deleted according to manifests are left out; the others are divided evenly among the outputs.  Every
    output gets the bounds of all inputs.  All rows are expected in the group's own partition.
    """
    rows, size, count = expected_rows(group), group.expected_bytes, expected_outputs(group)
    written = tuple(
        DataFile(
            content=FileContent.DATA,
            file_path=f"{stem}-{group.group_id:05d}-{number:05d}.parquet",
            file_format="PARQUET",
            partition=group.partition,
            record_count=rows * (number + 1) // count - rows * number // count,
            file_size_in_bytes=max(1, size // count),
            column_sizes=_shared_out([file.column_sizes for file in inputs], count),
            value_counts=_shared_out([file.value_counts for file in inputs], count),
            null_value_counts=_shared_out([file.null_value_counts for file in inputs], count),
            lower_bounds=_bounds([file.lower_bounds for file in inputs], types, is_lower=True),
            upper_bounds=_bounds([file.upper_bounds for file in inputs], types, is_lower=False),
        )
        for number in range(count)
    )
    return RewriteResult(group_id=group.group_id, written=written, rows_read=group.record_count)


def _shared_out(counts: Sequence[Mapping[int, int] | None], outputs: int) -> dict[int, int]:
    """The counts of each column, summed over the inputs and divided by the outputs."""
    total: Counter[int] = Counter()
    for of_file in counts:
        total.update(of_file or {})
    return {column: amount // outputs for column, amount in total.items()}


def _bounds(
    found: Sequence[Mapping[int, bytes] | None], types: Mapping[int, str], *, is_lower: bool
) -> dict[int, bytes]:
    """The outermost bound of each column that has a bound in every input."""
    columns = types.keys() & set[int].intersection(*(set(of_file or ()) for of_file in found))
    outermost = {}
    for column in sorted(columns):
        kind = types[column]
        bounds = [of_file[column] for of_file in found if of_file is not None]
        try:
            pick = min if is_lower else max
            outermost[column] = pick(bounds, key=lambda bound: comparable(kind, decode(kind, bound)))
        except ValueError:  # ignore a bound that is not a value of the column's type
            continue
    return outermost
