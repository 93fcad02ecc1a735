"""What people are told by a store that lets nobody in, and of a control bucket that is gone."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

import pytest

from icekeeper.errors import StorageError
from icekeeper.pipeline.control_bucket import ControlBucket
from icekeeper.storage.failures import failed_by_store
from icekeeper.storage.storage import Storage
from local_stack.moto_server import REGION, MotoServer
from support.proxies import served_by

ADVICE = r"sign in again, or name a profile or role, whose keys are renewed$"


@contextmanager
def expired_keys() -> Iterator[Storage]:
    """Keys that are given once and have expired: S3 answers 400, and to a HEAD no word more."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            told = b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
            body = b"" if self.command == "HEAD" else told
            self.send_response(400)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.session-token": "c", "s3.region": REGION}
    with served_by(Handler) as endpoint:
        yield Storage({**keys, "s3.endpoint": endpoint})


def test_keys_that_have_expired_are_told_by_every_way_to_read() -> None:
    """(platform 82)"""
    with expired_keys() as storage:
        for read in (
            lambda: storage.read("s3://lake/a"),  # boto3
            lambda: storage.size("s3://lake/a"),  # PyArrow
            lambda: list(storage.list("s3://lake/")),
        ):
            with pytest.raises(StorageError, match=ADVICE) as caught:
                read()
            assert failed_by_store(caught.value)  # not taken for a file that is gone or damaged


def test_a_control_bucket_that_is_gone_is_no_document_that_is_missing(moto_server: MotoServer) -> None:
    """(rule 192)"""
    keys = {"s3.access-key-id": "a", "s3.secret-access-key": "b", "s3.region": REGION}
    storage, name = Storage({**keys, "s3.endpoint": moto_server.endpoint}), f"control-{uuid.uuid4()}"
    control = ControlBucket(f"s3://{name}", storage)
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.find("runs/r/report.json")
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.find_hint("outgrown/t.json")
    with pytest.raises(StorageError, match=rf"^the control bucket {name} does not exist; correct "):
        control.write("runs/r/report.json", {})
    moto_server.client("s3").create_bucket(Bucket=name)
    assert control.find("runs/r/report.json") is None
