"""Answers that come from a proxy, are truncated, or are refusals (rule: trust-only-own-answers)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError, PaginationError

from icekeeper.catalogs.glue import GLUE
from icekeeper.catalogs.s3tables import S3_TABLES
from icekeeper.errors import StorageError
from icekeeper.state.dynamodb.table import DynamoTable, open_table
from icekeeper.state.identity import TableAddress
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.s3_objects import can_delete_s3, can_list_s3, few_if_allowed, list_s3
from icekeeper.storage.storage import Storage

# A proxy's success answers in place of a store, the state or a catalog are not accepted
# (rule: trust-only-own-answers).

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
PAGES = [b"", b"<html><body>Sign in</body></html>"]
TO = "s3://bucket/t/new"
UPLOAD = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
LISTED = (
    b'<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
    b"<IsTruncated>%s</IsTruncated><NextContinuationToken>on</NextContinuationToken>"
    b"<Contents><Key>t/%s</Key><Size>1</Size></Contents></ListBucketResult>"
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def answering(client: Any, bodies: Callable[[str], tuple[int, bytes]], **headers: str) -> None:
    """Answer each request with the status and body that ``bodies`` returns for its operation."""

    def answer(event_name: str, **_: Any) -> AWSResponse:
        operation = event_name.rpartition(".")[2]
        status, body = bodies(operation)
        found = AWSResponse("http://127.0.0.1:1", status, headers, None)
        found._content = b"" if operation == "HeadObject" else body
        return found

    client.meta.events.register("before-send", answer)


def store(*answers: bytes | tuple[int, bytes], of: Mapping[str, bytes] | None = None, etag: bool = False) -> Storage:
    """A store that gives these answers in turn and repeats the last; plain bodies, and those of the operations in
    ``of``, have status 200."""
    left = [(200, answer) if isinstance(answer, bytes) else answer for answer in answers]

    def next_of(operation: str) -> tuple[int, bytes]:
        if of and operation in of:
            return 200, of[operation]
        return left.pop(0) if len(left) > 1 else left[0]

    made = Storage({**PROPERTIES, "s3.region": "us-east-1"})
    answering(made.s3, next_of, Location="http://127.0.0.1:2/", **({"ETag": '"1"'} if etag else {}))
    return made


def upload(storage: Storage) -> None:
    with storage.translated(TO), bounded_output(storage, TO, 4) as sink:
        sink.write(bytes(9))


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
def test_a_write_answered_by_a_page_fails(page: bytes) -> None:
    with pytest.raises(StorageError, match=f"{TO} failed with NoETag: .* look for a proxy"):
        store(page).write(TO, b"metadata")
    store(page, etag=True).write(TO, b"metadata")


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
@pytest.mark.parametrize(
    ("answered", "lacks"),
    [
        ("CreateMultipartUpload", "InitiateMultipartUploadResult"),
        ("CompleteMultipartUpload", "CompleteMultipartUploadResult"),
    ],
)
def test_a_multipart_upload_answered_by_a_page_fails(answered: str, lacks: str, page: bytes) -> None:
    answers = {"CreateMultipartUpload": UPLOAD, answered: page}
    with pytest.raises(StorageError, match=f"{TO} failed with No{lacks}"):
        upload(store(b"", of=answers, etag=True))


def test_a_part_answered_by_a_page_fails() -> None:
    with pytest.raises(StorageError, match=f"{TO} failed with NoETag"):
        upload(store(UPLOAD))


@pytest.mark.parametrize("page", PAGES, ids=["empty", "page"])
def test_a_page_does_not_end_a_listing(page: bytes) -> None:
    """Unlisted files could show that other files are needed (rule: unreadable-deletes-less)."""
    with pytest.raises(StorageError, match="s3://bucket/t failed with NoListBucketResult"):
        list(store(LISTED % (b"true", b"a"), page).list_folder("s3://bucket/t"))
    passing = store(LISTED % (b"true", b"a"), page, LISTED % (b"false", b"b"))
    found = [item.path for item in passing.list_folder("s3://bucket/t")]
    assert found == ["s3://bucket/t/a", "s3://bucket/t/b"]


def state(body: bytes) -> DynamoTable:
    made = open_table(TableAddress("icekeeper", region="us-east-1", endpoint="http://127.0.0.1:1", profile=None))
    answering(made.client, lambda operation: (200, body))
    return made


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(lambda table: table.get("pin", "1"), id="an item that is not there"),
        pytest.param(lambda table: list(table.query("pins")), id="no items"),
        pytest.param(lambda table: table.put({"pk": "pin", "sk": "1"}), id="an item that is written"),
        pytest.param(lambda table: table.change("lease", "t", lambda found: {"holder": "us"}), id="a lease"),
    ],
)
@pytest.mark.parametrize("page", [*PAGES, b"[]"], ids=["empty", "page", "list"])
def test_the_state_rejects_a_page(
    page: bytes, asked: Callable[[DynamoTable], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with pytest.raises(StorageError, match=r"state table icekeeper cannot be used: .*look for a proxy"):
        asked(state(page))
    assert state(b"{}").get("pin", "1") is None


@pytest.mark.parametrize("page", [*PAGES, b"{}"], ids=["empty", "page", "object"])
def test_a_catalog_of_aws_rejects_a_page(page: bytes) -> None:
    """Otherwise Glue would seem to have no pointer after a commit, and the outcome would remain unknown
    (rule: metadata-decides-over-answers)."""
    keys = {"client.access-key-id": "a", "client.secret-access-key": "b", "client.region": "us-east-1"}
    glue, tables = GLUE.connect(keys).repeating, S3_TABLES.connect(keys).repeating
    answering(glue, lambda operation: (200, page))
    answering(tables, lambda operation: (200, page))
    arn = "arn:aws:s3tables:us-east-1:123456789012:bucket/lake"
    requests: list[tuple[Callable[..., Any], dict[str, str]]] = [
        (glue.get_table, {"DatabaseName": "ns", "Name": "t"}),
        (glue.get_tables, {"DatabaseName": "ns"}),
        (glue.get_databases, {}),
        (tables.list_tables, {"tableBucketARN": arn}),
        (tables.get_table_metadata_location, {"tableBucketARN": arn, "namespace": "ns", "name": "t"}),
    ]
    for ask, about in requests:
        with pytest.raises(ClientError, match="the answer does not come from the service"):
            ask(**about)


# An answer to a deletion that is not the store's: no file counts as deleted (rule: trust-only-own-answers).

PATHS = ("s3://bucket/a", "s3://bucket/b")
RESULT = b'<?xml version="1.0"?><DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">%s</DeleteResult>'


@pytest.mark.parametrize(
    ("body", "is_read"),
    [(b"", True), (PAGES[1], True), (b"<!doctype html><p>busy<br>", False), (RESULT[:-9], False)],
    ids=["empty", "page", "page that is no XML", "cut off"],
)
def test_an_answer_without_a_deletion_result_deletes_nothing(body: bytes, is_read: bool) -> None:
    report = store(body).delete(PATHS)
    assert (report.deleted, set(report.transient)) == ((), set(PATHS))
    if is_read:
        assert report.failed["s3://bucket/a"] == (
            "failed with NoDeleteResult: the answer does not come from a store, so the request counts as failed; "
            "look for a proxy that answers in place of the store"
        )


def test_a_result_without_errors_is_a_success() -> None:
    assert store(b"", RESULT % b"").delete(PATHS).deleted == PATHS
    locked = b"<Error><Key>a</Key><Code>AccessDenied</Code><Message>object lock</Message></Error>"
    report = store(RESULT % locked).delete(PATHS)
    assert (report.deleted, report.failed) == (
        ("s3://bucket/b",),
        {"s3://bucket/a": "was refused by the store (AccessDenied: object lock)"},
    )


@pytest.mark.parametrize("key", [b"", b"<Key>%61</Key>", b"<Key/>"], ids=["no key", "another spelling", "empty"])
def test_an_error_without_a_requested_key_is_an_error_of_all_keys(key: bytes) -> None:
    def error_of(code: bytes) -> bytes:
        return RESULT % (b"<Error>" + key + b"<Code>" + code + b"</Code></Error>")

    report = store(error_of(b"AccessDenied")).delete(PATHS)
    assert (report.deleted, set(report.failed)) == ((), set(PATHS))
    busy = error_of(b"SlowDown")
    assert store(busy, RESULT % b"").delete(PATHS).deleted == PATHS
    assert store(busy).delete(PATHS).transient == set(PATHS)


# Answers of a store that has moved, is busy, or rejects the keys: each call fails with a sentence.

FILE, FOLDER = TO, "s3://bucket/t"
RENEW = "; sign in again, or name a profile or role, whose keys are renewed"
CORRECT = "; the bucket is in another region or store: correct s3.region or s3.endpoint"


def error(code: str, message: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


CALLS: list[Callable[[Storage], object]] = [
    lambda storage: storage.write(FILE, b"x"),
    lambda storage: storage.read(FILE),
    lambda storage: list(storage.list(FOLDER)),
    lambda storage: storage.list_if_allowed(FOLDER),
    lambda storage: storage.can_list(FOLDER),
    lambda storage: storage.can_delete(FOLDER),
    upload,
]


@pytest.mark.parametrize(
    ("status", "body", "sentence"),
    [
        (400, error("ExpiredToken", "The provided token has expired."), f"ExpiredToken: .* has expired{RENEW}"),
        (403, error("ExpiredToken"), f"ExpiredToken{RENEW}"),
        (301, b"", f"301: Moved Permanently{CORRECT}"),
        (307, error("TemporaryRedirect"), f"TemporaryRedirect{CORRECT}"),
        (503, error("SlowDown", "Reduce your rate"), "SlowDown: Reduce your rate"),
        (409, error("OperationAborted"), "OperationAborted"),
        (400, error(""), "an error without a code"),
    ],
    ids=["expired", "expired without words", "moved", "moved for now", "busy", "met another", "no code"],
)
def test_each_call_fails_with_a_sentence(status: int, body: bytes, sentence: str) -> None:
    for call in CALLS:
        with pytest.raises(StorageError, match=f"failed with {sentence}$"):
            call(store((status, body), etag=True))
    with pytest.raises(StorageError, match=f"{FILE} failed with {status}"):  # a HEAD response has no body
        store((status, body)).status(FILE)
    report = store((status, body)).delete([FILE])
    assert (report.deleted, list(report.failed)) == ((), [FILE])


@pytest.mark.parametrize("body", [error("InternalError"), error("SlowDown", "We failed")])
def test_an_error_with_status_200_is_an_error(body: bytes) -> None:
    """S3 sends such answers to copies and completed uploads, where the status precedes the outcome."""
    with pytest.raises(StorageError, match=r"failed with (InternalError|SlowDown: We failed)$"):
        upload(store(b"", of={"CreateMultipartUpload": UPLOAD, "CompleteMultipartUpload": body}, etag=True))
    client = store(body).s3
    copied = {"Bucket": "bucket", "Key": "t/f", "CopySource": "bucket/t/g", "UploadId": "1", "PartNumber": 1}
    with pytest.raises(client.exceptions.ClientError):
        client.upload_part_copy(**copied)


def test_keys_that_expire_during_a_listing_fail_it() -> None:
    """No file is judged by the partial listing (rule: unreadable-deletes-less)."""
    listed = store(LISTED % (b"true", b"a"), (400, error("ExpiredToken"))).list_folder(FOLDER)
    assert next(listed).path == f"{FOLDER}/a"
    with pytest.raises(StorageError, match=f"{FOLDER} failed with ExpiredToken{RENEW}"):
        next(listed)


def test_an_error_of_a_key_may_lack_a_message() -> None:
    answer = RESULT % b"<Error><Key>t/new</Key><Code>InternalError</Code><Message/></Error>"
    assert store(answer).delete([FILE]).transient == {FILE}
    answer = RESULT % b"<Error><Key>t/new</Key><Code/><Message/></Error>"
    assert store(answer).delete([FILE]).failed == {FILE: "failed with an error without a code"}


# Truncated listings, and rights that a bucket denies (rule: unreadable-deletes-less).

ON = b"<NextContinuationToken>on</NextContinuationToken>"
PAGE = b"<ListBucketResult>%s<Contents><Key>t/a</Key><Size>1</Size></Contents></ListBucketResult>"


@pytest.mark.parametrize(
    "goes_on",
    [b"<IsTruncated>true</IsTruncated>", b"<IsTruncated>true</IsTruncated>" + ON, ON],
    ids=["no way on", "the same page again", "a way on, without a word whether there is more"],
)
def test_a_truncated_listing_is_an_error(goes_on: bytes) -> None:
    """Unlisted files may need other files."""
    with pytest.raises(PaginationError):
        list(list_s3(store(PAGE % goes_on).s3, FOLDER))


Ask = Callable[[Any, str], bool]
ASKED: dict[str, Ask] = {
    "list": lambda client, bucket: can_list_s3(client, bucket, "t/"),
    "few": lambda client, bucket: few_if_allowed(client, f"s3://{bucket}/t")[0],
    "delete": lambda client, bucket: can_delete_s3(client, bucket, "t/"),
}
BY_KEY = RESULT % b"<Error><Key>k</Key><Code>%s</Code></Error>"


def refusing(ask: str, code: str, status: int) -> list[tuple[Ask, Any]]:
    """The call and clients that refuse it; a batch of deletions is also refused by an error of its only key."""
    clients = [store((status, error(code))).s3]
    if ask == "delete":
        clients.append(store(BY_KEY % code.encode()).s3)
    return [(ASKED[ask], client) for client in clients]


@pytest.mark.parametrize("ask", ASKED)
def test_a_missing_right_is_reported_once(ask: str, caplog: pytest.LogCaptureFixture) -> None:
    """Only a table bucket removes such files itself (rule: throttles-are-failures)."""
    right = "s3:DeleteObject" if ask == "delete" else "s3:ListBucket"
    for number, (call, client) in enumerate(refusing(ask, "AccessDenied", 403)):
        bucket = f"denied-{ask}-{number}"
        caplog.clear()
        assert [call(client, bucket) for _ in range(3)] == [False] * 3
        assert caplog.messages == [
            f"unneeded files remain in s3://{bucket}, because a permission is missing: allow {right}"
        ]


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize(
    ("bucket", "code", "status"),
    [("quiet", "MethodNotAllowed", 405), ("x--table-s3", "AccessDenied", 403), ("quiet", "NotImplemented", 501)],
)
def test_a_bucket_that_cleans_itself_is_not_reported(
    ask: str, bucket: str, code: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    for call, client in refusing(ask, code, status):
        assert not call(client, bucket)
    assert caplog.messages == []


@pytest.mark.parametrize("ask", ASKED)
@pytest.mark.parametrize(("code", "status"), [("SlowDown", 503), ("InternalError", 500), ("TooManyRequests", 429)])
def test_a_throttle_is_not_a_refusal(ask: str, code: str, status: int) -> None:
    for call, client in refusing(ask, code, status)[:1]:
        with pytest.raises(ClientError, match=code):
            call(client, "busy")
