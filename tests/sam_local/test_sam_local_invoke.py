"""``sam local invoke`` itself, as events/README.md says it: every event into its function, in a container."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from local_stack.stack import ROOT, LocalStack
from local_stack.template import REGION, TEMPLATE
from support.sam_environment import VARIABLES, keys_of, sam_cli, variables_of
from support.sent_events import NeedyTable, SentEvents
from support.stack_template import FUNCTIONS

# An image for ``sam local invoke`` of this machine's own making, and what its containers reach of this machine.

_OURS = "icekeeper-test-lambda"


def why_no_engine() -> str | None:
    """Why no container can be run on this machine; ``None`` if they can."""
    if shutil.which("docker") is None:
        return "sam local invoke needs Docker, and there is no command docker on this machine"
    told = subprocess.run(["docker", "info"], capture_output=True, text=True)
    return f"no engine answers the command docker: {told.stderr.strip()}" if told.returncode else None


def gateway() -> str:
    """The address of this machine as containers of the default network see it.

    Raises:
        AssertionError: this machine does not have it, as with Docker Desktop.
    """
    # An engine that has just been installed names the network only, whose first address is this machine's.
    subnet = _docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}").strip()
    found = str(ipaddress.ip_network(subnet)[1])
    with socket.socket() as one:
        try:
            one.bind((found, 0))
        except OSError as error:
            raise AssertionError(f"containers see this machine at {found}, which is not its address: {error}") from None
    return found


@contextmanager
def image_of(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """The name of an image with this file system and, in every container, these variables; it is removed at the end."""
    name = f"{_OURS}-{uuid.uuid4().hex[:12]}:local"
    variables = [f"ENV {key}={value}" for key, value in {**VARIABLES, **environment}.items()]
    changes = [part for line in (*variables, "WORKDIR /var/task") for part in ("--change", line)]
    packing = ["tar", "-C", str(root), "--numeric-owner", "--owner=0", "--group=0", "-c", "."]
    with subprocess.Popen(packing, stdout=subprocess.PIPE) as tar:
        subprocess.run(["docker", "import", *changes, "-", name], stdin=tar.stdout, check=True, capture_output=True)
    assert tar.returncode == 0
    try:
        yield name
    finally:
        built = _docker("images", "--quiet", "--filter", "reference=samcli/lambda-python").split()
        _docker("rmi", "--force", name, *set(built))


@contextmanager
def reachable_at(address: str, endpoint: str) -> Iterator[str]:
    """Where containers reach a server of this machine that listens on loopback only."""
    server = urlsplit(endpoint)
    with socket.create_server((address, 0)) as listening:
        thread = threading.Thread(target=_forward, args=(listening, (server.hostname, server.port)), daemon=True)
        thread.start()
        yield f"http://{address}:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def _forward(listening: socket.socket, server: tuple[str, int]) -> None:
    while True:
        try:
            client, _ = listening.accept()
        except OSError:
            return
        upstream = socket.create_connection(server)
        for one, other in ((client, upstream), (upstream, client)):
            threading.Thread(target=_copy, args=(one, other), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(1 << 16):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        source.close()
        target.close()


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], check=True, capture_output=True, text=True).stdout


def test_every_event_by_sam_local_invoke(
    lambda_root: Path, built_layer: Path, whole_stack: LocalStack, tmp_path: Path
) -> None:
    if (reason := why_no_engine()) is not None:
        pytest.skip(reason)
    table = NeedyTable(whole_stack, tmp_path)
    given = tmp_path / "environment.json"
    given.write_text(json.dumps(variables_of(whole_stack, "glue")))
    with (
        reachable_at(gateway(), whole_stack.moto.endpoint) as endpoint,
        image_of(lambda_root, {"AWS_ENDPOINT_URL": endpoint}) as image,
    ):

        def call(role: str, event: Any) -> Any:
            sent = tmp_path / "event.json"
            sent.write_text(json.dumps(event))
            command = [str(sam_cli()), "local", "invoke", FUNCTIONS[role][0], "--event", str(sent)]
            command += ["--env-vars", str(given), "--template", str(TEMPLATE), "--region", REGION]
            command += ["--invoke-image", image, "--skip-pull-image", "--layer-cache-basedir", str(tmp_path / "layers")]
            keys = {**os.environ, **keys_of(whole_stack, role), "SAM_CLI_TELEMETRY": "0"}
            told = subprocess.run(command, cwd=ROOT, env=keys, capture_output=True, text=True, timeout=600)
            assert told.returncode == 0, told.stderr
            answer = json.loads(told.stdout)
            assert not (isinstance(answer, dict) and "errorType" in answer), f"{told.stdout}\n{told.stderr}"
            return answer

        answers = SentEvents(whole_stack, call).all(table.name, table.catalog)
    table.has_had_its_pass(answers)
