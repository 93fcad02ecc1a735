"""``make pipeline``: the stack over real tables, with Glue jobs as separate processes."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from local_stack.pipeline_run.expected import surprises
from local_stack.pipeline_run.run import run_pipeline


def test_one_failed_compaction_stops_nothing_else(tmp_path: Path) -> None:
    text = io.StringIO()
    run = run_pipeline(tmp_path, Console(file=text, width=120, highlight=False))
    logs = [job.log for jobs in run.jobs.values() for job in jobs if job.state != "SUCCEEDED"]
    assert (list(surprises(run)), logs) == ([], [])
    shown = text.getvalue()
    for expected in (
        r"\n +\d+\.\d s +shop\.orders +CompactSmall +failed 1 file group\(s\) failed",
        r"\n  PlanTables +\d+\.\d s\n",
        r"\n  CompactDataFiles +\d+\.\d s *\n +shop\.clicks +compact +succeeded compacted 60 files into 1",
        r"\n +RewriteManifests +\d+\.\d s succeeded rewrote 2 manifests into 1 \(1 entries\)",
        r"journal, from DynamoDB\n(.*\n)*  shop\.orders: partial\n     compact: 1 file group\(s\) failed",
        r"PassesPartial 1, PassesSucceeded 3",
        r"\n  files merged +60 +8 +40 +0 *\n",
        r"\nshop\.clicks +60 → 1 ",
        r"\nshop\.events @ quarter-close +10000 +\w+ +same *\n",
    ):
        assert re.search(expected, shown), f"{expected} is not in\n{shown}"
    assert max(map(len, shown.splitlines())) <= 120 + len("refused on purpose: ") + 60  # an address is never cut
    assert "\x1b" not in shown  # colours are for terminals
    # ``surprises`` reports a deviation in any part of the run.
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
