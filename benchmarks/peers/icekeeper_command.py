"""Icekeeper as its users call it: ``icekeeper maintain`` in a process of its own, from its start to its end."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks.peers.icekeeper import OPERATIONS, TABLE, registered
from benchmarks.peers.serve import Answer, Task, serve
from icekeeper.catalogs.load import open_catalog

_number = itertools.count()


def prepare(task: Task) -> Callable[[], Answer]:
    """A new SQL catalog that has the table, named by the environment."""
    folder = Path(task["scratch"]) / f"command-{next(_number)}"
    folder.mkdir(parents=True)
    properties = registered(folder, task["metadata_location"])
    environment = {f"PYICEBERG_CATALOG__BENCH__{key.upper()}": value for key, value in properties.items()}
    environment |= {**os.environ, "ICEKEEPER_STATE": str(folder / "state.db")}
    operation = OPERATIONS.get(task["operation"], task["operation"])
    settings = {"operations": operation, **task.get("settings", {})}
    command = [str(Path(sys.executable).with_name("icekeeper")), "maintain", "--catalog", "bench", str(TABLE), "--json"]
    command += [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]

    def run() -> Answer:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError((done.stderr.strip().splitlines() or ["it failed"])[-1])
        location = open_catalog("bench", properties).load(TABLE).metadata_location
        return {"metadata_location": location, "summary": str(json.loads(done.stdout).get("status", ""))}

    return run


if __name__ == "__main__":
    serve(prepare)
