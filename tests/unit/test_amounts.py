"""Sizes and money as text."""

from __future__ import annotations

import pytest

from icekeeper.text import size_text, usd_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(925, "925 B"), (2048, "2 KB"), (192 * 2**20, "192 MB"), (5 * 2**30, "5 GB"), (3.2 * 2**40, "3.2 TB")],
)
def test_sizes_have_the_largest_unit(size: float, text: str) -> None:
    assert size_text(size) == text


@pytest.mark.parametrize(("amount", "text"), [(0, "$0"), (0.00002, "less than $0.0001"), (1.25, "$1.2500")])
def test_little_money_is_not_none(amount: float, text: str) -> None:
    assert usd_text(amount) == text
