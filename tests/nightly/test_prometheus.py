"""A real Prometheus has data of ``icekeeper run`` for every query of the dashboard; alerts ring when they must."""

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
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.errors import StorageError
from icekeeper.report.metrics import StateMetrics
from icekeeper.state.open import open_state
from icekeeper.storage.storage import Storage
from support.command import LOCAL, Command, local_path

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "docs" / "examples" / "grafana-dashboard.json"
ALERTS = ROOT / "docs" / "examples" / "alerts.yml"
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


def test_every_query_of_the_dashboard_has_data_and_alerts_ring(tmp_path: Path, bucket: dict[str, str]) -> None:
    prometheus = shutil.which("prometheus")
    assert prometheus, "install it: apt-get install prometheus"
    metrics, own = free_port(), free_port()
    (tmp_path / "prometheus.yml").write_text(
        f"global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: ['{ALERTS}']\n"
        f"scrape_configs: [{{job_name: icekeeper, static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]}}]\n"
    )
    icekeeper = str(Path(sys.executable).parent / "icekeeper")
    served = (icekeeper, "run", "--catalog", "lake", "--engine", "local", "--http", str(metrics))
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
    queries.append('ALERTS{alertstate="firing",table="ns.wrong",state="trouble"}')
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


# The alerts, tried by promtool with what the command serves.

BEGIN = 300
"""The minute since 1970 at which a story begins, so that a time of 0 is long ago."""
Ringing = tuple[str, ...]
"""The name of an alert, and its catalog, table and state, or operation."""


class Story:
    """What Prometheus scrapes each minute, and which alerts must ring when."""

    def __init__(self) -> None:
        self.minute = 0
        self.series: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self.tests: list[dict[str, Any]] = []
        self._moments: dict[str, int] = {}

    def scrape(self, minutes: int) -> None:
        """Scrape what the command serves now; a moment of the state is that of its first scrape."""
        text = StateMetrics(open_state(os.environ), ["C"]).text()
        for line in text.splitlines():
            series, _, amount = line.rpartition(" ")
            if series.startswith("#"):
                continue
            if "_timestamp_seconds{" in series and float(amount):
                amount = str(60 * self._moments.setdefault(amount, BEGIN + self.minute))
            self._add(series, amount, minutes)
        self._add('up{job="icekeeper"}', "1", minutes)
        self.minute += minutes

    def miss(self, minutes: int, *, is_known: bool = True) -> None:
        """The process does not answer; unless ``is_known``, its target is gone, as that of a deleted pod."""
        if is_known:
            self._add('up{job="icekeeper"}', "0", minutes)
        self.minute += minutes

    def _add(self, series: str, amount: str, minutes: int) -> None:
        self.series[series] |= dict.fromkeys(range(self.minute, self.minute + minutes), amount)

    def rings(self, *alerts: Ringing) -> None:
        """At the last scrape, these alerts ring, and no others."""
        samples = []
        for name, *texts in alerts:
            names = ("catalog", "table", "state") if len(texts) == 3 else ("catalog", "operation")
            labels = {"alertname": name, **dict(zip(names, texts, strict=False))}
            samples.append({"labels": ",".join(f'{key}="{text}"' for key, text in labels.items()), "value": 1})
        self.tests.append(
            {
                "expr": 'count by (alertname, catalog, table, state, operation) (ALERTS{alertstate="firing"})',
                "eval_time": f"{BEGIN + self.minute - 1}m",
                "exp_samples": [{**sample, "labels": f"{{{sample['labels']}}}"} for sample in samples],
            }
        )

    def prove(self, folder: Path) -> None:
        promtool = shutil.which("promtool")
        assert promtool, "install it: apt-get install prometheus"
        given = [{"series": series, "values": self._values(amounts)} for series, amounts in self.series.items()]
        story = {"interval": "1m", "input_series": given, "promql_expr_test": self.tests}
        path = folder / "story.yml"
        path.write_text(json.dumps({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": [story]}))
        for call in (("check", "rules", str(ALERTS)), ("test", "rules", str(path))):
            done = subprocess.run([promtool, *call], capture_output=True, text=True, timeout=300, check=False)
            assert done.returncode == 0, done.stdout + done.stderr

    def _values(self, amounts: dict[int, str]) -> str:
        """In promtool's notation; a series that a scrape lacks is stale."""
        found = [amounts.get(minute, "stale") for minute in range(self.minute)]
        return " ".join((f"_x{BEGIN}", *found))


NOT_SCANNED = ("IcekeeperCatalogNotScanned", "C")
DOWN = ("IcekeeperDown",)
PASSES_FAIL = ("IcekeeperPassesFail", "C")


def trouble(table: str, state: str) -> Ringing:
    return ("IcekeeperTableInTrouble", "C", table, state)


def test_alerts_of_a_process_that_starts(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has half an hour for its first scan; later scans are missed after three hours and a half."""
    command.table(appends=1)
    story = Story()
    story.scrape(29)
    story.rings()
    assert command("detect").code == 0
    story.scrape(3 * 60)
    story.rings()
    story.scrape(35)
    story.rings(NOT_SCANNED)
    story.prove(tmp_path)
    without_a_scan = Story()
    monkeypatch.setenv("ICEKEEPER_STATE", str(tmp_path / "new.db"))
    without_a_scan.scrape(29)
    without_a_scan.rings()
    without_a_scan.scrape(3)
    without_a_scan.rings(NOT_SCANNED)
    without_a_scan.prove(tmp_path)


@pytest.mark.parametrize("is_known", [True, False])
def test_an_alert_of_a_dead_process(command: Command, tmp_path: Path, *, is_known: bool) -> None:
    command.table(appends=1)
    assert command("detect").code == 0
    story = Story()
    story.scrape(20)
    story.rings()
    story.miss(9, is_known=is_known)
    story.rings()
    story.miss(6, is_known=is_known)
    story.rings(DOWN)
    story.miss(12 * 60, is_known=is_known)
    story.rings(DOWN)
    story.scrape(29)
    story.rings()
    story.scrape(3)
    story.rings(NOT_SCANNED)
    story.prove(tmp_path)


def a_failed_pass(command: Command, story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first pass over the first table of a catalog fails."""
    story.scrape(5)
    command.table(appends=6)
    monkeypatch.setenv("ICEKEEPER_JOB_RETRY_LIMIT", "0")
    write = Storage.write

    def full(self: Storage, path: str, data: bytes) -> None:
        if path.endswith("-m1.avro") or "/snap-" in path:
            raise StorageError(f"{path}: no space left")
        write(self, path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Storage, "write", full)
        assert command("run", "--once", *LOCAL).code == 1
    story.scrape(5)
    story.rings(trouble("ns.t", "trouble"), PASSES_FAIL)


def test_alerts_of_the_first_failure(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    a_failed_pass(command, story, monkeypatch)
    assert command("run", "--once", *LOCAL).code == 0
    story.scrape(5)
    story.rings(PASSES_FAIL)
    story.scrape(3 * 60)
    story.rings()
    story.prove(tmp_path)


def test_an_alert_of_an_unreadable_table(command: Command, tmp_path: Path) -> None:
    """Whether it was ever read or not; it ends when the table is repaired."""
    command.table("ns.a", appends=1)
    command.table("ns.b", appends=1)
    command.register("file:///nowhere/metadata.json", "ns.never")
    story = Story()
    story.scrape(5)
    assert command("detect").code == 1
    story.scrape(1)
    story.rings(trouble("ns.never", "unreadable"))
    path = local_path(command.catalog.load_table("ns.a").metadata_location)
    kept = path.read_text()
    path.write_text("{")
    assert command("detect").code == 1
    story.scrape(1)
    story.rings(trouble("ns.a", "unreadable"), trouble("ns.never", "unreadable"))
    path.write_text(kept)
    assert command("detect").code == 1
    story.scrape(1)
    story.rings(trouble("ns.never", "unreadable"))
    story.prove(tmp_path)


def test_alerts_of_a_paused_table(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who pauses a table that fails knows of it."""
    story = Story()
    a_failed_pass(command, story, monkeypatch)
    assert command("pause", "ns.t", "--until", "48h").code == 0
    story.scrape(5)
    story.rings(PASSES_FAIL)
    assert command("detect").code == 0
    story.scrape(3 * 60)
    story.rings()
    story.prove(tmp_path)


def test_alerts_of_tables_that_wait_for_another(command: Command, tmp_path: Path) -> None:
    """Only the unreadable table rings, not those whose deletions wait for it."""
    eager = {"icekeeper.snapshot_retention_hours": "0", "icekeeper.max_snapshots_to_keep": "1"}
    for name in ("ns.a", "ns.b", "ns.c"):
        command.table(name, properties=eager)
    command.table("ns.never", appends=1)
    local_path(command.catalog.load_table("ns.never").metadata_location).write_text("{")
    story = Story()
    story.scrape(5)
    assert command("run", "--once", *LOCAL).code == 1
    waiting = {item["kind"]: item["message"] for item in command("health", "ns.a", "--json").json["warnings"]}
    assert waiting["deletions_wait"].startswith("ns.never of catalog C may need files of ns.a")
    story.scrape(10)
    story.rings(trouble("ns.never", "unreadable"))
    story.prove(tmp_path)
