"""Tells from manifests which files a rewrite is expected to copy instead of decoding them (pure).

Only a file's footer decides (:mod:`icekeeper.row_group_copy.copyable`); it is read by the worker, and only of these
files.
"""

from __future__ import annotations

from icekeeper.model import FileContent
from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.output_sizes import OutputSizes
from icekeeper.policy import Policy
from icekeeper.policy.choices import RewriteReason

__all__ = ["is_likely_copied", "may_be_copied", "output_bytes"]

# A file of another spec can be copied: its rows all belong to the output's partition.
_DECODED_FOR = frozenset({RewriteReason.CODEC, RewriteReason.BLOOM})


def is_likely_copied(candidate: Candidate, policy: Policy) -> bool:
    """Whether nothing is known of a file that forbids to copy its row groups into a file of unsorted rows."""
    return not candidate.deletes and _has_fit_row_groups(candidate, policy)


def output_bytes(candidate: Candidate, policy: Policy, sizes: OutputSizes) -> int:
    """About how many bytes the rows of a file take in an output."""
    is_rewritten = candidate.identity.is_rewritten
    is_copied = not is_rewritten and is_likely_copied(candidate, policy)
    return sizes.expected(candidate.file, is_rewritten=is_rewritten, is_copied=is_copied)


def may_be_copied(candidate: Candidate, policy: Policy) -> bool:
    """The same, or whether at least those row groups may be copied of which no row is deleted.

    Deletion vectors and most position deletes name their file, so that one row group is always touched; keys of
    equality deletes may be all of other rows.
    """
    if not candidate.deletes:
        return is_likely_copied(candidate, policy)
    touched = any(entry.file.content is FileContent.POSITION_DELETES for entry in candidate.deletes)
    is_one = len(candidate.file.split_offsets or ()) <= 1
    return not (touched and is_one) and _has_fit_row_groups(candidate, policy)


def _has_fit_row_groups(candidate: Candidate, policy: Policy) -> bool:
    least, file = policy.min_row_group_copy_bytes, candidate.file
    if least is None or policy.rewrite_all:  # whoever asks for all files wants them written anew
        return False
    row_groups = max(1, len(file.split_offsets or ()))
    fills_memory = file.record_count * candidate.row_bytes >= policy.full_row_group_memory_bytes * row_groups
    return (
        file.file_format.upper() == "PARQUET"
        and file.key_metadata is None
        and not candidate.lacks & _DECODED_FOR
        and (file.file_size_in_bytes >= least * row_groups or fills_memory)
    )
