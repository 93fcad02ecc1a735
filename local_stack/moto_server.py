"""AWS without AWS: moto's server on loopback, as S3, S3 Tables and Glue."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto import backends
from moto.moto_server import threaded_moto_server
from moto.moto_server.werkzeug_app import DomainDispatcherApplication
from moto.server import ThreadedMotoServer

from local_stack import gate, moto_glue, moto_s3tables
from local_stack.moto_connections import KeptConnection

REGION = "us-east-1"


@dataclass(frozen=True)
class MotoServer:
    """A server that runs, and what clients and catalogs need to reach it."""

    endpoint: str

    def client(self, service: str, access_key: str = "testing") -> Any:
        """A client of an operator, who may do everything, or of who has another key."""
        return boto3.client(
            service,
            endpoint_url=self.endpoint,
            region_name=REGION,
            aws_access_key_id=access_key,
            aws_secret_access_key="testing-secret",
        )

    @property
    def s3_properties(self) -> dict[str, str]:
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing-secret",
            "s3.region": REGION,
        }

    @property
    def glue_properties(self) -> dict[str, str]:
        """PyIceberg's properties for the Glue Data Catalog of this server."""
        return {
            "type": "glue",
            "glue.endpoint": self.endpoint,
            "client.region": REGION,
            "client.access-key-id": "testing",
            "client.secret-access-key": "testing-secret",
            "py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO",
            **self.s3_properties,
        }


@functools.cache
def _answer_sooner() -> None:
    """Remove moto's largest costs.  For each request it lists its own folder on disk and tries 200 patterns under a
    lock, which takes most of its time.  It also closes each connection after an answer, which takes a third of the
    remaining CPU time."""
    modules = tuple(backends.list_of_moto_modules())
    backends.list_of_moto_modules = lambda: modules
    by_host = functools.lru_cache(maxsize=256)(DomainDispatcherApplication.get_backend_for_host)
    DomainDispatcherApplication.get_backend_for_host = by_host  # type: ignore[method-assign]  # a cache around it
    threaded_moto_server.MotoRequestHandler = KeptConnection  # type: ignore[attr-defined]  # of each server


@contextmanager
def running_moto() -> Iterator[MotoServer]:
    """A server of this process, on a free port, with what is added to moto, and the gate in front of it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    _answer_sooner()
    moto_s3tables.install()
    moto_glue.install()
    gate.install()
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield MotoServer(f"http://{host}:{port}")
    finally:
        server.stop()
