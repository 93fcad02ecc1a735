"""What a row of the suite is: an operation on a table, who takes part, what is wanted of the result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.tables.datasets import WARM_UP


@dataclass(frozen=True, slots=True)
class Target:
    """``figure`` of ``ours`` is at most ``at_most`` times that of ``against``, or at most that many units."""

    figure: str
    ours: str
    at_most: float
    against: str | None = None


def against(ours: str, limits: Mapping[str, Mapping[str, float]]) -> tuple[Target, ...]:
    """Targets by contestant and figure."""
    return tuple(
        Target(figure, ours, at_most, against) for against, all_ in limits.items() for figure, at_most in all_.items()
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; every entrant does the same operation on the same table."""

    key: str
    title: str
    dataset: str
    operation: str
    entrants: Sequence[str]
    targets: Sequence[Target]
    task: Mapping[str, Any] = field(default_factory=dict)
    """The parameters of every entrant."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Policy keys for Icekeeper."""
    most_files: int | None = None
    """A result with more data files has not done the work."""
    most_share: float | None = None
    """The same, as a share of the table's data files."""
    warm_up: tuple[str, float] = (WARM_UP, 1)
    """The dataset, and its scale, of the same operation that everybody does once before."""
    proof: str | None = None
    """How results are proven, where the entrants' own way does not fit: see :mod:`benchmarks.proof`."""
    store_delay_ms: float | None = None
    """On SeaweedFS, so many ms before every request, which are counted; 0: neither; ``None``: on this disk."""
    predicates: Sequence[str] = ()
    """Of each, how many files a reader would open afterwards is counted: figure ``files_opened``, their sum."""
    is_whole: bool = False
    """Every run is a process of its own, and its start counts."""
    quick_scale: float | None = None
    """The scale in ``make bench-quick``; ``None``: not in it."""
