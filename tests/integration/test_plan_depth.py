"""``icekeeper plan`` says how many files a lookup opens, before and after the pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.command import Command


def test_the_plan_of_a_sorted_table_says_its_depth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    icekeeper = Command(tmp_path, monkeypatch, capsys)
    icekeeper.table(appends=5)
    by_id = ("--operations", "compact", "--set", "strategy=sort", "--set", "sort_order=id")
    lines = icekeeper("plan", "ns.t", *by_id).out.splitlines()
    assert [line for line in lines if line.startswith("clustering depth: a lookup opens ")]
    metrics = icekeeper("plan", "ns.t", *by_id, "--json").json["metrics"]
    assert metrics["compact.depth_after"] == 1.0
    assert "clustering depth" not in icekeeper("plan", "ns.t", "--operations", "compact").out
