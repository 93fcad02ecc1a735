"""``make pipeline``: Detect → four tables → report, with moto as AWS, SeaweedFS as the table bucket, Glue as processes.

The store refuses a data file of one table on purpose: only the compaction of that table may fail.  Exit code 0 if
everything ended exactly as expected (the run ``partial``, all rows kept), 1 if not, 130 if interrupted.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console

from icekeeper.demo.tables import NAMESPACE
from local_stack.pipeline_run.expected import surprises
from local_stack.pipeline_run.lake import BROKEN
from local_stack.pipeline_run.run import run_pipeline

_NARROWEST, _WIDEST = 100, 120


def main() -> int:
    """Run it and judge it; the exit code."""
    # Loopback is never behind a proxy, and moto's engine is talkative.
    os.environ["NO_PROXY"] = ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"]))
    logging.getLogger("moto").setLevel(logging.CRITICAL)
    signal.signal(signal.SIGTERM, _interrupt)
    # This very stream: functions have standard output for themselves while they run.
    console = Console(file=sys.stdout, highlight=False)
    console.width = min(max(console.width, _NARROWEST), _WIDEST) if console.is_terminal else _WIDEST
    try:
        with tempfile.TemporaryDirectory(prefix="icekeeper-pipeline-", ignore_cleanup_errors=True) as folder:
            run = run_pipeline(Path(folder), console)
    except KeyboardInterrupt:
        console.print("\ninterrupted; everything that was started is stopped")
        return 128 + signal.SIGINT
    found = list(surprises(run))
    for surprise in found:
        console.print(f"not as expected: {surprise}", style="red", soft_wrap=True, markup=False)
    if not found:
        console.print(
            f"\nas expected: {NAMESPACE}.{BROKEN} could not be compacted, all else is done, every row is where it was "
            f"({run.seconds:.0f} s)",
            style="bold",
        )
    return 1 if found else 0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # the engine's threads would go on with an execution that was interrupted
