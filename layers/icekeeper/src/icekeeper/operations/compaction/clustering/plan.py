"""Divides the candidates of a partition into the groups that are clustered together (pure).

Files that were not clustered by the current recipe are clustered as soon as it is worth it: ``min_input_files`` files,
or enough bytes for one output, or files that carry deletes.  Clustered files are left alone until there are so many
small ones that they would be merged anyway.

Convergence (rule 49): a group's outputs are clustered, and all but perhaps one of them are large enough.  If that one
would make too many small files, all of them join the group beforehand.  So ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

from collections.abc import Iterable

from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.policy import Policy

__all__ = ["clustering_groups"]


def clustering_groups(files: list[Candidate], policy: Policy) -> list[list[Candidate]]:
    """The groups of one partition's candidates, each in order of age."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    if policy.rewrite_all:
        return _portions(files, policy)
    fresh = [c for c in files if not c.is_clustered]
    small = [c for c in files if c.is_clustered and c.file.file_size_in_bytes < policy.min_file_size_bytes]
    # Large and clustered: only their deletes are applied.
    chosen = [[c] for c in files if c.is_clustered and c.file.file_size_in_bytes >= policy.min_file_size_bytes]
    worth_it = _is_worth_it(fresh, policy)
    groups = _portions(fresh, policy) if worth_it else []
    small_outputs = sum(_total(group) < policy.min_file_size_bytes for group in groups)
    if small and len(small) + small_outputs >= policy.min_input_files:
        together = {id(c) for c in (*small, *fresh)}
        return chosen + _portions([c for c in files if id(c) in together], policy)
    return chosen + groups + [[c] for c in small if c.is_due]


def _is_worth_it(fresh: list[Candidate], policy: Policy) -> bool:
    return (
        len(fresh) >= policy.min_input_files
        or _total(fresh) >= policy.target_file_size_bytes
        or any(c.is_due for c in fresh)
    )


def _portions(files: Iterable[Candidate], policy: Policy) -> list[list[Candidate]]:
    """Divide files into groups of at least ``max_file_group_size`` bytes; the last one may be smaller.

    If the policy caps what one pass rewrites, groups stay within the cap, so that passes get through the table.
    """
    most_files, most_bytes = policy.max_files_to_rewrite, policy.max_bytes_to_rewrite
    groups: list[list[Candidate]] = []
    current: list[Candidate] = []
    size = 0
    for candidate in files:
        added = size + candidate.file.file_size_in_bytes
        is_over_cap = (most_files is not None and len(current) >= most_files) or (
            most_bytes is not None and added > most_bytes
        )
        if current and (is_over_cap or size >= policy.max_file_group_size_bytes):
            groups.append(current)
            current, added = [], candidate.file.file_size_in_bytes
        current.append(candidate)
        size = added
    return [*groups, current] if current else groups


def _total(files: Iterable[Candidate]) -> int:
    return sum(c.file.file_size_in_bytes for c in files)
