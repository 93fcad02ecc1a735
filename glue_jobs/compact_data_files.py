"""Rewrite a table's data and delete files, or read them for statistics, distributed by Spark."""

from __future__ import annotations

import sys

from icekeeper.pipeline.glue_job import run_job, start_logging
from icekeeper.policy import Operation

__all__: list[str] = []

if __name__ == "__main__":
    start_logging()
    done = {Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.COMPUTE_STATISTICS}
    # A script that was well just ends: Glue may take SystemExit, even with 0, for a failure.
    if code := run_job(sys.argv[1:], frozenset(done)):
        sys.exit(code)
