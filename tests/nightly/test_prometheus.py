"""A real Prometheus scrapes ``icekeeper run`` and has data for every query of the dashboard."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.catalog.sql import SqlCatalog

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "examples" / "grafana-dashboard.json"
PATIENCE_S = 90


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def running(*command: str, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    with (folder / f"{Path(command[0]).name}.log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
        try:
            yield
            assert process.poll() is None, (folder / log.name).read_text()
        finally:
            process.terminate()
            process.wait(30)


def answer(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return json.loads(response.read())
    except OSError:  # it does not listen yet
        return {}


@pytest.fixture
def bucket() -> Iterator[dict[str, str]]:
    """Properties of a bucket on a server in this process, because requests to a local folder are not counted."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    try:
        endpoint = "http://{}:{}".format(*server.get_host_and_port())
        keys = {"s3.access-key-id": "key", "s3.secret-access-key": "secret", "s3.region": "us-east-1"}
        own = {"endpoint_url": endpoint, "aws_access_key_id": "key", "aws_secret_access_key": "secret"}
        boto3.client("s3", "us-east-1", **own).create_bucket(Bucket="lake")
        yield {"warehouse": "s3://lake/w", "s3.endpoint": endpoint, **keys}
    finally:
        server.stop()


def a_lake(folder: Path, bucket: dict[str, str]) -> dict[str, str]:
    """Create a table that needs maintenance and a table with wrong settings; return the command's environment."""
    properties = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", **bucket}
    catalog = SqlCatalog("lake", **properties)
    catalog.create_namespace("ns")
    rows = pa.table({"id": [1, 2, 3]})
    eager = {"icekeeper.snapshot_retention_hours": "0", "icekeeper.max_snapshots_to_keep": "1"}
    for name, settings in (("ns.t", eager), ("ns.wrong", {"icekeeper.min_input_files": "many"})):
        table = catalog.create_table(name, rows.schema, properties=settings)
        for _ in range(6):
            table.append(rows)
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("PYICEBERG_", "ICEKEEPER_"))}
    named = {
        f"PYICEBERG_CATALOG__LAKE__{key.upper().replace('.', '__').replace('-', '_')}": text
        for key, text in properties.items()
    }
    return {**kept, **named, "HOME": str(folder), "ICEKEEPER_STATE": str(folder / "state.db")}


def test_every_query_of_the_dashboard_has_data(tmp_path: Path, bucket: dict[str, str]) -> None:
    prometheus = shutil.which("prometheus")
    assert prometheus, "install it: apt-get install prometheus"
    metrics, own = free_port(), free_port()
    (tmp_path / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        f"scrape_configs: [{{job_name: icekeeper, static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    )
    icekeeper = str(Path(sys.executable).parent / "icekeeper")
    served = (icekeeper, "run", "--catalog", "lake", "--engine", "local", "--metrics-port", str(metrics))
    environment = a_lake(tmp_path, bucket)
    # Metrics are computed at most once a minute; run the first pass before the server starts.
    subprocess.run([*served[:6], "--once"], env=environment, cwd=tmp_path, capture_output=True, timeout=60, check=False)
    scraping = (
        prometheus,
        "--config.file=prometheus.yml",
        f"--web.listen-address=127.0.0.1:{own}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
    )
    document = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    queries = [item.replace("$catalog", ".*").replace("$__rate_interval", "30s") for item in queries]
    with (
        running(*served, folder=tmp_path, environment=environment),
        running(*scraping, folder=tmp_path, environment=environment),
    ):
        until_s, lacking = time.monotonic() + PATIENCE_S, queries
        while lacking and time.monotonic() < until_s:
            time.sleep(1)
            lacking = [item for item in lacking if not results(own, item)]
        assert lacking == []
        assert [item["value"][1] for item in results(own, 'up{job="icekeeper"}')] == ["1"]


def results(port: int, query: str) -> list[Any]:
    found = answer(f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}")
    data: list[Any] = found.get("data", {}).get("result", [])
    return data
