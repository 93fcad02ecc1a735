"""What a manifest list says of uuids hides no row from any reader, whichever order it compares uuids by."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icekeeper.metadata.single_value import split_by_section, summarise_partitions, uuid_bounds, uuid_section
from support.examples import examples
from support.values import AWKWARD_UUIDS, ORDERS, uuid_values

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def opens(comparison: str, literal: Any, low: Any, high: Any) -> bool:
    """Whether a planner opens a manifest with these bounds (Java's ``ManifestEvaluator``); all in its order."""
    judged: dict[str, bool] = {
        "=": low <= literal <= high,
        "<": low < literal,
        "<=": low <= literal,
        ">": high > literal,
        ">=": high >= literal,
    }
    return judged[comparison]


@settings(max_examples=examples(500))
@given(st.lists(uuid_values, min_size=1, max_size=8), st.lists(uuid_values, min_size=1, max_size=4))
def test_a_planner_of_either_order_opens_what_holds_a_match(values: list[bytes], literals: list[bytes]) -> None:
    """Whatever is compared with a literal of either sign, and ``IN``, which is judged literal by literal."""
    for part in split_by_section(["uuid"], values, lambda value: (value,)):
        bounds = uuid_bounds(part)
        assert bounds is not None
        for order in ORDERS:
            low, high = map(order, bounds)
            assert all(low <= order(value) <= high for value in part)
            for literal in map(order, [*literals, *values]):
                for name, compares in COMPARISONS.items():
                    if any(compares(order(value), literal) for value in part):
                        assert opens(name, literal, low, high), (name, order)


@settings(max_examples=examples(500))
@given(st.lists(uuid_values, min_size=1, max_size=8))
def test_there_are_no_bounds_only_where_none_can_hold(values: list[bytes]) -> None:
    """Against all awkward uuids and the values themselves: no other one could have been a bound."""
    if uuid_bounds(values) is None:
        candidates = [*AWKWARD_UUIDS, *values]

        def holds(compare: Callable[[Any, Any], bool]) -> bool:
            return any(all(compare(o(c), o(v)) for o in ORDERS for v in values) for c in candidates)

        assert not (holds(operator.le) and holds(operator.ge))


@given(st.lists(uuid_values, min_size=1, max_size=8))
def test_bounds_are_those_of_the_bytes_where_these_hold(values: list[bytes]) -> None:
    bounds = min(values), max(values)
    if all(order(bounds[0]) <= order(value) <= order(bounds[1]) for order in ORDERS for value in values):
        assert uuid_bounds(values) == bounds


@given(st.lists(uuid_values, min_size=1, max_size=8))
def test_bounds_are_of_the_section_that_their_values_are_of(values: list[bytes]) -> None:
    """Thus a planned rewrite sees in the manifest list what must stay apart."""
    for part in split_by_section(["uuid"], values, lambda value: (value,)):
        bounds = uuid_bounds(part)
        assert bounds is not None
        assert {*map(uuid_section, bounds)} == {*map(uuid_section, part)}


NIL, LOW, HIGH = bytes(16), b"\x12" + bytes(15), b"\xf2" + bytes(15)


@pytest.mark.parametrize(
    ("values", "bounds"),
    [
        ([LOW], (LOW, LOW)),
        ([LOW, HIGH], None),
        ([NIL, LOW], (NIL, LOW)),
        # The second numbers have both signs: the first number is widened by one.
        ([LOW, LOW[:8] + HIGH[:8]], (b"\x11" + b"\xff" * 7 + bytes(8), b"\x12" + bytes(6) + b"\x01" + bytes(8))),
        # Nothing is below a first number of 0 in both orders.
        ([NIL, bytes(8) + HIGH[:8]], None),
        ([NIL, bytes(8) + LOW[:8]], (NIL, bytes(8) + LOW[:8])),
    ],
)
def test_bounds_by_example(values: Sequence[bytes], bounds: tuple[bytes, bytes] | None) -> None:
    assert uuid_bounds(values) == bounds


def test_bounds_are_never_missing_beside_values() -> None:
    """Readers take that for "all null" (Java's ``ManifestEvaluator``): rather no summaries at all."""
    both = summarise_partitions(["long", "uuid"], [(1, LOW), (2, HIGH)])
    assert both is None
    found = summarise_partitions(["long", "uuid"], [(1, None), (2, None)])
    assert found is not None
    assert (found[1].contains_null, found[1].lower_bound) == (True, None)


def test_partitions_of_one_section_stay_together() -> None:
    """Nulls with the least uuids; without uuids everything does."""
    partitions = [(7, HIGH), (1, None), (2, LOW), (3, HIGH)]
    assert split_by_section(["long", "uuid"], partitions, tuple) == [[(1, None), (2, LOW)], [(7, HIGH), (3, HIGH)]]
    assert split_by_section(["long", "binary"], partitions, tuple) == [partitions]
