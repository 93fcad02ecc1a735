"""The branch of a table that a policy names."""

from __future__ import annotations

from icekeeper.errors import PolicyError
from icekeeper.metadata.document import MAIN, Snapshot, TableMetadata

__all__ = ["branch_head"]


def branch_head(metadata: TableMetadata, branch: str) -> Snapshot | None:
    """The head of the branch that a policy names; ``None`` while the table has no snapshot on ``main``.

    Raises:
        PolicyError: there is no such branch.
    """
    ref = metadata.refs.get(branch)
    if (ref is None and branch != MAIN) or (ref is not None and ref.type != "branch"):
        kind = "a tag" if ref is not None else "no branch of this table"
        branches = sorted(name for name, known in metadata.refs.items() if known.type == "branch")
        raise PolicyError(
            f"policy key branch names '{branch}', which is {kind}; branches are: {', '.join(branches) or 'none yet'}"
        )
    return metadata.head(branch)
