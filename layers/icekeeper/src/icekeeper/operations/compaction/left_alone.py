"""Says which candidates a plan leaves alone, and why, for people (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from icekeeper.operations.compaction.bins import Bin
from icekeeper.operations.compaction.candidates import Candidate, Candidates, Tally
from icekeeper.operations.compaction.payback import WeighedBin
from icekeeper.policy import Policy

__all__ = ["LeftAlone", "left_alone"]


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Files that one reason keeps from being rewritten."""

    reason: str
    files: int
    bytes: int


def left_alone(
    found: Candidates, bins: Sequence[Bin], unpaid: Iterable[WeighedBin], waiting: Iterable[WeighedBin], policy: Policy
) -> tuple[LeftAlone, ...]:
    """Everything that is not rewritten although its size, deletes or order ask for it.

    ``bins`` are all that were found; ``unpaid`` cost more than they save, ``waiting`` did not fit the budget.
    """
    least = policy.min_input_files
    binned = {id(c) for chosen in bins for c in chosen.files}
    few: list[Candidate] = []
    uneven: list[Candidate] = []
    for files in found.partitions:
        (few if len(files) < least else uneven).extend(c for c in files if id(c) not in binned)
    passed = found.passed_over
    parts = (
        _of(f"their partition has fewer than min_input_files {least} candidates", few),
        _of("they wait for more files of about their size, or for enough bytes to fill a file", uneven),
        _of(f"merging them costs more than it saves in expected_scans {policy.expected_scans}", _files(unpaid)),
        _of("the caps of a pass, or the budget for deletes, leave them to a later one", _files(waiting)),
        _counted("they were added less than min_data_age_hours ago", passed.too_young),
        _counted("they are far above the target, and their row groups leave no place to cut them", passed.uncut),
        _counted("another schedule of the table has ordered them", passed.ordered_elsewhere),
        _counted("deletes apply to them, and delete_compaction_enabled is false", passed.under_deletes),
        _counted(f"they cannot be read: {passed.first_unsupported}", passed.unsupported),
    )
    return tuple(part for part in parts if part.files)


def _files(weighed: Iterable[WeighedBin]) -> list[Candidate]:
    return [c for one in weighed for c in one.bin.files]


def _of(reason: str, files: Sequence[Candidate]) -> LeftAlone:
    return LeftAlone(reason, len(files), sum(c.file.file_size_in_bytes for c in files))


def _counted(reason: str, tally: Tally) -> LeftAlone:
    return LeftAlone(reason, tally.files, tally.bytes)
