"""A call or a wave that is killed loses no row, and later runs leave nothing lying about (rule 174)."""

from __future__ import annotations

from pathlib import Path

import pytest

from icekeeper.pipeline import whole_pass
from support.killed_processes import Begin, KilledRuns, in_a_wave, in_one_call


@pytest.mark.parametrize(("run", "steps"), [(in_one_call, (22, 35, 60)), (in_a_wave, (50,))])
def test_a_killed_run_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Begin, steps: tuple[int, ...]
) -> None:
    """Some of the moments; ``make nightly`` has all."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)
    runs = KilledRuns(tmp_path, run)
    for number in steps:
        assert runs.survive(number)
