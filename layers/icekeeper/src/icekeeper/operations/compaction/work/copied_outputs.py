"""Plan the outputs of a group with inputs that can be copied, and decide which inputs are decoded (pure).

An input is copied if its footer allows it and if it has the same required columns as the other parts of the output.
An output whose small row groups would make scans slow is decoded completely.  Inputs without page indexes do not share
an output with other inputs, unless that needs more files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from icekeeper.operations.compaction.terms.rewrite_task import Copying
from icekeeper.row_group_copy.copyable import CopyableFile, counted_bytes
from icekeeper.rows.read_task import InputFile


@dataclass(frozen=True, slots=True)
class CopyableInput:
    """An input of a task with at least some row groups that can be copied."""

    file: CopyableFile
    """The file, reduced to the row groups that can be copied."""
    decoded: tuple[InputFile, ...] = ()
    """The other row groups, each an input of its own."""


def plan_outputs(
    sizes: Sequence[int],
    outputs: int,
    copyable: Mapping[int, CopyableInput],
    copying: Copying,
    nullability: bytes,
    row_group_bytes: int,
) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The numbers of the decoded and of the copied inputs of each output; empty: all inputs are decoded.

    ``sizes`` are the bytes of the inputs; ``copyable`` maps the numbers of some inputs to what can be copied.  Decoded
    rows have the required columns of ``nullability``, and row groups of about ``row_group_bytes``.
    """
    bare = frozenset(i for i, found in copyable.items() if not found.file.has_page_index)
    parts = _divided(sizes, outputs, bare, copying)
    least, full = copying.min_row_group_bytes, copying.full_row_group_memory
    planned: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for part in parts or ():
        copied = _alike([i for i in part if i in copyable], len(part), copyable, nullability)
        decoded = tuple(i for i in part if i not in copied)
        files = [copyable[i].file for i in copied]
        new_bytes = sum(sizes[i] for i in decoded)
        new_bytes += sum(max(0, sizes[i] - copyable[i].file.copied_bytes) for i in copied if copyable[i].decoded)
        size = new_bytes + sum(counted_bytes(file.copied_bytes, file.memory_bytes, least, full) for file in files)
        if size < least * (sum(file.row_groups for file in files) + -(-new_bytes // row_group_bytes)):
            copied, decoded = (), tuple(part)
        planned.append((decoded, copied))
    return planned if any(copied for _, copied in planned) else []


def assign(sizes: Sequence[int], outputs: int, smallest: int, largest: int) -> list[range] | None:
    """Divide whole inputs among outputs: the numbers of the inputs of each output, in order; sizes are in bytes.

    Each output gets the inputs of which more than half is in its even share.  ``None``: an output of several would be
    smaller or larger than the bounds, because only rows can be divided evenly.
    """
    if outputs == 1:
        return [range(len(sizes))]
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    # Twice the middle of each input, in shares of an output.
    shares = [(2 * end - size) * outputs for end, size in zip(ends, sizes, strict=True)]
    owners = [min(outputs - 1, share // (2 * total)) if total else 0 for share in shares]
    # Owners are in ascending order.
    parts = [
        range(sum(owner < number for owner in owners), sum(owner <= number for owner in owners))
        for number in range(outputs)
    ]
    if any(not smallest <= sum(sizes[i] for i in part) <= largest for part in parts):
        return None
    return parts


def _divided(
    sizes: Sequence[int], outputs: int, bare: frozenset[int], copying: Copying
) -> Sequence[Sequence[int]] | None:
    """The inputs of each output; ``bare`` inputs (without a page index) in separate outputs if possible."""
    smallest, largest = copying.smallest_output_bytes, copying.largest_output_bytes
    in_order = assign(sizes, outputs, smallest, largest)
    if in_order is not None and not any(bare.intersection(part) and not bare.issuperset(part) for part in in_order):
        return in_order
    kinds = [[i for i in range(len(sizes)) if (i in bare) is is_bare] for is_bare in (False, True)]
    size = sum(sizes[i] for i in kinds[0])
    for count in sorted(range(1, outputs), key=lambda count: abs(count * sum(sizes) - outputs * size)):
        found = [
            [kind[place] for place in part]
            for kind, share in zip(kinds, (count, outputs - count), strict=True)
            for part in assign([sizes[i] for i in kind], share, smallest, largest) or ()
        ]
        if len(found) == outputs and all(smallest <= sum(sizes[i] for i in part) <= largest for part in found):
            return found
    return in_order


def _alike(
    numbers: Sequence[int], inputs: int, copyable: Mapping[int, CopyableInput], nullability: bytes
) -> tuple[int, ...]:
    """The copyable inputs that can share an output: all, or those with the same required columns as decoded rows."""
    kinds = {copyable[i].file.nullability for i in numbers}
    if len(kinds) == 1 and len(numbers) == inputs and not any(copyable[i].decoded for i in numbers):
        return tuple(numbers)
    return tuple(i for i in numbers if copyable[i].file.nullability == nullability)
