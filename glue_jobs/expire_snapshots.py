"""Expire the snapshots of tables that have many, and delete the files that only they referenced."""

from __future__ import annotations

import sys

from icekeeper.pipeline.glue_job import run_job, start_logging

__all__: list[str] = []

if __name__ == "__main__":
    start_logging()
    # On success, return without calling sys.exit: Glue may treat SystemExit as a failure, even with code 0.
    if code := run_job(sys.argv[1:], "expire_snapshots"):
        sys.exit(code)
