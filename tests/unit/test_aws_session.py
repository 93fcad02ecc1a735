"""Throttling by AWS, and sources of credentials that never answer."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import CredentialRetrievalError, EndpointConnectionError

from icekeeper.aws import session as answer_in_time
from icekeeper.aws.session import aws_session
from icekeeper.catalogs.aws_service import AwsService
from icekeeper.catalogs.bucket_maintenance import S3TABLES_PREFIXES, TableBucketMaintenance, s3tables_client
from icekeeper.catalogs.configured import CatalogKind, ConfiguredCatalog
from icekeeper.catalogs.glue import GLUE, GlueCatalog
from icekeeper.catalogs.s3tables import S3_TABLES, S3TablesCatalog
from icekeeper.errors import PolicyError, StorageError
from icekeeper.model import TableName
from icekeeper.operation_facts import BuiltIn
from icekeeper.policy.ownership import BucketMaintenance

# A source of credentials that never answers is an error and does not block the process.


def test_a_credential_process_that_hangs_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text("[profile hangs]\ncredential_process = sleep 2\nregion = eu-central-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(answer_in_time, "ANSWERS_IN_S", 0.05)
    session = aws_session({"s3.profile-name": "hangs"})
    for request in (session.keys, lambda: session.client("s3"), session.keys):
        with pytest.raises(CredentialRetrievalError, match=r"it has not answered for 0\.05 s"):
            request()
    threads = [thread for thread in threading.enumerate() if thread.name == "credentials"]
    assert len(threads) == 1, "it is not asked again while it is silent"


def test_the_error_of_a_source_of_credentials_is_not_changed() -> None:
    def ask() -> None:
        raise TimeoutError("of the source")

    with pytest.raises(TimeoutError, match="of the source"):
        answer_in_time.Patience().ask(ask, "a source")


# Throttled requests are retried longer than other failures; a lasting throttle is an error.

ARN = "arn:aws:s3tables:eu-west-1:123456789012:bucket/lake"
TABLE = TableName(("ns",), "t")
PROPERTIES = {
    f"{prefix}.{key}": value
    for prefix in ("s3tables", "glue", "s3")
    for key, value in (("region", "eu-west-1"), ("access-key-id", "a"), ("secret-access-key", "b"))
}
THROTTLES = [
    (429, "TooManyRequestsException"),
    (503, "ServiceUnavailable"),
    (429, "WordToCome"),
    (400, "ThrottlingException"),
]


class Wire:
    """Answers every request of a client before it is sent, and records pauses instead of sleeping."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Callable[[], AWSResponse]) -> None:
        self.answers, self.sent, self.pauses_s = list(answers), list[str](), list[float]()
        sleep, mine = time.sleep, threading.get_ident()

        def pause(seconds: float) -> None:
            # time.sleep is shared: servers of other tests may wait in threads of this process.
            if threading.get_ident() == mine:
                self.pauses_s.append(seconds)
            else:
                sleep(seconds)

        monkeypatch.setattr("botocore.endpoint.time.sleep", pause)

    def plug(self, client: Any) -> Any:
        client.meta.events.register_first("before-send", self._answer)
        return client

    def _answer(self, request: Any, event_name: str, **_: Any) -> AWSResponse:
        self.sent.append(event_name.rpartition(".")[2])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return answer()


class _Body(io.BytesIO):
    def stream(self, **_: Any) -> Any:
        return iter(lambda: self.read(8192), b"")


def answer(status: int, code: str = "") -> Callable[[], AWSResponse]:
    """An answer with the error code in a header, as S3 Tables sends it, and in the body, as Glue does."""
    headers: Mapping[str, str] = {"x-amzn-errortype": code, "content-type": "application/json"} if code else {}
    body = json.dumps({"__type": code} if code else {"DatabaseList": []}).encode()
    return lambda: AWSResponse("https://aws.example", status, dict(headers), _Body(body))


def clients(service: AwsService, wire: Wire) -> Any:
    made = service.connect(PROPERTIES)
    wire.plug(made.repeating)
    wire.plug(made.once)
    return made


@pytest.mark.parametrize(("status", "code"), THROTTLES)
def test_a_throttle_of_seven_requests_is_overcome(monkeypatch: pytest.MonkeyPatch, status: int, code: str) -> None:
    wire = Wire(monkeypatch, *[answer(status, code)] * 7, answer(200))
    clients(GLUE, wire).repeating.get_databases()
    assert (wire.sent, len(wire.pauses_s)) == (["GetDatabases"] * 8, 7)
    # boto3's first pauses may be zero; each of ours is at least half of its maximum.
    assert sum(wire.pauses_s) > 0.5 * (4 + 4 * 8)


def test_other_failures_are_retried_three_times(monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(monkeypatch, answer(500, "InternalServerErrorException"))
    with pytest.raises(Exception, match="InternalServerErrorException"):
        clients(S3_TABLES, wire).repeating.list_table_buckets()
    assert len(wire.sent) == 3

    def refuse() -> AWSResponse:
        raise EndpointConnectionError(endpoint_url="https://aws.example")

    wire = Wire(monkeypatch, refuse)
    with pytest.raises(EndpointConnectionError):
        clients(S3_TABLES, wire).repeating.list_table_buckets()
    assert len(wire.sent) == 3


@pytest.mark.parametrize(("status", "code"), THROTTLES)
def test_a_throttled_swap_is_sent_only_once(monkeypatch: pytest.MonkeyPatch, status: int, code: str) -> None:
    """A repeated swap could conflict with its own first attempt (rule: send-commits-once)."""
    wire = Wire(monkeypatch, answer(status, code))
    with pytest.raises(Exception, match="UpdateTableMetadataLocation"):
        clients(S3_TABLES, wire).once.update_table_metadata_location(
            tableBucketARN=ARN, namespace="ns", name="t", versionToken="1", metadataLocation="s3://b/m.json"
        )
    assert wire.sent == ["UpdateTableMetadataLocation"]


@pytest.mark.parametrize(("status", "code"), THROTTLES)
def test_a_lasting_throttle_is_an_error_and_not_a_missing_table(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str
) -> None:
    """A missing table is skipped silently; a failed lookup is an error
    (rule: throttles-are-failures)."""
    wire = Wire(monkeypatch, answer(status, code))
    tables = S3TablesCatalog(ConfiguredCatalog("lake", CatalogKind.S3_TABLES, {**PROPERTIES, "warehouse": ARN}))
    glue = GlueCatalog(ConfiguredCatalog("glue", CatalogKind.GLUE, PROPERTIES))
    for catalog in (tables, glue):
        wire.plug(catalog._clients.repeating)
        for act in (lambda catalog=catalog: catalog.load(TABLE), lambda catalog=catalog: list(catalog.list_tables())):
            with pytest.raises(StorageError) as caught:
                act()
            assert not isinstance(caught.value, PolicyError)
            assert code in str(caught.value)


def maintenance(wire: Wire) -> TableBucketMaintenance:
    client = s3tables_client(PROPERTIES, aws_session(PROPERTIES, S3TABLES_PREFIXES))
    return TableBucketMaintenance(ARN, lambda: wire.plug(client), PROPERTIES)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_unreadable_bucket_maintenance_is_an_error(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """Otherwise, a throttle would count as maintenance by the bucket, and the pass would skip every operation."""
    bucket = maintenance(Wire(monkeypatch, answer(status, "TooManyRequestsException")))
    message = f"^the maintenance of table bucket {ARN} cannot be read: S3 Tables failed with TooManyRequestsException$"
    with pytest.raises(StorageError, match=message):
        bucket.read(TABLE)
    with pytest.raises(StorageError, match=message):
        bucket.with_jobs(BucketMaintenance(), TABLE)
    with pytest.raises(StorageError, match=r"^its settings cannot be read: the maintenance of table bucket "):
        bucket.disable(TABLE, BuiltIn.COMPACTION)


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (403, "AccessDeniedException", "S3 Tables was refused by the store (AccessDeniedException)"),
        (403, "ForbiddenException", "S3 Tables failed with ForbiddenException"),
        (404, "NotFoundException", "S3 Tables failed with NotFoundException"),
    ],
)
def test_permanent_refusals_are_reported_without_waiting(
    monkeypatch: pytest.MonkeyPatch, status: int, code: str, words: str
) -> None:
    wire = Wire(monkeypatch, answer(status, code))
    bucket = maintenance(wire)
    assert (bucket.read(TABLE).is_enabled, bucket.read(TABLE).unreadable) == ({}, dict.fromkeys(BuiltIn, words))
    assert bucket.with_jobs(BucketMaintenance(), TABLE) == BucketMaintenance(jobs_unreadable=words)
    assert wire.pauses_s == []
