"""The limit: the bytes of the data files, copied one after the other into one file by ``cat``."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.serve import Answer, Task, serve


def prepare(task: Task) -> Callable[[], Answer]:
    """Nothing to prepare; starting ``cat`` is measured, it takes milliseconds."""
    output = Path(task["scratch"]) / "copy"

    def run() -> Answer:
        with output.open("wb") as sink:
            subprocess.run(["cat", *task["data_files"]], stdout=sink, check=True)
        return {"bytes": output.stat().st_size}

    return run


if __name__ == "__main__":
    serve(prepare)
