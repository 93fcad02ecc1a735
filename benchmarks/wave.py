"""How many small tables a Glue run compacts in a minute, and at which cost in processor time.

``python -m benchmarks.wave --tables 100`` makes tables of small files in a table bucket (SeaweedFS) behind a proxy that
delays every request, plans them as the pipeline does, and carries the stage out on a Spark cluster of two workers on
this machine (``local-cluster[2,1,1024]``).  The store and the proxy take their part of the same cores, so that the
time is an upper bound.  The processor time is that of the driver and of the workers alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from benchmarks.peers.icekeeper import executors
from benchmarks.tables.event_tables import make_append_only
from benchmarks.tables.kept_table import kept_table
from benchmarks.tables.stored_table import Store, running_store
from icekeeper.engines.shared_tasks import SharedTasks
from icekeeper.operation_facts import Stage
from icekeeper.pipeline.control_bucket import Work
from icekeeper.pipeline.deployment import Deployment
from icekeeper.pipeline.detect_tables import detect_tables
from icekeeper.pipeline.events import DetectEvent, Item, MachineInput, RunEvent, TableEvent
from icekeeper.pipeline.gather import gather
from icekeeper.pipeline.glue_job import run_work
from icekeeper.pipeline.plan_table import plan_table

_CONTROL, _RUN = "control", "wave"
_MAKERS, _PLANNERS = 8, 16
_ROOM_BYTES = 1 << 30
_TICK_S = 0.02
_FRAMES = 3
_SERVERS = ("weed", "multiprocessing")
"""In the command line of processes that stand for AWS."""


def main() -> None:
    """Measure once, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--files", type=int, default=25)
    parser.add_argument("--rows", type=int, default=100, help="of each file")
    parser.add_argument("--delay-ms", type=float, default=30)
    parser.add_argument("--shared", action=argparse.BooleanOptionalAction, default=True, help="tasks of several tables")
    parser.add_argument("--frames", type=int, default=0, help="print so many lines of what the driver does, at a cost")
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="icekeeper-wave-") as folder,
        running_store(given.delay_ms, _ROOM_BYTES) as store,
    ):
        assert store.proxy is not None, "--delay-ms is 0"
        deployment, work = _planned(Path(folder), store, given)
        with executors(2) as engine:
            store.proxy.counts()
            before, begun_s = _cpu_seconds(), time.monotonic()
            with _sampled() if given.frames else nullcontext(Counter[str]()) as seen:
                ends = run_work(deployment, work, engine, shared=SharedTasks(engine) if given.shared else None)
            seconds, after = time.monotonic() - begun_s, _cpu_seconds()
        requests, _ = store.proxy.counts()
    tables = len(ends)
    used = {part: round((after[part] - before[part]) / tables, 3) for part in after}
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    figures = {
        "ends": Counter(end.value for end in ends.values()),
        "seconds": round(seconds, 1),
        "tables_per_minute": round(tables / seconds * 60, 1),
        "cpu_s_per_table": used,
        "requests_per_table": round(requests / tables, 1),
        "driver_peak_mb": peak_mb,
    }
    print(json.dumps(figures, indent=1))
    for frames, share in _shares(seen)[: given.frames]:
        print(f"{share:6.1%}  {frames}")


def _planned(folder: Path, store: Store, given: argparse.Namespace) -> tuple[Deployment, Work]:
    source = kept_table(folder, "tiny", lambda at: make_append_only(at, given.files, given.rows))
    with ThreadPoolExecutor(_MAKERS) as threads:
        for made in [threads.submit(store.new_table, source) for _ in range(given.tables)]:
            made.result()
    store.server.client("s3").create_bucket(Bucket=_CONTROL)
    os.environ |= {
        "AWS_ENDPOINT_URL_S3": store.delayed["s3.endpoint"],
        "AWS_ACCESS_KEY_ID": store.server.access_key,
        "AWS_SECRET_ACCESS_KEY": store.server.secret_key,
        "AWS_REGION": store.server.region,
    }
    catalogs = folder / "pyiceberg.yaml"
    lines = [f"    {key}: {value}\n" for key, value in store.delayed.items()]
    catalogs.write_text("".join(["catalog:\n  store:\n", *lines]))
    deployment = Deployment.open(
        {
            "ICEKEEPER_CONTROL_BUCKET": _CONTROL,
            "ICEKEEPER_CATALOG_FILE": str(catalogs),
            "ICEKEEPER_STATE": str(folder / "state.db"),
            "ICEKEEPER_MAX_JOBS_PER_DETECTION": str(given.tables),
            "ICEKEEPER_OWNERSHIP": "icekeeper",
        }
    )
    now = datetime.now(UTC)
    event = DetectEvent(run_id=_RUN, started=now, input=MachineInput())
    answer, _ = detect_tables(deployment, event)
    items = deployment.control.find_objects(answer["tables"]["key"], Item)
    with ThreadPoolExecutor(_PLANNERS) as threads:
        for planned in [
            threads.submit(plan_table, deployment, TableEvent(run_id=_RUN, started_ms=event.started_ms, item=item))
            for item in items
        ]:
            planned.result()
    stage = gather(deployment, RunEvent(run_id=_RUN, started_ms=event.started_ms))[Stage.COMPACTION.value]
    return deployment, Work.model_validate(deployment.control.read(stage["key"], stage["digest"]))


def _cpu_seconds() -> Mapping[str, float]:
    """Processor seconds so far of this process, Spark's processes of Java, and its workers in Python."""
    parents, used, commands = {}, {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            commands[int(folder.name)] = (folder / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    total = {"driver": sum(os.times()[:2]), "java": 0.0, "workers": 0.0}
    for pid, seconds in used.items():
        above = pid
        while above not in (os.getpid(), 0, 1):
            above = parents.get(above, 0)
        if above == os.getpid() != pid and not any(word in commands[pid] for word in _SERVERS):
            total["java" if "java" in commands[pid].partition("\0")[0] else "workers"] += seconds
    return total


@contextmanager
def _sampled() -> Iterator[Counter[str]]:
    """What the driver's threads do, by the innermost frames of this project, sampled all the time."""
    seen, ended = Counter[str](), threading.Event()

    def look() -> None:
        while not ended.wait(_TICK_S):
            for frame in sys._current_frames().values():
                names, inner = list[str](), f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"
                at: FrameType | None = frame
                while at is not None and len(names) < _FRAMES:
                    if "/icekeeper/" in at.f_code.co_filename:
                        names.append(f"{Path(at.f_code.co_filename).stem}.{at.f_code.co_name}")
                    at = at.f_back
                if names:
                    seen[" < ".join([inner, *names])] += 1

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        ended.set()
        watcher.join()


def _shares(seen: Counter[str]) -> list[tuple[str, float]]:
    total = max(1, seen.total())
    return [(frames, count / total) for frames, count in seen.most_common()]


if __name__ == "__main__":
    main()
