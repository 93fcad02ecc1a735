"""Run the functions as Lambda does: SAM CLI's emulator, AWS's runtime client, the built layer, read-only, not root."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from local_stack.stack import ROOT, LocalStack
from support.rights_fleet import PARAMETERS
from support.sam_environment import EMULATOR, GROUP, USER, VARIABLES, as_sam_resolves
from support.sent_events import NeedyTable, SentEvents
from support.stack_template import FUNCTIONS, render

# One function as Lambda runs it, without a container engine: SAM CLI's emulator in a separate root.
#
# The function runs in Linux namespaces that end with it, so no mount remains.  All but ``/tmp`` is read-only; the
# function is not root and has no home and no shared memory.

# Quotas of Lambda: file descriptors and processes.
_START = """
set -e
chroot=$1 root=$2 task=$3 layer=$4 room=$5
mount --bind "$root" "$root"
mount -o remount,bind,ro "$root"
mount --bind "$task" "$root/var/task"
mount -o remount,bind,ro "$root/var/task"
mount --bind "$layer" "$root/opt"
mount -o remount,bind,ro "$root/opt"
mount -t tmpfs -o "mode=1777,size=${room}m" tmpfs "$root/tmp"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755 tmpfs "$root/dev"
for name in null zero full random urandom; do touch "$root/dev/$name"; mount --bind "/dev/$name" "$root/dev/$name"; done
mount -o remount,ro "$root/dev"
ulimit -n 1024
shift 5
exec "$chroot" --userspec="$USER_AND_GROUP" --groups= "$root" "$@"
"""
_START_S = 60.0


def why_not_possible() -> str | None:
    """The reason why functions cannot be emulated on this machine; ``None`` if they can."""
    missing = [name for name in ("unshare", "chroot", "ldd") if shutil.which(name) is None]
    if missing:
        return f"a root of its own needs {' and '.join(missing)}, of Linux"
    if os.geteuid() != 0:
        return "only root may give a function a root and a user of its own: run make sam-local as root"
    done = subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], capture_output=True, text=True)
    return f"no name space to be had: {done.stderr.strip()}" if done.returncode else None


@dataclass(frozen=True)
class EmulatedFunction:
    """A running function."""

    endpoint: str
    process: subprocess.Popen[bytes]
    log: Path

    def invoke(self, event: Any) -> Any:
        """Return its answer.

        Raises:
            AssertionError: The function failed; the message contains its log.
        """
        request = urllib.request.Request(
            self.endpoint, json.dumps(event).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            result = json.loads(answer.read())
        assert not (isinstance(result, dict) and "errorType" in result), f"{result}\n{self.log.read_text()}"
        return result

    @property
    def peak_mb(self) -> float:
        """The largest peak memory of its processes, including the emulator."""
        return max(_peak_kb(pid) for pid in _below(self.process.pid)) / 1024


@contextmanager
def emulated(
    root: Path, code: Path, layer: Path, environment: Mapping[str, str], room_mb: int = 512
) -> Iterator[EmulatedFunction]:
    """Start a function with the environment that SAM resolves; stop it at the end of the block."""
    ports = [_free_port(), _free_port()]
    flags = ["--runtime-interface-emulator-address", f"127.0.0.1:{ports[0]}"]
    flags += ["--runtime-api-address", f"127.0.0.1:{ports[1]}", "--log-level", "error"]
    log = root.parent / f"function-{ports[0]}.log"
    script = _START.replace("$USER_AND_GROUP", f"{USER}:{GROUP}")
    command = ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script, "sh"]
    command += [str(shutil.which("chroot")), str(root), str(code), str(layer), str(room_mb), EMULATOR, *flags]
    with log.open("wb") as written:
        process = subprocess.Popen(command, env={**VARIABLES, **environment}, stdout=written, stderr=subprocess.STDOUT)
    try:
        _wait_for(ports[0], process, log)
        address = f"http://127.0.0.1:{ports[0]}/2015-03-31/functions/function/invocations"
        yield EmulatedFunction(address, process, log)
    finally:
        # unshare --kill-child would not kill it, because it has changed its user.
        for pid in reversed(_below(process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _free_port() -> int:
    with socket.socket() as item:
        item.bind(("127.0.0.1", 0))
        port: int = item.getsockname()[1]
        return port


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with socket.socket() as item:
            if item.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, f"not there after {_START_S:g} s\n{log.read_text()}"
        time.sleep(0.02)


def _below(pid: int) -> list[int]:
    found = [pid]
    for children in list(Path(f"/proc/{pid}/task").glob("*/children")):
        for child in children.read_text().split():
            found += _below(int(child))
    return found


def _peak_kb(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")), 0)


TRIES = """
import multiprocessing, os, sys

def tried(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"

def handle(event, context):
    places = ("/var/task", "/opt", "/var/runtime", "/", "/home", "/tmp")
    return {
        "written": {place: tried(lambda: open(f"{place}/file", "w")) for place in places},
        "semaphore": tried(multiprocessing.Lock),
        "process": tried(lambda: os.kill(1, 0)),
        "user": os.getuid(),
        "home": [os.environ.get("HOME"), os.path.isdir(os.path.expanduser("~"))],
        "memory": context.memory_limit_in_mb,
        "path": sys.path[:3],
    }
"""


@pytest.fixture(autouse=True)
def possible() -> None:
    if (reason := why_not_possible()) is not None:
        pytest.skip(reason)


def test_an_emulated_function_has_lambdas_files_user_and_limits(lambda_root: Path, tmp_path: Path) -> None:
    """Source: AWS Lambda developer guide, "Understanding the Lambda execution environment lifecycle" and "Parallel
    processing in Python with AWS Lambda" (no ``/dev/shm``)."""
    code, layer = tmp_path / "code", tmp_path / "layer"
    for folder in (code, layer):
        folder.mkdir()
    tmp_path.chmod(0o755)
    (code / "tries.py").write_text(TRIES)
    environment = {"AWS_LAMBDA_FUNCTION_HANDLER": "tries.handle", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "512"}

    with emulated(lambda_root, code, layer, environment) as function:
        found = function.invoke({})

    refused = dict.fromkeys(("/var/task", "/opt", "/var/runtime", "/", "/home"), "OSError")
    assert found["written"] == {**refused, "/tmp": "done"}
    assert (found["semaphore"], found["user"], found["home"]) == ("FileNotFoundError", USER, [None, False])
    assert int(found["memory"]) == 512
    assert found["path"] == ["/var/task", "/opt/python/lib/python3.12/site-packages", "/opt/python"]
    assert list(code.iterdir()) == [code / "tries.py"]


def test_every_event_is_handled_in_a_root_like_lambdas(
    lambda_root: Path, built_layer: Path, whole_stack: LocalStack, tmp_path: Path
) -> None:
    table = NeedyTable(whole_stack, tmp_path)
    environments = as_sam_resolves(whole_stack, table.catalog, tmp_path)
    functions: dict[str, EmulatedFunction] = {}
    with ExitStack() as ending:

        def call(role: str, event: Any) -> Any:
            if role not in functions:
                started = emulated(lambda_root, ROOT / "functions", built_layer, environments[role])
                functions[role] = ending.enter_context(started)
            return functions[role].invoke(event)

        answers = SentEvents(whole_stack, call).all(table.name, table.catalog)
        peaks_mb = {role: function.peak_mb for role, function in functions.items()}

    table.has_had_its_pass(answers)
    described = render(PARAMETERS).of_type("AWS::Serverless::Function")
    room_mb = {role: int(described[logical_id]["MemorySize"]) for role, (logical_id, _) in FUNCTIONS.items()}
    assert set(peaks_mb) == set(FUNCTIONS)
    assert [role for role, peak in peaks_mb.items() if peak > 0.75 * room_mb[role]] == []
