"""A call or a wave that is killed at any step whatever (rule 174)."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from icekeeper.pipeline import whole_pass
from support.killed_processes import Begin, KilledRuns, in_a_wave, in_one_call


@pytest.mark.parametrize(("run", "apart"), [(in_one_call, 1), (in_a_wave, 5)])
def test_every_step_may_be_the_last_of_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Begin, apart: int
) -> None:
    """The threads of a wave take their steps in another order each time, so that it needs not every number."""
    monkeypatch.setattr(whole_pass, "is_table_bucket", lambda _: True)
    runs = KilledRuns(tmp_path, run)
    last = next(number for number in count(1, apart) if not runs.survive(number))
    assert last > 60
