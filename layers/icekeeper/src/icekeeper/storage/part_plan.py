"""Plans in which parts a store assembles an object, and what ETags say of the parts (pure)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple, TypeAlias

# Plans in which parts a store assembles an object: which bytes it copies itself, which are sent to it (pure).
#
# A store copies ranges of other objects as parts of a multipart upload.  Every part but the last has a least size, so
# what is shorter goes into a part that we send, together with bytes of its neighbours where it takes them to reach that
# size.
#
# Source: Amazon S3 user guide, "Amazon S3 multipart upload limits"; S3 API reference, "UploadPartCopy"
# (platform: seaweedfs-range-copies).

_MiB = 1024 * 1024
_SAMPLE_BYTES = 1024
_PLACE = 0.382
"""Of a range: a place where files of the same schema differ.  At its ends and halves, row groups begin and end."""


@dataclass(frozen=True, slots=True)
class CopiedRange:
    """Bytes of an object from ``start`` to before ``end``, as they were when it had this ETag."""

    path: str
    etag: str
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    @property
    def sample(self) -> CopiedRange:
        """Some bytes within it, by which the range is told from others."""
        start = self.start + int(self.size * _PLACE)
        return replace(self, start=start, end=min(start + _SAMPLE_BYTES, self.end))


@dataclass(frozen=True, slots=True)
class OwnBytes:
    """Bytes that are in no other object."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


Content: TypeAlias = CopiedRange | OwnBytes


@dataclass(frozen=True, slots=True)
class SentPart:
    """A part that we send; what it holds of other objects is read before."""

    contents: tuple[Content, ...]

    @property
    def size(self) -> int:
        return _size(self.contents)


Part: TypeAlias = CopiedRange | SentPart
"""A range is a part that the store copies."""


@dataclass(frozen=True, slots=True)
class PartLimits:
    """In bytes, and ``most_parts`` parts.  Those that are "most" must be at least twice ``least``."""

    least: int = 5 * _MiB
    """Of every part but the last."""
    most_copied: int = 128 * _MiB
    """S3 copies 5 GiB at once; smaller parts are copied side by side."""
    most_sent: int = 10 * _MiB
    """What is in memory for a part."""
    most_parts: int = 10_000


LIMITS = PartLimits()


def plan_parts(contents: Iterable[Content], limits: PartLimits = LIMITS) -> tuple[Part, ...] | None:
    """The parts of an object that consists of these contents, in order; ``None``: they would be too many."""
    stretches = _stretches(_joined(contents), limits.least)
    copied = sum(stretch.size for stretch in stretches if isinstance(stretch, CopiedRange))
    # Half of the parts is for what a division leaves over, and for what is sent.
    most_copied = max(limits.most_copied, -(-copied // (limits.most_parts // 2)))
    parts: list[Part] = []
    for stretch in stretches:
        if isinstance(stretch, CopiedRange):
            parts += _divided(stretch, most_copied)
        else:
            parts += map(SentPart, _portions(stretch.contents, limits.most_sent))
    return tuple(parts) if len(parts) <= limits.most_parts else None


def sent_bytes(parts: Iterable[Part]) -> int:
    """How many bytes of the object go through us."""
    return sum(part.size for part in parts if isinstance(part, SentPart))


def _size(contents: Iterable[Content]) -> int:
    return sum(content.size for content in contents)


def _joined(contents: Iterable[Content]) -> Iterator[Content]:
    """The same bytes, where a range that follows another one in its object is one with it; nothing is empty."""
    waiting: Content | None = None
    for content in contents:
        if not content.size:
            continue
        if (
            isinstance(waiting, CopiedRange)
            and isinstance(content, CopiedRange)
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
    """Ranges to copy, each of at least ``least`` bytes, and what is to be sent between them, which has at least as many
    too, unless it is the end.

    What is too short takes bytes of the range before it as long as that stays long enough, then of the range behind; if
    both have too few to spare, the one behind is sent whole.
    """
    done: list[Part] = []
    sent: list[Content] = []
    for content in contents:
        if isinstance(content, OwnBytes) or content.size < least:
            sent.append(content)
            continue
        missing = max(0, least - _size(sent)) if sent else 0
        before = done[-1] if done else None
        spare = before.size - least if isinstance(before, CopiedRange) else 0
        if missing > spare + content.size - least:
            sent.append(content)
            continue
        taken = min(missing, spare)
        if taken and isinstance(before, CopiedRange):
            done[-1], tail = _cut(before, before.size - taken)
            sent.insert(0, tail)
        head, content = _cut(content, missing - taken)
        sent += [head] if head.size else []
        done += [SentPart(tuple(sent)), content] if sent else [content]
        sent = []
    return [*done, SentPart(tuple(sent))] if sent else done


def _cut(content: CopiedRange, size: int) -> tuple[CopiedRange, CopiedRange]:
    middle = content.start + size
    return replace(content, end=middle), replace(content, start=middle)


def _divided(content: CopiedRange, most: int) -> Iterator[CopiedRange]:
    """Ranges of equal size, so that none is shorter than half of ``most`` unless the whole is."""
    count = -(-content.size // most)
    bounds = [content.start + content.size * number // count for number in range(count + 1)]
    for start, end in pairwise(bounds):
        yield replace(content, start=start, end=end)


def _portions(contents: Sequence[Content], most: int) -> Iterator[tuple[Content, ...]]:
    """The same bytes in portions of equal size."""
    total = _size(contents)
    count = -(-total // most)
    rest = list(reversed(contents))
    for number in range(count):
        missing = total * (number + 1) // count - total * number // count
        portion: list[Content] = []
        while missing:
            content = rest.pop()
            if content.size > missing:
                content, left = _split(content, missing)
                rest.append(left)
            portion.append(content)
            missing -= content.size
        yield tuple(portion)


def _split(content: Content, size: int) -> tuple[Content, Content]:
    if isinstance(content, CopiedRange):
        return _cut(content, size)
    return replace(content, data=content.data[:size]), replace(content, data=content.data[size:])


# What ETags tell of an object that was assembled of parts (pure).
#
# Without encryption by KMS, S3 gives a part the MD5 of its bytes, and the object the MD5 of all those and their number
# (Amazon S3 user guide, "Checking object integrity").  Elsewhere they are other texts: SeaweedFS derives the ETag of a
# part that it copied from whole blocks of its source (platform: seaweedfs-range-copies).  So only ETags of a store that
# is seen to make them in that way are compared.

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
