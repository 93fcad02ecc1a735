"""SeaweedFS's own worker: ``weed worker`` with its own ``weed admin``, which gets its tasks through HTTP.

It reads and writes through the filer's gRPC port, not through S3.  Both processes are the
contestant's: their CPU and memory are measured; those of the store, which everybody uses, are not.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.peers.serve import Answer, Task, serve
from icekeeper.demo.seaweedfs import GRPC_OFFSET, HOST, reserved_ports, weed_binary

_JOB_TYPE = "iceberg_maintenance"
_CONFIG = f"/api/plugin/job-types/{_JOB_TYPE}/config"
_START_TIMEOUT_S, _JOB_TIMEOUT_S = 30.0, 900.0
_MB = 1024 * 1024
_SERVERS = ExitStack()
_admins: dict[str, str] = {}
"""The address of the admin server by that of the master."""
_numbers = itertools.count()


def _call(address: str, body: Any = None, method: str | None = None, timeout_s: float = 5.0) -> Any:
    """What the admin server answers.

    Raises:
        RuntimeError: it refuses, in its words.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"}, method=method)
    try:
        # Past any proxy that the environment names.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        raise RuntimeError(text) from error


def _start(master: str, folder: Path) -> str:
    """Start both processes; the admin server's address, once the worker has registered."""
    (port,) = _SERVERS.enter_context(reserved_ports(1))
    # weed leaves it behind, and puts it there whatever TMPDIR says.
    socket = Path(f"/tmp/seaweedfs-admin-grpc-{port + GRPC_OFFSET}.sock")
    _SERVERS.callback(socket.unlink, missing_ok=True)
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(folder), "TMPDIR": str(folder)}
    admin = ["admin", f"-ip={HOST}", f"-port={port}", f"-master={master}", f"-dataDir={folder / 'admin'}"]
    worker = ["worker", f"-admin={HOST}:{port}", "-jobType=iceberg", f"-workingDir={folder / 'worker'}"]
    for command in ([*admin, "-iceberg.port=0", "-lance.port=0"], [*worker, f"-address={HOST}", f"-metricsIp={HOST}"]):
        process = subprocess.Popen([weed_binary(), *command], cwd=folder, env=environment, stdin=subprocess.DEVNULL)
        _SERVERS.callback(process.wait)
        _SERVERS.callback(process.kill)  # what they keep is scratch
    until, address = time.monotonic() + _START_TIMEOUT_S, f"http://{HOST}:{port}"
    while True:
        try:
            if _call(f"{address}/api/plugin/workers") and _call(address + _CONFIG).get("worker_config_values"):
                return address
        except (OSError, RuntimeError):
            pass
        if time.monotonic() > until:
            raise RuntimeError("SeaweedFS's worker did not register with its admin server")
        time.sleep(0.1)


def prepare(task: Task) -> Callable[[], Answer]:
    """Starts both processes unless they run, and says what is wanted."""
    if task["operation"] != "compact":
        raise ValueError(f"the suite does not drive SeaweedFS's {task['operation']}")
    store = task["worker"]
    if store["master"] not in _admins:
        folder = Path(task["scratch"]) / f"seaweedfs-worker-{os.getpid()}"
        for name in ("admin", "worker"):
            (folder / name).mkdir(parents=True)
        _admins[store["master"]] = _start(store["master"], folder)
    address = _admins[store["master"]]
    config = _call(address + _CONFIG)
    config["worker_config_values"] |= {
        "operations": {"string_value": "compact"},
        "target_file_size_mb": {"int64_value": str(task["target_bytes"] // _MB)},
        "min_input_files": {"int64_value": "2"},
    }
    _call(address + _CONFIG, config, "PUT")
    namespace, _, table = task["table"].partition(".")
    parameters = {
        "bucket_name": store["bucket"],
        "namespace": namespace,
        "table_name": table,
        "filer_address": store["filer"],
    }
    job = {
        "job_id": f"bench-{next(_numbers)}",
        "job_type": _JOB_TYPE,
        "parameters": {name: {"string_value": value} for name, value in parameters.items()},
    }

    def run() -> Answer:
        done = _call(f"{address}/api/plugin/jobs/execute", {"job": job}, timeout_s=_JOB_TIMEOUT_S)
        if not done.get("success"):
            raise RuntimeError(str(done.get("error_message")))
        return {"summary": done["result"]["summary"]}

    return run


if __name__ == "__main__":
    with _SERVERS:
        serve(prepare)
