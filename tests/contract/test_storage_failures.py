"""A store that cannot be reached, throttles, breaks off or refuses: one error of storage that names what failed."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

import pytest

from icekeeper.errors import StorageError
from icekeeper.storage.storage import Storage
from local_stack.moto_server import MotoServer
from support.proxies import closed_port, faulty_proxy


def test_what_a_missing_bucket_allows_is_an_error(moto_server: MotoServer) -> None:
    storage = Storage(moto_server.s3_properties)
    for ask in (storage.can_list, storage.can_delete):
        with pytest.raises(StorageError, match="s3://no-such-bucket/t failed with NoSuchBucket"):
            ask("s3://no-such-bucket/t")


def test_a_missing_bucket_says_nothing_of_an_object(moto_server: MotoServer) -> None:
    """It may be back tomorrow with all of them: none is taken for lost (rule 215)."""
    storage = Storage(moto_server.s3_properties)
    for read in (storage.read, lambda path: storage.open_input(path, 10), storage.open_input):
        with pytest.raises(StorageError, match="s3://no-such-bucket/t/x") as caught:
            read("s3://no-such-bucket/t/x")
        assert not storage.shows_missing("s3://no-such-bucket/t/x", caught.value)


def test_an_unreachable_endpoint_fails_soon_and_in_one_sentence(moto_server: MotoServer) -> None:
    with closed_port() as endpoint:
        storage = Storage({**moto_server.s3_properties, "s3.endpoint": endpoint})
        path = "s3://b/t/x"
        actions: list[Callable[[], object]] = [
            lambda: storage.read(path),
            lambda: storage.write(path, b"x"),
            lambda: storage.size(path),
            lambda: list(storage.list("s3://b/t")),
            lambda: storage.can_list("s3://b/t"),
            lambda: storage.can_delete("s3://b/t"),
        ]
        for action in actions:
            start = time.monotonic()
            with pytest.raises(StorageError, match=f"cannot be reached: nothing answers at {endpoint}$"):
                action()
            assert time.monotonic() - start < 15
        assert storage.delete([path]).failed == {path: f"cannot be reached: nothing answers at {endpoint}"}


def test_throttled_deletions_are_tried_again(moto_server: MotoServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icekeeper.storage.s3.time.sleep", lambda seconds: None)
    bucket = f"bucket-{uuid.uuid4()}"
    moto_server.client("s3").create_bucket(Bucket=bucket)
    storage = Storage(moto_server.s3_properties)
    paths = [f"s3://{bucket}/t/{i}" for i in range(3)]
    for path in paths:
        storage.write(path, b"x")
    original, calls = storage.s3.delete_objects, []

    def throttled(**arguments: object) -> dict[str, object]:
        """The first two answers lose the first key to throttling; the last key is locked for ever."""
        keys = [entry["Key"] for entry in arguments["Delete"]["Objects"]]  # type: ignore[index]
        calls.append(keys)
        errors = [{"Key": key, "Code": "AccessDenied", "Message": "locked"} for key in keys if key == "t/2"]
        errors += [{"Key": keys[0], "Code": "SlowDown", "Message": ""}] if len(calls) < 3 else []
        spared = {entry["Key"] for entry in errors}
        if spared != set(keys):
            rest = [{"Key": key} for key in keys if key not in spared]
            original(Bucket=bucket, Delete={"Objects": rest})
        return {"Errors": errors}

    monkeypatch.setattr(storage.s3, "delete_objects", throttled)
    report = storage.delete(paths)
    assert calls == [["t/0", "t/1", "t/2"], ["t/0"], ["t/0"]]
    assert report.deleted == tuple(paths[:2])
    assert report.failed == {paths[2]: "was refused by the store (AccessDenied: locked)"}
    assert report.transient == frozenset()
    assert [item.path for item in storage.list(f"s3://{bucket}/t")] == [paths[2]]


def test_wrong_credentials_are_an_error_that_keeps_the_secret(table_bucket: dict[str, str]) -> None:
    storage = Storage({**table_bucket, "s3.secret-access-key": "not-the-secret-key"})
    for action in (storage.read, storage.can_list, storage.can_delete, lambda path: list(storage.list(path))):
        with pytest.raises(StorageError) as caught:
            action(f"{table_bucket['warehouse']}ns/t")
        assert "not-the-secret-key" not in str(caught.value)
    assert "not-the-secret-key" not in repr(storage)


def test_a_connection_that_breaks_is_an_error_of_storage(moto_server: MotoServer) -> None:
    with faulty_proxy(moto_server.endpoint) as proxy:
        storage = Storage({**moto_server.s3_properties, "s3.endpoint": proxy.url})
        proxy.fault = b""
        with pytest.raises(StorageError, match="s3://b/x"):
            storage.read("s3://b/x")
        report = storage.delete(["s3://b/x"])
        assert list(report.failed) == ["s3://b/x"]
        assert report.transient == {"s3://b/x"}
