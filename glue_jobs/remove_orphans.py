"""List the files of large tables, find those that nothing references, and remove the old ones."""

from __future__ import annotations

import sys

from icekeeper.pipeline.glue_job import run_job, start_logging

__all__: list[str] = []

if __name__ == "__main__":
    start_logging()
    # A script that was well just ends: Glue may take SystemExit, even with 0, for a failure.
    if code := run_job(sys.argv[1:], "remove_orphans"):
        sys.exit(code)
