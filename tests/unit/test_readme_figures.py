"""The README's shares of Iceberg-Java's time are those that were recorded."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Beginnings of lines in the README; rows of the suite, and who ran them.
ROWS = {
    "compact 20 files of 17 MB": ("append_only_copy", "icekeeper_copy"),
    "compact 1 % position deletes": ("deletes_clustered", "icekeeper"),
    "compact 1 % deletion vectors": ("vectors_clustered", "icekeeper"),
    "compact 200 small files": ("append_only_decode", "icekeeper_decoding"),
    "sort 200 files": ("sort", "icekeeper"),
    "z-order the same": ("zorder", "icekeeper"),
    "expire 2,000 of 2,100 snapshots": ("expire_snapshots", "icekeeper"),
    "orphans among 1 M objects": ("remove_orphans", "icekeeper"),
    "rewrite 1,000 manifests": ("rewrite_manifests", "icekeeper"),
}


def test_every_share_of_the_readme_is_the_recorded_one() -> None:
    """To the digits that the README shows."""
    recorded = json.loads((ROOT / "docs" / "performance.json").read_text())["full"]
    table = (ROOT / "README.md").read_text().partition("| what | wall | CPU |\n|---|---|---|\n")[2].partition("\n\n")[0]
    told = [line.strip("| ").split(" | ") for line in table.splitlines()]
    assert len(told) == len(ROWS)
    for (what, *shares), (beginning, (row, who)) in zip(told, ROWS.items(), strict=True):
        assert what.startswith(beginning)
        ours, java = (recorded[row]["entrants"][name]["median"] for name in (who, "java"))
        for share, key in zip(shares, ("wall_s", "cpu_s"), strict=True):
            half_a_digit = 0.51 * 10.0 ** -len(share.partition(".")[2])
            assert float(share) == pytest.approx(ours[key] / java[key], abs=half_a_digit), (what, key)


def test_what_a_scan_of_the_fleet_takes_is_what_was_recorded() -> None:
    recorded = json.loads((ROOT / "docs" / "performance.json").read_text())["full"]
    first, following = (
        recorded[row]["entrants"]["icekeeper_detect"]["median"] for row in ("detect_first", "detect_next")
    )
    seconds = rf"first scan {first['wall_s']:.0f} s, next {following['wall_s']:.0f} s"
    memory = rf"{first['peak_mb']:.0f} and {following['peak_mb']:.0f} MB"
    assert re.search(rf"\| {seconds}, {memory}, ", (ROOT / "README.md").read_text())
