"""What ETags tell of an object that was assembled of parts (pure).

Without encryption by KMS, S3 gives a part the MD5 of its bytes, and the object the MD5 of all those and their number
(Amazon S3 user guide, "Checking object integrity").  Elsewhere they are other texts: SeaweedFS derives the ETag of a
part that it copied from whole blocks of its source (platform 47).  So only ETags of a store that is seen to make them
in that way are compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["PartEtag", "etag_problem"]

_BEGINS_WITH_MD5 = re.compile(r'"?([0-9a-f]{32})')
_OF_PARTS = re.compile(r'"?([0-9a-f]{32})-(\d+)"?')


class PartEtag(NamedTuple):
    """What the store answered about a part; ``md5`` is that of the bytes we sent, ``None`` where it copied them."""

    etag: str
    md5: str | None = None


def etag_problem(etag: str, parts: Sequence[PartEtag]) -> str | None:
    """What an object's ETag tells against its consisting of these parts in this order, in words; ``None``: nothing."""
    found = _OF_PARTS.fullmatch(etag)
    if found is not None and int(found[2]) != len(parts):
        return f"the store made it of {found[2]} parts instead of {len(parts)}"
    as_sent = [part.etag.strip('"') == part.md5 for part in parts if part.md5 is not None]
    if not any(as_sent):
        return None
    if not all(as_sent):
        return "the store holds other bytes than were sent to it"
    beginnings = [_BEGINS_WITH_MD5.match(part.etag) for part in parts]
    together = b"".join(bytes.fromhex(one[1]) for one in beginnings if one is not None)
    expected = hashlib.md5(together, usedforsecurity=False).hexdigest()
    if found is not None and all(beginnings) and found[1] != expected:
        return "its ETag is not that of its parts"
    return None
