"""What a store that has moved, is busy, or takes the keys no more answers: each call fails, in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse

from icekeeper.errors import StorageError
from icekeeper.storage.multipart import bounded_output
from icekeeper.storage.storage import Storage

PROPERTIES = {"s3.endpoint": "http://127.0.0.1:1", "s3.access-key-id": "a", "s3.secret-access-key": "b"}
FILE, FOLDER = "s3://bucket/t/f", "s3://bucket/t"
RENEW = "; sign in again, or name a profile or role, whose keys are renewed"
CORRECT = "; the bucket is elsewhere: correct s3.region or s3.endpoint"
PAGE = (
    b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>on</NextContinuationToken>"
    b"<Contents><Key>t/a</Key><Size>1</Size></Contents></ListBucketResult>"
)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda seconds: None)


def store(*answers: tuple[int, bytes], **of: bytes) -> Storage:
    """Answers with these in turn, the last again; requests of operations in ``of`` with status 200 and this."""
    left = list(answers)

    def answer(event_name: str, **_: Any) -> AWSResponse:
        operation = event_name.rpartition(".")[2]
        if operation in of:
            status, body = 200, of[operation]
        else:
            status, body = left.pop(0) if len(left) > 1 else left[0]
        found = AWSResponse("http://127.0.0.1:1", status, {"ETag": '"1"', "Location": "http://127.0.0.1:2/"}, None)
        found._content = b"" if event_name.endswith("HeadObject") else body
        return found

    made = Storage({**PROPERTIES, "s3.region": "us-east-1"})
    made.s3.meta.events.register("before-send.s3", answer)
    return made


def error(code: str, message: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>".encode()


def upload(storage: Storage) -> None:
    with storage.translated(FILE), bounded_output(storage, FILE, 4) as sink:
        sink.write(bytes(9))


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
    ("status", "body", "told"),
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
def test_each_call_fails_in_one_sentence(status: int, body: bytes, told: str) -> None:
    for call in CALLS:
        with pytest.raises(StorageError, match=f"failed with {told}$"):
            call(store((status, body)))
    with pytest.raises(StorageError, match=f"{FILE} failed with {status}"):  # an answer to HEAD has no body
        store((status, body)).status(FILE)
    report = store((status, body)).delete([FILE])
    assert (report.deleted, list(report.failed)) == ((), [FILE])


@pytest.mark.parametrize("body", [error("InternalError"), error("SlowDown", "We failed")])
def test_an_error_with_status_200_is_one(body: bytes) -> None:
    """S3 answers so where it has begun to answer before it knew: copies and completions of uploads."""
    created = b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
    with pytest.raises(StorageError, match=r"failed with (InternalError|SlowDown: We failed)$"):
        upload(store((200, b""), CreateMultipartUpload=created, CompleteMultipartUpload=body))
    client = store((200, body)).s3
    copied = {"Bucket": "bucket", "Key": "t/f", "CopySource": "bucket/t/g", "UploadId": "1", "PartNumber": 1}
    with pytest.raises(client.exceptions.ClientError):
        client.upload_part_copy(**copied)


def test_keys_that_expire_amid_a_listing_do_not_end_it() -> None:
    """No file is judged by what was listed until then (rule 83, rule 137)."""
    storage = store((200, PAGE), (400, error("ExpiredToken")))
    listed = storage.list_folder(FOLDER)
    assert next(listed).path == f"{FOLDER}/a"
    with pytest.raises(StorageError, match=f"{FOLDER} failed with ExpiredToken{RENEW}"):
        next(listed)


def test_an_error_of_one_key_may_lack_words() -> None:
    told = b"<DeleteResult><Error><Key>t/f</Key><Code>InternalError</Code><Message/></Error></DeleteResult>"
    assert store((200, told)).delete([FILE]).transient == {FILE}
    told = b"<DeleteResult><Error><Key>t/f</Key><Code/><Message/></Error></DeleteResult>"
    assert store((200, told)).delete([FILE]).failed == {FILE: "failed with an error without a code"}
