"""Divides the candidates of a partition into the groups that are clustered together (pure).

Files that were not clustered by the current recipe are clustered as soon as it is worth it: ``min_input_files`` files,
or enough bytes for one output, or files that carry deletes.  Clustered files are left alone until their runs pile up
beyond ``max_clustering_depth`` (see ``recluster``), or there are ``min_input_files`` small ones of about one size.
What is new joins the runs that are merged, so that it is sorted once and not twice.

Convergence (rule 49): a group's outputs are one run, and all but perhaps one of them are large enough.  If that one
would make too many small files, it joins them beforehand.  So ``plan(apply(plan))`` is empty.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from icekeeper.operations.compaction.candidates import Candidate
from icekeeper.operations.compaction.clustering.recluster import runs_to_merge
from icekeeper.operations.compaction.clustering.runs import Layout, pieces_of_runs
from icekeeper.policy import Policy

__all__ = ["clustering_groups", "missing_to_cluster"]

# The run that new files would become.
_NEW = "new"
# Java's read.split.open-file-cost: below these bytes files cost readers the same, and their size is mostly overhead.
_OPEN_FILE_BYTES = 4 * 1024 * 1024


def clustering_groups(files: list[Candidate], policy: Policy, layout: Layout) -> list[list[Candidate]]:
    """The groups of one partition's candidates."""
    files.sort(key=lambda c: (c.age, c.file.file_path))
    if policy.rewrite_all:
        return _portions(files, policy)
    fresh = [c for c in files if not c.is_clustered]
    if not _is_worth_it(fresh, policy):
        fresh = []
    sorted_before = [c for c in files if c.is_clustered]
    piled = _piled_runs(sorted_before, fresh, policy, layout)
    taken = {id(c) for group in piled for c in group}
    groups = piled + _portions((c for c in fresh if id(c) not in taken), policy)
    small = [c for c in sorted_before if id(c) not in taken and c.file.file_size_in_bytes < policy.min_file_size_bytes]
    groups = _with_small_files(groups, small, policy)
    taken = {id(c) for group in groups for c in group}
    return groups + [[c] for c in sorted_before if c.is_due and id(c) not in taken]


def missing_to_cluster(files: Iterable[Candidate], policy: Policy) -> tuple[tuple[int, int], ...]:
    """Pairs ``(files, bytes)`` that must come before files that are not clustered yet are worth it.

    Only with them may there be a group of candidates that make none; the others are left as they are.
    """
    fresh = [c for c in files if not c.is_clustered]
    enough_files = max(1, policy.min_input_files - len(fresh))
    return (enough_files, 0), (1, max(0, policy.target_file_size_bytes - _total(fresh)))


def _is_worth_it(fresh: list[Candidate], policy: Policy) -> bool:
    return (
        len(fresh) >= policy.min_input_files
        or _total(fresh) >= policy.target_file_size_bytes
        or any(c.is_due for c in fresh)
    )


def _piled_runs(
    sorted_before: Sequence[Candidate], fresh: Sequence[Candidate], policy: Policy, layout: Layout
) -> list[list[Candidate]]:
    """Runs that are merged because they pile up; a group that is too large for a pass is divided along the key."""
    if not policy.rewrite_enabled:
        return []
    files = [*sorted_before, *fresh]
    pieces = pieces_of_runs(sorted_before, layout)
    pieces += [replace(piece, run=_NEW) for piece in pieces_of_runs(fresh, layout)]
    merges = runs_to_merge(pieces, limit=policy.max_clustering_depth, factor=policy.clustering_tier_factor)
    groups: list[list[Candidate]] = []
    for members in merges:
        along_key = [files[n] for n in sorted(members, key=lambda n: pieces[n].ranges[0])]
        run_of = {id(files[n]): pieces[n].run for n in members}
        for portion in _portions(along_key, policy):
            # Files of one run alone are in order already.
            if len({run_of[id(c)] for c in portion}) > 1:
                groups.append(sorted(portion, key=lambda c: (c.age, c.file.file_path)))
    return groups


def _with_small_files(
    groups: list[list[Candidate]], small: Sequence[Candidate], policy: Policy
) -> list[list[Candidate]]:
    """The groups, joined by clustered files that are small where there are ``min_input_files`` of about one size.

    About one size: at most ``clustering_tier_factor`` apart.  Merging a large one with every few tiny ones would
    rewrite it again and again.  A group whose output would be small counts as one small file.
    """
    done = [group for group in groups if _total(group) >= policy.min_file_size_bytes]
    waiting = [group for group in groups if _total(group) < policy.min_file_size_bytes] + [[c] for c in small]
    while window := _window_of_one_size(waiting, policy):
        inside = {id(item) for item in window}
        waiting = [item for item in waiting if id(item) not in inside]
        members = sorted((c for item in window for c in item), key=lambda c: (c.age, c.file.file_path))
        for portion in _portions(members, policy):
            (done if _total(portion) >= policy.min_file_size_bytes else waiting).append(portion)
    return done + [item for item in waiting if len(item) > 1 or not item[0].is_clustered]


def _window_of_one_size(items: list[list[Candidate]], policy: Policy) -> list[list[Candidate]]:
    """The smallest items, at least ``min_input_files`` of them, of which the largest is within the tier factor."""
    items.sort(key=_total)
    sizes = [max(_OPEN_FILE_BYTES, _total(item)) for item in items]
    end = 0
    for start, least in enumerate(sizes):
        while end < len(sizes) and sizes[end] < least * policy.clustering_tier_factor:
            end += 1
        if end - start >= policy.min_input_files:
            return items[start:end]
    return []


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
