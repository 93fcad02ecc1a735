"""Which bytes of an object a store copies and which are sent to it: every byte once and in order, within the limits."""

from __future__ import annotations

from itertools import chain, product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.storage.part_plan import (
    LIMITS,
    Content,
    CopiedRange,
    OwnBytes,
    Part,
    PartLimits,
    SentPart,
    plan_parts,
    sent_bytes,
)
from support.examples import examples

SMALL = PartLimits(least=5, most_copied=14, most_sent=10, most_parts=200)


def drawn_contents(sizes: list[tuple[int, int]]) -> list[Content]:
    """Own bytes (0), and ranges of two objects that may follow on each other."""
    positions = {1: 0, 2: 1000}
    contents: list[Content] = []
    for kind, size in sizes:
        if not kind:
            contents.append(OwnBytes(bytes(range(size))))
        else:
            contents.append(CopiedRange(f"s3://b/{kind}", "e", positions[kind], positions[kind] + size))
            positions[kind] += size + (size % 3 == 0)  # every third leaves a gap behind
    return contents


CONTENTS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=12).map(drawn_contents)


def single_bytes(contents: Any) -> list[tuple[str, int]]:
    """Every byte by its origin."""
    found: list[tuple[str, int]] = []
    for content in contents:
        if isinstance(content, CopiedRange):
            found += [(content.path, place) for place in range(content.start, content.end)]
        else:
            found += [("own", byte) for byte in content.data]
    return found


def planned(contents: list[Content], limits: PartLimits = SMALL) -> tuple[Part, ...]:
    parts = plan_parts(contents, limits)
    assert parts is not None
    return parts


@settings(max_examples=examples(200))
@given(CONTENTS)
def test_every_byte_is_there_once_and_in_order(contents: list[Content]) -> None:
    parts = planned(contents)
    inside = chain.from_iterable(part.contents if isinstance(part, SentPart) else [part] for part in parts)
    assert single_bytes(inside) == single_bytes(contents)


@settings(max_examples=examples(200))
@given(CONTENTS)
def test_parts_are_within_the_limits(contents: list[Content]) -> None:
    parts = planned(contents)
    assert all(part.size >= SMALL.least for part in parts[:-1])
    assert all(part.size > 0 for part in parts)
    for part in parts:
        assert part.size <= (SMALL.most_sent if isinstance(part, SentPart) else SMALL.most_copied)


def fewest_sent(contents: list[Content], least: int) -> int:
    """The fewest bytes that any plan sends: every choice of single bytes to be copied (few bytes only)."""
    origins = single_bytes(contents)
    if not origins:
        return 0
    best = len(origins)
    for choice in product([False, True], repeat=len(origins)):
        if any(choice[n] and origins[n][0] == "own" for n in range(len(origins))):
            continue
        # A new stretch begins where the choice changes, or where a copied byte does not follow the one before it.
        starts = [
            n
            for n in range(len(origins))
            if n == 0
            or choice[n] != choice[n - 1]
            or (choice[n] and origins[n] != (origins[n - 1][0], origins[n - 1][1] + 1))
        ]
        lengths = [end - start for start, end in zip(starts, [*starts[1:], len(origins)], strict=True)]
        if all(length >= least for length in lengths[:-1]):
            best = min(best, choice.count(False))
    return best


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=5).map(drawn_contents))
def test_little_more_is_sent_than_must_be(contents: list[Content]) -> None:
    """Against every plan that there is: at most twice as much, and a short range at the end."""
    limits = PartLimits(least=2, most_copied=4, most_sent=4)
    if len(single_bytes(contents)) <= 12:
        assert sent_bytes(planned(contents, limits)) <= 2 * fewest_sent(contents, 2) + 1


def test_files_of_16_mb_are_copied_whole_beside_a_footer() -> None:
    """The magic of the first file is that of the output, so only the end is sent."""
    sizes = [16_000_000 + number for number in range(20)]
    files = [CopiedRange(f"s3://b/{n}", "e", 0 if n == 0 else 4, size) for n, size in enumerate(sizes)]
    assert planned([*files, OwnBytes(b"footer")], LIMITS) == (*files, SentPart((OwnBytes(b"footer"),)))


def test_a_short_neighbour_takes_what_it_lacks_from_the_range_before_it() -> None:
    least = LIMITS.least
    first, last = CopiedRange("s3://b/1", "e", 4, 4 + 3 * least), CopiedRange("s3://b/3", "e", 4, 4 + least)
    short = CopiedRange("s3://b/2", "e", 4, 1004)
    middle = 4 + 3 * least - (least - 1000)
    assert planned([first, short, last], LIMITS) == (
        CopiedRange("s3://b/1", "e", 4, middle),
        SentPart((CopiedRange("s3://b/1", "e", middle, first.end), short)),
        last,
    )


def test_large_ranges_are_divided_and_never_into_too_many_parts() -> None:
    large = CopiedRange("s3://b/1", "e", 0, 4 * 1024**4)
    parts = planned([large], LIMITS)
    assert len(parts) <= 5_001
    assert {part.size for part in parts} <= {large.size // len(parts), large.size // len(parts) + 1}
    many: list[Content] = [CopiedRange(f"s3://b/{n}", "e", 0, LIMITS.least) for n in range(10_001)]
    assert plan_parts(many) is None
    assert plan_parts([]) == ()
