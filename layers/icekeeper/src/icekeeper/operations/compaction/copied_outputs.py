"""Plans the outputs of a group whose files are copied in part, and what is decoded (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from icekeeper.operations.compaction.rewrite_task import Copying
from icekeeper.row_group_copy.copyable import CopyableFile, counted_bytes
from icekeeper.rows.read_task import InputFile

# Assigns inputs to outputs when whole files are copied: outputs are cut between files, not between rows (pure).


def assign(sizes: Sequence[int], outputs: int, smallest: int, largest: int) -> list[range] | None:
    """The numbers of the inputs of each output, in order; ``sizes`` are those of the inputs in bytes.

    Each output gets the inputs of which more than half lies in its even share.  ``None`` where one of several outputs
    would then be smaller or larger than these bounds: rows can be divided evenly, files cannot.
    """
    if outputs == 1:
        return [range(len(sizes))]
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    # Twice the middle of each input, in shares of an output.
    shares = [(2 * end - size) * outputs for end, size in zip(ends, sizes, strict=True)]
    owners = [min(outputs - 1, share // (2 * total)) if total else 0 for share in shares]
    parts = [range(*_bounds(owners, number)) for number in range(outputs)]
    if any(not smallest <= sum(sizes[i] for i in part) <= largest for part in parts):
        return None
    return parts


def _bounds(owners: Sequence[int], number: int) -> tuple[int, int]:
    """Where the inputs of an output begin and end; ``owners`` ascend."""
    return sum(owner < number for owner in owners), sum(owner <= number for owner in owners)


# Plans the outputs of a group of which some inputs can be copied, and which inputs are decoded (pure).
#
# An input is copied if its footer allows it and if it requires values in the columns in which the other parts of the
# output do.  Where small row groups would make scans of the output slow, all of the output is decoded.  Inputs without
# page indexes share no output with others where that makes no more files (rule: uniform-footers).


@dataclass(frozen=True, slots=True)
class CopyableInput:
    """An input of a task of which at least some row groups can be copied."""

    file: CopyableFile
    """It, or what of it can be copied."""
    decoded: tuple[InputFile, ...] = ()
    """The row groups that are decoded instead, each an input of its own."""


@dataclass(frozen=True, slots=True)
class PlannedOutput:
    """One output, by the numbers of the task's inputs."""

    decoded: tuple[int, ...]
    copied: tuple[int, ...]


def plan_outputs(
    sizes: Sequence[int],
    outputs: int,
    copyable: Mapping[int, CopyableInput],
    copying: Copying,
    nullability: bytes,
    row_group_bytes: int,
) -> list[PlannedOutput] | None:
    """The outputs, at least one of which copies something; ``None``: all inputs are to be decoded.

    ``sizes`` are the bytes of the inputs, ``copyable`` those that can be copied by number, ``nullability`` is what
    decoded rows will require, and their row groups will have about ``row_group_bytes``.
    """
    bare = frozenset(i for i, one in copyable.items() if not one.file.has_page_index)
    parts = _divided(sizes, outputs, bare, copying)
    if parts is None:
        return None
    planned = []
    for part in parts:
        copied = _alike([i for i in part if i in copyable], len(part), copyable, nullability)
        decoded = tuple(i for i in part if i not in copied)
        row_groups = sum(copyable[i].file.row_groups for i in copied)
        old_bytes = {i: copyable[i].file.copied_bytes for i in copied}
        new_bytes = sum(sizes[i] for i in decoded)
        new_bytes += sum(max(0, sizes[i] - old_bytes[i]) for i in copied if copyable[i].decoded)
        size = new_bytes + sum(_counted(copyable[i].file, copying) for i in copied)
        if size < copying.min_row_group_bytes * (row_groups + -(-new_bytes // row_group_bytes)):
            copied, decoded = (), tuple(part)
        planned.append(PlannedOutput(decoded, copied))
    return planned if any(one.copied for one in planned) else None


def _divided(
    sizes: Sequence[int], outputs: int, bare: frozenset[int], copying: Copying
) -> Sequence[Sequence[int]] | None:
    """The inputs of each output; the ``bare`` ones, which have no page index, by themselves if that can be."""
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


def _counted(file: CopyableFile, copying: Copying) -> int:
    least, full = copying.min_row_group_bytes, copying.full_row_group_memory
    return counted_bytes(file.copied_bytes, file.memory_bytes, least, full)


def _alike(
    numbers: Sequence[int], inputs: int, copyable: Mapping[int, CopyableInput], nullability: bytes
) -> tuple[int, ...]:
    """Of the copyable inputs of an output those that can share it: all, or those that require what decoded rows do."""
    kinds = {copyable[i].file.nullability for i in numbers}
    if len(kinds) == 1 and len(numbers) == inputs and not any(copyable[i].decoded for i in numbers):
        return tuple(numbers)
    return tuple(i for i in numbers if copyable[i].file.nullability == nullability)
