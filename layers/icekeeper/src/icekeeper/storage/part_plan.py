"""Plans the parts of an object that a store assembles, and checks the parts' ETags (pure).

A store can copy ranges of other objects as parts of a multipart upload.  Every part except the last has a minimum
size.  A shorter range becomes part of a part that we send, if necessary together with bytes of its neighbours.

Source: Amazon S3 user guide, "Amazon S3 multipart upload limits"; S3 API reference, "UploadPartCopy"
(platform: seaweedfs-range-copies).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeAlias

_MiB = 1024 * 1024
_SAMPLE_BYTES = 1024
_PLACE = 0.382
"""The relative position of a sample.  Files of the same schema differ there, unlike at their ends and halves, where row
groups begin and end."""


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """The bytes of an object from ``start`` to before ``end``; ``etag``: the ETag that it must have, if any."""

    path: str
    etag: str | None
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def sample(self) -> ObjectRange:
        """Some of its bytes, which distinguish it from other ranges."""
        start = self.start + int(self.size * _PLACE)
        return replace(self, start=start, end=min(start + _SAMPLE_BYTES, self.end))

    def holds(self, other: ObjectRange) -> bool:
        """Whether it contains the other range."""
        is_same = (self.path, self.etag) == (other.path, other.etag)
        return is_same and self.start <= other.start and other.end <= self.end


Content: TypeAlias = ObjectRange | bytes
"""A range of another object, or our own bytes."""
Part: TypeAlias = ObjectRange | tuple[Content, ...]
"""A range that the store copies, or contents that we send, for which ranges of other objects are read first."""


LEAST_PART_BYTES = 5 * _MiB
"""The minimum size of every part except the last."""


def plan_parts(
    contents: Iterable[Content],
    *,
    least: int = LEAST_PART_BYTES,
    most_copied: int = 128 * _MiB,
    most_sent: int = 10 * _MiB,
    most_parts: int = 10_000,
) -> tuple[Part, ...] | None:
    """The parts of an object that consists of these contents, in order; ``None``: there would be too many parts.

    Sizes are in bytes; the maximum sizes must be at least twice ``least``.  S3 copies up to 5 GiB with a request, but
    smaller parts are copied in parallel.  A part that is sent is in memory.
    """
    stretches = _stretches(_joined(contents), least)
    copied = sum(stretch.size for stretch in stretches if isinstance(stretch, ObjectRange))
    # Half of the parts are reserved for the remainders of divisions, and for sent parts.
    most_copied = max(most_copied, -(-copied // (most_parts // 2)))
    parts: list[Part] = []
    for stretch in stretches:
        if isinstance(stretch, ObjectRange):
            parts += _divided(stretch, most_copied)
        else:
            parts += _portions(stretch, most_sent)
    return tuple(parts) if len(parts) <= most_parts else None


def sent_bytes(parts: Iterable[Part]) -> int:
    """The number of bytes of the object that we send."""
    return sum(size_of(part) for part in parts if not isinstance(part, ObjectRange))


def size_of(part: Content | Part) -> int:
    """The size in bytes."""
    if isinstance(part, ObjectRange):
        return part.size
    return len(part) if isinstance(part, bytes) else sum(map(size_of, part))


def _joined(contents: Iterable[Content]) -> Iterator[Content]:
    """The same bytes, without empty contents, and with adjacent ranges of an object joined."""
    waiting: Content | None = None
    for content in contents:
        if not size_of(content):
            continue
        if (
            isinstance(waiting, ObjectRange)
            and isinstance(content, ObjectRange)
            and (waiting.path, waiting.etag, waiting.end) == (content.path, content.etag, content.start)
        ):
            waiting = replace(waiting, end=content.end)
            continue
        if waiting is not None:
            yield waiting
        waiting = content
    if waiting is not None:
        yield waiting


def _stretches(contents: Iterable[Content], least: int) -> list[Part]:
    """Ranges to copy and parts to send, in order, each of at least ``least`` bytes, except at the end.

    Contents that are too short take bytes that the range before them can spare, then bytes of the range after them.  If
    both can spare too few bytes, the range after them is sent whole.
    """
    done: list[Part] = []
    sent: list[Content] = []
    for content in contents:
        if isinstance(content, bytes) or content.size < least:
            sent.append(content)
            continue
        missing = max(0, least - sum(map(size_of, sent))) if sent else 0
        before = done[-1] if done else None
        spare = before.size - least if isinstance(before, ObjectRange) else 0
        if missing > spare + content.size - least:
            sent.append(content)
            continue
        taken = min(missing, spare)
        if taken and isinstance(before, ObjectRange):
            middle = before.end - taken
            done[-1] = replace(before, end=middle)
            sent.insert(0, replace(before, start=middle))
        middle = content.start + missing - taken
        if middle > content.start:
            sent.append(replace(content, end=middle))
        if sent:
            done.append(tuple(sent))
        done.append(replace(content, start=middle))
        sent = []
    return [*done, tuple(sent)] if sent else done


def _divided(content: ObjectRange, most: int) -> Iterator[ObjectRange]:
    """Ranges of equal size, at least half of ``most`` unless ``content`` is shorter."""
    count = -(-content.size // most)
    bounds = [content.start + content.size * number // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        yield replace(content, start=start, end=end)


def _portions(contents: Sequence[Content], most: int) -> Iterator[tuple[Content, ...]]:
    """The same bytes in portions of equal size."""
    total = sum(map(size_of, contents))
    count = -(-total // most)
    rest = list(reversed(contents))
    for number in range(count):
        missing = total * (number + 1) // count - total * number // count
        portion: list[Content] = []
        while missing:
            content = rest.pop()
            if size_of(content) > missing:
                if isinstance(content, ObjectRange):
                    middle = content.start + missing
                    rest.append(replace(content, start=middle))
                    content = replace(content, end=middle)
                else:
                    rest.append(content[missing:])
                    content = content[:missing]
            portion.append(content)
            missing -= size_of(content)
        yield tuple(portion)


_BEGINS_WITH_MD5 = re.compile(r'"?([0-9a-f]{32})')
_OF_PARTS = re.compile(r'"?([0-9a-f]{32})-(\d+)"?')


PartEtag: TypeAlias = tuple[str, str | None]
"""The store's ETag of a part, and the MD5 of the bytes that we sent; ``None`` for a copied part."""


def etag_problem(etag: str, parts: Sequence[PartEtag]) -> str | None:
    """Why an object's ETag proves that it does not consist of these parts in this order; ``None``: it proves nothing.

    Without KMS encryption the ETag of a part in S3 is the MD5 of its bytes, and the object's ETag is the MD5 of the
    parts' MD5s, followed by their number (Amazon S3 user guide, "Checking object integrity").  Other stores make ETags
    differently: SeaweedFS derives the ETag of a copied part from whole blocks of its source
    (platform: seaweedfs-range-copies).  So ETags are compared only if the sent parts show that the store makes them
    like S3.
    """
    found = _OF_PARTS.fullmatch(etag)
    if found is not None and int(found[2]) != len(parts):
        return f"the store made it from {found[2]} parts instead of {len(parts)}"
    as_sent = [etag.strip('"') == md5 for etag, md5 in parts if md5 is not None]
    if not any(as_sent):
        return None
    if not all(as_sent):
        return "the store has other bytes than were sent to it"
    beginnings = [_BEGINS_WITH_MD5.match(etag) for etag, _ in parts]
    together = b"".join(bytes.fromhex(begin[1]) for begin in beginnings if begin is not None)
    expected = hashlib.md5(together, usedforsecurity=False).hexdigest()
    if found is not None and all(beginnings) and found[1] != expected:
        return "its ETag does not match its parts"
    return None
