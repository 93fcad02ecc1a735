"""A call or a wave that is killed at any step whatever (rule 174)."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from icekeeper.pipeline import whole_pass
from support.killed_runs import Begin, KilledRuns, in_a_wave, in_one_call


@pytest.mark.parametrize("run", [in_one_call, in_a_wave])
def test_every_step_may_be_the_last_of_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Begin) -> None:
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)
    runs = KilledRuns(tmp_path, run)
    last = next(number for number in count(1) if not runs.survive(number))
    assert last > 60
