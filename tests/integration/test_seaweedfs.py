"""The real table bucket: usable, side by side, and gone afterwards."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from icekeeper.demo import seaweedfs as module
from icekeeper.demo.measure import TableChecksum, read_checksum, read_rows
from icekeeper.demo.seaweedfs import SeaweedFSServer, running_seaweedfs
from icekeeper.errors import StorageError
from support.interrupted_process import wait_for
from support.readers import canonical, duckdb_rows, pyiceberg_rows

ROWS = pa.table({"id": [1, 2, 3], "name": ["a", None, "c"]})


def listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def bucket_names(server: SeaweedFSServer) -> list[str]:
    answer = server.client("s3tables").list_table_buckets()
    return [bucket["name"] for bucket in answer.get("tableBuckets", [])]


def test_duckdb_reads_what_pyiceberg_wrote_to_a_table_bucket(table_bucket: dict[str, str]) -> None:
    catalog = load_catalog("bucket", **table_bucket)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.t", schema=ROWS.schema)
    table.append(ROWS)
    first = table.current_snapshot()
    assert first is not None
    before = read_checksum(table.metadata_location, s3=table_bucket)
    table.append(ROWS.slice(0, 1))

    location = table.metadata_location
    assert location.startswith(table_bucket["warehouse"])
    assert canonical(duckdb_rows(location, s3=table_bucket)) == canonical(
        pyiceberg_rows(location, properties=table_bucket)
    )
    assert len(read_rows(location, s3=table_bucket)) == 4
    assert read_checksum(location, s3=table_bucket, snapshot_id=first.snapshot_id) == before
    assert read_checksum(location, s3=table_bucket).rows == 4


def test_a_table_without_snapshots_has_no_rows(table_bucket: dict[str, str]) -> None:
    catalog = load_catalog("bucket", **table_bucket)
    catalog.create_namespace("ns")
    table = catalog.create_table("ns.empty", schema=ROWS.schema)
    assert read_checksum(table.metadata_location, s3=table_bucket) == TableChecksum(0, "0")


def test_a_bucket_name_can_be_taken_once_only(seaweedfs: SeaweedFSServer) -> None:
    seaweedfs.create_table_bucket("taken-name")
    with pytest.raises(StorageError, match="taken-name could not be created"):
        seaweedfs.create_table_bucket("taken-name")


def test_two_servers_side_by_side_know_nothing_of_each_other_and_leave_nothing_running(tmp_path: Path) -> None:
    with running_seaweedfs(tmp_path / "one") as one, running_seaweedfs(tmp_path / "two") as two:
        one.create_table_bucket("only-in-one")
        assert not set(one.ports) & set(two.ports)
        assert bucket_names(one) == ["only-in-one"]
        assert bucket_names(two) == []
    for server in (one, two):
        assert not alive(server.pid)
        assert not any(listening(port + offset) for port in server.ports for offset in (0, 10_000))
        assert not [
            path for path in Path("/tmp").glob("seaweedfs-*.sock") if str(server.ports[0] + 10_000) in path.name
        ]


def test_a_folder_opened_again_still_holds_its_tables(tmp_path: Path) -> None:
    with running_seaweedfs(tmp_path) as server:
        server.create_table_bucket("kept-bucket")
        catalog = load_catalog("first", **server.catalog_properties("kept-bucket"))
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", schema=ROWS.schema).append(ROWS)
    with running_seaweedfs(tmp_path) as server:
        table = load_catalog("second", **server.catalog_properties("kept-bucket")).load_table("ns.t")
        assert table.scan().to_arrow().num_rows == 3


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
def test_the_server_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time, pathlib\n"
        "from icekeeper.demo.seaweedfs import running_seaweedfs\n"
        "with running_seaweedfs(pathlib.Path(sys.argv[1])) as server:\n"
        "    print(server.pid, *server.ports, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, *ports = map(int, parent.stdout.readline().split())
        assert alive(pid)
        parent.send_signal(signal.SIGKILL)
    assert wait_for(lambda: not alive(pid), 60)
    module._remove_grpc_sockets(tuple(ports))  # which nobody was left to do


def test_a_server_that_ends_at_once_is_reported_with_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "weed"
    broken.write_text("#!/bin/sh\necho out of luck\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(module, "weed_binary", lambda: str(broken))
    with (
        pytest.raises(StorageError, match=r"(?s)ended with code 3 while starting.*out of luck"),
        running_seaweedfs(tmp_path / "data"),
    ):
        pass


def test_a_server_that_never_answers_is_given_up_and_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = tmp_path / "weed"
    silent.write_text("#!/bin/sh\necho $$ > pid\nexec sleep 600\n")
    silent.chmod(0o755)
    monkeypatch.setattr(module, "weed_binary", lambda: str(silent))
    with (
        pytest.raises(StorageError, match="did not get ready within 1 s"),
        running_seaweedfs(tmp_path / "data", start_timeout_s=1),
    ):
        pass
    assert not alive(int((tmp_path / "data" / "pid").read_text()))
