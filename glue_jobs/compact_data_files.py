"""Rewrite a table's data and delete files, or read them for statistics, distributed by Spark."""

from __future__ import annotations

import sys

from icekeeper.pipeline.glue_job import run_job
from icekeeper.policy import Operation

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(
        run_job(
            sys.argv[1:],
            frozenset({Operation.COMPACT, Operation.REWRITE_POSITION_DELETES, Operation.COMPUTE_STATISTICS}),
        )
    )
