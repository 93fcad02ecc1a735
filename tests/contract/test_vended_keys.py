"""Keys that a REST catalog vends, and keys that sign its requests: both are renewed before they expire."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog

from icekeeper.aws.session import aws_session
from icekeeper.aws.settings import current_properties
from icekeeper.errors import PolicyError, StorageError
from icekeeper.storage.allowed_locations import ALLOWED_PREFIXES
from icekeeper.storage.storage import Storage
from local_stack.moto_server import REGION, MotoServer
from support.guarded_aws import GuardedAws, guarded
from support.maintained_table import NAME, new_table
from support.scripted_rest import ScriptedRest, scripted_rest

HOUR_MS = 3_600_000


class Clock:
    now_ms = 4_000_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def aws(moto_server: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GuardedAws]:
    """No keys in the environment, and two profiles: one with a credential process, one that assumes a role by it."""
    with guarded(moto_server) as door:
        door.surround(tmp_path, monkeypatch)
        yield door


@pytest.fixture
def server(local_catalog: SqlCatalog, tmp_path: Path) -> Iterator[ScriptedRest]:
    with scripted_rest(new_table(local_catalog, tmp_path).catalog) as server:
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in ("session", "settings"):
        monkeypatch.setattr(f"icekeeper.aws.{module}.system_clock", clock)
    return clock


class Vending:
    """A catalog whose answers hold keys of an hour; ``more`` is what stands beside them."""

    def __init__(self, server: ScriptedRest, aws: GuardedAws, clock: Clock, more: Mapping[str, str]) -> None:
        self.answer, self.aws, self.clock, self.more = server.answer, aws, clock, more
        self.loads = 0
        self.vends = True
        server.answer = self  # type: ignore[method-assign]  # a script in its place

    def __call__(self, method: str, path: str, body: bytes) -> tuple[int, Mapping[str, str], bytes]:
        status, headers, text = self.answer(method, path, body)
        if method == "GET" and "/tables/" in path and status == 200:
            self.loads += 1
            text = json.dumps({**json.loads(text), "config": self.config()}).encode()
        return status, headers, text

    def config(self) -> dict[str, str]:
        said = self.aws.keys.answer("of the table") if self.vends else {}
        names = {"access-key-id": "AccessKeyId", "secret-access-key": "SecretAccessKey", "session-token": "Token"}
        keys = {f"s3.{name}": said[key] for name, key in names.items() if key in said}
        expires = {"s3.session-token-expires-at-ms": str(self.clock() + HOUR_MS)} if keys else {}
        return {"s3.endpoint": self.aws.endpoint, "s3.region": REGION, **keys, **expires, **self.more}


def test_a_store_goes_on_with_the_keys_that_the_catalog_vends_later(
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
        assert vending.loads == 1 + hour  # only when it must
        aws.keys.expire()
        clock.now_ms += HOUR_MS
    assert (aws.refused, aws.roles("s3")) == ([], {"of the table"})


def test_work_for_others_gets_the_keys_of_its_time(server: ScriptedRest, aws: GuardedAws, clock: Clock) -> None:
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
    with pytest.raises(StorageError, match="vends no others now"):
        current_properties(properties)


def test_keys_without_an_expiry_are_taken_as_they_are(
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


def test_signing_without_a_region_is_an_error_that_says_so(
    server: ScriptedRest, aws: GuardedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PolicyError, match=r"region is not known: set rest\.signing-region$"):
        server.open(**{"rest.sigv4-enabled": "true"})
