"""The catalogs of a deployment: from its settings, its catalog file, and the account's table buckets."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from botocore.stub import Stubber

from icekeeper.catalogs.aws_service import AwsClients, AwsService
from icekeeper.catalogs.configured import recorded_catalog
from icekeeper.catalogs.load import connect, open_catalog
from icekeeper.errors import PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.pipeline.deployment import find_table_buckets, fleet_catalogs, parse_catalog_file
from icekeeper.storage.storage import Storage
from local_stack.moto_server import REGION, MotoServer
from support.proxies import closed_port
from support.tables import new_document


@pytest.fixture(autouse=True)
def aws(moto_server: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment as in a Lambda function, with moto's endpoint and no configuration files."""
    for name, value in {
        "AWS_ENDPOINT_URL": moto_server.endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing-secret",
        "AWS_REGION": REGION,
        "AWS_DEFAULT_REGION": REGION,
        "PYICEBERG_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def bucket(moto_server: MotoServer) -> str:
    """The ARN of a table bucket with the table ``ns.t``."""
    s3tables = moto_server.client("s3tables")
    arn: str = s3tables.create_table_bucket(name=f"fleet-{uuid.uuid4()}")["arn"]
    address = {"tableBucketARN": arn, "namespace": "ns", "name": "t"}
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    s3tables.create_table(**address, format="ICEBERG")
    pointer = s3tables.get_table_metadata_location(**address)
    location = pointer["warehouseLocation"]
    metadata = f"{location}/metadata/00000-{uuid.uuid4()}.metadata.json"
    Storage({}).write(metadata, json.dumps(new_document(location, 2)).encode())
    s3tables.update_table_metadata_location(**address, versionToken=pointer["versionToken"], metadataLocation=metadata)
    return arn


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def test_boto3_and_pyarrow_use_the_endpoint_of_the_environment(
    moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """boto3 reads it, PyArrow does not."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv(variable, moto_server.endpoint)
    name = f"plain-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=name)
    storage = Storage({})
    storage.write(f"s3://{name}/a/b", b"x")  # PyArrow
    assert storage.read(f"s3://{name}/a/b") == b"x"
    assert [item.path for item in storage.list(f"s3://{name}/a")] == [f"s3://{name}/a/b"]  # boto3
    monkeypatch.setenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")
    assert "default endpoint" in repr(Storage({}))
    monkeypatch.delenv("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    with closed_port() as endpoint:
        elsewhere = Storage({"s3.endpoint": endpoint, "s3.connect-timeout": "1"})
        with pytest.raises(StorageError, match=f"nothing answers at {endpoint}"):
            list(elsewhere.list(f"s3://{name}/a"))


def test_table_buckets_are_found_and_opened(bucket: str) -> None:
    assert bucket in set(find_table_buckets())
    found = {item.name: item for item in fleet_catalogs({"ICEKEEPER_TABLE_BUCKETS": "all"}, {})}
    name = bucket.rpartition("/")[2]
    recorded = recorded_catalog(found[name].id, {})
    assert recorded == found[name]
    table = TableName(("ns",), "t")
    for catalog in (connect(recorded, {}), open_catalog(bucket)):
        assert (catalog.id, list(catalog.list_tables())) == ((name, bucket), [table])
    after = catalog.commit(catalog.load(table), [], [{"action": "set-properties", "updates": {"a": "b"}}])
    assert catalog.load(table).metadata_location == after.metadata_location


def test_every_page_of_buckets_is_read_and_buckets_of_aws_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto returns one page without types."""
    unstubbed = AwsService.connect
    stubs: list[Stubber] = []

    def entry(name: str, kind: str | None) -> dict[str, str]:
        arn = f"arn:aws:s3tables:{REGION}:111122223333:bucket/{name}"
        base = {"name": name, "arn": arn, "ownerAccountId": "111122223333", "createdAt": "2026-01-01T00:00:00Z"}
        return base | ({"type": kind} if kind else {})

    def stubbed(service: AwsService, properties: dict[str, str]) -> AwsClients:
        clients = unstubbed(service, properties)
        stub = Stubber(clients.repeating)
        customers = {"type": "customer"}
        first = [entry("aaa", "customer"), entry("aws-s3", "aws")]
        stub.add_response("list_table_buckets", {"tableBuckets": first, "continuationToken": "n"}, customers)
        more = {**customers, "continuationToken": "n"}
        stub.add_response("list_table_buckets", {"tableBuckets": [entry("bbb", None)]}, more)
        stub.activate()
        stubs.append(stub)
        return clients

    monkeypatch.setattr(AwsService, "connect", stubbed)
    assert [arn.rpartition("/")[2] for arn in find_table_buckets()] == ["aaa", "bbb"]
    stubs[0].assert_no_pending_responses()


def test_a_failed_listing_of_buckets_keeps_the_configured_catalogs(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"ICEKEEPER_TABLE_BUCKETS": "all", "ICEKEEPER_CATALOGS": "lake"}
    configured = {"lake": {"type": "sql", "uri": "sqlite:///lake.db"}}
    with closed_port() as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3TABLES", endpoint)
        with pytest.raises(StorageError, match=r"^listing the table buckets cannot be reached: nothing answers at"):
            fleet_catalogs(settings, configured)
        messages: list[StorageError] = []
        served = fleet_catalogs(settings, configured, unreachable=messages.append)
    assert [item.name for item in served] == ["lake"]
    assert len(messages) == 1


def test_a_found_bucket_with_the_name_of_a_catalog_is_skipped() -> None:
    """Otherwise any user of the account who can create a table bucket could stop the maintenance of all tables."""
    settings = {"ICEKEEPER_TABLE_BUCKETS": "all", "ICEKEEPER_CATALOGS": "lake"}
    configured = {"lake": {"type": "sql", "uri": "sqlite:///lake.db"}}
    arn = "arn:aws:s3tables:eu-west-1:111122223333:bucket/"
    found = [f"{arn}lake", f"{arn}logs"]
    messages: list[StorageError] = []
    served = fleet_catalogs(settings, configured, find=lambda: found, unreachable=messages.append)
    assert [item.name for item in served] == ["lake", "logs"]
    assert [str(error) for error in messages] == [
        f"{arn}lake is left out: two catalogs of this deployment are named 'lake'; rename one of them"
    ]
    with pytest.raises(PolicyError, match="are named 'lake'"):
        fleet_catalogs(settings, configured, find=lambda: found)


def test_the_environment_overrides_the_catalog_file(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "max-workers: 3\ncatalog:\n  Lake:\n    type: sql\n    URI: sqlite:///old.db\n  g:\n    type: glue\n"
    parsed = parse_catalog_file(text, "s3://control/config/pyiceberg.yaml")
    assert parsed == {"lake": {"type": "sql", "uri": "sqlite:///old.db"}, "g": {"type": "glue"}}
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "sqlite:///new.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAPTOP__URI", "sqlite:///laptop.db")
    served = fleet_catalogs({}, parsed)
    assert [(a.name, a.properties.get("uri")) for a in served] == [("lake", "sqlite:///new.db"), ("g", None)]
    [named] = fleet_catalogs({"ICEKEEPER_CATALOGS": "laptop"}, parsed)
    assert named.name == "laptop"
    assert parse_catalog_file("", "x") == {}


@pytest.mark.parametrize("text", ["catalog: [\n", "catalog: lake\n", "catalog:\n  lake: x\n", "- a\n"])
def test_a_broken_catalog_file_is_named(text: str) -> None:
    with pytest.raises(PolicyError, match=r"^s3://control/config/pyiceberg\.yaml is not a catalog file: "):
        parse_catalog_file(text, "s3://control/config/pyiceberg.yaml")
