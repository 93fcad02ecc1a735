"""How many new manifests must come before a rewrite of manifests can be worth it (pure).

Bounds from the rules of :mod:`.kind_layout`, for the worst that new manifests may be.  Each may lie in the earliest
partition, so that every manifest behind it counts as unsettled again; may hold all partitions, so that planners open it
for each; and may add no bytes worth mentioning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icekeeper.model import ManifestFile
from icekeeper.operations.manifests.kind_layout import MAX_PROBES, KindLayout, most_opened, saves
from icekeeper.operations.manifests.partition_ranges import PartitionRange

__all__ = ["missing_manifests"]

# Two manifests of a spec that has none yet become one.
_OF_ANOTHER_SPEC = 2


def missing_manifests(
    layouts: Sequence[KindLayout], least: int, unsettled_in_all: int, *, has_other_specs: bool
) -> int:
    """The fewest new manifests of one content type that may make a group, at most ``least``; 1: any may."""
    is_alone = len(layouts) == 1 and not has_other_specs
    found = [_missing_in_kind(layout, least, is_alone=is_alone) for layout in layouts]
    missing = min([*found, _OF_ANOTHER_SPEC] if has_other_specs else found)
    # Where nothing is partitioned, new manifests are the youngest and unsettle no other.
    if not any(layout.fields for layout in layouts):
        missing = max(missing, least - unsettled_in_all)
    return max(1, min(missing, least))


def _missing_in_kind(layout: KindLayout, least: int, *, is_alone: bool) -> int:
    """As :func:`missing_manifests`; ``is_alone``: no other kind adds to what is unsettled in all."""
    ordered = layout.in_order(layout.manifests)
    if ordered is None or layout.sections(layout.manifests) > 1:
        return 1
    settled = len(ordered) - len(layout.unsettled())
    # What may be unsettled is all from some manifest on; without partitions nothing comes before what is settled.
    begins = range(settled + 1) if layout.fields else [settled]
    outputs = [max(1, layout.outputs(ordered[begin:])) for begin in begins]
    probed = _Probed.of(layout, ordered) if layout.fields else None
    for number in range(1, least):
        for begin, count in zip(begins, outputs, strict=True):
            unsettled = len(ordered) - begin + number
            if is_alone and unsettled < least:
                continue
            if saves(unsettled, count):
                return number
            if probed is not None and probed.may_be_scattered(begin, number):
                return number
    return least


@dataclass(frozen=True, slots=True)
class _Probed:
    """How many manifests planners open for the partitions at whose corners the manifests of a kind lie."""

    manifests: int
    fields: int
    opened: Sequence[int]
    """Over the two corners of each manifest, added up from the last manifest to this one; ends with 0."""
    most: int
    """For any one partition."""

    @classmethod
    def of(cls, layout: KindLayout, ordered: Sequence[ManifestFile]) -> _Probed:
        fields = len(layout.fields)
        if 2 * len(ordered) >= MAX_PROBES:  # then only a sample is probed, of which nothing is known beforehand
            return cls(len(ordered), fields, (), 0)
        ranges = layout.ranges_of(ordered)
        wide = [found for found in ranges if found.is_wide]
        opened = [0]
        for found in reversed(ranges):
            corners = [corner for corner in (found.low, found.high) if corner is not None]
            opened.append(opened[-1] + sum(other.admits(corner) for other in wide for corner in corners))
        return cls(len(ordered), fields, opened[::-1], _most_opened(wide))

    def may_be_scattered(self, begin: int, number: int) -> bool:
        """Whether the manifests from ``begin`` on and ``number`` new ones may count as badly clustered."""
        old = self.manifests - begin
        if not self.opened or 2 * (old + number) >= MAX_PROBES:
            return True
        allowed = most_opened(old + number, self.fields)
        surplus = self.opened[begin] + 2 * old * (number - allowed)
        return surplus + 2 * number * max(0, self.most + number - allowed) > 0


def _most_opened(wide: Sequence[PartitionRange]) -> int:
    """Of how many manifests one partition may be at most: exactly of one field, else not more than there are."""
    if any(found.fields is None or len(found.fields) != 1 for found in wide):
        return len(wide)
    ends = {end for found in wide for field in found.fields or () for end in field.ends}
    return max((sum(found.admits((end,)) for found in wide) for end in ends), default=0)
