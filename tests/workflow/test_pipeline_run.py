"""``make pipeline``, the one test with real Glue jobs: each is a process with what it needs of Spark."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from local_stack.pipeline_run.expected import surprises
from local_stack.pipeline_run.run import run_pipeline


@pytest.mark.slow
@pytest.mark.seaweedfs
def test_one_compaction_fails_and_all_else_is_done(tmp_path: Path) -> None:
    text = io.StringIO()
    run = run_pipeline(tmp_path, Console(file=text, width=120, highlight=False))
    logs = [job.log for jobs in run.jobs.values() for job in jobs if job.state != "SUCCEEDED"]
    assert (list(surprises(run)), logs) == ([], [])
    told = text.getvalue()
    for expected in (
        r"\n  MaintainTables +\d+\.\d s\n",
        r"\n  CompactWave +\d+\.\d s\n",
        r"\n    shop\.clicks: waiting\n",
        r"\n     compact: compacted 60 files into 1 *\n",
        r"\n     RewriteManifestsJob +\d+\.\d s succeeded rewrote 2 manifests into 1 \(1 entries\)",
        r"\n    shop\.orders: partial\n",
        r"\n     MaintainSmall +\d+\.\d s succeeded *\n +compact +failed +1 file group\(s\) failed",
        r"journal, from DynamoDB\n(.*\n)*  shop\.orders: partial\n     compact: 1 file group\(s\) failed",
        r"PassesPartial 1, PassesSucceeded 3",
        r"\n  files merged +60 +8 +40 +0 *\n",
        r"\nshop\.clicks +60 → 1 ",
        r"\nshop\.events @ quarter-close +10000 +\w+ +same *\n",
    ):
        assert re.search(expected, told), f"{expected} is not in\n{told}"
    assert max(map(len, told.splitlines())) <= 120 + len("refused on purpose: ") + 60  # an address is never cut
    assert "\x1b" not in told  # colours are for terminals
    # What judges it sees every part of it.
    for other in (
        replace(run, report={**run.report, "status": "succeeded"}),
        replace(run, journal={}),
        replace(run, passes={}),
        replace(run, metrics=tuple(metric for metric in run.metrics if metric.name != "PassesPartial")),
        replace(run, jobs={}),
        replace(run, leases=("fleet",)),
        replace(run, asked_lake=frozenset()),
        replace(run, denied=()),
        replace(run, figures={name: (before, before) for name, (before, _) in run.figures.items()}),
        replace(run, rows={**run.rows, "shop.events": (run.rows["shop.events"][0], run.rows["shop.clicks"][0])}),
    ):
        assert list(surprises(other)) != []
