"""What a dry run reports about a compaction plan: reasons, outputs and cost of groups, and files left alone (pure).

The operations that follow in the dry run plan on the outputs that are expected here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from icekeeper.metadata.document import TableMetadata
from icekeeper.metadata.types import comparable, decode
from icekeeper.model import DataFile, FileContent
from icekeeper.operations.compaction.plan.bins import FileGroup, Reason
from icekeeper.operations.compaction.plan.candidates import Tally, known_deleted_rows
from icekeeper.operations.compaction.plan.plan_groups import CompactionPlan
from icekeeper.operations.compaction.terms.recipe import ClusterRecipe
from icekeeper.operations.compaction.terms.rewrite_task import RewriteResult
from icekeeper.operations.compaction.terms.write_properties import partition_path, row_group_bytes
from icekeeper.policy import DEFAULT_SOURCE, Policy, ResolvedPolicy
from icekeeper.policy.values import RewriteReason, text_of

MOST_GROUPS = 1000
"""The largest number of groups that are listed one by one; all of them count in the totals."""
_PRICES = (
    *("price_per_gb_scanned", "price_per_gb_rewritten", "price_per_gb_copied"),
    *("price_per_1000_gets", "price_per_1000_puts"),
)
_SUMMED = ("files", "outputs", "bytes_in", "bytes_out", "delete_files", "requests", "saving_usd", "cost_usd")


def plan_document(plan: CompactionPlan, metadata: TableMetadata) -> dict[str, Any]:
    """The ``plan`` of an operation in ``plan --json``; bytes out, requests and money are estimates."""
    groups = [_group(group, metadata, plan.recipe) for group in plan.groups]
    return {
        "groups": groups[:MOST_GROUPS],
        "totals": {"groups": len(groups), **{key: _sum(groups, key) for key in _SUMMED}},
        **left_document(plan.left),
    }


def assumptions(resolved: ResolvedPolicy) -> dict[str, Any]:
    """The base of the estimates of money: the number of scans, the prices, and which prices are set explicitly.

    The default prices are AWS's, for every store.
    """
    scans = resolved.policy.expected_scans
    set_by = [key for key in _PRICES if resolved.sources[key] != DEFAULT_SOURCE]
    return {
        "assumes": {
            "expected_scans": 1 if scans is None else scans,
            "prices": {key: float(getattr(resolved.policy, key)) for key in _PRICES},
            "prices_set": set_by,
        }
    }


def left_document(left: Mapping[str, Tally]) -> dict[str, Any]:
    """The files that are left alone, and why."""
    return {"left": [{"reason": reason, "files": part.files, "bytes": part.bytes} for reason, part in left.items()]}


def _group(group: FileGroup, metadata: TableMetadata, recipe: ClusterRecipe | None) -> dict[str, Any]:
    deletes = {entry.file.key for c in group.files for entry in c.deletes}
    return {
        "reasons": _reasons(group, recipe),
        "partition": partition_path(metadata.specs[group.spec_id], group.partition, metadata.schemas_current_first),
        "spec_id": group.spec_id,
        "files": len(group.files),
        "outputs": expected_outputs(group),
        "bytes_in": group.total_bytes,
        "bytes_out": group.expected_bytes,
        "delete_files": len(deletes),
        "requests": group.worth.requests,
        "saving_usd": round(group.worth.saving, 9),
        "cost_usd": round(group.worth.cost, 9),
    }


def _reasons(group: FileGroup, recipe: ClusterRecipe | None) -> list[str]:
    """The main reason of the rewrite first; then the other reasons that apply to some of its files."""
    also = []
    if any(c.has_debt for c in group.files):
        also.append("deletes")
    if group.route_to is not None or any(c.spec_id != group.spec_id for c in group.files):
        also.append("spec")
    lacks = sorted(reason.value for reason in frozenset[RewriteReason]().union(*(c.lacks for c in group.files)))
    main = [] if group.reason is Reason.SETTINGS else [group.reason.value]
    if recipe is not None and group.reason is Reason.CLUSTERING and len(group.files) > 1:
        # Sorted files are sorted again because they are small, or because a lookup opens too many of them.
        is_small = all(c.file_size_in_bytes < recipe.smallest_bytes for c in group.files)
        if all(c.is_clustered for c in group.files):
            main = [Reason.SMALL.value if is_small else "depth"]
    return list(dict.fromkeys([*main, *lacks, *also]))


def _sum(groups: Sequence[dict[str, Any]], key: str) -> int | float:
    total = sum(group[key] for group in groups)
    return round(total, 9) if isinstance(total, float) else total


def _expected_rows(group: FileGroup) -> int:
    """The rows of a group that are not deleted according to manifests."""
    return sum(c.record_count - known_deleted_rows(c, c.deletes) for c in group.files)


def expected_outputs(group: FileGroup) -> int:
    """How many files a group becomes: no more than it has rows, and none if all of them are deleted."""
    return min(group.output_count, _expected_rows(group))


def expected_result(group: FileGroup, inputs: Sequence[DataFile], stem: str, types: Mapping[int, str]) -> RewriteResult:
    """The files that a worker is expected to write for a group; ``stem`` starts their paths, ``types`` are of columns.

    ``inputs`` are the files of the group with their column metrics.

    Rows that are deleted according to manifests are left out; the others are divided evenly among the outputs.  Every
    output gets the bounds of all inputs.  All rows are expected in the group's own partition.
    """
    rows, size, count = _expected_rows(group), group.expected_bytes, expected_outputs(group)
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
    """The outermost bound of each column that has one in every input."""
    columns = types.keys() & set[int].intersection(*(set(of_file or ()) for of_file in found))
    outermost = {}
    for column in sorted(columns):
        kind = types[column]
        bounds = [of_file[column] for of_file in found if of_file is not None]
        try:
            pick = min if is_lower else max
            outermost[column] = pick(bounds, key=lambda bound: comparable(kind, decode(kind, bound)))
        except ValueError:  # a bound that is no value of the column's type is not used
            continue
    return outermost


# A row group ends with a batch, and the size of the first one is a guess.  A row group below this share of the wanted
# size was cut, because memory allowed no larger one.
_CUT = 0.75
_PROPERTY = "write.parquet.row-group-size-bytes"
_MEGABYTE = 1024 * 1024


def cut_row_groups(files: Iterable[DataFile], properties: Mapping[str, str]) -> list[int]:
    """The encoded bytes of the row groups that memory cut; a file's first and last row group do not count."""
    wanted = row_group_bytes(properties)
    offsets = (list(pairwise(file.split_offsets or ()))[1:] for file in files)
    return [after - before for pairs in offsets for before, after in pairs if after - before < _CUT * wanted]


def cut_sentence(sizes: list[int], properties: Mapping[str, str], policy: Policy) -> str:
    """A clause for the summary; empty unless the table sets a row group size and did not get it."""
    if not sizes or _PROPERTY not in properties:
        return ""
    average = sum(sizes) / len(sizes) / _MEGABYTE
    return (
        f"; row groups are of {average:.0f} MB, below {_PROPERTY}, because they may fill "
        f"{text_of(policy.row_group_memory_mb)} MB of memory (row_group_memory_mb)"
    )
