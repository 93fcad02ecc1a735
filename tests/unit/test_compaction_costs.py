"""What a compaction costs in a function and in a wave, and the default that follows (rule 146)."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from icekeeper.operation_facts import Limit
from icekeeper.pipeline.deployment import PipelineSettings
from icekeeper.pipeline.wave import break_even_mb, cost_in_function, cost_in_wave, function_bears_mb
from local_stack.template import load_template

DOCUMENT = load_template()
PARAMETERS = DOCUMENT["Parameters"]
SIZES = (200, 512, 1024, 2048, 4096)


def test_the_default_is_where_both_cost_the_same() -> None:
    """In a wave of as many tables as one run proposes; and no more than a function surely ends."""
    full = break_even_mb(PARAMETERS["MaxTablesPerRun"]["Default"])
    assert full is not None
    default = PARAMETERS["SmallCompactionMb"]["Default"]
    assert default == min(full, function_bears_mb())
    settings = PipelineSettings.read({"ICEKEEPER_CONTROL_BUCKET": "b"})
    assert settings.limits[Limit.COMPACTION_BYTES] == default * 1024 * 1024


def test_both_sides_of_the_break_even_differ() -> None:
    full = break_even_mb(100)
    assert full is not None
    assert cost_in_wave(full - 256, 100) > cost_in_function(full - 256)
    assert cost_in_wave(full, 100) <= cost_in_function(full)


def test_a_wave_of_more_tables_is_cheaper_for_each() -> None:
    for mb in SIZES:
        costs = [cost_in_wave(mb, tables) for tables in (1, 2, 5, 10, 20, 50, 100)]
        assert all(fewer >= more for fewer, more in pairwise(costs)), mb


def test_alone_nothing_is_cheaper_in_glue_than_in_a_function_that_bears_it() -> None:
    assert all(cost_in_wave(mb, 1) > cost_in_function(mb) for mb in range(256, function_bears_mb(), 256))


def test_the_model_knows_the_function_that_is_deployed() -> None:
    function = DOCUMENT["Resources"]["CompactSmallFunction"]["Properties"]
    assert (function["Timeout"], function["EphemeralStorage"]) == (900, {"Size": 10240})
    assert PARAMETERS["CompactSmallMemoryMb"]["Default"] == 3008
    assert function_bears_mb() * 2 * 3 <= 10240


@pytest.mark.parametrize(("mb", "usd"), [(200, 0.00029), (4096, 0.0035)])
def test_a_function_is_paid_by_its_memory_and_time(mb: int, usd: float) -> None:
    """2.9375 GB, 2 s and a second for each 60 MB."""
    assert cost_in_function(mb) == pytest.approx(usd, rel=0.02)
    assert cost_in_function(mb) == pytest.approx((2 + mb / 60) * 2.9375 * 0.0000166667, rel=0.1)


def test_the_documentation_tells_what_the_model_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    for mb in SIZES:
        costs = [cost_in_function(mb), *(cost_in_wave(mb, tables) for tables in (1, 10, 100))]
        (line,) = (line for line in text.splitlines() if line.startswith(f"| {mb:,} MB |"))
        told = [float(cell) for cell in line.split("|")[2:-1]]
        assert told == pytest.approx([cost * 1000 for cost in costs], rel=0.05)
