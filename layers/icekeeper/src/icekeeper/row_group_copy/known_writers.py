"""Of which writers pages and statistics may stand in a file under another writer's name (pure).

Readers know versions that wrote wrong statistics or pages by ``created_by``, and work around them.  A file has one such
name for all its row groups, so what needs a workaround is never copied.  Whoever gives no version is distrusted, too:
parquet-mr then ignores bounds of text, and under another name it would not.

Sources: parquet-mr's ``CorruptStatistics`` and ``CorruptDeltaByteArrays`` (PARQUET-251, PARQUET-246);
Arrow's ``ApplicationVersion`` (statistics before parquet-mr 1.10.0 and parquet-cpp 1.3.0, PARQUET-816; ARROW-10353:
before 3.0.0 compressed pages were marked as not compressed).
"""

from __future__ import annotations

import re

from icekeeper.row_group_copy.refusal import CannotCopy

__all__ = ["check_writer", "common_writer"]

# Longer ones, which nobody has, would be searched again from every blank in them.
_LONGEST = 200
_NAME = re.compile(r"(\S.*?)\s+version\s+v?(\d+)\.(\d+)(?:\.(\d+))?.*", re.DOTALL)
# Application → its first version that needs no workaround; None: there is none under that name.
_FIRST_RIGHT: dict[str, tuple[int, int, int] | None] = {
    "parquet-mr": (1, 10, 0),
    "parquet-cpp": None,  # its successor is parquet-cpp-arrow
    "parquet-cpp-arrow": (3, 0, 0),
}
_OURS = b"icekeeper version 1.0.0 (build copied row groups of several writers)"


def check_writer(created_by: bytes | None) -> None:
    """Check who wrote a file.

    Raises:
        CannotCopy: readers work around that version, or it is not known.
    """
    text = (created_by or b"").decode(errors="replace")
    found = _NAME.fullmatch(text[:_LONGEST])
    if found is None:
        raise CannotCopy(
            f"was written by '{text[:80]}', which names no version" if text else "does not name its writer"
        )
    application = found[1].lower()
    if application not in _FIRST_RIGHT:
        return
    right = _FIRST_RIGHT[application]
    if right is None or (int(found[2]), int(found[3]), int(found[4] or 0)) < right:
        raise CannotCopy(f"was written by '{text[:80]}', a version with faults that readers work around by its name")


def common_writer(names: set[bytes]) -> bytes:
    """The name for row groups of these writers in one file."""
    return next(iter(names)) if len(names) == 1 else _OURS
