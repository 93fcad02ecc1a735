"""Temporary AWS keys from any source are renewed before they expire."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from icekeeper.aws.session import aws_session
from icekeeper.aws.settings import current_properties
from icekeeper.catalogs.configured import ConfiguredCatalog
from icekeeper.catalogs.load import connect
from icekeeper.engines.spark_tasks import SparkTasks
from icekeeper.engines.worker_processes import worker_pool
from icekeeper.errors import PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.state.open import open_state
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage
from local_stack.moto_server import REGION, MotoServer
from support.expiring_reads import ReadTwice, read_twice
from support.guarded_aws import GuardedAws, guarded
from support.interrupted_process import wait_until
from support.maintained_table import NAME
from support.scripted_rest import ScriptedRest
from support.state_stores import a_table
from support.tables import new_document

# Keys of a machine, a profile or a role: a proxy in front of moto refuses expired keys, which expire during each test.

ROLE = {"client.role-arn": "arn:aws:iam::123456789012:role/reader"}
# Properties, and the role whose keys sign the requests.
WAYS: Mapping[str, tuple[dict[str, str], str]] = {
    "machine": ({}, "machine"),
    "profile": ({"client.profile-name": "person"}, "person"),
    "role": (ROLE, "reader"),
    "role of a profile": ({**ROLE, "client.profile-name": "person"}, "reader"),
    "profile with a role": ({"client.profile-name": "assumes"}, "writer"),
}


@pytest.fixture
def aws(moto_server: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedAws]:
    """No keys in the environment; the profile ``person`` has a credential process, and ``assumes`` a role."""
    with guarded(moto_server) as door:
        door.surround(tmp_path, monkeypatch)
        yield door


@pytest.fixture
def bucket(aws: GuardedAws) -> str:
    return aws.new_bucket()


@pytest.mark.parametrize("way", WAYS)
def test_files_are_read_and_written_after_keys_expire(aws: GuardedAws, bucket: str, way: str) -> None:
    properties, who = WAYS[way]
    storage = Storage(properties)
    for content in (b"before", b"after"):
        storage.write(f"{bucket}/a", content)  # PyArrow
        assert storage.read(f"{bucket}/a") == content  # boto3
        with storage.open_input(f"{bucket}/a") as stream:  # PyArrow
            assert stream.read() == content
        assert [found.path for found in storage.list(bucket)] == [f"{bucket}/a"]
        aws.keys.expire()
    assert aws.refused == []
    assert aws.roles("s3", by_arrow=True) == aws.roles("s3", by_arrow=False) == {who}


def test_a_stream_is_read_to_its_end_after_its_keys_expire(aws: GuardedAws, bucket: str) -> None:
    storage, content = Storage({}), bytes(range(256)) * 40
    storage.write(f"{bucket}/a", content)
    with storage.open_input(f"{bucket}/a") as stream:
        got = stream.read(1000)
        aws.keys.expire()
        got += stream.read(2000)
        stream.seek(5000)
        aws.keys.expire()
        assert (got, stream.read()) == (content[:3000], content[5000:])
    assert aws.refused == []


def test_an_upload_continues_after_its_keys_expire(aws: GuardedAws, bucket: str) -> None:
    """Each part is signed with the keys that are current when it is sent."""
    storage, part = Storage({}), bytes(range(256)) * 4096 * 5  # 5 MiB, S3's minimum
    parts: list[str] = []
    aws.on_entry = lambda entry, address: parts.append(address) if "partNumber=" in address else None

    def arrived(count: int) -> bool:
        return len(parts) == count

    with storage.translated(f"{bucket}/a"), bounded_output(storage, f"{bucket}/a", room=4 * len(part)) as sink:
        for number in range(1, 8):
            sink.write(part)
            if number > 4:  # all parts are sent except the last, which is not full
                assert wait_until(partial(arrived, number - 1))
                aws.keys.expire()
    assert storage.read(f"{bucket}/a") == part * 7
    assert aws.refused == []
    assert aws.roles("s3", by_arrow=True) == set()


def test_an_object_replaced_between_two_keys_is_an_error(aws: GuardedAws, bucket: str) -> None:
    storage = Storage({})
    storage.write(f"{bucket}/a", b"one" * 1000)
    with storage.open_input(f"{bucket}/a") as stream:
        stream.read(1000)
        storage.write(f"{bucket}/a", b"two" * 1000)
        aws.keys.expire()
        with pytest.raises(OSError, match="was replaced while it was read"):
            stream.read()


def test_keys_that_cannot_be_renewed_are_a_storage_error(aws: GuardedAws, bucket: str) -> None:
    storage = Storage({})
    storage.write(f"{bucket}/a", b"x")
    aws.keys.expire()
    aws.keys.life_s = -1  # the source issues expired keys
    for attempt in (storage.read, lambda path: storage.write(path, b"y")):
        with pytest.raises(StorageError, match="expired"):
            attempt(f"{bucket}/a")


def test_workers_renew_their_keys_themselves(aws: GuardedAws, bucket: str) -> None:
    """In a process of the local engine and in the function of Spark's workers; a pickled task contains no keys."""
    Storage({}).write(f"{bucket}/a", b"x")
    for way in ("machine", "role of a profile"):
        properties, who = WAYS[way]
        task = ReadTwice(properties, f"{bucket}/a", aws.keys.expiry_endpoint)
        assert b"ASIA" not in pickle.dumps(task)
        in_spark = SparkTasks(current=lambda: None, own_cores=1).mapping(read_twice)
        aws.forget()
        with worker_pool(1, read_twice) as pool:
            found = [*pool.submit(read_twice, task).result(), *in_spark(pickle.loads(pickle.dumps(task)))[0]]
        assert (found, aws.refused, aws.roles("s3")) == ([b"x"] * 8, [], {who})


@pytest.mark.parametrize("way", ["machine", "profile", "role of a profile"])
def test_catalogs_continue_after_keys_expire(aws: GuardedAws, moto_server: MotoServer, way: str) -> None:
    """Calls of the catalog, and reads and writes of metadata files."""
    properties, who = WAYS[way]
    s3tables = moto_server.client("s3tables")
    arn = s3tables.create_table_bucket(name=f"renewed-{uuid.uuid4()}")["arn"]
    address = {"tableBucketARN": arn, "namespace": "ns", "name": "t"}
    s3tables.create_namespace(tableBucketARN=arn, namespace=["ns"])
    s3tables.create_table(**address, format="ICEBERG")
    place = s3tables.get_table_metadata_location(**address)
    location = f"{place['warehouseLocation']}/metadata/00000-{uuid.uuid4()}.metadata.json"
    document = json.dumps(new_document(place["warehouseLocation"], 2)).encode()
    Storage(properties).write(location, document)
    s3tables.update_table_metadata_location(**address, versionToken=place["versionToken"], metadataLocation=location)
    aws.forget()
    catalog = connect(ConfiguredCatalog.of("lake", {"type": "s3tables", "warehouse": arn, **properties}))
    for value in ("1", "2"):
        base = catalog.load(TableName.parse("ns.t"))
        aws.keys.expire()
        done = catalog.commit(base, [], [{"action": "set-properties", "updates": {"a": value}}])
        assert done.metadata.properties["a"] == value
    assert (aws.refused, aws.roles("s3tables"), aws.roles("s3")) == ([], {who}, {who})


def test_the_state_store_continues_after_keys_expire(aws: GuardedAws, moto_dynamodb: MotoServer) -> None:
    table = a_table(moto_dynamodb)
    for profile, who in (("", "machine"), ("&profile=person", "person"), ("&profile=assumes", "writer")):
        aws.forget()
        address = f"dynamodb://{table.name}?region={REGION}&endpoint={aws.endpoint}{profile}"
        state = open_state({"ICEKEEPER_STATE": address})
        for holder in ("one", "two"):
            lease = state.leases.acquire("k", holder, now_ms=0, ttl_ms=60_000)
            aws.keys.expire()
            assert state.leases.release(lease)
        assert (aws.refused, aws.roles("dynamodb")) == ([], {who})


def test_anonymous_requests_are_not_signed(aws: GuardedAws, bucket: str) -> None:
    storage = Storage({"s3.anonymous": "true"})
    for attempt in (storage.read, lambda path: storage.open_input(path)):
        with pytest.raises(StorageError):
            attempt(f"{bucket}/a")
    assert (set(aws.refused), aws.let_in) == ({""}, [])


# Keys that a REST catalog vends, and keys that sign its requests.

HOUR_MS = 3_600_000


class Clock:
    now_ms = 4_000_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("session", "settings"):
        monkeypatch.setattr(f"icekeeper.aws.{module}.system_clock", clock)
    return clock


class Vending:
    """A catalog that vends keys for an hour, together with the properties ``more``."""

    def __init__(self, server: ScriptedRest, aws: GuardedAws, clock: Clock, more: Mapping[str, str]) -> None:
        self.answer, self.aws, self.clock, self.more = server.answer, aws, clock, more
        self.loads = 0
        self.vends = True
        server.answer = self  # type: ignore[method-assign]  # replaces the script

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        status, headers, text = self.answer(method, path, body)
        if method == "GET" and "/tables/" in path and status == 200:
            self.loads += 1
            text = json.dumps({**json.loads(text), "config": self.config()}).encode()
        return status, headers, text

    def config(self) -> dict[str, str]:
        vended = self.aws.keys.answer("of the table") if self.vends else {}
        names = {"access-key-id": "AccessKeyId", "secret-access-key": "SecretAccessKey", "session-token": "Token"}
        keys = {f"s3.{name}": vended[key] for name, key in names.items() if key in vended}
        expires = {"s3.session-token-expires-at-ms": str(self.clock() + HOUR_MS)} if keys else {}
        return {"s3.endpoint": self.aws.endpoint, "s3.region": REGION, **keys, **expires, **self.more}


def test_a_store_continues_with_newly_vended_keys(
    server: ScriptedRest, aws: GuardedAws, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    vending = Vending(server, aws, clock, {"client.role-arn": "arn:aws:iam::1:role/not-for-vended-keys"})
    path = f"{aws.new_bucket()}/a"
    monkeypatch.setenv(ALLOWED_PREFIXES, f"*={path}")
    storage = Storage(server.open().load(NAME).io_properties)
    client = storage.s3  # as a listing holds it
    for hour in range(3):
        storage.write(path, b"x")
        with storage.open_input(path) as stream:
            assert (storage.read(path), stream.read()) == (b"x", b"x")
        assert client.get_object(Bucket=path.split("/")[2], Key="a")["Body"].read() == b"x"
        assert vending.loads == 1 + hour  # only after the keys expire
        aws.keys.expire()
        clock.now_ms += HOUR_MS
    assert (aws.refused, aws.roles("s3")) == ([], {"of the table"})


def test_pickled_storage_has_the_current_keys(server: ScriptedRest, aws: GuardedAws, clock: Clock) -> None:
    vending = Vending(server, aws, clock, {})
    properties = server.open().load(NAME).io_properties
    assert current_properties(properties) == dict(properties)
    aws.keys.expire()
    clock.now_ms += HOUR_MS - 200_000
    now = current_properties(properties)
    assert now == {**properties, **vending.config()} != dict(properties)
    assert Storage(properties).__reduce__()[1][0] == now
    clock.now_ms += HOUR_MS
    vending.vends = False
    with pytest.raises(StorageError, match="it no longer vends keys"):
        current_properties(properties)


def test_keys_without_an_expiry_are_not_renewed(
    server: ScriptedRest, aws: GuardedAws, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    vending = Vending(server, aws, clock, {"s3.session-token-expires-at-ms": ""})
    path = f"{aws.new_bucket()}/a"
    monkeypatch.setenv(ALLOWED_PREFIXES, f"*={path}")
    properties = server.open().load(NAME).io_properties
    clock.now_ms += 2 * HOUR_MS
    assert current_properties(properties) == dict(properties)
    Storage(properties).write(path, b"x")
    assert vending.loads == 1


@pytest.mark.parametrize(
    ("properties", "who"),
    [
        ({}, "machine"),
        ({"client.profile-name": "person"}, "person"),
        ({"client.profile-name": "person", "client.role-arn": "arn:aws:iam::123456789012:role/reader"}, "reader"),
        (
            {
                "client.access-key-id": "AKIATEST",
                "client.secret-access-key": "secret-of-it",
                "client.role-arn": "arn:aws:iam::123456789012:role/reader",
            },
            "reader",
        ),
    ],
)
def test_requests_are_signed_with_keys_that_are_renewed(
    server: ScriptedRest, aws: GuardedAws, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str], who: str
) -> None:
    aws.own_keys["AKIATEST"] = "keys"
    signers: list[str] = []
    send = requests.Session.send

    def watched(self: Any, request: requests.PreparedRequest, **more: Any) -> requests.Response:
        answer = send(self, request, **more)
        key = str(request.headers["Authorization"]).partition("Credential=")[2].partition("/")[0]
        signers.append(aws.keys.roles.get(key, "expired"))
        return answer

    monkeypatch.setattr(requests.Session, "send", watched)
    catalog = server.open(**{"rest.sigv4-enabled": "true", "client.region": REGION, **properties})
    for _ in range(2):
        aws.keys.expire()
        catalog.load(NAME)
    assert signers == [who] * 3  # the server's configuration, and two loads
    assert aws_session(properties, ("client",)).client("s3").list_buckets()  # PyIceberg took nothing from it


def test_signing_without_a_region_is_a_named_error(
    server: ScriptedRest, aws: GuardedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PolicyError, match=r"no region is set: set rest\.signing-region$"):
        server.open(**{"rest.sigv4-enabled": "true"})
