"""Growth: the exponent between the two largest scales, and what machine said so."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.growth import growth, growth_lines


def _row(scale: float, cpu_s: float) -> dict[str, Any]:
    return {
        "title": "a table",
        "scale": scale,
        "rounds": 3,
        "date": "2026-11-22",
        "commit": "abc",
        "machine": {"load": 1.5},
        "entrants": {"icekeeper": {"title": "Icekeeper", "median": {"cpu_s": cpu_s, "peak_mb": 100.0}}},
    }


@pytest.mark.parametrize(
    ("costs", "exponent", "verdict"), [((1.0, 2.0, 8.0), 1.0, "met"), ((1.0, 2.0, 16.0), 1.5, "missed")]
)
def test_four_times_the_table_may_cost_four_times_as_much(
    costs: tuple[float, float, float], exponent: float, verdict: str
) -> None:
    found = growth([_row(scale, cost) for scale, cost in zip((1 / 16, 1 / 4, 1.0), costs, strict=True)])
    assert found["found"]["icekeeper"]["exponent"] == exponent
    line = list(growth_lines({"row": found}))[-1]
    assert verdict in line
    assert "2026-11-22, commit abc, load 1.5, medians of 3" in line
