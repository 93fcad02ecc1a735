"""``icekeeper doctor``: what it finds on a set-up that works, and what it says where a part does not."""

from __future__ import annotations

import uuid
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.storage.storage import DeleteReport, Storage
from local_stack.moto_server import MotoServer
from support.command import CATALOG, Command, local_path
from support.proxies import closed_port

OF_MACHINE = ["versions", "settings", "state", "engine"]


def details(command: Command, *arguments: str, catalog: str | None = CATALOG) -> dict[str, tuple[str, str]]:
    """Check → its status and detail, with the exit code that they imply."""
    answer = command("doctor", "--json", *arguments, catalog=catalog)
    document = answer.json
    found = {check["check"]: (check["status"], check["detail"]) for check in document["checks"]}
    has_failed = any(status == "failed" for status, _ in found.values())
    assert (answer.code, document["status"]) == ((1, "failed") if has_failed else (0, "succeeded"))
    return found


def test_a_set_up_that_works_is_described_and_nothing_changes(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ICEKEEPER_CORPUS", raising=False)  # of some runs of the tests
    table = command.table()
    before = command.contents()
    found = details(command)
    assert list(found) == [*OF_MACHINE, "catalog", "store", "clock", "write"]
    assert {status for status, _ in found.values()} == {"succeeded", "skipped"}
    assert found["settings"] == ("succeeded", "no policy file; variables: ICEKEEPER_STATE")
    assert found["state"] == ("succeeded", f"file {command.state} can be read and written")
    assert found["catalog"] == ("succeeded", "1 table; ns.t can be loaded")
    assert found["store"][1].startswith(f"lists and reads {table.location()} (")
    assert found["write"] == ("skipped", "--write checks it with a scratch file")
    lines = command("doctor").out.splitlines()
    assert [line.split()[:2] for line in lines[:4]] == [["ok", name] for name in OF_MACHINE]
    assert lines[-1].split()[:3] == ["skipped", "write", "C"]
    assert command.contents() == before


def test_the_scratch_file_is_written_read_and_removed(command: Command) -> None:
    table = command.table()
    before = command.contents()
    found = details(command, "--write")
    data = f"{table.location()}/data"
    assert found["write"] == ("succeeded", f"a scratch file in {data} was written, read and deleted")
    assert command.contents() == before


def test_a_scratch_file_that_stays_is_named(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    table = command.table()
    monkeypatch.setattr(Storage, "delete", lambda self, paths: DeleteReport((), dict.fromkeys(paths, "it is denied")))
    status, detail = details(command, "--write")["write"]
    (left,) = local_path(table.location()).glob("data/icekeeper-doctor-*.parquet")
    assert (status, left.read_bytes()) == ("failed", b"icekeeper doctor")
    assert detail.endswith(f"{left.name} cannot be deleted: it is denied; delete it")


def test_each_fault_is_reported_with_its_remedy_and_stops_no_other_check(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = command.table()
    Path(local_path(table.metadata_location)).write_text("{")
    policy = command.folder / "policy.yaml"
    policy.write_text("rules:\n- settings:\n    nope: 1\n")
    monkeypatch.setenv("ICEKEEPER_POLICY_FILE", str(policy))
    monkeypatch.setenv("ICEKEEPER_STATE", str(command.folder / "none" / "state.db"))
    found = details(command)
    assert [name for name, (status, _) in found.items() if status == "failed"] == ["settings", "state", "catalog"]
    assert "unknown policy key 'nope'" in found["settings"][1]
    assert "mount or make it, or correct ICEKEEPER_STATE" in found["state"][1]
    assert "cannot be parsed" in found["catalog"][1]
    assert found["catalog"][1].endswith("(icekeeper docs recovery)")
    answer = command("doctor")
    assert answer.err == ("error: 3 checks failed: settings, state, catalog C; the lines above say what to do\n")


def test_without_a_catalog_that_check_fails_and_an_unknown_catalog_is_a_wrong_call(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("doctor", "-c", "nope", catalog=None).code == 2
    for key in command.properties:
        monkeypatch.delenv(f"PYICEBERG_CATALOG__C__{key.upper()}")
    document = command("doctor", "--json", catalog=None).json
    (check,) = (found for found in document["checks"] if found["check"] == "catalog")
    assert (check["status"], document["status"]) == ("failed", "failed")
    assert check["detail"].endswith("none is configured; see icekeeper docs getting-started")


def test_a_clock_that_differs_from_the_stores_is_reported(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    command.table()
    monkeypatch.setattr("icekeeper.storage.storage.store_now_ms", lambda *_: 0)
    status, detail = details(command)["clock"]
    assert status == "failed"
    assert detail.endswith("; synchronise them (NTP)")


def test_keys_store_and_clock_of_an_s3_bucket(
    command: Command, moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"doctor-{uuid.uuid4().hex[:8]}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    properties = {**command.properties, "warehouse": f"s3://{bucket}", **moto_server.s3_properties}
    for key, value in properties.items():
        name = key.upper().replace(".", "__").replace("-", "_")
        monkeypatch.setenv(f"PYICEBERG_CATALOG__CLOUD__{name}", value)
    with closing(SqlCatalog("cloud", **properties)) as catalog:
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", pa.schema([("id", pa.int64())]))
    found = details(command, "--write", "-c", "cloud", catalog=None)
    assert list(found) == [*OF_MACHINE, "catalog", "credentials", "store", "clock", "write"]
    assert {status for status, _ in found.values()} == {"succeeded"}
    assert found["credentials"][1].startswith("key testing from the properties, ")
    assert found["credentials"][1].endswith(", region us-east-1")
    listed = moto_server.client("s3").list_objects_v2(Bucket=bucket)["Contents"]
    assert [item["Key"] for item in listed if "doctor" in item["Key"]] == []
    with closed_port() as endpoint:
        monkeypatch.setenv("PYICEBERG_CATALOG__CLOUD__S3__ENDPOINT", endpoint)
        found = details(command, "-c", "cloud", catalog=None)
    assert [name for name, (status, _) in found.items() if status == "failed"] == ["catalog"]
    assert f"nothing answers at {endpoint}" in found["catalog"][1]
