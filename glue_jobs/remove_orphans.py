"""List a table's files, find those that nothing references, and remove the old ones."""

from __future__ import annotations

import sys

from icekeeper.pipeline.glue_job import run_job
from icekeeper.policy import Operation

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(run_job(sys.argv[1:], frozenset({Operation.REMOVE_ORPHANS})))
