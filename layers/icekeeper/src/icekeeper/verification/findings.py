"""What ``verify`` found: problems by kind, and how many things it checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = ["REMEDIES", "Problem", "ProblemKind", "Verification"]


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
    NOT_ALLOWED = "not_allowed"


REMEDIES: Mapping[ProblemKind, str] = {
    ProblemKind.MISSING_FILE: "restore the object; else roll back to a snapshot without it",
    ProblemKind.UNREADABLE_METADATA: "restore the object; else roll back",
    ProblemKind.WRONG_SIZE: "readers may fail; restore or rewrite it",
    ProblemKind.WRONG_COUNT: "queries by metadata are wrong; rewrite the manifests",
    ProblemKind.DUPLICATE_FILE: "rows count twice; remove the file from the table and add it once, in one commit",
    ProblemKind.ROW_LINEAGE: "`_row_id` is null or not unique; data is not affected",
    ProblemKind.DELETION_VECTOR: "readers disagree about which rows are deleted; drop the wrong entry",
    ProblemKind.DELETE_SCOPE: (
        "Iceberg after 1.11 refuses to read the table; `rewrite_position_deletes` moves the delete"
    ),
    ProblemKind.NOT_ALLOWED: (
        "it was not looked at, and may be sound: admit its folder by `ICEKEEPER_ALLOWED_PREFIXES` if it is the table's "
        "own, else drop it from the table"
    ),
    ProblemKind.BROKEN_REF: "set or drop the ref",
    ProblemKind.SEQUENCE_NUMBER: "deletes may apply wrongly; ask before writing",
    ProblemKind.SUMMARY: "statistics are wrong, data is not",
    ProblemKind.STATISTICS: "readers may plan badly, data is not affected; compute the statistics anew",
}
"""What a problem means to readers, and what to do about it; docs/recovery.md says the same."""


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
        kinds = sorted({problem.kind for problem in self.problems})
        return {
            "table": self.table,
            "ok": self.ok,
            "problems": [{"kind": p.kind.value, "path": p.path, "detail": p.detail} for p in self.problems],
            "checked": dict(self.checked),
            **({} if self.ok else {"remedies": {kind.value: REMEDIES[kind] for kind in kinds}}),
        }
