"""What ``verify`` found: problems by kind, and how many things it checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["Problem", "ProblemKind", "Verification"]


class ProblemKind(StrEnum):
    """A closed vocabulary, so that programs can tell damage from sloppy bookkeeping."""

    MISSING_FILE = "missing_file"
    UNREADABLE_METADATA = "unreadable_metadata"
    WRONG_SIZE = "wrong_size"
    WRONG_COUNT = "wrong_count"
    DUPLICATE_FILE = "duplicate_file"
    BROKEN_REF = "broken_ref"
    SEQUENCE_NUMBER = "sequence_number"
    SUMMARY = "summary"
    ROW_LINEAGE = "row_lineage"
    DELETION_VECTOR = "deletion_vector"
    DELETE_SCOPE = "delete_scope"
    STATISTICS = "statistics"
    MIXED_FOOTER = "mixed_footer"


@dataclass(frozen=True, slots=True)
class Problem:
    """One finding; ``path`` is the file concerned, or the metadata file when it concerns the whole table."""

    kind: ProblemKind
    path: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verification:
    """The result for one table; ``checked`` counts the snapshots, manifests and files that were checked."""

    table: str
    problems: tuple[Problem, ...]
    checked: Mapping[str, int]

    @property
    def ok(self) -> bool:
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The document of ``verify --json``."""
        return {
            "table": self.table,
            "ok": self.ok,
            "problems": [{"kind": p.kind.value, "path": p.path, "detail": p.detail} for p in self.problems],
            "checked": dict(self.checked),
        }
